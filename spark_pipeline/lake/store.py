"""The storage of an archive's files: a local directory, or a prefix in S3-compatible storage, by a URL.

S3's credentials and addresses come from the sources of AWS's own tools: ``AWS_ACCESS_KEY_ID``,
``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``, ``AWS_REGION``, ``AWS_ENDPOINT_URL`` (or ``AWS_ENDPOINT_URL_S3``),
profiles and roles. They are never stored in an archive, or sent with a job.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.fs as pafs

from spark_pipeline.core.errors import OptionError, PipelineError
from spark_pipeline.core.files import make_directory, replace

_NOT_IN_PATHS = "%?#"
"""Characters with a meaning in URLs. The libraries of Delta and Iceberg take a directory as a URL, pyarrow as a path:
with one of these characters the table's log would lie elsewhere than its files."""


def _s3_address() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


@dataclass(frozen=True, slots=True)
class Store:
    """A directory, and the access that three libraries have to it. Picklable, by its URL alone.

    ``url`` is ``file:///absolute/path`` or ``s3://bucket/prefix``, without a slash at its end.
    """

    url: str

    @classmethod
    def at(cls, place: str) -> Store:
        """Return the store at a path or URL. Raises OptionError for another scheme, or a path that needs escapes."""
        parts = urlsplit(place)
        if parts.scheme in {"", "file"}:
            path = unquote(parts.path) if parts.scheme else place
            whole = str(Path(path).expanduser().resolve())
            if any(one in whole for one in _NOT_IN_PATHS):
                raise OptionError(f"{whole!r}: an archive's directory has none of the characters {_NOT_IN_PATHS}")
            return cls(f"file://{whole}")
        if parts.scheme in {"s3", "s3a"}:
            if not parts.netloc:
                raise OptionError(f"{place!r} names no bucket: s3://bucket/prefix")
            return cls(f"s3://{parts.netloc}/{parts.path.strip('/')}".rstrip("/"))
        raise OptionError(f"{place!r}: an archive lies in a directory, file:///path, or s3://bucket/prefix")

    @property
    def local(self) -> bool:
        """Return whether the store is a directory of this machine."""
        return self.url.startswith("file://")

    @property
    def path(self) -> str:
        """Return the path in the form of pyarrow's file systems: a path, or bucket/prefix."""
        return self.url.removeprefix("file://") if self.local else self.url.removeprefix("s3://")

    def below(self, name: str) -> Store:
        """Return a directory in this one."""
        return Store(f"{self.url}/{name}")

    def filesystem(self) -> Any:
        if self.local:
            return pafs.LocalFileSystem()
        address = _s3_address()
        if address is None:
            return pafs.S3FileSystem(region=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"))
        parts = urlsplit(address)
        return pafs.S3FileSystem(
            endpoint_override=parts.netloc,
            scheme=parts.scheme or "https",
            region=os.environ.get("AWS_REGION") or "us-east-1",
        )

    def delta_options(self) -> dict[str, str]:
        """Return the ``storage_options`` of deltalake, which reads AWS's variables itself.

        A commit must fail if its version exists already. S3 supports that since 2024 (``If-None-Match``); other servers
        of its protocol must, too.
        """
        if self.local:
            return {}
        options = {"conditional_put": "etag"}
        address = _s3_address()
        if address is not None:
            options["endpoint_url"] = address
            if address.startswith("http://"):
                options["allow_http"] = "true"
            options["region"] = os.environ.get("AWS_REGION") or "us-east-1"
        return options

    def iceberg_properties(self) -> dict[str, str]:
        """Return the properties of pyiceberg's file access."""
        if self.local:
            return {}
        named = {
            "s3.endpoint": _s3_address(),
            "s3.access-key-id": os.environ.get("AWS_ACCESS_KEY_ID"),
            "s3.secret-access-key": os.environ.get("AWS_SECRET_ACCESS_KEY"),
            "s3.session-token": os.environ.get("AWS_SESSION_TOKEN"),
            "s3.region": os.environ.get("AWS_REGION") or ("us-east-1" if _s3_address() else None),
        }
        return {name: value for name, value in named.items() if value}

    def make(self) -> None:
        """Create the directory; S3 needs none."""
        if self.local:
            make_directory(Path(self.path))

    def check_there(self, names: Iterable[str]) -> None:
        """Raise PipelineError if a file that a commit is about to add is gone, because a vacuum came too soon."""
        paths = [f"{self.path}/{name}" for name in names]
        for info in self.filesystem().get_file_info(paths):
            if info.type != pafs.FileType.File:
                raise PipelineError(
                    f"{info.path} was deleted before it was part of the table: vacuum with a time that is longer than"
                    " a step of archiving takes"
                )

    def read_bytes(self, name: str) -> bytes | None:
        """Return the content of a small file; None if there is none. Raises OSError when the store cannot be read."""
        filesystem = self.filesystem()
        path = f"{self.path}/{name}"
        if filesystem.get_file_info(path).type == pafs.FileType.NotFound:
            return None
        with filesystem.open_input_stream(path) as stream:
            content: bytes = stream.read()
        return content

    def write_bytes(self, name: str, content: bytes) -> None:
        """Replace a small file as a whole: no reader ever sees half of it."""
        if self.local:
            target = Path(self.path) / name
            make_directory(target.parent)
            replace(target, content)
            return
        with self.filesystem().open_output_stream(f"{self.path}/{name}") as stream:
            stream.write(content)

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Hold a lock while a small file is read, changed and written, against other threads and processes.

        The lock is a file beside it, which stays. S3 has no locks: there this does nothing.
        """
        if not self.local:
            yield
            return
        with (Path(self.path) / f"{name}.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def files(self) -> dict[str, Any]:
        """Return every Parquet file: path from here -> pyarrow's FileInfo."""
        selector = pafs.FileSelector(self.path, recursive=True, allow_not_found=True)
        return {
            info.path[len(self.path) + 1 :]: info
            for info in self.filesystem().get_file_info(selector)
            if info.type == pafs.FileType.File and info.path.endswith(".parquet")
        }
