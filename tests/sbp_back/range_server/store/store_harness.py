"""What the store's tests share: small stores, awaitable operations, and files that fail on demand."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from anabranch_kit.errors import StoreError
from anabranch_kit.memory.buffers import Buffer
from sbp_back.range_server.range_server_service import recover_store
from sbp_back.range_server.store import Files, StoreOptions
from sbp_back.wire.entry import pack_entry
from sbp_back.wire.model import Entry

KIB = 1024


def small_options(**changes: object) -> StoreOptions:
    """Segments of 64 KiB, no limit on free space, no timers that matter."""
    values: dict[str, object] = {"segment_bytes": 64 * KIB, "low_water_bytes": 0, "maintenance_seconds": 3600.0}
    values.update(changes)
    return StoreOptions(**values)  # type: ignore[arg-type]


def make_entry(
    stream: int, base: int, count: int = 1, size: int = 100, index: int = 0, fill: int | None = None
) -> Entry:
    """An entry whose payload can be told from every other one's."""
    seed = f"{stream}/{index}/{base}/{count}/{fill}/".encode()
    payload = (seed * (size // len(seed) + 1))[:size]
    return pack_entry(stream, index, 0, base, count, 1_000 + base, payload)


def entry_bytes(entry: Entry) -> bytes:
    return bytes(entry.prefix) + bytes(entry.payload)


class Driver:
    """A store on the running loop, with its callbacks turned into awaitables."""

    def __init__(self, path: Path, options: StoreOptions | None = None) -> None:
        self.path = path
        self.options = options or small_options()
        self.failures: list[StoreError] = []
        self.store = recover_store(path, self.options)
        self.store.on_failed = self.failures.append
        self.store.start(asyncio.get_running_loop())

    def reopen(self, options: StoreOptions | None = None) -> None:
        self.store.close()
        self.__init__(self.path, options or self.options)  # type: ignore[misc]

    def close(self) -> None:
        self.store.close()

    async def __aenter__(self) -> Driver:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self.close()

    def send(self, operation: Callable[..., None], *arguments: object) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: StoreError | None) -> None:
            if future.done():
                raise AssertionError("a callback was called twice")
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        operation(*arguments, done)
        return future

    def append(self, *entries: Entry) -> asyncio.Future[None]:
        return self.send(self.store.append, list(entries))

    def create(self, stream: int, index: int = 0, epoch: int = 0, start: int = 0) -> asyncio.Future[None]:
        return self.send(self.store.create_range, stream, index, epoch, start)

    def seal(self, stream: int, end: int = -1, index: int = 0, epoch: int = 0) -> asyncio.Future[None]:
        return self.send(self.store.seal_range, stream, index, epoch, end)

    def trim(self, stream: int, offset: int) -> asyncio.Future[None]:
        return self.send(self.store.trim_stream, stream, offset)

    def delete(self, stream: int) -> asyncio.Future[None]:
        return self.send(self.store.delete_stream, stream)

    def replace(self, epoch: int, old: Sequence[Entry], new: Sequence[Entry]) -> asyncio.Future[None]:
        return self.send(self.store.replace, epoch, old, new)

    async def read(
        self, stream: int, offset: int = 0, limit: int = -1, max_bytes: int = 1 << 20, index: int = 0
    ) -> list[Entry]:
        future: asyncio.Future[list[Entry]] = asyncio.get_running_loop().create_future()

        def done(result: list[Entry] | StoreError) -> None:
            if isinstance(result, list):
                future.set_result(result)
            else:
                future.set_exception(result)

        self.store.read(stream, index, offset, limit, max_bytes, done)
        return await future

    async def read_all(self, stream: int, offset: int = 0, index: int = 0) -> list[Entry]:
        entries: list[Entry] = []
        while True:
            got = await self.read(stream, offset, index=index)
            if not got:
                return entries
            entries += got
            offset = got[-1].end_offset

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let maintenance work until ``condition`` holds; the test's own time limit ends a vain wait."""
        while not condition():
            self.store.maintenance.tick()
            await asyncio.sleep(0.005)

    def segments(self) -> list[Path]:
        return sorted((self.path / "wal").glob("*.seg"))

    def crash_copy(self, target: Path) -> Path:
        """The files as the death of the process at this moment would leave them."""
        # On the thread that removes files, so that none goes meanwhile; another one makes segments, though.
        self.store.background_thread.submit(self._copy, target).result()
        return target

    def _copy(self, target: Path) -> None:
        preparer = self.store.preparer
        with preparer.changed:
            preparer.changed.wait_for(lambda: not preparer.creating)
            for name in ("wal", "ckpt"):
                (target / name).mkdir(parents=True)
                for path in list((self.path / name).iterdir()):
                    if path.is_dir():
                        continue
                    try:
                        found = path.read_bytes()
                    except FileNotFoundError:  # a segment that the log's own thread makes has got its name meanwhile
                        path = path.with_suffix("")
                        found = path.read_bytes()
                    (target / name / path.name).write_bytes(found)
            (target / "LOCK").write_bytes((self.path / "LOCK").read_bytes())


class FaultyFiles(Files):
    """The real files, until one of the hooks is set."""

    def __init__(self) -> None:
        super().__init__()
        self.bug: tuple[str, str] | None = None
        """Name of a method, and the beginning of a thread's name: there the program has a fault."""
        self.write_error: int | None = None
        self.flush_error: int | None = None
        self.short_by = 0
        self.allocate_error: int | None = None
        self.open_error: int | None = None
        self.unlink_error: int | None = None
        self.sync_error: int | None = None
        self.read_error: int | None = None
        self.free: int | None = None
        self.uncached = False
        self.read_at_once = 0
        """Bytes that a read which scatters gives at most; 0: all."""
        self.scattered = 0
        self.durable_writes = 0

    def _stumble(self, method: str) -> None:
        if self.bug is not None and self.bug[0] == method and threading.current_thread().name.startswith(self.bug[1]):
            raise RuntimeError(f"a bug in {method}")

    def write(self, fd: int, parts: Sequence[Buffer], offset: int, durable: bool) -> int:
        self._stumble("write")
        if durable:
            self.durable_writes += 1
        if self.write_error is not None:
            raise OSError(self.write_error, os.strerror(self.write_error))
        if self.short_by:
            data = b"".join(parts)
            return super().write(fd, [data[: max(len(data) - self.short_by, 0)]], offset, durable)
        written = super().write(fd, parts, offset, durable)
        if durable and self.flush_error is not None:
            raise OSError(self.flush_error, os.strerror(self.flush_error))
        return written

    def open(self, path: Path, flags: int) -> int:
        self._stumble("open")
        if self.open_error is not None and flags & os.O_CREAT:
            raise OSError(self.open_error, os.strerror(self.open_error))
        return super().open(path, flags)

    def allocate(self, fd: int, offset: int, size: int) -> None:
        self._stumble("allocate")
        if self.allocate_error is not None:
            raise OSError(self.allocate_error, os.strerror(self.allocate_error))
        super().allocate(fd, offset, size)

    def unlink(self, path: Path) -> None:
        self._stumble("unlink")
        if self.unlink_error is not None:
            raise OSError(self.unlink_error, os.strerror(self.unlink_error))
        super().unlink(path)

    def read(self, fd: int, buffer: Buffer, offset: int) -> int:
        self._stumble("read")
        if self.read_error is not None:
            raise OSError(self.read_error, os.strerror(self.read_error))
        return super().read(fd, buffer, offset)

    def scatter(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        self._stumble("scatter")
        if self.read_error is not None:
            raise OSError(self.read_error, os.strerror(self.read_error))
        if self.read_at_once:
            buffers = [buffers[0][: self.read_at_once]]
        return super().scatter(fd, buffers, offset)

    def scatter_cached(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        self.scattered += 1
        if self.uncached:
            raise BlockingIOError(errno.EAGAIN, "not cached")
        return super().scatter_cached(fd, buffers, offset)

    def sync(self, fd: int) -> None:
        if self.sync_error is not None:
            raise OSError(self.sync_error, os.strerror(self.sync_error))
        super().sync(fd)

    def rename(self, source: Path, target: Path) -> None:
        self._stumble("rename")
        super().rename(source, target)

    def free_bytes(self, path: Path) -> int:
        return super().free_bytes(path) if self.free is None else self.free
