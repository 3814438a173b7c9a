"""The store's everyday behaviour: what is stored comes back, in order, also after a restart."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

import pytest

from anabranch_kit.errors import StoreError, StoreLocked, StoreVersionError
from sbp_back.range_server.store import Store, StoreOptions
from tests.sbp_back.range_server.store.store_harness import KIB, Driver, entry_bytes, make_entry, small_options


@pytest.fixture(params=["fsync", "os", "object"])
def contract(request: pytest.FixtureRequest, tmp_path: Path) -> StoreOptions:
    """Options of every kind of store there is: what tests with these ask of it is what a range server relies on."""
    return small_options(durability=request.param, objects=f"file://{tmp_path}/bucket", object_linger_seconds=0.001)


async def test_entries_come_back_as_they_were_received(tmp_path: Path, contract: StoreOptions) -> None:
    async with Driver(tmp_path, contract) as driver:
        await driver.create(7, epoch=3)
        entries = [make_entry(7, base, 2) for base in range(0, 20, 2)]
        await asyncio.gather(*(driver.append(entry) for entry in entries))
        got = await driver.read(7)
        assert [entry_bytes(e) for e in got] == [entry_bytes(e) for e in entries]
        assert [e.crc for e in got] == [e.crc for e in entries]
        assert isinstance(got[0].payload, memoryview)
        stored = driver.store.ranges[7, 0]
        assert (stored.epoch, stored.start, stored.next_offset, stored.end) == (3, 0, 20, -1)


async def test_a_clean_restart_scans_nothing_and_keeps_everything(tmp_path: Path) -> None:
    async with Driver(tmp_path) as driver:
        await driver.create(1)
        await driver.create(2, epoch=4, start=100)
        await driver.append(*(make_entry(1, base) for base in range(50)))
        await driver.append(make_entry(2, 100, 10))
        await driver.seal(2, epoch=5)
        driver.reopen()
        assert driver.store.stats.recovery_scanned_bytes == 0
        assert [e.base_offset for e in await driver.read(1)] == list(range(50))
        stored = driver.store.ranges[2, 0]
        assert (stored.epoch, stored.start, stored.next_offset, stored.end) == (5, 100, 110, 110)
        await driver.append(make_entry(1, 50))
        driver.reopen()
        assert [e.base_offset for e in await driver.read(1)] == list(range(51))


async def test_callbacks_come_in_the_order_of_submission(tmp_path: Path, contract: StoreOptions) -> None:
    async with Driver(tmp_path, contract) as driver:
        order: list[int] = []
        driver.store.create_range(1, 0, 0, 0, lambda error: order.append(-1))
        finished = asyncio.Event()
        for base in range(500):
            driver.store.append([make_entry(1, base)], lambda error, base=base: order.append(base))
            if base % 7 == 0:  # refused ones take their turn as well
                driver.store.append([make_entry(1, 9999)], lambda error, base=base: order.append(-2 - base))
        driver.store.seal_range(1, 0, 0, -1, lambda error: finished.set())
        await finished.wait()
        expected = [-1]
        for base in range(500):
            expected += [base, -2 - base] if base % 7 == 0 else [base]
        assert order == expected
        assert driver.store.ranges[1, 0].end == 500


async def test_read_honours_offset_limit_and_size(tmp_path: Path, contract: StoreOptions) -> None:
    async with Driver(tmp_path, contract) as driver:
        await driver.create(1)
        await driver.append(*(make_entry(1, base, 10, 1000) for base in range(0, 100, 10)))
        assert [e.base_offset for e in await driver.read(1, 15)] == list(range(10, 100, 10))
        assert [e.base_offset for e in await driver.read(1, 15, limit=31)] == [10, 20, 30]
        assert [e.base_offset for e in await driver.read(1, 15, max_bytes=1)] == [10]
        assert [e.base_offset for e in await driver.read(1, 15, max_bytes=2146)] == [10, 20]
        assert await driver.read(1, 100) == []
        assert await driver.read(1, 15, limit=15) == []
        assert driver.store.batch_bounds(1, 0, 15) == (10, 20)
        assert driver.store.batch_bounds(1, 0, 99) == (90, 100)
        assert driver.store.batch_bounds(1, 0, 100) is None
        assert driver.store.batch_bounds(2, 0, 0) is None
        with pytest.raises(StoreError, match="does not exist"):
            await driver.read(2)


async def test_appends_out_of_place_are_refused_and_change_nothing(tmp_path: Path, contract: StoreOptions) -> None:
    async with Driver(tmp_path, contract) as driver:
        with pytest.raises(StoreError, match="does not exist"):
            await driver.append(make_entry(1, 0))
        await driver.create(1)
        await driver.create(2)
        for wrong in ([make_entry(1, 1)], [make_entry(1, 0), make_entry(1, 2)], [make_entry(2, 0), make_entry(1, 5)]):
            with pytest.raises(StoreError, match="continues at"):
                await driver.append(*wrong)
        await driver.append(make_entry(1, 0, 5), make_entry(2, 0), make_entry(1, 5))
        assert driver.store.ranges[1, 0].next_offset == 6
        await driver.seal(1)
        with pytest.raises(StoreError, match="sealed"):
            await driver.append(make_entry(1, 6))
        assert driver.store.stats.pending_bytes == 0


async def test_create_and_seal_rules(tmp_path: Path, contract: StoreOptions) -> None:
    async with Driver(tmp_path, contract) as driver:
        await driver.create(1, epoch=2)
        await driver.create(1, epoch=2)
        with pytest.raises(StoreError, match="other properties"):
            await driver.create(1, epoch=1)
        await driver.create(1, epoch=3, start=7)  # still empty: a newer epoch may take it over
        assert driver.store.ranges[1, 0].start == 7
        await driver.append(make_entry(1, 7))
        with pytest.raises(StoreError, match="other properties"):
            await driver.create(1, epoch=4, start=7)
        with pytest.raises(StoreError, match="epoch 3"):
            await driver.seal(1, epoch=2)
        with pytest.raises(StoreError, match="cannot end at 9"):
            await driver.seal(1, end=9, epoch=3)
        await driver.seal(1, end=8, epoch=4)
        await driver.seal(1, end=8, epoch=5)
        with pytest.raises(StoreError, match="sealed at 8"):
            await driver.seal(1, end=9, epoch=5)
        with pytest.raises(StoreError, match="does not exist"):
            await driver.seal(9)
        driver.reopen()
        stored = driver.store.ranges[1, 0]
        assert (stored.start, stored.epoch, stored.next_offset, stored.end) == (7, 4, 8, 8)


async def test_sealing_below_the_end_hides_the_rest(tmp_path: Path, contract: StoreOptions) -> None:
    async with Driver(tmp_path, contract) as driver:
        await driver.create(1)
        await driver.append(*(make_entry(1, base, 10) for base in range(0, 100, 10)))
        await driver.seal(1, end=50)
        for _ in range(2):
            assert [e.base_offset for e in await driver.read(1)] == [0, 10, 20, 30, 40]
            assert driver.store.ranges[1, 0].next_offset == 50
            driver.reopen()
        await driver.seal(1, end=25)  # the end may be lowered later on, never raised
        for _ in range(2):
            assert [e.base_offset for e in await driver.read(1)] == [0, 10, 20]
            assert (driver.store.ranges[1, 0].end, driver.store.ranges[1, 0].next_offset) == (25, 30)
            driver.reopen()


async def test_log_rolls_over_many_segments(tmp_path: Path) -> None:
    async with Driver(tmp_path) as driver:
        await driver.create(1)
        await driver.create(2)
        for base in range(100):
            await asyncio.gather(driver.append(make_entry(1, base, size=3000)), driver.append(make_entry(2, base)))
        assert len(driver.segments()) > 5
        for _ in range(3):
            assert [entry_bytes(e) for e in await driver.read_all(1)] == [
                entry_bytes(make_entry(1, base, size=3000)) for base in range(100)
            ]
            assert len(await driver.read_all(2)) == 100
            driver.reopen()


async def test_entries_up_to_a_segment_roll_and_larger_ones_are_refused(tmp_path: Path, contract: StoreOptions) -> None:
    async with Driver(tmp_path, contract) as driver:
        await driver.create(1)
        await driver.append(make_entry(1, 0, size=30 * KIB))
        await driver.append(make_entry(1, 1, size=40 * KIB))
        with pytest.raises(StoreError, match="do not fit into a segment"):
            await driver.append(make_entry(1, 2, size=64 * KIB))
        # More than a segment in one call is fine as long as every entry fits.
        await driver.append(*(make_entry(1, base, size=20 * KIB) for base in range(2, 10)))
        driver.reopen()
        assert [e.base_offset for e in await driver.read_all(1)] == list(range(10))


async def test_reads_of_data_that_is_not_cached_go_to_the_pool(tmp_path: Path) -> None:
    from tests.sbp_back.range_server.store.store_harness import FaultyFiles

    files = FaultyFiles()
    async with Driver(tmp_path, small_options(files=files)) as driver:
        await driver.create(1)
        await driver.append(*(make_entry(1, base) for base in range(20)))
        immediate: list[object] = []
        driver.store.read(1, 0, 0, -1, 1 << 20, immediate.append)
        assert len(immediate) == 1
        files.uncached = True
        assert [e.base_offset for e in await driver.read(1)] == list(range(20))
        assert driver.store.stats.reads_from_disk == 1


async def test_one_process_per_directory(tmp_path: Path) -> None:
    async with Driver(tmp_path):
        with pytest.raises(StoreLocked):
            Store.open(tmp_path, small_options())
    Store.open(tmp_path, small_options()).close()
    fd = os.open(tmp_path / "LOCK", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released by close
    os.close(fd)


def test_identity_is_kept_and_checked(tmp_path: Path) -> None:
    store = Store.open(tmp_path, small_options(cluster_id="blue"))
    assert (store.cluster_id, store.server_id) == ("blue", -1)
    store.assign_server_id(4)
    store.close()
    with pytest.raises(StoreVersionError, match="blue"):
        Store.open(tmp_path, small_options(cluster_id="green"))
    with pytest.raises(StoreVersionError, match="range server 4"):
        Store.open(tmp_path, small_options(server_id=5))
    store = Store.open(tmp_path, small_options())
    assert (store.cluster_id, store.server_id) == ("blue", 4)
    store.close()
    (tmp_path / "LOCK").write_text('{"format_version": 99, "cluster_id": "blue", "server_id": 4}')
    with pytest.raises(StoreVersionError, match="99"):
        Store.open(tmp_path, small_options())
    (tmp_path / "LOCK").write_text("")  # a crash right after the first open
    store = Store.open(tmp_path, small_options())
    assert store.cluster_id == "blue"
    store.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"segment_bytes": 1000},
        {"segment_bytes": 65 * KIB + 1},
        {"durability": "maybe"},
        {"evacuate_below": 1.0},
        {"group_max_bytes": 0},
        {"cluster_id": "x" * 37},
    ],
)
def test_senseless_options_are_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Store.open(tmp_path, small_options(**changes))


async def test_durability_os_does_not_flush(tmp_path: Path) -> None:
    from tests.sbp_back.range_server.store.store_harness import FaultyFiles

    files = FaultyFiles()
    async with Driver(tmp_path, small_options(files=files, durability="os")) as driver:
        await driver.create(1)
        await driver.append(make_entry(1, 0))
        assert files.durable_writes == 0
        driver.reopen()
        assert len(await driver.read(1)) == 1


async def test_close_finishes_what_was_submitted(tmp_path: Path, contract: StoreOptions) -> None:
    driver = Driver(tmp_path, contract)
    errors: list[StoreError | None] = []
    driver.store.create_range(1, 0, 0, 0, errors.append)
    for base in range(100):
        driver.store.append([make_entry(1, base)], errors.append)
    driver.close()
    assert errors == [None] * 101
    driver.store.append([make_entry(1, 100)], errors.append)
    assert isinstance(errors[-1], StoreError)
    driver.close()  # again: nothing
    async with Driver(tmp_path, contract) as driver:
        assert len(await driver.read(1)) == 100


async def test_a_default_store_uses_little_disk(tmp_path: Path) -> None:
    store = Store.open(tmp_path, StoreOptions())
    used = sum(path.stat().st_blocks * 512 for path in (tmp_path / "wal").iterdir())
    store.close()
    assert used < 4 << 20
