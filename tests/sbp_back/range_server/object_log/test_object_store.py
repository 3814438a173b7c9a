"""The store whose log is objects: what the store on disk promises, and what a lost machine, a former self and a store
with faults make of it. Its everyday behaviour is tested with the other stores', in ``store/test_store_basics.py``."""

from __future__ import annotations

import asyncio
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, Phase, settings

from anabranch_kit.errors import StoreCorrupt, StoreError, StoreFailed, StoreVersionError
from anabranch_kit.run.awaited import awaited
from sbp_back.range_server.object_log import object_writer
from sbp_back.range_server.object_log.object_store import ObjectStore, _Adoption
from sbp_back.range_server.object_log.object_upkeep import ObjectUpkeep
from sbp_back.range_server.object_log.objects.bucket import Bucket
from sbp_back.range_server.object_log.objects.content import HEAD_BYTES
from sbp_back.range_server.object_log.ownership.logs import AdoptedElsewhereError
from sbp_back.range_server.store import Store
from sbp_back.range_server.store.options import OBJECTS
from tests.depth import examples, timeout
from tests.kit.waiting import until
from tests.sbp_back.range_server.object_log.object_harness import (
    Clock,
    at_rest,
    faulty,
    fill,
    groups,
    indexed,
    object_options,
    quick_pauses,
    requests_of,
    server,
    upkeep_of,
)
from tests.sbp_back.range_server.store.store_harness import KIB, Driver, entry_bytes, make_entry, small_options
from tests.sbp_back.range_server.store.test_store_model import StoreMachine

__all__ = ["quick_pauses"]


class ObjectMachine(StoreMachine):
    """The model of every store; a crash takes the machine with it, and its process lives on without knowing."""

    def __init__(self) -> None:
        self.lost: list[Driver] = []
        super().__init__()

    async def open(self) -> Driver:
        self.options = object_options(
            self.directory / "bucket",
            object_cache_bytes=192 * KIB,
            object_range_bytes=16 * KIB,
            object_mixed_bytes=64 * KIB,
            object_index_every=5,
            object_index_seconds=0.05,
            object_grace_seconds=0.0,
            maintenance_seconds=0.01,
        )
        return Driver(self.directory / str(self.number), self.options)

    def settle(self) -> None:
        """What is freed is asked for by its own test."""

    def restart(self) -> None:
        async def again() -> None:
            self.driver.reopen()

        self.run(again())

    def crash(self, lose_indexes: bool, damage_checkpoint: bool) -> None:
        async def again() -> Driver:
            self.lost.append(self.driver)
            shutil.rmtree(self.driver.path)
            self.number += 1
            return await self.open()

        self.driver = self.run(again())

    def teardown(self) -> None:
        async def close() -> None:
            for driver in self.lost:
                driver.close()

        self.run(close())
        super().teardown()


ObjectMachine.TestCase.settings = settings(
    max_examples=examples(15),
    stateful_step_count=30,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestObjectMachine = pytest.mark.timeout(timeout(300))(ObjectMachine.TestCase)


def newest_index(bucket: Path, log: str = "0/00000000") -> Path:
    return max((bucket / "logs" / log / "index").iterdir(), key=lambda path: path.stat().st_mtime_ns)


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


async def test_a_lost_machine_loses_nothing_and_a_former_self_acknowledges_nothing_more(tmp_path: Path) -> None:
    options = object_options(tmp_path / "bucket")
    former = Driver(tmp_path / "one", options)
    await former.create(1, epoch=3)
    await asyncio.gather(*(former.append(make_entry(1, base)) for base in range(100)))
    await former.seal(1, epoch=3)
    await former.create(1, index=1, epoch=4, start=100)
    shutil.rmtree(tmp_path / "one")
    async with Driver(tmp_path / "two", options) as driver:
        assert [e.base_offset for e in await driver.read_all(1)] == list(range(100))
        assert driver.store.ranges[1, 0].end == 100
        assert driver.store.cluster_id == former.store.cluster_id
        with pytest.raises(StoreFailed, match="taken over"):
            await former.append(make_entry(1, 100, index=1))
        assert [str(error) for error in former.failures] == [str(former.store.failed)]
        with pytest.raises(StoreFailed):
            await former.append(make_entry(1, 101, index=1))
        await driver.append(make_entry(1, 100, index=1, fill=7))
        former.close()
        assert entry_bytes((await driver.read_all(1, 100, index=1))[0]) == entry_bytes(
            make_entry(1, 100, index=1, fill=7)
        )


@pytest.mark.usefixtures("quick_pauses")
@pytest.mark.parametrize("seed", range(3))
async def test_answers_that_are_lost_and_refusals_double_and_lose_nothing(tmp_path: Path, seed: int) -> None:
    options = object_options(tmp_path / "bucket", group_max_bytes=1 * KIB)
    async with Driver(tmp_path / "one", options) as driver:
        faults = faulty(driver, 0.4, seed)
        await driver.create(1)
        await asyncio.gather(*(driver.append(make_entry(1, base)) for base in range(200)))
        assert faults.failed > 10
        assert [entry_bytes(e) for e in await driver.read_all(1)] == [entry_bytes(make_entry(1, b)) for b in range(200)]
    async with Driver(tmp_path / "two", options) as driver:
        faults = faulty(driver, 0.4, seed)
        got = await driver.read_all(1)
        assert [entry_bytes(e) for e in got] == [entry_bytes(make_entry(1, b)) for b in range(200)]
        assert faults.failed > 5


@pytest.mark.usefixtures("quick_pauses")
async def test_a_pause_that_ends_as_its_thread_looks_delays_no_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends between two looks at the clock: whether a put may be made, and how long to wait for that."""
    async with Driver(tmp_path / "one", object_options(tmp_path / "bucket")) as driver:
        await driver.create(1)
        faults = faulty(driver, 1.0)
        looks: list[str] = []

        def monotonic() -> float:
            caller = sys._getframe(1)
            if caller.f_code.co_name == "_put" and not looks and caller.f_locals["self"]._again_at:
                looks.append("puts have to wait")
                faults.share = 0.0
                return time.monotonic() - 3600
            return time.monotonic() + (3600 if looks else 0)

        monkeypatch.setattr(object_writer, "time", SimpleNamespace(monotonic=monotonic, perf_counter=time.perf_counter))
        async with asyncio.timeout(20):
            await driver.append(make_entry(1, 0))
        assert looks


@pytest.mark.usefixtures("quick_pauses")
async def test_a_store_that_does_not_answer_delays_and_fails_nothing(tmp_path: Path) -> None:
    async with Driver(tmp_path / "one", object_options(tmp_path / "bucket")) as driver:
        await driver.create(1)
        await driver.append(make_entry(1, 0))
        faults = faulty(driver, 1.0)
        waiting = driver.append(make_entry(1, 1))
        while faults.failed < 20:
            assert not waiting.done()
            await asyncio.sleep(0.001)
        assert [e.base_offset for e in await driver.read(1)] == [0]
        faults.share = 0.0
        await waiting
        assert [e.base_offset for e in await driver.read(1)] == [0, 1]


@pytest.mark.usefixtures("quick_pauses")
async def test_damaged_bytes_are_told_with_their_object_and_range_and_those_behind_are_read(tmp_path: Path) -> None:
    options = object_options(tmp_path / "bucket")
    async with Driver(tmp_path / "one", options) as driver:
        await driver.create(1)
        for base in range(0, 30, 10):
            await driver.append(*(make_entry(1, at) for at in range(base, base + 10)))
    async with Driver(tmp_path / "two", options) as driver:
        faults = faulty(driver)

        def flip(key: str, data: bytes) -> bytes:
            if not key.endswith(f"{2:016x}"):
                return data
            at = data.index(make_entry(1, 14).payload[:10])
            return data[:at] + b"!" + data[at + 1 :]

        faults.damage = flip
        assert [e.base_offset for e in await driver.read(1)] == list(range(14))
        with pytest.raises(StoreCorrupt, match=r"offset 14 of range 0 of stream 1 \(object 2 of incarnation 0"):
            await driver.read(1, 14)
        assert [e.base_offset for e in await driver.read(1, 15)] == list(range(15, 30))


@pytest.mark.usefixtures("quick_pauses")
async def test_bytes_that_are_damaged_once_are_fetched_again(tmp_path: Path) -> None:
    options = object_options(tmp_path / "bucket")
    async with Driver(tmp_path / "one", options) as driver:
        await driver.create(1)
        await driver.append(*(make_entry(1, at) for at in range(10)))
    async with Driver(tmp_path / "two", options) as driver:
        faults = faulty(driver)
        seen: list[str] = []

        def first(key: str, data: bytes) -> bytes:
            seen.append(key)
            return data[:-1] + b"!" if seen.count(key) == 1 else data

        faults.damage = first
        assert [e.base_offset for e in await driver.read(1)] == list(range(10))
        assert len(seen) == len(set(seen)) + 1


async def test_an_object_that_is_gone_or_cut_off_is_refused_by_name(tmp_path: Path) -> None:
    options = object_options(tmp_path / "bucket")
    driver = Driver(tmp_path / "one", options)
    await driver.create(1)
    await driver.append(make_entry(1, 0))  # and no index is written at the end
    path = tmp_path / "bucket/logs/0/00000000/log" / f"{0:016x}" / f"{1:016x}"
    whole = path.read_bytes()
    assert len(whole) > HEAD_BYTES
    path.write_bytes(whole[:-1])
    with pytest.raises(StoreCorrupt, match=f"{1:016x}: the group's lengths do not add up"):
        Driver(tmp_path / "two", options)
    path.write_bytes(whole)
    async with Driver(tmp_path / "three", options) as driver:
        path.unlink()
        with pytest.raises(StoreError, match="is gone"):
            await driver.read(1)


async def test_what_was_read_long_ago_leaves_the_cache(tmp_path: Path) -> None:
    options = object_options(tmp_path / "bucket", object_cache_bytes=192 * KIB)
    async with Driver(tmp_path / "one", options) as driver:
        await driver.create(1)
        for base in range(40):
            await driver.append(make_entry(1, base, size=20 * KIB))
        files = list((tmp_path / "one" / OBJECTS).glob("*.seg"))
        for _ in range(2):
            assert [e.base_offset for e in await driver.read_all(1)] == list(range(40))
            driver.store.maintenance.tick()
            assert sum(path.stat().st_blocks * 512 for path in files) <= 192 * KIB + len(files) * 4 * KIB


def test_a_directory_has_one_kind_of_log(tmp_path: Path) -> None:
    options = object_options(tmp_path / "bucket")
    Store.open(tmp_path / "disk", small_options()).close()
    with pytest.raises(StoreVersionError, match="holds a log on disk"):
        ObjectStore.open(tmp_path / "disk", options)
    ObjectStore.open(tmp_path / "objects", options).close()
    with pytest.raises(StoreVersionError, match="is in object storage"):
        Store.open(tmp_path / "objects", small_options())


def test_whose_the_objects_are_is_in_them(tmp_path: Path) -> None:
    options = object_options(tmp_path / "bucket")
    store = ObjectStore.open(tmp_path / "one", options)
    store.assign_placement_driver("driver")
    store.assign_server_id(4)
    store.close()
    store = ObjectStore.open(tmp_path / "two", options)
    assert (store.server_id, store.placement_driver, store.incarnation) == (4, "driver", 1)
    with pytest.raises(StoreVersionError):
        store.assign_server_id(5)
    store.close()
    ObjectStore.open(tmp_path / "other", object_options(tmp_path / "elsewhere")).close()
    with pytest.raises(StoreVersionError, match="belongs to cluster"):
        ObjectStore.open(tmp_path / "other", options)


def test_range_servers_that_start_together_in_an_empty_bucket_are_of_one_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = threading.Barrier(3)
    read_once = Bucket.read_once

    def together(bucket: Bucket, key: str) -> bytes | None:
        content = read_once(bucket, key)
        if key == "identity/cluster_id":
            found.wait(20)  # nobody finds what another one has written
        return content

    monkeypatch.setattr(Bucket, "read_once", together)
    with ThreadPoolExecutor(3) as threads:
        opened = [
            threads.submit(ObjectStore.open, tmp_path / name, object_options(tmp_path / "bucket", object_log=name))
            for name in "abc"
        ]
        stores = [each.result() for each in opened]
    assert len({store.cluster_id for store in stores}) == 1
    for store in stores:
        store.close()


async def test_ranges_of_a_log_that_is_adopted_end_where_they_are_and_go_with_its_adopter(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    former = await server(tmp_path, bucket, "a", 1)
    for stream in (1, 2, 3):
        await former.create(stream, epoch=3)
        await former.append(*(make_entry(stream, base) for base in range(10)))
    await former.seal(2, epoch=4, end=8)
    second = await server(tmp_path, bucket, "b", 2)
    await second.create(9)
    await second.append(make_entry(9, 0))
    taken = await second.store.adopt(1)
    assert {stored.key: stored.end for stored in taken} == {(1, 0): 10, (2, 0): 8, (3, 0): 10}
    assert await second.store.adopt(1) == []
    with pytest.raises(StoreFailed, match="taken over"):
        await former.append(make_entry(1, 10))
    with pytest.raises(StoreError, match="sealed"):
        await second.append(make_entry(1, 10))
    assert [e.base_offset for e in await second.read_all(1)] == list(range(10))
    await second.trim(3, 4)
    await second.delete(2)
    # What comes back begins another log, and is another server.
    again = await server(tmp_path, bucket, "a", 4)
    assert again.store.ranges == {}

    def check(driver: Driver) -> None:
        ranges = driver.store.ranges
        assert {key: (stored.min_offset, stored.end) for key, stored in ranges.items()} == {
            (1, 0): (0, 10),
            (3, 0): (4, 10),
            (9, 0): (0, -1 if driver is second else 1),
        }

    check(second)
    second.reopen()
    check(second)
    assert second.store.adopted == [1]
    third = await server(tmp_path, bucket, "c", 3)
    assert len(await third.store.adopt(2)) == 3
    assert sorted(third.store.adopted) == [1, 2]
    check(third)
    third.reopen()
    check(third)
    assert [e.base_offset for e in await third.read_all(3, 4)] == list(range(4, 10))
    with pytest.raises(AdoptedElsewhereError) as refused:
        await again.store.adopt(1)
    assert refused.value.server_id == 3
    for driver in (former, second, again, third):
        driver.close()


async def test_who_adopts_may_die_behind_its_claim(tmp_path: Path) -> None:
    """The log is closed, and the adopter's says nothing of it: it goes on, or whoever has adopted it."""
    bucket = tmp_path / "bucket"
    former = await server(tmp_path, bucket, "a", 1)
    await former.create(1)
    await former.append(*(make_entry(1, base) for base in range(10)))
    second = await server(tmp_path, bucket, "b", 2)
    assert isinstance(second.store, ObjectStore)
    second.store._take_over(1)
    second.reopen()
    assert second.store.ranges == {}
    third = await server(tmp_path, bucket, "c", 3)
    with pytest.raises(AdoptedElsewhereError):
        await third.store.adopt(1)
    await third.store.adopt(2)
    assert (await third.store.adopt(1))[0].end == 10
    with pytest.raises(StoreError):
        await second.store.adopt(1)


async def test_two_servers_that_take_each_other_for_dead_leave_both_logs_to_others(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    former = [await server(tmp_path, bucket, name, number) for number, name in enumerate("ab", 1)]
    for number, driver in enumerate(former, 1):
        await driver.create(number)
        await driver.append(make_entry(number, 0))
    for driver, other in zip(former, (2, 1), strict=True):
        assert isinstance(driver.store, ObjectStore)
        driver.store._take_over(other)
    for driver in former:
        with pytest.raises(StoreFailed, match="taken over"):
            await driver.create(9)
    third = await server(tmp_path, bucket, "c", 3)
    for number in (1, 2):
        assert [stored.key for stored in await third.store.adopt(number)] == [(number, 0)]


async def test_who_is_asked_for_what_a_dead_server_had_adopted_adopts_that_one(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    one, two, three = [await server(tmp_path, bucket, name, number) for number, name in enumerate("abc", 1)]
    await one.create(1)
    await two.store.adopt(1)
    assert isinstance(three.store, ObjectStore)
    three.store._take_over(2)
    assert [stored.key for stored in await three.store.adopt(1)] == [(1, 0)]
    assert sorted(three.store.adopted) == [1, 2]


async def test_a_start_reads_the_last_index_and_what_follows(tmp_path: Path) -> None:
    options = object_options(tmp_path / "bucket", object_index_every=10, maintenance_seconds=0.01)
    former = Driver(tmp_path / "one", options)
    await former.create(1)
    await former.create(2)
    await fill(former, 1, 30)
    await fill(former, 2, 5)
    await former.trim(1, 7)
    await former.seal(2, end=4)
    await until(lambda: former.store.stats.checkpoints > 0)
    await fill(former, 1, 3, 30)
    facts = {key: (s.start, s.min_offset, s.next_offset, s.end) for key, s in former.store.ranges.items()}
    driver = Driver(tmp_path / "two", options)
    assert isinstance(driver.store, ObjectStore)
    assert driver.store.opened.own.objects < 15
    assert {key: (s.start, s.min_offset, s.next_offset, s.end) for key, s in driver.store.ranges.items()} == facts
    got = await driver.read_all(1, 7)
    assert [entry_bytes(e) for e in got] == [entry_bytes(make_entry(1, b, size=16 * KIB)) for b in range(7, 33)]
    assert [e.base_offset for e in await driver.read_all(2)] == [0, 1, 2, 3]
    driver.reopen()
    assert isinstance(driver.store, ObjectStore)
    assert driver.store.opened.own.objects == 0, "an orderly end leaves an index"
    assert len(await driver.read_all(1, 7)) == 26
    driver.close()


async def test_objects_of_which_nothing_can_be_read_are_deleted_and_the_rest_stays(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    driver = Driver(tmp_path / "one", indexed(bucket))
    await driver.create(1)
    await driver.create(2)
    await fill(driver, 1, 40)
    before = groups(bucket)
    await driver.trim(1, 36)
    await until(lambda: len(groups(bucket)) < len(before) / 2)
    assert [e.base_offset for e in await driver.read_all(1, 36)] == [36, 37, 38, 39]
    await fill(driver, 2, 10)
    await driver.delete(2)
    await driver.trim(1, 40)
    await until(lambda: len(groups(bucket)) < 6)
    # Old indexes go as well.
    await until(lambda: len(list((bucket / "logs/0/00000000/index").iterdir())) <= 3)
    await driver.append(make_entry(1, 40))
    # Whoever comes next finds what is left, the dead one's deletions notwithstanding.
    other = Driver(tmp_path / "two", indexed(bucket))
    assert [e.base_offset for e in await other.read_all(1, 40)] == [40]
    assert (2, 0) not in other.store.ranges
    other.close()
    chain = len(list((bucket / "logs/0/00000000/chain").iterdir()))
    assert chain >= 4


async def test_nothing_is_deleted_before_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = tmp_path / "bucket"
    clock = Clock(monkeypatch)
    driver = Driver(tmp_path / "one", indexed(bucket, maintenance_seconds=3600.0, object_grace_seconds=5 * 3600.0))
    await driver.create(1)
    await fill(driver, 1, 40)
    before = groups(bucket)
    await driver.trim(1, 40)
    await clock.hours(driver, 5)
    assert driver.store.stats.segments_deleted > 5
    assert set(groups(bucket)) >= set(before)
    await clock.hours(driver, 2)
    assert not set(groups(bucket)) & set(before[:-8])
    driver.close()


async def test_an_idle_store_asks_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long: what nobody needs any more goes, and then there is nothing to be said."""
    bucket = tmp_path / "bucket"
    clock = Clock(monkeypatch)
    driver = Driver(tmp_path / "one", indexed(bucket, maintenance_seconds=3600.0, object_index_seconds=600.0))
    await driver.create(1)
    await fill(driver, 1, 40)
    for _ in range(2):
        await driver.trim(1, driver.store.ranges[1, 0].next_offset - 4)
        await clock.hours(driver, 6)
        assert len(groups(bucket)) < 12
        assert len(list((bucket / "logs/0/00000000/index").iterdir())) == 2, "the newest, and the one before"
        before = requests_of(driver)
        await clock.hours(driver, 20)
        assert requests_of(driver) == before
        await fill(driver, 1, 10, driver.store.ranges[1, 0].next_offset)
    driver.reopen()
    await clock.hours(driver, 6)
    before = requests_of(driver)
    await clock.hours(driver, 20)
    assert requests_of(driver) == before
    driver.close()


async def test_what_a_dead_server_had_not_deleted_is_found_by_who_comes_next(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    former = Driver(tmp_path / "one", indexed(bucket, object_grace_seconds=1000.0))
    await former.create(1)
    await fill(former, 1, 40)
    await former.trim(1, 36)
    await until(lambda: former.store.stats.segments_deleted > 5)
    await fill(former, 1, 2, 40)
    stray = bucket / "logs/0/00000000/log" / f"{0:016x}" / f"{5000:016x}"
    shutil.copy(stray.with_name(f"{1:016x}"), stray)  # put behind a gap by whom nobody acknowledged it
    driver = Driver(tmp_path / "two", indexed(bucket))
    await until(lambda: len(groups(bucket)) < 12 and not stray.exists())
    assert [e.base_offset for e in await driver.read_all(1, 36)] == list(range(36, 42))
    driver.close()


async def test_a_former_self_gives_up_nothing_that_its_successor_needs(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    former = Driver(tmp_path / "one", indexed(bucket, object_index_seconds=1000.0))
    await former.create(1)
    await fill(former, 1, 40)
    await former.trim(1, 30)
    driver = Driver(tmp_path / "two", indexed(bucket))
    assert isinstance(former.store, ObjectStore)
    upkeep = former.store.maintenance
    assert isinstance(upkeep, ObjectUpkeep)
    upkeep.next_at = 0.0
    await until(lambda: bool(former.failures))
    assert "taken over" in str(former.failures[0])
    assert [e.base_offset for e in await driver.read_all(1, 30)] == list(range(30, 40))
    driver.close()


async def test_what_was_adopted_is_indexed_and_deleted_with_the_rest(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    former = await server(tmp_path, bucket, "a", 1)
    await former.create(1)
    await fill(former, 1, 40)
    driver = Driver(tmp_path / "b", indexed(bucket, object_log="b"))
    driver.store.assign_server_id(2)
    await driver.store.adopt(1)
    await until(lambda: driver.store.stats.checkpoints > 0)
    driver.reopen()
    assert isinstance(driver.store, ObjectStore)
    assert driver.store.opened.own.objects == 0, "its log is not read again"
    assert [e.base_offset for e in await driver.read_all(1)] == list(range(40))
    await driver.trim(1, 36)
    await until(lambda: len(groups(bucket, "a/00000000")) < 12)
    assert [e.base_offset for e in await driver.read_all(1, 36)] == [36, 37, 38, 39]
    third = await server(tmp_path, bucket, "c", 3)
    with pytest.raises(AdoptedElsewhereError):
        await third.store.adopt(1)
    await third.store.adopt(2)
    assert sorted(third.store.adopted) == [1, 2]
    assert [e.base_offset for e in await third.read_all(1, 36)] == [36, 37, 38, 39]


async def test_what_a_log_had_adopted_is_known_when_its_objects_are_gone(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    one, two = [await server(tmp_path, bucket, name, number) for number, name in enumerate("ab", 1)]
    await one.create(1)
    await two.store.adopt(1)
    third = Driver(tmp_path / "c", indexed(bucket, object_log="c"))
    third.store.assign_server_id(3)
    await third.store.adopt(2)
    await third.delete(1)
    await until(lambda: not groups(bucket, "b/00000000"))
    fourth = await server(tmp_path, bucket, "d", 4)
    with pytest.raises(AdoptedElsewhereError) as refused:
        await fourth.store.adopt(1)
    assert refused.value.server_id == 3


async def test_a_log_is_fenced_before_it_is_judged(tmp_path: Path) -> None:
    """Who has closed another log, and was closed by somebody who died then, adopts nothing any more."""
    bucket = tmp_path / "bucket"
    one, two, three, four = [await server(tmp_path, bucket, name, number) for number, name in enumerate("abcd", 1)]
    await one.create(1)
    for driver in (two, three):
        assert isinstance(driver.store, ObjectStore)
    closed_at, other = two.store._take_over(1)  # type: ignore[attr-defined]
    three.store.opened.logs.close("b/00000000", "c/00000000", lambda *_: False)  # type: ignore[attr-defined]
    assert len(await four.store.adopt(1)) == 1
    with pytest.raises(StoreFailed, match="taken over"):
        await awaited(lambda settle: two.store._submit(_Adoption(1, closed_at, other, [], settle)))


async def test_a_damaged_index_is_replaced_by_the_one_before(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    former = Driver(tmp_path / "one", indexed(bucket, object_index_every=3))
    await former.create(1)
    await fill(former, 1, 20)
    await former.trim(1, 10)
    await until(at_rest(former))
    await fill(former, 1, 5, 20)
    former.close()
    damage(newest_index(bucket))
    driver = Driver(tmp_path / "two", indexed(bucket))
    assert [e.base_offset for e in await driver.read_all(1, 10)] == list(range(10, 25))
    driver.close()


async def test_after_a_damaged_index_the_one_before_counts_for_every_start(tmp_path: Path) -> None:
    """Who falls back to it says so in the chain: the next start has no other index."""
    bucket = tmp_path / "bucket"
    former = Driver(tmp_path / "one", indexed(bucket, object_index_every=3))
    await former.create(1)
    await fill(former, 1, 20)
    await until(at_rest(former))
    former.close()
    damage(newest_index(bucket))
    for name in ("two", "three"):
        driver = Driver(tmp_path / name, object_options(bucket, maintenance_seconds=1000.0))
        assert [e.base_offset for e in await driver.read_all(1)] == list(range(20))
    driver.close()


async def test_tidying_spares_what_the_index_before_needs_of_an_adopted_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index before knows of no adoption: who falls back to it reads the adopted log by that one's own index."""
    bucket = tmp_path / "bucket"
    other = Driver(tmp_path / "a", indexed(bucket, object_log="a"))
    other.store.assign_server_id(1)
    await other.create(1)
    await fill(other, 1, 20)
    await until(at_rest(other))
    former = await server(tmp_path, bucket, "b", 2)
    await former.create(2)
    upkeep_of(former).save_everything()
    await former.store.adopt(1)
    clock = Clock(monkeypatch)
    options = indexed(bucket, object_log="b", maintenance_seconds=3600.0, object_index_seconds=600.0)
    driver = Driver(tmp_path / "two", options)
    await driver.append(make_entry(2, 0))
    await clock.hours(driver, 1)
    assert driver.store.stats.checkpoints == 1
    damage(newest_index(bucket, "b/00000000"))
    third = Driver(tmp_path / "three", options)
    assert third.store.opened.own.entry is not None  # type: ignore[attr-defined]
    assert [e.base_offset for e in await third.read_all(1)] == list(range(20))
    assert [e.base_offset for e in await third.read_all(2)] == [0]
    await third.append(make_entry(2, 1))
    await clock.hours(third, 5)
    assert not list((bucket / "logs/a/00000000/index").iterdir()), "and it goes when no index needs it"
    third.close()


async def test_tidying_takes_nothing_that_is_put_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    listing, go = threading.Event(), threading.Event()
    directories = Bucket.directories

    def held(bucket: Bucket, prefix: str) -> list[str]:
        if prefix == "log/":
            listing.set()
            assert go.wait(10)
        return directories(bucket, prefix)

    monkeypatch.setattr(Bucket, "directories", held)
    driver = Driver(tmp_path / "one", indexed(tmp_path / "bucket", maintenance_seconds=3600.0))
    driver.store.maintenance.tick()
    assert await asyncio.to_thread(listing.wait, 10)
    await driver.create(1)
    await driver.append(make_entry(1, 0))
    go.set()
    for base in (1, 2):
        await clock.hours(driver, 2)
        await driver.append(make_entry(1, base))
    again = Driver(tmp_path / "two", object_options(tmp_path / "bucket"))
    assert [e.base_offset for e in await again.read_all(1)] == [0, 1, 2]
    again.close()


async def test_tidying_leaves_the_fences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A former self that finds its number free would acknowledge what nobody reads."""
    bucket = tmp_path / "bucket"
    former = Driver(tmp_path / "one", object_options(bucket, maintenance_seconds=1000.0))
    await former.create(1)
    clock = Clock(monkeypatch)
    driver = Driver(tmp_path / "two", indexed(bucket, maintenance_seconds=3600.0))
    for base in range(3):
        await driver.append(make_entry(1, base))
        await clock.hours(driver, 2)
    assert driver.store.stats.objects["delete"].answered
    with pytest.raises(StoreFailed, match="taken over"):
        await former.append(make_entry(1, 0))
    driver.close()


async def test_a_server_without_a_log_cannot_be_adopted(tmp_path: Path) -> None:
    driver = await server(tmp_path, tmp_path / "bucket", "a", 1)
    with pytest.raises(StoreError, match="no log"):
        await driver.store.adopt(7)
    with pytest.raises(StoreError, match="this one"):
        await driver.store.adopt(1)
    driver.close()
    on_disk = Driver(tmp_path / "disk", small_options())
    with pytest.raises(StoreError, match="on a disk"):
        await on_disk.store.adopt(1)
    on_disk.close()


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 64])
def test_a_log_has_a_plain_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="no name of a log"):
        ObjectStore.open(tmp_path / "one", object_options(tmp_path / "bucket", object_log=name))


@pytest.mark.parametrize("url", ["", "file://", "nonsense", "ftp://host/path"])
def test_places_that_lead_nowhere_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(StoreError, match="objects"):
        ObjectStore.open(tmp_path, object_options(tmp_path, objects=url))


async def test_requests_are_counted_as_stores_charge_them(tmp_path: Path) -> None:
    bucket = Bucket(f"file://{tmp_path}/bucket")
    inner = bucket.below("logs")
    assert inner.put_if_absent("a", b"12345")
    assert not inner.put_if_absent("a", b"12345")
    assert bytes(bucket.get("logs/a")) == b"12345"
    assert bytes(inner.get_range("a", 1, 3)) == b"23"
    with pytest.raises(FileNotFoundError):
        bucket.get("none")
    assert inner.list("") == {"a": 5}
    inner.delete(["a"])
    told = {operation: (one.answered, one.failed, one.bytes) for operation, one in bucket.requests.items()}
    # One of the four looked for the object whose name was taken.
    assert told == {"put": (2, 0, 10), "get": (4, 0, 7), "list": (1, 0, 0), "delete": (1, 0, 0)}
    assert all(one.seconds > 0 for one in bucket.requests.values())
