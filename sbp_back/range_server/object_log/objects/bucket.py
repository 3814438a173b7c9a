"""The object store as this log uses it, through obstore: reduces the answers of all stores to a few.

Calls block; make them on threads. A call that got no decisive answer raises ``OSError``: it may or may not have taken
effect.

``file://`` keeps objects as files, each made under another name and then linked, which is atomic; nothing is flushed,
so it survives the death of processes and not a loss of power: for tests.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from anabranch_kit.errors import StoreError
from anabranch_kit.memory.buffers import Buffer
from sbp_back.errors import DecodeError
from sbp_back.range_server.object_log.objects.content import HEAD_BYTES, ObjectHead, decode_head, key_of
from sbp_back.range_server.object_log.ownership.takeover import Takeover
from sbp_back.range_server.object_log.writer import Put
from sbp_back.range_server.store.stats import Requests

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")

_TIMEOUT = timedelta(seconds=15)
_LARGE_TIMEOUT = timedelta(seconds=60)
_LARGE_BYTES = 16 << 20
_CONNECT_TIMEOUT = timedelta(seconds=3)
PATIENCE = 30.0
"""Seconds to wait for a store that does not answer while a log is opened."""
OPERATIONS = ("put", "get", "list", "delete")
"""Operations as stores count and charge them; a deletion is of up to a thousand objects."""
AGAIN_SECONDS = 0.1
MOST_AGAIN_SECONDS = 2.0


def pauses() -> Iterator[float]:
    """Yield the seconds to wait before each further try: the back-off that a busy store asks for (503 SlowDown)."""
    seconds = AGAIN_SECONDS
    while True:
        yield seconds
        seconds = min(2 * seconds, MOST_AGAIN_SECONDS)


def again(work: Callable[[], T], seconds: float) -> T:
    """Call ``work`` until it succeeds and return its result. Raises ``FileNotFoundError`` at once, and other
    ``OSError`` after ``seconds``.
    """
    until = time.monotonic() + seconds
    waits = pauses()
    while True:
        try:
            return work()
        except FileNotFoundError:
            raise
        except OSError:
            pause = next(waits)
            if time.monotonic() + pause > until:
                raise
        time.sleep(pause)


class Bucket:
    """Objects below the prefix of ``url``: ``s3://bucket/prefix``, ``gs://``, ``az://``, ``file:///directory``.

    Credentials and endpoints come from the environment, as each kind of store defines them. Raises ``StoreError`` for a
    URL that leads nowhere, or where obstore is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as error:
            raise StoreError("object storage needs obstore: install anabranch[cluster]") from error
        self._obstore = obstore
        self._taken = obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError
        self.url = url
        self._prefix = ""
        self.requests = {operation: Requests() for operation in OPERATIONS}
        """All requests made through this bucket and those below it since it was opened."""
        self._counting = threading.Lock()
        self._store: ObjectStore
        self._large: ObjectStore
        """The same store with a longer time limit, for large objects."""
        # obstore must not retry: only the callers here know what a second try may find.
        retry = {"max_retries": 0, "retry_timeout": _TIMEOUT}
        parts = urlsplit(url)
        try:
            if parts.scheme == "file":
                if parts.netloc or not parts.path.strip("/"):
                    raise ValueError("a directory is wanted, as in file:///path")
                Path(parts.path).mkdir(parents=True, exist_ok=True)
                self._store = self._large = from_url(url)
            else:
                http = os.environ.get("AWS_ENDPOINT_URL", os.environ.get("AWS_ENDPOINT", "")).startswith("http://")
                client = {"connect_timeout": _CONNECT_TIMEOUT, "allow_http": http}
                # SHA-256 is half of the CPU time of a put, and TLS already protects the content.
                tls = parts.scheme in ("s3", "s3a") and not http and "AWS_UNSIGNED_PAYLOAD" not in os.environ
                config = {"unsigned_payload": True} if tls else None
                self._store, self._large = (
                    from_url(  # type: ignore[call-overload]
                        url, config=config, client_options={**client, "timeout": patience}, retry_config=retry
                    )
                    for patience in (_TIMEOUT, _LARGE_TIMEOUT)
                )
        except (ValueError, OSError, obstore.exceptions.BaseError) as error:
            raise StoreError(f"objects cannot be kept at {url!r}: {_first_line(error)}") from error

    def below(self, path: str) -> Bucket:
        """Return the objects whose names begin with ``path`` and a slash, by the rest of their names."""
        inner = copy(self)
        inner.url = f"{self.url.rstrip('/')}/{path}"
        inner._prefix = f"{self._prefix}{path}/"
        return inner

    @contextmanager
    def _answered(self, operation: str, what: str, sent: int = 0) -> Iterator[Callable[[int], None]]:
        """Count a request; call the yielded function with the bytes that the answer brings."""
        began, received, failed = time.perf_counter(), sent, True

        def count_bytes(count: int) -> None:
            nonlocal received
            received += count

        try:
            yield count_bytes
            failed = False
        except FileNotFoundError:
            failed = False
            raise
        except (self._obstore.exceptions.BaseError, OSError, ValueError) as error:
            raise OSError(errno.EIO, f"{what} at {self.url}: {_first_line(error)}") from error
        finally:
            with self._counting:
                counted = self.requests[operation]
                counted.failed += failed
                counted.answered += not failed
                counted.seconds += time.perf_counter() - began
                counted.bytes += received

    # --- single tries

    def put_if_absent(self, key: str, content: Buffer) -> bool:
        """Put an object; return False if there is one of that name. Raises ``OSError`` when the outcome is unknown."""
        with self._answered("put", f"putting {key}", len(content)), suppress(*self._taken):
            store = self._large if len(content) > _LARGE_BYTES else self._store
            self._obstore.put(store, self._prefix + key, content, mode="create", use_multipart=False)
            return True
        # S3 answers 409 ConditionalRequestConflict while another request for the key is under way, which obstore does
        # not tell from "there is one". So the object decides.
        with self._answered("get", f"looking for {key}"):
            try:
                self._obstore.head(self._store, self._prefix + key)
            except FileNotFoundError:
                raise OSError(errno.EAGAIN, "another request for it was under way") from None
        return False

    def directories(self, prefix: str) -> list[str]:
        """Return the names up to the next slash below ``prefix``. The listing may be stale. Raises ``OSError``."""
        with self._answered("list", f"listing {prefix}"):
            found = self._obstore.list_with_delimiter(self._store, prefix=self._prefix + prefix)
            return [path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]]

    def get(self, key: str) -> Buffer:
        """Return a whole object. Raises ``FileNotFoundError`` and other ``OSError``."""
        with self._answered("get", f"getting {key}") as count_bytes:
            content = memoryview(self._obstore.get(self._store, self._prefix + key).bytes())
            count_bytes(len(content))
            return content

    def get_range(self, key: str, begin: int, end: int) -> Buffer:
        """Return bytes ``[begin, end)``, fewer at the object's end. Raises ``FileNotFoundError``, other ``OSError``."""
        with self._answered("get", f"getting {key}") as count_bytes:
            content = memoryview(self._obstore.get_range(self._store, self._prefix + key, start=begin, end=end))
            count_bytes(len(content))
            return content

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, whether they exist or not. After ``OSError`` some of them may be gone."""
        with self._answered("delete", f"deleting {len(keys)} objects"):
            try:
                self._obstore.delete(self._store, [self._prefix + key for key in keys])
            except FileNotFoundError:
                for key in keys:  # a store of files stops at the first missing one
                    with suppress(FileNotFoundError):
                        self._obstore.delete(self._store, [self._prefix + key])

    def list(self, prefix: str) -> dict[str, int]:
        """Return the sizes of all objects below ``prefix``, which ends with a slash. It may be stale. Raises
        ``OSError``.
        """
        found: dict[str, int] = {}
        with self._answered("list", f"listing {prefix}"):
            for chunk in self._obstore.list(self._store, prefix=self._prefix + prefix):
                found.update((meta["path"][len(self._prefix) :], meta["size"]) for meta in chunk)
        return found

    # --- what is tried again until it is known

    def write_once(self, key: str, content: bytes, seconds: float) -> bytes:
        """Put ``content`` unless an object is there; return the content that is there then.

        Raises ``OSError`` when that is not known after ``seconds``.
        """
        return again(lambda: content if self.put_if_absent(key, content) else bytes(self.get(key)), seconds)

    def read_once(self, key: str) -> bytes | None:
        """Return what :meth:`write_once` has put; None if nothing. Raises ``OSError``."""
        try:
            return bytes(self.get_again(key, PATIENCE))
        except FileNotFoundError:
            return None

    # --- objects of logs

    def put_object(self, incarnation: int, number: int, content: Buffer) -> tuple[Put, ObjectHead | None]:
        """Put an object of a log if its number is free; with ``Put.TAKEN``, return also the head of the object that has
        it.

        Raises ``OSError`` instead of ``Put.UNKNOWN``.
        """
        if self.put_if_absent(key_of("", incarnation, number), content):
            return Put.CREATED, None
        return Put.TAKEN, self.head(incarnation, number)

    def head(self, incarnation: int, number: int) -> ObjectHead:
        """Return the head of an object of a log. Raises ``FileNotFoundError`` and other ``OSError``."""
        try:
            found = self.get_range(key_of("", incarnation, number), 0, HEAD_BYTES)
            return decode_head(found, incarnation, number)
        except DecodeError as error:
            raise OSError(errno.EIO, str(error)) from error

    def numbers(self, incarnation: int) -> dict[int, int]:
        """Return the sizes of the objects of a log by their numbers, as listed. Raises ``OSError``."""
        listed = self.list_again(f"log/{incarnation:016x}/", PATIENCE)
        return {int(key.rpartition("/")[2], 16): size for key, size in listed.items()}

    def put_again(self, key: str, content: Buffer, seconds: float) -> bool:
        """Put an object whose name nobody else uses. Return whether the last try has done it, rather than an earlier
        one whose answer was lost. Raises ``OSError`` when that is not done after ``seconds``.
        """
        return again(lambda: self.put_if_absent(key, content), seconds)

    def list_again(self, prefix: str, seconds: float) -> dict[str, int]:
        """List as :meth:`list` does, with retries. Raises ``OSError`` when there is no answer for ``seconds``."""
        return again(lambda: self.list(prefix), seconds)

    def get_again(self, key: str, seconds: float) -> Buffer:
        """Return a whole object. Raises ``FileNotFoundError``, and ``OSError`` after ``seconds`` without an answer."""
        return again(lambda: self.get(key), seconds)

    def end_log(self, incarnation: int, first: int, unique: bytes, seconds: float) -> int:
        """End a log and return the number at which it ends; see
        :class:`~sbp_back.range_server.object_log.ownership.takeover.Takeover`.

        Raises ``OSError`` when the store does not answer for ``seconds``.
        """
        takeover = Takeover(incarnation, first, unique, self.numbers(incarnation))
        while not takeover.put_ended(
            *again(lambda: self.put_object(incarnation, takeover.number, takeover.content()), seconds)
        ):
            pass
        return takeover.end


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
