"""Public keys of a token issuer (RFC 7517), from a file or a URL, read again when they may have changed.

An issuer changes its keys from time to time, so an unknown key id may be a new key. The key set is then requested
again, but at most every few seconds, whatever clients send.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import structlog

from anabranch_kit.net.http_get import MOST_BYTES, get
from anabranch_kit.run.barrier import Barrier
from bridges.auth.private_file import stamp
from bridges.auth.tokens import KeysError

if TYPE_CHECKING:
    from jwt import PyJWK

log = structlog.get_logger(__name__)

MOST_KEYS = 1000
_SOONEST_S = 10.0
"""Shortest time between two requests, whatever clients send."""
_PATIENCE_S = 10.0
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class KeySet:
    """The keys at one file or URL. Belongs to the event loop. ``clock`` returns monotonic seconds."""

    def __init__(self, place: str, refresh_s: float, clock: Callable[[], float], barrier: Barrier) -> None:
        self._place = place
        self._is_url = "://" in place
        self._refresh_s = refresh_s
        self._clock = clock
        self._barrier = barrier
        self._keys: dict[str | None, PyJWK] = {}
        self._stamp: object = None
        self._asked: float | None = None
        self._missed = False
        self.asking: asyncio.Task[None] | None = None

    def find(self, key_id: str | None) -> PyJWK | None:
        """Return the key with this id; without an id, the only key of the set. An unknown key causes a refresh soon."""
        key = self._keys.get(key_id)
        if key is None and key_id is None and len(self._keys) == 1:
            (key,) = self._keys.values()
        self._missed |= key is None
        return key

    async def load(self) -> None:
        """Read the keys for the first time.

        Raises KeysError if ``place`` is neither a file nor a URL that may be used, and for a file without keys. A URL
        that does not answer is requested again later.
        """
        if not self._is_url:
            await self._read()
            return
        address = urlsplit(self._place)
        if address.scheme != "https" and not (address.scheme == "http" and address.hostname in _LOCAL):
            raise KeysError(f"auth.oauth_keys: keys come from a file or by https, not from {self._place}")
        await self._ask()

    async def refresh(self) -> None:
        """Read the keys again if that is due; does not wait for a URL.

        An error is logged, and the known keys stay in force.
        """
        if not self._is_url:
            try:
                await self._read()
            except KeysError as error:
                log.error("could not read the keys of tokens; the former ones stay valid", reason=str(error))
            return
        asked = -self._refresh_s if self._asked is None else self._asked
        due = asked + (_SOONEST_S if self._missed or not self._keys else self._refresh_s)
        if self._clock() >= due and (self.asking is None or self.asking.done()):
            self.asking = asyncio.get_running_loop().create_task(self._ask(), name="keys of tokens")

    def close(self) -> None:
        """Cancel the request in flight."""
        if self.asking is not None:
            self.asking.cancel()

    async def _read(self) -> None:
        path = Path(self._place)
        try:
            now = stamp(path)
            if now is not None and now == self._stamp:
                return
            keys = await asyncio.to_thread(_file, path)
        except (OSError, ValueError) as error:
            raise KeysError(f"auth.oauth_keys: {path}: {error}") from None
        self._take(keys)
        self._stamp = now

    async def _ask(self) -> None:
        self._asked, self._missed = self._clock(), False
        try:
            status, body = await get(self._place, _PATIENCE_S)
            if status != 200:
                raise ValueError(f"the answer has status {status}")
            self._take(await asyncio.to_thread(parse, body))
        except (OSError, ValueError) as error:
            log.error(
                "could not read the keys of tokens; the former ones stay valid",
                place=self._place,
                reason=str(error) or repr(error),
            )
        except Exception as error:  # noqa: BLE001 - logged and counted; what was known stays
            self._barrier.caught("asking for keys of tokens", error)

    def _take(self, keys: dict[str | None, PyJWK]) -> None:
        if keys.keys() != self._keys.keys():
            log.info("keys of tokens were read", keys=len(keys))
        self._keys = keys


def _file(path: Path) -> dict[str | None, PyJWK]:
    with path.open("rb") as file:
        return parse(file.read(MOST_BYTES))


def parse(document: bytes) -> dict[str | None, PyJWK]:
    """Return the keys of a set that can check signatures, by key id. Other keys, secret ones among them, are skipped.

    Raises ValueError if no key is left.
    """
    from jwt import PyJWK, PyJWTError

    try:
        content = json.loads(document)
    except RecursionError:
        raise ValueError("this is no set of keys, but nested more deeply than any") from None
    listed: Any = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(listed, list):
        raise ValueError("this is no set of keys: it has no list of keys")
    keys: dict[str | None, PyJWK] = {}
    for one in listed[:MOST_KEYS]:
        # A key set is public. With an HMAC secret in it, everybody who can check a token could make one.
        if not isinstance(one, dict) or one.get("kty") == "oct" or one.get("use", "sig") != "sig":
            continue
        name = one.get("kid")
        try:
            keys[name if isinstance(name, str) else None] = PyJWK(one)
        except (PyJWTError, ValueError, TypeError, KeyError):
            continue  # an unsupported type of key
    if not keys:
        raise ValueError("the set has no key that signatures can be checked with")
    return keys
