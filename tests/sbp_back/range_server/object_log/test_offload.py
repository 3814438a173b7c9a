"""Old data of a log on disk moves to objects: nothing is lost on the way whoever dies when, a store that does not
answer holds up nobody but who wants what lies there, and what is needed is not deleted."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from hypothesis import HealthCheck, Phase, settings

from anabranch_kit.errors import StoreCorrupt, StoreError, StoreVersionError
from anabranch_kit.memory.buffers import Buffer
from sbp_back.range_server.object_log.objects.cache import RangeSegment
from sbp_back.range_server.object_log.objects.doomed import Doomed
from sbp_back.range_server.object_log.range_objects import range_writer
from sbp_back.range_server.store import Files, Store
from sbp_back.range_server.store.layout.checkpoint import checkpoint_files
from sbp_back.range_server.store.opening.recovery import Recovery
from tests.depth import examples, timeout
from tests.kit.waiting import until
from tests.sbp_back.range_server.object_log import object_harness
from tests.sbp_back.range_server.object_log.object_harness import (
    Clock,
    Faults,
    below,
    contents,
    crash_copy,
    faulty,
    is_moved,
    moving,
    quick_pauses,
    requests_of,
    store_of,
    the_mover_stopped,
)
from tests.sbp_back.range_server.store.power_images import change
from tests.sbp_back.range_server.store.store_harness import KIB, Driver, entry_bytes, make_entry, small_options
from tests.sbp_back.range_server.store.test_store_model import StoreMachine

__all__ = ["quick_pauses"]
pytestmark = pytest.mark.slow

fill = partial(object_harness.mixed, size=4 * KIB)
wanted = partial(object_harness.wanted, size=4 * KIB)


def moved_files(bucket: Path, name: str = "0") -> list[Path]:
    return sorted((bucket / "disks" / name / "ranges").glob("*/*"))


def local_bytes(driver: Driver) -> int:
    size = 0
    for path in driver.segments():
        with suppress(FileNotFoundError):  # it was deleted just now
            size += path.stat().st_size
    return size


async def test_old_data_moves_the_recent_stays_and_all_is_read(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    driver = Driver(tmp_path / "one", moving(bucket))
    await fill(driver, 100)
    await until(is_moved(driver))
    await until(lambda: local_bytes(driver) < 400 * KIB)
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


async def test_a_store_that_is_closed_leaves_the_cache_to_the_next_one(tmp_path: Path) -> None:
    """Their files have the same names."""
    driver = Driver(tmp_path / "one", moving(tmp_path / "bucket", object_cache_bytes=4096 * KIB))
    await fill(driver, 100)
    await until(is_moved(driver))
    await driver.read_all(1)
    former = store_of(driver).offload
    driver.reopen()
    await driver.read_all(1)
    former._log.stats.disk_full = True
    former.start_chores()  # as by a timer that was set before the end
    assert contents(await driver.read_all(1)) == wanted(1, 0, 100)
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
                store_of(self.driver).offload.close()
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


# --- each step may be the last


class Dying(Faults):
    """Keeps a copy of the directory and of the bucket before everything that changes the bucket, and behind it."""

    def __init__(self, driver: Driver, bucket: Path, copies: Path) -> None:
        super().__init__(1, 0.0)
        self.driver = driver
        self.bucket = bucket
        self.copies = copies
        self.kinds: list[str] = []

    def _call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if function not in (obstore.put, obstore.delete):
            return super()._call(function, *arguments, **options)
        key = arguments[1] if isinstance(arguments[1], str) else arguments[1][0]
        kind = f"{function.__name__} {key.split('/')[2]}"
        self._keep(kind)
        result = super()._call(function, *arguments, **options)
        self._keep(f"behind {kind}")
        return result

    def _keep(self, kind: str) -> None:
        if self.kinds.count(kind) < 3:
            target = self.copies / str(len(self.kinds))
            self.kinds.append(kind)
            crash_copy(self.driver, target / "data")
            shutil.copytree(self.bucket, target / "bucket")


async def _dies_at_each_step(path: Path, patience: float = 120.0) -> list[str]:
    """Who dies before or behind any request has all that was acknowledged, after a start and after another one, and
    when all that nobody needs is deleted; gives the kinds of requests there were."""
    options = moving(path / "bucket")
    driver = Driver(path / "one", options)
    dying = Dying(driver, path / "bucket", path / "copies")
    below(driver, dying)
    await fill(driver, 10)
    reached = [(0, driver.store.ranges[1, 0].next_offset)]
    for base in range(10, 70):
        await driver.append(make_entry(1, base, size=4 * KIB), make_entry(2, base, size=4 * KIB))
        reached.append((len(dying.kinds), base + 1))
    await driver.trim(2, 10)
    await until(is_moved(driver), seconds=patience)
    await driver.trim(2, 40)
    await until(lambda: any(kind.startswith("behind delete ranges") for kind in dying.kinds), seconds=patience)
    driver.close()
    for number in range(len(dying.kinds)):
        least = max(base for kinds, base in reached if kinds <= number)
        place = path / "copies" / str(number)
        again = Driver(place / "data", moving(place / "bucket"))
        for _ in range(2):
            assert contents(await again.read_all(1))[:least] == wanted(1, 0, least)
            low = again.store.ranges[2, 0].min_offset
            assert contents(await again.read_all(2, low))[: least - low] == wanted(2, low, least)
            await until(is_moved(again), seconds=patience)
            again.reopen()
        await until(partial(is_tidy, again, place / "bucket"), seconds=patience)
        assert contents(await again.read_all(1))[:least] == wanted(1, 0, least)
        again.close()
        shutil.rmtree(place)
    return dying.kinds


def superfluous(driver: Driver, bucket: Path) -> set[str]:
    """What is in a bucket and no index names, but the notes of starts and the index before the newest."""
    names = store_of(driver).offload.names
    former = {store_of(driver).offload.former}
    return {key for key in there(bucket) - names.keys - former if not key.startswith("starts/")}


def is_tidy(driver: Driver, bucket: Path) -> bool:
    return store_of(driver).offload.tidied and not superfluous(driver, bucket)


def there(bucket: Path) -> set[str]:
    top = bucket / "disks" / "0"
    found = set()
    for directory, _, files in os.walk(top):
        found |= {str((Path(directory) / name).relative_to(top)) for name in files if "#" not in name}
    return found


async def test_who_dies_at_any_step_has_all_that_was_acknowledged(tmp_path: Path) -> None:
    kinds = await _dies_at_each_step(tmp_path)
    assert {"put ranges", "put rows", "put index", "delete ranges", "delete rows", "delete index"} <= set(kinds)


SAFEGUARDS: dict[str, tuple[str, object]] = {
    "segments go before an index names what has taken their place": (
        "sbp_back.range_server.object_log.range_objects.offload.Offload.named",
        property(lambda self: True),
    ),
    "objects are deleted that the index names": (
        "sbp_back.range_server.object_log.range_objects.moved.Names.keys",
        property(lambda self: set()),
    ),
    "objects have no place in the order of the log": (
        "sbp_back.range_server.store.opening.recovery.Recovery._place_moved",
        lambda self, upto: None,
    ),
}


async def _replaced_and_moved(path: Path) -> tuple[list[bytes], list[bytes]]:
    """An entry whose segment stays is replaced, and what has replaced it moves: (what a start finds, what is right)."""
    driver = Driver(path / "one", moving(path / "bucket", local_bytes=None, evacuate_below=0.0))
    await driver.create(3)
    await driver.append(make_entry(3, 0, size=100))  # too little to be moved
    await fill(driver, 20)
    new = make_entry(1, 2, size=4 * KIB, fill=5)
    await driver.replace(0, (await driver.read(1, 2))[:1], [new])
    await fill(driver, 60)
    driver.options.local_bytes = 100 * KIB
    await until(is_moved(driver, 5))
    assert driver.segments()[0].name == f"{0:020d}.seg"
    driver.reopen()
    found = contents(await driver.read_all(1))
    driver.close()
    return found, [*wanted(1, 0, 2), entry_bytes(new), *wanted(1, 3, 80)]


async def test_what_was_moved_comes_behind_what_was_written_before(tmp_path: Path) -> None:
    found, right = await _replaced_and_moved(tmp_path)
    assert found == right


async def test_in_any_order_what_was_replaced_would_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, Recovery._place_moved, "self._moved[0].lsn <= upto", "True")
    found, right = await _replaced_and_moved(tmp_path)
    assert found != right


@pytest.mark.parametrize("name", SAFEGUARDS)
async def test_no_order_of_the_steps_can_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(*SAFEGUARDS[name])
    with pytest.raises((StoreError, AssertionError, TimeoutError)):
        await _dies_at_each_step(tmp_path, patience=4.0)


async def _an_upload_without_an_answer(path: Path) -> None:
    options = moving(path / "bucket")
    driver = Driver(path / "one", options)
    faults = faulty(driver, 1.0)
    await fill(driver, 60)
    await until(lambda: faults.failed > 0)
    assert len(driver.store.log.segments) > 6
    assert contents(await driver.read_all(1)) == wanted(1, 0, 60)
    driver.reopen()
    assert contents(await driver.read_all(1)) == wanted(1, 0, 60)
    await until(is_moved(driver))
    assert contents(await driver.read_all(1)) == wanted(1, 0, 60)
    driver.close()


async def test_what_is_not_uploaded_stays_on_the_disk(tmp_path: Path) -> None:
    await _an_upload_without_an_answer(tmp_path)


async def test_an_upload_that_is_believed_without_an_answer_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbp_back.range_server.object_log.objects.bucket.Bucket.put_if_absent", lambda *_: True)
    monkeypatch.setattr(
        "sbp_back.range_server.object_log.objects.bucket.Bucket.write_once", lambda _self, _key, data, _s: data
    )
    with pytest.raises((StoreError, AssertionError, TimeoutError)):
        await _an_upload_without_an_answer(tmp_path)


# --- a bucket with faults


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries that follow one another at once."""
    monkeypatch.setattr("sbp_back.range_server.object_log.range_objects.offload.PAUSE", 0.001)
    monkeypatch.setattr("sbp_back.range_server.object_log.range_objects.offload.MOST_PAUSE", 0.001)


@pytest.mark.usefixtures("quick", "quick_pauses")
@pytest.mark.parametrize("seed", range(3))
async def test_answers_that_are_lost_and_refusals_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    bucket = tmp_path / "bucket"
    driver = Driver(tmp_path / "one", moving(bucket))
    for _ in range(2):
        faults = faulty(driver, 0.3, seed)
        await fill(driver, 60)
        await until(is_moved(driver))
        for stream in (1, 2):
            count = driver.store.ranges[stream, 0].next_offset
            assert contents(await driver.read_all(stream)) == wanted(stream, 0, count)
        assert faults.failed > 3
        driver.reopen()
    await until(partial(is_tidy, driver, bucket))
    driver.close()


async def test_tries_are_further_and_further_apart_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = time.monotonic() + 1e6
    fake = SimpleNamespace(monotonic=lambda: clock)
    monkeypatch.setattr("sbp_back.range_server.object_log.range_objects.offload.time", fake)
    driver = Driver(tmp_path / "one", moving(tmp_path / "bucket"))
    await until(lambda: store_of(driver).offload.tidied)
    faults = faulty(driver, 1.0)
    await fill(driver, 60)
    waited = []
    for _ in range(9):
        await until(lambda now=clock: store_of(driver).offload.rest_until > now)  # type: ignore[misc]
        waited.append(store_of(driver).offload.rest_until - clock)
        clock += waited[-1] + 0.001
    assert waited == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60, 60], abs=0.01)
    assert driver.store.stats.moving_fails
    faults.share = 0.0

    def moved() -> bool:
        nonlocal clock
        clock += 1.0
        return is_moved(driver)()

    await until(moved)
    assert not driver.store.stats.moving_fails
    assert sum("stays on the disk until it can" in record.getMessage() for record in caplog.records) == 1
    driver.close()


@pytest.mark.usefixtures("quick_pauses")
async def test_a_store_that_does_not_answer_refuses_readers_of_old_data_only(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    driver = Driver(tmp_path / "one", moving(bucket))
    await fill(driver, 60)
    await until(is_moved(driver))
    driver.reopen()
    store_of(driver).there.cache.patience = 0.0
    live = driver.store.stats.live_bytes
    faults = faulty(driver, 1.0)
    with pytest.raises(StoreError, match=r"range 0 of stream 1 cannot be read"):
        await driver.read(1, 0)
    assert contents(await driver.read(1, 59)) == wanted(1, 59, 60)
    # One plan for both: what is here is given, what is not is refused.
    plan = driver.store.gathering()
    assert plan.add(1, 0, 0, 60, 16 * KIB, -1) > 0
    assert plan.add(2, 0, 58, 60, 16 * KIB, -1) > 0
    found: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
    driver.store.gather(plan, found.set_result)
    refused, given = await found
    assert isinstance(refused, StoreError)
    assert not isinstance(refused, StoreCorrupt)
    assert contents(given) == wanted(2, 58, 60)
    # What cannot be had is there nevertheless: for retention, searches and who asks how much there is.
    assert driver.store.stats.live_bytes == live
    assert driver.store.batch_bounds(1, 0, 3) == (3, 4)
    assert driver.store.ranges[1, 0].min_offset == 0
    await driver.append(make_entry(1, 60, size=4 * KIB))
    faults.share = 0.0
    assert contents(await driver.read_all(1)) == wanted(1, 0, 61)
    driver.close()


async def test_a_bucket_that_is_away_at_the_start_keeps_nobody_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = tmp_path / "bucket"
    driver = Driver(tmp_path / "one", moving(bucket))
    await fill(driver, 60)
    await until(is_moved(driver))
    driver.close()
    monkeypatch.setattr("sbp_back.range_server.object_log.range_objects.offload_store.START_PATIENCE", 0.0)
    (bucket / "disks").rename(bucket / "away")
    (bucket / "disks").write_bytes(b"")
    driver = Driver(tmp_path / "one", moving(bucket))
    assert "cannot be reached" in driver.store.messages[-1]
    await fill(driver, 40)
    assert contents(await driver.read(1, 99)) == wanted(1, 99, 100)
    (bucket / "disks").unlink()
    (bucket / "away").rename(bucket / "disks")
    store_of(driver).offload.rest_until = 0.0
    await until(is_moved(driver))
    assert contents(await driver.read_all(1)) == wanted(1, 0, 100)
    driver.close()


@pytest.mark.usefixtures("quick_pauses")
async def test_damage_names_object_and_range_and_those_behind_are_read(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    driver = Driver(tmp_path / "one", moving(bucket))
    await fill(driver, 60)
    await until(is_moved(driver))
    driver.close()
    for path in moved_files(bucket):
        data = path.read_bytes()
        at = data.find(bytes(make_entry(1, 5, size=4 * KIB).payload[:40]))
        if at > 0:
            path.write_bytes(data[:at] + b"!" + data[at + 1 :])
    driver = Driver(tmp_path / "one", moving(bucket))
    assert contents(await driver.read(1, 0)) == wanted(1, 0, 5)
    with pytest.raises(StoreCorrupt, match=r"offset 5 of range 0 of stream 1 \(object ranges/0000000000000001"):
        await driver.read(1, 5)
    assert contents(await driver.read_all(1, 6)) == wanted(1, 6, 60)
    driver.close()


async def test_what_is_damaged_on_the_disk_is_not_moved(tmp_path: Path) -> None:
    options = moving(tmp_path / "bucket", local_bytes=None)
    driver = Driver(tmp_path / "one", options)
    await fill(driver, 60)
    driver.close()
    path = driver.segments()[0]
    data = path.read_bytes()
    at = data.index(bytes(make_entry(1, 2, size=4 * KIB).payload[:40]))
    path.write_bytes(data[:at] + b"!" + data[at + 1 :])
    driver = Driver(tmp_path / "one", moving(tmp_path / "bucket"))
    told = "offset 2 of range 0 of stream 1"
    await until(lambda: told in driver.store.stats.last_maintenance_error or not path.exists())
    await until(lambda: len(driver.store.log.segments) <= 5 and store_of(driver).offload.named)
    assert path.exists()
    with pytest.raises(StoreCorrupt):
        await driver.read(1, 2)
    assert contents(await driver.read_all(1, 3)) == wanted(1, 3, 60)
    driver.close()


async def _twice_is_looked_at_damage(path: Path) -> None:
    """Bytes that are wrong once, on the way, are no damage."""
    driver = Driver(path / "one", moving(path / "bucket"))
    await fill(driver, 60)
    await until(is_moved(driver))
    driver.reopen()
    faults = faulty(driver)
    met: set[str] = set()

    def damage(key: str, data: bytes) -> bytes:
        if "/ranges/" not in key or key in met:
            return data
        met.add(key)
        return data[:100] + bytes([data[100] ^ 1]) + data[101:]

    faults.damage = damage
    for stream in (1, 2):
        assert contents(await driver.read_all(stream)) == wanted(stream, 0, 60)
    assert len(met) > 4
    driver.close()


@pytest.mark.usefixtures("quick_pauses")
async def test_what_was_damaged_on_the_way_is_fetched_again(tmp_path: Path) -> None:
    await _twice_is_looked_at_damage(tmp_path)


class _LyingFiles(Files):
    """What is written of some objects is not what is read then."""

    lies = 0

    def write(self, fd: int, parts: Sequence[Buffer], offset: int, durable: bool) -> int:
        if self.lies and os.readlink(f"/proc/self/fd/{fd}").endswith("/range.tmp"):
            self.lies -= 1
            data = bytearray(b"".join(parts))
            data[len(data) // 2] ^= 1
            parts = [data]
        return super().write(fd, parts, offset, durable)


async def _a_cache_that_lies(path: Path) -> None:
    files = _LyingFiles()
    driver = Driver(path / "one", moving(path / "bucket", files=files))
    files.lies = 2
    await fill(driver, 60)
    await until(lambda: not files.lies)
    store_of(driver).offload.rest_until = 0.0
    await until(is_moved(driver))
    driver.reopen()
    for stream in (1, 2):
        assert contents(await driver.read_all(stream)) == wanted(stream, 0, 60)
    driver.close()


@pytest.mark.usefixtures("quick")
async def test_an_object_that_the_cache_gives_otherwise_than_it_was_written_is_not_put(tmp_path: Path) -> None:
    await _a_cache_that_lies(tmp_path)


CHECKSUMS: dict[str, tuple[Callable[..., object], str, str, Callable[[Path], Coroutine[Any, Any, None]]]] = {
    "of entries that move": (
        range_writer._copy,
        "if crc32(body) != crc:",
        "if False:",
        lambda path: test_what_is_damaged_on_the_disk_is_not_moved(path),
    ),
    "of what is put": (
        range_writer.RangeWriter._put,
        "if crc32(content[at : min(at + PART_BYTES, what.size)]) != crc:",
        "if False:",
        _a_cache_that_lies,
    ),
    "of parts that are fetched": (
        RangeSegment._check,
        "if crc32(data) != self.crcs[place.number]:",
        "if False:",
        _twice_is_looked_at_damage,
    ),
}


@pytest.mark.usefixtures("quick", "quick_pauses")
@pytest.mark.parametrize("name", CHECKSUMS)
async def test_no_checksum_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    function, old, new, scene = CHECKSUMS[name]
    change(monkeypatch, function, old, new)
    with pytest.raises((StoreError, AssertionError, TimeoutError)):
        await scene(tmp_path)


async def test_rows_and_names_that_are_damaged_on_the_disk_are_fetched(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "one", moving(tmp_path / "bucket"))
    await fill(driver, 60)
    await until(is_moved(driver))
    for _ in range(2):
        driver.reopen()  # the bucket knows of starts that no list there is of
    driver.close()
    (tmp_path / "one" / "moved" / "names").write_bytes(b"nothing")
    for path in (tmp_path / "one" / "moved").glob("*.idx"):
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    driver = Driver(tmp_path / "one", moving(tmp_path / "bucket"))
    for stream in (1, 2):
        assert contents(await driver.read_all(stream)) == wanted(stream, 0, 60)
    driver.close()


# --- whose it is, and what goes


async def test_two_servers_or_copies_of_one_do_not_share_a_name(tmp_path: Path) -> None:
    options = moving(tmp_path / "bucket")
    driver = Driver(tmp_path / "one", options)
    await fill(driver, 40)
    with pytest.raises(StoreVersionError, match=r"sbp\.object_log"):
        Driver(tmp_path / "two", options)
    Driver(tmp_path / "two", moving(tmp_path / "bucket", object_log="two")).close()
    driver.close()
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    driver = Driver(tmp_path / "one", options)
    with pytest.raises(StoreVersionError, match="copy of this one's directory"):
        Driver(tmp_path / "copy", options)
    driver.close()


async def test_who_is_copied_while_it_runs_deletes_and_moves_nothing_more(tmp_path: Path) -> None:
    options = moving(tmp_path / "bucket")
    former = Driver(tmp_path / "one", options)
    await fill(former, 40)
    await until(is_moved(former))
    with the_mover_stopped(former):
        crash_copy(former, tmp_path / "copy")
    driver = Driver(tmp_path / "copy", options)
    await former.trim(1, 40)
    await fill(former, 40)
    await until(lambda: store_of(former).offload.lost)
    for stream in (1, 2):
        assert contents(await driver.read_all(stream)) == wanted(stream, 0, 40)
        assert contents(await former.read_all(stream, 40)) == wanted(stream, 40, 80)
    driver.close()
    former.close()


async def test_what_is_trimmed_or_deleted_goes_after_a_while_and_not_before(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    driver = Driver(tmp_path / "one", moving(bucket, object_grace_seconds=1000.0))
    await fill(driver, 60)
    await until(is_moved(driver))
    before = there(bucket)
    await driver.trim(1, 60)
    await driver.delete(2)
    await until(lambda: driver.store.stats.moved_bytes == 0 and not driver.store.log.elsewhere)
    assert before <= there(bucket)
    driver.reopen(moving(bucket))
    await until(lambda: not moved_files(bucket))
    driver.close()


async def test_without_a_time_of_grace_it_would_go_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ripe = Doomed.ripe
    monkeypatch.setattr(Doomed, "ripe", lambda self, index, _grace: ripe(self, index, 0.0))
    bucket = tmp_path / "bucket"
    driver = Driver(tmp_path / "one", moving(bucket, object_grace_seconds=1000.0))
    await fill(driver, 60)
    await until(is_moved(driver))
    before = there(bucket)
    await driver.trim(1, 60)
    await until(lambda: not before <= there(bucket))
    driver.close()


async def test_retention_counts_what_was_moved_and_trims_it_first(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    driver = Driver(tmp_path / "one", moving(bucket))
    await fill(driver, 60)
    await until(is_moved(driver))
    # 480 KiB in all, most of it elsewhere: nothing is beyond the bound.
    driver.reopen(moving(bucket, retention_bytes=600 * KIB))
    await driver.until(lambda: store_of(driver).offload.tidied)
    assert driver.store.ranges[1, 0].min_offset == 0
    await fill(driver, 30)
    # Of which stream the first objects are depends on how far the mover was behind.
    await until(lambda: any(driver.store.ranges[stream, 0].min_offset > 0 for stream in (1, 2)))
    await until(lambda: driver.store.stats.live_bytes <= 600 * KIB)
    await asyncio.sleep(0.1)  # it trims no more within this time
    assert driver.store.stats.live_bytes > 400 * KIB
    driver.close()


async def test_an_idle_disk_asks_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long: what nobody needs any more goes, and then there is nothing to be said."""
    bucket = tmp_path / "bucket"
    options = moving(bucket, maintenance_seconds=3600.0, object_index_seconds=600.0, object_grace_seconds=600.0)
    clock = Clock(monkeypatch)
    driver = Driver(tmp_path / "one", options)
    await fill(driver, 60)
    for _ in range(2):
        await clock.hours(driver, 10)
        assert is_moved(driver)()
        await driver.trim(1, driver.store.ranges[1, 0].next_offset - 4)
        await clock.hours(driver, 6)
        assert is_tidy(driver, bucket)
        before = requests_of(driver)
        await clock.hours(driver, 20)
        assert requests_of(driver) == before
        await fill(driver, 20)
    driver.reopen()
    await clock.hours(driver, 10)
    before = requests_of(driver)
    await clock.hours(driver, 20)
    assert requests_of(driver) == before
    driver.close()


async def test_small_objects_become_large_ones(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    streams = (1, 2, 3, 4)
    driver = Driver(tmp_path / "one", moving(bucket))
    made: dict[str, int] = {}
    for _ in range(9):  # a segment each time, of which each stream has a quarter
        await fill(driver, 16, streams, size=1 * KIB)
        await until(is_moved(driver, 3))
        for path in moved_files(bucket):
            with suppress(FileNotFoundError):  # it was deleted just now
                made[path.name] = path.stat().st_size
    assert any(size < 32 * KIB for size in made.values())
    assert any(size > 64 * KIB for size in made.values())
    for stream in streams:
        assert contents(await driver.read_all(stream)) == wanted(stream, 0, 144, size=1 * KIB)
    driver.close()


async def test_a_disk_without_objects_refuses_a_directory_that_needs_them(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "one", moving(tmp_path / "bucket"))
    await fill(driver, 60)
    await until(is_moved(driver))
    driver.close()
    with pytest.raises(StoreVersionError, match=r"sbp\.objects has to say where"):
        Store.open(tmp_path / "one", small_options())
    with pytest.raises(StoreError, match="durability fsync"):
        Driver(tmp_path / "two", small_options(local_bytes=1))
