"""The store whose log is objects: what the store on disk promises, and what a lost machine, a former self and a store
with faults make of it. Its everyday behaviour is tested with the other stores', in ``store/test_store_basics.py``."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pytest
from hypothesis import HealthCheck, Phase, settings

from sbp_back.errors import StoreCorrupt, StoreError, StoreFailed, StoreVersionError
from sbp_back.range_server.object_log.content import HEAD_BYTES
from sbp_back.range_server.object_log.logs import AdoptedElsewhereError
from sbp_back.range_server.object_log.object_store import ObjectStore
from sbp_back.range_server.store import Store, StoreOptions
from sbp_back.range_server.store.options import OBJECTS
from tests.depth import examples, timeout
from tests.sbp_back.range_server.store.store_harness import KIB, Driver, entry_bytes, make_entry, small_options
from tests.sbp_back.range_server.store.test_store_model import StoreMachine


def object_options(bucket: Path, **changes: object) -> StoreOptions:
    values: dict[str, object] = {"durability": "object", "objects": f"file://{bucket}", "object_linger_seconds": 0.001}
    return small_options(**{**values, **changes})


class ObjectMachine(StoreMachine):
    """The model of every store; a crash takes the machine with it, and its process lives on without knowing."""

    def __init__(self) -> None:
        self.lost: list[Driver] = []
        super().__init__()

    async def open(self) -> Driver:
        self.options = object_options(self.directory / "bucket", object_cache_bytes=192 * KIB)
        return Driver(self.directory / str(self.number), self.options)

    def settle(self) -> None:
        """Nothing is freed yet."""

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

    def list(self, *arguments: Any, **options: Any) -> Any:
        return obstore.list(*arguments, **options)

    def get(self, store: Any, key: str) -> Any:
        data = self.damage(key, bytes(self._call(obstore.get, store, key).bytes()))
        return _Got(data)

    def get_range(self, store: Any, key: str, **options: Any) -> Any:
        return self._call(obstore.get_range, store, key, **options)


class _Got:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def bytes(self) -> bytes:
        return self._data


@pytest.fixture
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbp_back.range_server.object_log.bucket._AGAIN_SECONDS", 0.001)
    monkeypatch.setattr("sbp_back.range_server.object_log.bucket._MOST_AGAIN_SECONDS", 0.001)


def faulty(driver: Driver, share: float = 0.0, seed: int = 1) -> Faults:
    assert isinstance(driver.store, ObjectStore)
    faults = Faults(seed, share)
    logs = driver.store._opened.logs
    for bucket in (logs.root, *logs._known.values()):
        bucket._obstore = faults  # type: ignore[assignment]
    return faults


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
    async with Driver(tmp_path / "one", options) as driver:
        await driver.create(1)
        await driver.append(make_entry(1, 0))
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
            driver.store._maintenance.tick()
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


async def server(path: Path, bucket: Path, name: str, server_id: int) -> Driver:
    """A store that has its number."""
    driver = Driver(path / f"{name}-{server_id}", object_options(bucket, object_log=name))
    assert driver.store.server_id in (-1, server_id)
    driver.store.assign_server_id(server_id)
    return driver


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
