"""What tests of stores share that have to do with objects: options, the library below the product with faults, a clock,
and entries to be written and found again."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pytest

from anabranch_kit.run.awaited import Settle, awaited
from sbp_back.range_server.object_log import object_upkeep
from sbp_back.range_server.object_log.object_store import ObjectStore
from sbp_back.range_server.object_log.object_upkeep import ObjectUpkeep
from sbp_back.range_server.object_log.objects import doomed
from sbp_back.range_server.object_log.objects.content import HEAD_BYTES
from sbp_back.range_server.object_log.range_objects import offload, packing, range_writer
from sbp_back.range_server.object_log.range_objects.offload_store import OffloadStore
from sbp_back.range_server.store import Store, StoreOptions
from sbp_back.wire.model import Entry
from tests.sbp_back.range_server.store.store_harness import KIB, Driver, entry_bytes, make_entry, small_options


def object_options(bucket: Path, **changes: object) -> StoreOptions:
    values: dict[str, object] = {"durability": "object", "objects": f"file://{bucket}", "object_linger_seconds": 0.001}
    return small_options(**{**values, **changes})


def groups(bucket: Path, log: str = "0/00000000") -> list[str]:
    """Objects of a log that are no fences, by incarnation and number."""
    found = []
    for path in (bucket / "logs" / log / "log").glob("*/*"):
        if "#" in path.name:
            continue  # it is being put
        with suppress(FileNotFoundError):  # it was deleted just now
            if path.stat().st_size > HEAD_BYTES:
                found.append(f"{int(path.parent.name)}/{int(path.name, 16)}")
    return sorted(found)


def indexed(bucket: Path, **changes: object) -> StoreOptions:
    values: dict[str, object] = {"object_index_seconds": 0.02, "object_grace_seconds": 0.0, "maintenance_seconds": 0.01}
    return object_options(bucket, **{**values, **changes})


def moving(bucket: Path, **changes: object) -> StoreOptions:
    """Segments of 64 KiB, of which one or two stay, and objects of 64 KiB."""
    values: dict[str, object] = {
        "objects": f"file://{bucket}",
        "local_bytes": 100 * KIB,
        "object_range_bytes": 64 * KIB,
        "object_cache_bytes": 0,
        "object_index_seconds": 0.02,
        "object_grace_seconds": 0.0,
        "maintenance_seconds": 0.01,
    }
    return small_options(**{**values, **changes})


def store_of(driver: Driver) -> OffloadStore:
    assert isinstance(driver.store, OffloadStore)
    return driver.store


def is_moved(driver: Driver, segments: int = 4) -> Callable[[], bool]:
    """The disk has few segments, and all objects are named."""
    return lambda: len(driver.store.log.segments) <= segments and store_of(driver).offload.named


@contextmanager
def the_mover_stopped(driver: Driver) -> Iterator[None]:
    """Between two of its steps."""
    go, stopped = threading.Event(), threading.Event()

    def stop() -> None:
        stopped.set()
        go.wait()

    store_of(driver).moving_thread.submit(stop)
    stopped.wait()
    try:
        yield
    finally:
        go.set()


def crash_copy(driver: Driver, target: Path) -> Path:
    """The files as the death of the process at this moment would leave them."""
    driver.crash_copy(target)
    shutil.copytree(driver.path / "moved", target / "moved")
    return target


def upkeep_of(driver: Driver) -> ObjectUpkeep:
    upkeep = driver.store.maintenance
    assert isinstance(upkeep, ObjectUpkeep)
    return upkeep


def all_indexed(driver: Driver) -> Callable[[], bool]:
    """The newest index of a log of objects says all."""
    upkeep = upkeep_of(driver)
    return lambda: upkeep.indexed == driver.store.log.next_seq and not upkeep.packing.made and not upkeep.busy


def at_rest(driver: Driver) -> Callable[[], bool]:
    """A log of objects has nothing to do any more."""
    upkeep = upkeep_of(driver)
    said = all_indexed(driver)
    return lambda: said() and upkeep.tidied and upkeep.packing.idle and not upkeep._dead() and not upkeep.doomed.waiting


async def fill(driver: Driver, stream: int, count: int, first: int = 0) -> None:
    for base in range(first, first + count):
        await driver.append(make_entry(stream, base, size=16 * KIB))


class Faults:
    """Stands for the library below the product's own code: each call may fail before or after it took effect, or
    return other bytes."""

    exceptions = obstore.exceptions

    def __init__(self, seed: int, share: float) -> None:
        self.random = random.Random(seed)
        self.share = share
        self.failed = 0
        self.damage: Callable[[str, bytes], bytes] = lambda key, data: data

    def _call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        dice = self.random.random()
        if dice < self.share / 2:
            self.failed += 1
            raise obstore.exceptions.GenericError("503 SlowDown")
        result = function(*arguments, **options)
        if dice < self.share:
            self.failed += 1
            raise obstore.exceptions.GenericError("the connection was reset before the answer came")
        return result

    def put(self, *arguments: Any, **options: Any) -> Any:
        return self._call(obstore.put, *arguments, **options)

    def head(self, *arguments: Any, **options: Any) -> Any:
        return self._call(obstore.head, *arguments, **options)

    def list(self, *arguments: Any, **options: Any) -> Any:
        return obstore.list(*arguments, **options)

    def list_with_delimiter(self, *arguments: Any, **options: Any) -> Any:
        return obstore.list_with_delimiter(*arguments, **options)

    def delete(self, *arguments: Any, **options: Any) -> Any:
        return self._call(obstore.delete, *arguments, **options)

    def get(self, store: Any, key: str) -> Any:
        data = self.damage(key, bytes(self._call(obstore.get, store, key).bytes()))
        return _Got(data)

    def get_range(self, store: Any, key: str, **options: Any) -> Any:
        return self.damage(key, bytes(self._call(obstore.get_range, store, key, **options)))


class _Got:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def bytes(self) -> bytes:
        return self._data


@pytest.fixture
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbp_back.range_server.object_log.objects.bucket.AGAIN_SECONDS", 0.001)
    monkeypatch.setattr("sbp_back.range_server.object_log.objects.bucket.MOST_AGAIN_SECONDS", 0.001)


def below(driver: Driver, library: Faults) -> None:
    """Have a store ask another library for its objects."""
    store = driver.store
    if isinstance(store, ObjectStore):
        logs = store.opened.logs
        buckets = [logs.root, *logs._known.values()]
    else:
        assert isinstance(store, OffloadStore)
        buckets = [store.there.bucket]
    for bucket in buckets:
        bucket._obstore = library  # type: ignore[assignment]


def faulty(driver: Driver, share: float = 0.0, seed: int = 1) -> Faults:
    faults = Faults(seed, share)
    below(driver, faults)
    return faults


class Clock:
    """What modules of the product take for the time, for a store that is opened later, without timers of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.monotonic() + 1e6
        fake = SimpleNamespace(monotonic=lambda: self.now)
        for module in (doomed, object_upkeep, offload, packing, range_writer):
            monkeypatch.setattr(module, "time", fake)

    async def hours(self, driver: Driver, count: int) -> None:
        """They pass, and what becomes due in each of them is done."""
        store = driver.store
        threads = [store.background_thread]
        if isinstance(store, OffloadStore):
            threads.append(store.moving_thread)
        for _ in range(count):
            self.now += 3600.0
            for _step in range(8):
                store.maintenance.tick()
                for thread in threads:
                    await awaited(partial(_behind_all, store, thread))


def _behind_all(store: Store, thread: ThreadPoolExecutor, settle: Settle[None]) -> None:
    """Settle when a thread of a store has done what it has to do, and what comes of it is done."""
    store._on_thread(thread, lambda: None, lambda _none: settle(None))


def requests_of(driver: Driver) -> dict[str, int]:
    """All requests of a store to the object storage, by operation."""
    return {operation: one.answered + one.failed for operation, one in driver.store.stats.objects.items()}


async def mixed(driver: Driver, count: int = 40, streams: Sequence[int] = (1, 2), size: int = 8 * KIB) -> None:
    """Write entries of several ranges, in turns."""
    for stream in streams:
        if (stream, 0) not in driver.store.ranges:
            await driver.create(stream)
    first = driver.store.ranges[streams[0], 0].next_offset
    for base in range(first, first + count):
        await driver.append(*(make_entry(stream, base, size=size) for stream in streams))


def contents(entries: Sequence[Entry]) -> list[bytes]:
    return [entry_bytes(entry) for entry in entries]


def wanted(stream: int, first: int, end: int, size: int = 8 * KIB) -> list[bytes]:
    """What :func:`mixed` has written."""
    return [entry_bytes(make_entry(stream, base, size=size)) for base in range(first, end)]


async def server(path: Path, bucket: Path, name: str, server_id: int) -> Driver:
    """A store that has its number."""
    driver = Driver(path / f"{name}-{server_id}", object_options(bucket, object_log=name))
    assert driver.store.server_id in (-1, server_id)
    driver.store.assign_server_id(server_id)
    return driver
