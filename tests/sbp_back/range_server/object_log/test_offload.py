"""Old data of a log on disk moves to objects: nothing is lost on the way whoever dies when, a store that does not
answer holds up nobody but who wants what lies there, and what is needed is not deleted."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from sbp_back.range_server.object_log.offload_store import OffloadStore
from sbp_back.range_server.store import StoreOptions
from sbp_back.range_server.store.checkpoint import checkpoint_files
from tests.depth import examples, timeout
from tests.sbp_back.range_server.object_log.test_object_store import Faults, until
from tests.sbp_back.range_server.store.store_harness import KIB, Driver, entry_bytes, make_entry, small_options
from tests.sbp_back.range_server.store.test_store_model import StoreMachine


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


def faulty(driver: Driver, share: float = 0.0, seed: int = 1) -> Faults:
    faults = Faults(seed, share)
    store_of(driver)._there.bucket._obstore = faults  # type: ignore[assignment]
    return faults


async def fill(driver: Driver, count: int, streams: tuple[int, ...] = (1, 2), size: int = 4 * KIB) -> None:
    for stream in streams:
        if (stream, 0) not in driver.store.ranges:
            await driver.create(stream)
    first = driver.store.ranges[streams[0], 0].next_offset
    for base in range(first, first + count):
        await driver.append(*(make_entry(stream, base, size=size) for stream in streams))


def moved_files(bucket: Path, name: str = "0") -> list[Path]:
    return sorted((bucket / "disks" / name / "ranges").glob("*/*"))


def local_bytes(driver: Driver) -> int:
    return sum(path.stat().st_size for path in driver.segments())


def contents(entries: list[Any]) -> list[bytes]:
    return [entry_bytes(entry) for entry in entries]


def wanted(stream: int, first: int, end: int, size: int = 4 * KIB) -> list[bytes]:
    return [entry_bytes(make_entry(stream, base, size=size)) for base in range(first, end)]


def is_moved(driver: Driver, segments: int = 4) -> Callable[[], bool]:
    """The disk has few segments, and all objects are named."""
    return lambda: len(driver.store._log.segments) <= segments and store_of(driver)._offload.named


async def test_old_data_moves_the_recent_stays_and_all_is_read(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    driver = Driver(tmp_path / "one", moving(bucket))
    await fill(driver, 100)
    await until(is_moved(driver))
    assert local_bytes(driver) < 300 * KIB
    assert sum(path.stat().st_size for path in moved_files(bucket)) > 500 * KIB
    for stream in (1, 2):
        assert contents(await driver.read_all(stream)) == wanted(stream, 0, 100)
    driver.reopen()
    assert driver.store.stats.moved_bytes > 500 * KIB
    for stream in (1, 2):
        assert contents(await driver.read_all(stream)) == wanted(stream, 0, 100)
    await fill(driver, 50)
    await until(is_moved(driver))
    assert contents(await driver.read_all(2)) == wanted(2, 0, 150)
    driver.close()


class MovingMachine(StoreMachine):
    """The model of every store. A crash leaves the files as they are at that moment, and a bucket that goes on."""

    durability = "fsync"

    async def open(self) -> Driver:
        self.options = moving(
            self.directory / "bucket",
            local_bytes=64 * KIB,
            object_range_bytes=16 * KIB,
            evacuate_batch_bytes=9 * KIB,
            maintenance_seconds=0.005,
        )
        return Driver(self.directory / str(self.number), self.options)

    def settle(self) -> None:
        """What is freed is asked for by its own test."""

    def crash(self, lose_indexes: bool, damage_checkpoint: bool) -> None:
        async def again() -> Driver:
            with the_mover_stopped(self.driver):
                self.number += 1
                copy = crash_copy(self.driver, self.directory / str(self.number))
                if lose_indexes:
                    for path in (copy / "wal").glob("*.idx"):
                        path.unlink()
                newest = next(iter(checkpoint_files(copy / "ckpt")), None)
                if damage_checkpoint and newest is not None:
                    newest.write_bytes(newest.read_bytes()[1:])
                store_of(self.driver)._offload.close()
            former, self.driver = self.driver, await self.open()
            former.close()
            return self.driver

        self.run(again())


MovingMachine.TestCase.settings = settings(
    max_examples=examples(15),
    stateful_step_count=40,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestMovingMachine = pytest.mark.timeout(timeout(300))(MovingMachine.TestCase)


@contextlib.contextmanager
def the_mover_stopped(driver: Driver) -> Iterator[None]:
    """Between two of its steps."""
    go, stopped = threading.Event(), threading.Event()

    def stop() -> None:
        stopped.set()
        go.wait()

    store_of(driver)._moving_thread.submit(stop)
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
