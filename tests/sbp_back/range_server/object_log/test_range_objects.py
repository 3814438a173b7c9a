"""What lies among others' data becomes objects of ranges, and nothing is lost on the way, whoever dies when."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import obstore
import pytest
from msgspec import structs

from anabranch_kit.errors import StoreCorrupt, StoreError
from anabranch_kit.run.awaited import awaited
from sbp_back.embedded import RANGE_SERVER_LISTENER, EmbeddedOptions, start_embedded
from sbp_back.errors import DecodeError
from sbp_back.range_server.object_log import object_upkeep
from sbp_back.range_server.object_log.object_store import ObjectStore
from sbp_back.range_server.object_log.object_upkeep import ObjectUpkeep
from sbp_back.range_server.object_log.objects.cache import PART_BYTES, RangeSegment, range_object
from sbp_back.range_server.object_log.range_objects import range_writer
from sbp_back.range_server.object_log.range_objects.range_object import (
    SPARSE_BYTES,
    RangeObject,
    decode_end,
    encode_end,
    sparse_index,
)
from sbp_back.range_server.store import StoreOptions
from sbp_back.transport.tcp_carrier import tcp_connector
from sbp_back.wire import model as m
from tests.kit.waiting import until, until_asked
from tests.sbp_back.range_server.object_log.object_harness import (
    Faults,
    all_indexed,
    at_rest,
    below,
    contents,
    faulty,
    fill,
    groups,
    indexed,
    mixed,
    quick_pauses,
    server,
    upkeep_of,
    wanted,
)
from tests.sbp_back.range_server.store.store_harness import KIB, Driver, entry_bytes, make_entry

__all__ = ["quick_pauses"]


def packed(bucket: Path, **changes: object) -> StoreOptions:
    """Objects of ranges from 64 KiB on, and 4 KiB among no more than 128."""
    values: dict[str, object] = {
        "object_range_bytes": 64 * KIB,
        "object_mixed_bytes": 128 * KIB,
        "object_cache_bytes": 192 * KIB,
    }
    return indexed(bucket, **{**values, **changes})


def range_files(bucket: Path, log: str = "0/00000000") -> list[Path]:
    with suppress(FileNotFoundError):
        return sorted((bucket / "logs" / log / "ranges").glob("*/*"))
    return []


def test_the_end_of_an_object_tells_what_it_is() -> None:
    sparse = sparse_index(100, [(150, SPARSE_BYTES), (170, 2 * SPARSE_BYTES + 5)])
    assert sparse == bytes.fromhex("00000032010000000000004602000005")
    what = RangeObject("ranges/x", 7, 2, 100, 180, 10, sparse)
    data = b"0123456789" + encode_end(what)
    assert data[10] == 0x66
    assert data[-8:] == bytes.fromhex("88e241b785f4cff7")
    assert len(data) == 10 + 1 + 16 + 48
    assert decode_end("ranges/x", data) == what
    for at in range(11, len(data)):
        with pytest.raises(DecodeError):
            decode_end("ranges/x", data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(DecodeError, match="cut short"):
        decode_end("ranges/x", data[-40:])


async def test_what_lies_among_others_becomes_objects_of_ranges_and_the_mixed_ones_go(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    # However far packing falls behind, nothing presses it to make small objects.
    driver = Driver(tmp_path / "one", packed(bucket, object_mixed_bytes=64 * 1024 * KIB))
    await mixed(driver, 60)
    before = len(groups(bucket))
    await until(lambda: len(range_files(bucket)) >= 10 and len(groups(bucket)) < before / 2)
    for stream in (1, 2):
        assert contents(await driver.read_all(stream)) == wanted(stream, 0, 60)
    for path in range_files(bucket):
        data = path.read_bytes()
        what = decode_end(f"ranges/{path.parent.name}/{path.name}", data)
        assert data[: what.size] == b"".join(wanted(what.stream_id, what.first, what.end))
        assert 64 * KIB <= what.size <= 128 * KIB
    # Whoever comes next finds them by the index.
    driver.reopen()
    for stream in (1, 2):
        assert contents(await driver.read_all(stream)) == wanted(stream, 0, 60)
    other = Driver(tmp_path / "two", packed(bucket))
    assert isinstance(other.store, ObjectStore)
    assert contents(await other.read_all(2, 3)) == wanted(2, 3, 60)
    await mixed(other, 5)
    assert contents(await other.read_all(1, 50)) == wanted(1, 50, 65)
    driver.close()
    other.close()


async def test_small_objects_become_large_ones(tmp_path: Path) -> None:
    """There are so many ranges that each has little in what may lie among others."""
    bucket = tmp_path / "bucket"
    streams = tuple(range(1, 9))
    driver = Driver(tmp_path / "one", packed(bucket))
    sizes: list[int] = []

    def seen() -> bool:
        with suppress(FileNotFoundError):  # it was deleted just now
            sizes.extend(path.stat().st_size for path in range_files(bucket))
        return any(size < 32 * KIB for size in sizes) and any(size >= 64 * KIB for size in sizes)

    for _ in range(12):
        await mixed(driver, 4, streams, 4 * KIB)
        await asyncio.sleep(0.02)
        seen()
    await until(seen)
    # What is less than a sixteenth of an object in a segment stays there, or is copied.
    for stream in streams:
        assert contents(await driver.read_all(stream)) == wanted(stream, 0, 48, 4 * KIB)
    driver.reopen()
    for stream in streams:
        assert contents(await driver.read_all(stream)) == wanted(stream, 0, 48, 4 * KIB)
    driver.close()


async def test_little_that_is_left_is_copied_so_that_mixed_objects_go(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    driver = Driver(tmp_path / "one", packed(bucket))
    await driver.create(3)
    await driver.create(1)
    for base in range(40):  # all that stream 3 has is less than a sixteenth of an object
        await driver.append(make_entry(3, base, size=4), make_entry(1, base, size=16 * KIB))
    before = len(groups(bucket))
    await until(lambda: driver.store.stats.evacuated_bytes > 0 and len(groups(bucket)) < before / 2)
    for _ in range(2):
        assert contents(await driver.read_all(3)) == wanted(3, 0, 40, 4)
        assert contents(await driver.read_all(1)) == wanted(1, 0, 40, 16 * KIB)
        driver.reopen()
    driver.close()


async def test_trims_and_deletions_free_objects_of_ranges(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    driver = Driver(tmp_path / "one", packed(bucket))
    await mixed(driver, 60)
    await until(lambda: len(range_files(bucket)) >= 10)
    await driver.delete(2)
    await driver.trim(1, 50)
    await until(lambda: len(range_files(bucket)) <= 2)
    assert contents(await driver.read_all(1, 50)) == wanted(1, 50, 60)
    driver.close()


async def test_nothing_is_deleted_before_its_time(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    driver = Driver(tmp_path / "one", packed(bucket, object_grace_seconds=1000.0))
    await mixed(driver, 40)
    before = groups(bucket)
    await until(lambda: driver.store.stats.segments_deleted > 3)
    assert set(groups(bucket)) >= set(before)
    driver.close()


async def test_retention_by_size_takes_the_oldest(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    driver = Driver(tmp_path / "one", packed(bucket, retention_bytes=400 * KIB))
    await mixed(driver, 80)
    await until(lambda: driver.store.ranges[1, 0].min_offset > 30)
    first = driver.store.ranges[1, 0].min_offset
    assert first < 75
    assert contents(await driver.read_all(1, first)) == wanted(1, first, 80)
    driver.close()


@pytest.mark.usefixtures("quick_pauses")
async def test_damage_names_object_and_range_and_those_behind_are_read(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    former = Driver(tmp_path / "one", packed(bucket))
    await mixed(former, 40)
    await until(lambda: len(range_files(bucket)) >= 6)
    former.close()
    (path,) = [one for one in range_files(bucket) if "0000000000000001-" in str(one) and one.name.startswith("0" * 16)]
    what = decode_end("", path.read_bytes())
    bad = what.first + 2
    data = bytearray(path.read_bytes())
    at = data.index(bytes(make_entry(1, bad, size=8 * KIB).payload[:40]))
    data[at] ^= 1
    path.write_bytes(data)
    driver = Driver(tmp_path / "two", packed(bucket, maintenance_seconds=3600.0))
    assert contents(await driver.read(1, 0)) == wanted(1, 0, bad)
    with pytest.raises(StoreCorrupt, match=rf"offset {bad} of range 0 of stream 1 \(object ranges/.*{path.name}"):
        await driver.read(1, bad)
    assert contents(await driver.read_all(1, bad + 1)) == wanted(1, bad + 1, 40)
    path.unlink()
    driver.reopen()
    with pytest.raises(StoreError, match=f"{path.name} is gone"):
        await driver.read(1, 0)
    assert contents(await driver.read_all(2)) == wanted(2, 0, 40)
    driver.close()


@pytest.mark.usefixtures("quick_pauses")
async def test_a_damaged_source_is_never_written_again(tmp_path: Path) -> None:
    """What it is told by its row stays where it is; the other ranges go on."""
    bucket = tmp_path / "bucket"
    former = Driver(tmp_path / "one", indexed(bucket))
    await mixed(former, 40)
    former.close()
    for path in sorted((bucket / "logs/0/00000000/log").glob("*/*")):
        data = path.read_bytes()
        at = data.find(bytes(make_entry(1, 5, size=8 * KIB).payload[:40]))
        if at > 0:
            path.write_bytes(data[:at] + b"!" + data[at + 1 :])
    driver = Driver(tmp_path / "two", packed(bucket))
    await until(lambda: "entry at offset 5 of range 0 of stream 1" in driver.store.stats.last_maintenance_error)
    await until(lambda: any("0000000000000002-" in str(one) for one in range_files(bucket)))
    with pytest.raises(StoreCorrupt):
        await driver.read(1, 5)
    assert contents(await driver.read_all(1, 6)) == wanted(1, 6, 40)
    assert contents(await driver.read_all(2)) == wanted(2, 0, 40)
    driver.close()


def hold_objects(driver: Driver) -> list[Callable[[], None]]:
    """Objects of ranges that were written are not taken into the index before they are let go."""
    held: list[Callable[[], None]] = []
    chore = upkeep_of(driver).packing
    background = chore.background

    def hold(work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        background(work, lambda result: held.append(lambda: then(result)))

    chore.background = hold  # type: ignore[assignment]
    return held


async def _replaced_while_packed(path: Path) -> tuple[list[bytes], list[bytes]]:
    """Entries are replaced, trimmed and deleted while an object of what was there before is on its way: (what is read
    then and after a restart, what should be)."""
    driver = Driver(path / "one", packed(path / "bucket", object_cache_bytes=1024 * KIB))
    held = hold_objects(driver)
    await mixed(driver, 40)
    await until(lambda: bool(held))
    old = (await driver.read(1, 2))[:1]
    new = make_entry(1, 2, size=77, fill=5)
    await driver.replace(0, old, [new])
    assert len(held) == 1
    held.pop()()
    found = []
    for _ in range(2):
        found.append(entry_bytes((await driver.read(1, 2))[0]))
        await until(all_indexed(driver))
        driver.reopen()
    assert len(await driver.read_all(1)) == len(await driver.read_all(2)) == 40
    driver.close()
    return found, [entry_bytes(new)] * 2


async def test_an_object_under_way_does_not_bring_back_what_is_replaced(tmp_path: Path) -> None:
    found, right = await _replaced_while_packed(tmp_path)
    assert found == right


async def test_without_asking_whether_rows_are_as_they_were_it_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_writer, "_is_there", lambda piece: True)
    found, right = await _replaced_while_packed(tmp_path)
    assert found != right


async def test_an_object_of_what_was_deleted_meanwhile_goes(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    driver = Driver(tmp_path / "one", packed(bucket))
    held = hold_objects(driver)
    await mixed(driver, 40)
    await until(lambda: bool(held))
    (path,) = range_files(bucket)
    stream = decode_end("", path.read_bytes()).stream_id
    await driver.delete(stream)
    held.pop()()
    await until(lambda: not path.exists())
    assert contents(await driver.read_all(3 - stream)) == wanted(3 - stream, 0, 40)
    driver.close()


async def test_rows_that_have_moved_are_written_again_in_the_next_index(tmp_path: Path) -> None:
    """A mixed segment whose rows are in the store loses some of them to a replacement, and that to an object: a start
    must not find the old ones."""
    bucket = tmp_path / "bucket"
    options = packed(bucket, object_mixed_bytes=1 << 40, evacuate_below=0.0)
    driver = Driver(tmp_path / "one", options)
    await driver.create(3)
    await driver.create(1)
    await driver.append(make_entry(3, 0, size=100))
    await fill(driver, 1, 5)
    first = driver.store.log.segments[0]
    await until(lambda: first.indexed)
    new = make_entry(1, 1, size=60, fill=9)
    await driver.replace(0, (await driver.read(1, 1))[:1], [new])
    await fill(driver, 1, 6, 5)
    await until(lambda: bool(driver.store.range_objects(1, 0, 0, 11, 1)))
    assert first.runs, "what is too little stays in it"
    driver.reopen()
    got = contents(await driver.read_all(1))
    assert got == [*wanted(1, 0, 1, 16 * KIB), entry_bytes(new), *wanted(1, 2, 11, 16 * KIB)]
    assert contents(await driver.read_all(3)) == wanted(3, 0, 1, 100)
    driver.close()


async def test_a_former_self_that_writes_an_object_changes_nothing(tmp_path: Path) -> None:
    """It has lost the log while the object was on its way: its index does not count, and what it wrote is found."""
    bucket = tmp_path / "bucket"
    former = Driver(tmp_path / "one", packed(bucket, object_index_seconds=1000.0, object_index_every=1 << 30))
    held = hold_objects(former)
    await mixed(former, 40)
    await until(lambda: bool(held))
    driver = Driver(tmp_path / "two", packed(bucket))
    held.pop()()
    (orphan,) = [one for one in range_files(bucket) if former.store.stats.packed_bytes and one.exists()][:1]
    upkeep_of(former).next_at = 0.0
    await until(lambda: bool(former.failures))
    assert "taken over" in str(former.failures[0])
    for stream in (1, 2):
        assert contents(await driver.read_all(stream)) == wanted(stream, 0, 40)
    driver.reopen()
    await until(lambda: not orphan.exists())
    for stream in (1, 2):
        assert contents(await driver.read_all(stream)) == wanted(stream, 0, 40)
    driver.close()


async def test_objects_of_ranges_go_with_the_log_that_is_adopted(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    former = Driver(tmp_path / "a", packed(bucket, object_log="a"))
    former.store.assign_server_id(1)
    await mixed(former, 40)
    await until(lambda: len(range_files(bucket, "a/00000000")) >= 6)
    await until(lambda: not upkeep_of(former).packing.made)
    driver = Driver(tmp_path / "b", packed(bucket, object_log="b"))
    driver.store.assign_server_id(2)
    await mixed(driver, 10, (9,))
    await driver.store.adopt(1)
    for _ in range(2):
        for stream in (1, 2):
            assert contents(await driver.read_all(stream)) == wanted(stream, 0, 40)
        assert contents(await driver.read_all(9)) == wanted(9, 0, 10)
        await until(at_rest(driver))
        driver.reopen()
    third = await server(tmp_path, bucket, "c", 3)
    await third.store.adopt(2)
    assert contents(await third.read_all(2)) == wanted(2, 0, 40)
    third.close()


async def test_readers_are_told_where_the_objects_are(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    driver = Driver(tmp_path / "one", packed(bucket))
    assert driver.store.range_objects(1, 0, 0, 100, 10) == []
    await mixed(driver, 60)
    await until(lambda: len(driver.store.range_objects(1, 0, 0, 60, 10)) >= 5)
    found = driver.store.range_objects(1, 0, 0, 60, 10)
    for one in found:
        data = (bucket / one.key).read_bytes()
        assert data[: one.size] == b"".join(wanted(1, one.start, one.start + one.count))
    assert driver.store.range_objects(1, 0, 0, found[1].start + found[1].count - 1, 10) == found[:1]
    assert driver.store.range_objects(1, 0, found[1].start, 60, 1) == found[1:2]
    told = driver.store.untold_objects(3)
    told += driver.store.untold_objects(100)
    assert [(one.start, one.count, one.size) for one in told if one.stream_id == 1] == [
        (one.start, one.count, one.size) for one in found
    ]
    assert driver.store.untold_objects(100) == []
    driver.reopen()
    assert len(driver.store.untold_objects(100)) >= len(told), "told again by the next process"
    driver.close()


class Stepping(Faults):
    """Copies the bucket before everything that changes it, as a crash there would leave it."""

    def __init__(self, bucket: Path, copies: Path | None) -> None:
        super().__init__(1, 0.0)
        self.bucket = bucket
        self.copies = copies
        self.what: list[str] = []
        self._one = threading.Lock()

    def _call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        with self._one:  # nobody changes what is being copied
            if function in (obstore.put, obstore.delete):
                key = arguments[1] if isinstance(arguments[1], str) else arguments[1][0]
                parts = key.split("/")
                kind = parts[3] if len(parts) > 3 else parts[0]
                # Groups are what the other tests kill.
                if self.copies is not None and (kind != "log" or function is obstore.delete):
                    shutil.copytree(self.bucket, self.copies / str(len(self.what)), ignore=lambda *_: [])
                    self.what.append(f"{function.__name__} {kind}")
            return super()._call(function, *arguments, **options)


async def _crashes(path: Path) -> list[str]:
    """What a start finds wrong after a crash before each request that changes the store."""
    bucket = path / "bucket"
    driver = Driver(path / "one", packed(bucket, object_index_seconds=0.05))
    assert isinstance(driver.store, ObjectStore)
    stepping = Stepping(bucket, path / "copies")
    await mixed(driver, 24)
    below(driver, stepping)
    wanted_steps = {"put ranges", "delete log"}
    while not wanted_steps <= set(stepping.what):
        await mixed(driver, 8)
        await until(lambda: wanted_steps <= set(stepping.what) or at_rest(driver)(), 60.0)
    before = len(stepping.what)
    await mixed(driver, 1)
    await until(lambda: len(stepping.what) > before + 1)
    stepping.copies = None
    driver.close()
    wrong = []
    for number, what in enumerate(stepping.what):
        copy = path / "copies" / str(number)
        try:
            other = Driver(path / f"start-{number}", packed(copy, maintenance_seconds=3600.0))
            for stream in (1, 2):
                if contents(await other.read_all(stream))[:24] != wanted(stream, 0, 24):
                    wrong.append(f"{number}, before {what}: other entries")
            other.close()
        except StoreError as error:
            wrong.append(f"{number}, before {what}: {error}")
        shutil.rmtree(copy)
    return wrong


async def test_a_crash_at_any_request_loses_nothing(tmp_path: Path) -> None:
    assert await _crashes(tmp_path) == []


@pytest.mark.parametrize("left_out", ["the index before the deletion", "rows as they are", "what the listing names"])
async def test_each_safeguard_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: str) -> None:
    match left_out:
        case "the index before the deletion":
            # What nothing is found in any more is deleted at once.
            write_index = ObjectUpkeep._write_index

            def at_once(upkeep: ObjectUpkeep) -> None:
                for segment in upkeep._dead():
                    source = object_upkeep.source_of(segment)
                    source.bucket.delete(source.keys)
                write_index(upkeep)

            monkeypatch.setattr(ObjectUpkeep, "_write_index", at_once)
        case "rows as they are":
            monkeypatch.setattr(object_upkeep, "_rows_hold", lambda one: bool(object_upkeep.source_of(one).rows))
        case _:
            # Listing finds objects of ranges, and takes none of them for needed.
            monkeypatch.setattr(object_upkeep, "_named", lambda segment: set())
    if left_out == "rows as they are":
        # A start finds what was replaced.
        with pytest.raises(AssertionError):
            await test_rows_that_have_moved_are_written_again_in_the_next_index(tmp_path)
        return
    if left_out == "what the listing names":
        with pytest.raises((AssertionError, StoreError)):
            await _listed(tmp_path)
        return
    # Only what an index has named before it was empty is missed, which a busy machine may not come to each time.
    for attempt in range(10):
        if await _crashes(tmp_path / str(attempt)):
            return
    pytest.fail("not noticed")


async def _listed(path: Path) -> None:
    bucket = path / "bucket"
    driver = Driver(path / "one", packed(bucket))
    await mixed(driver, 40)
    await until(lambda: len(range_files(bucket)) >= 6)
    driver.reopen()
    await fill(driver, 1, 10, 40)
    await until(at_rest(driver))
    driver.reopen()
    for stream in (1, 2):
        assert contents(await driver.read_all(stream))[:40] == wanted(stream, 0, 40)
    driver.close()


async def test_what_the_listing_finds_is_not_what_is_needed(tmp_path: Path) -> None:
    await _listed(tmp_path)


@pytest.mark.usefixtures("quick_pauses")
async def test_refusals_and_lost_answers_delay_objects_of_ranges(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    driver = Driver(tmp_path / "one", packed(bucket))
    faults = faulty(driver, 0.3, 3)
    await mixed(driver, 40)
    await until(lambda: len(range_files(bucket)) >= 6)
    assert faults.failed > 5
    for stream in (1, 2):
        assert contents(await driver.read_all(stream)) == wanted(stream, 0, 40)
    faults.share = 0.0
    driver.close()
    other = Driver(tmp_path / "two", packed(bucket))
    for stream in (1, 2):
        assert contents(await other.read_all(stream)) == wanted(stream, 0, 40)
    other.close()


async def test_parts_of_an_object_are_fetched_and_memory_is_counted(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    size = 500 * KIB
    options = packed(
        bucket,
        segment_bytes=16 * 1024 * KIB,
        object_range_bytes=12 * 1024 * KIB,
        object_mixed_bytes=1 << 40,
        object_cache_bytes=64 * 1024 * KIB,
    )
    former = Driver(tmp_path / "one", options)
    await mixed(former, 80, (1,), size)
    await until(lambda: bool(range_files(bucket)) and not upkeep_of(former).packing.made)
    former.close()
    driver = Driver(tmp_path / "two", structs.replace(options, maintenance_seconds=3600.0))  # which reads, too
    assert isinstance(driver.store, ObjectStore)
    held: list[int] = []
    driver.store.count_memory(held.append)
    requests = driver.store.stats.objects["get"]
    before = requests.bytes
    assert contents(await driver.read(1, 0, max_bytes=1000)) == wanted(1, 0, 1, size)
    segment = driver.store.ranges[1, 0].runs[0].segment
    what = range_object(segment)
    assert what is not None
    assert what.size > 2 * PART_BYTES
    assert isinstance(segment.source, RangeSegment)
    # What is wanted and the part behind it, not the whole.
    assert requests.bytes - before <= 2 * PART_BYTES
    assert contents(await driver.read_all(1)) == wanted(1, 0, 80, size)
    await asyncio.sleep(0)
    assert sum(held) == 0
    assert max(held) >= PART_BYTES
    total = peak = 0
    for change in held:
        total += change
        peak = max(peak, total)
    assert peak <= 32 << 20
    driver.close()


async def test_the_placement_driver_is_told_of_objects_over_the_wire(tmp_path: Path) -> None:
    """And whoever asks for objects over TCP finds what he would have been sent in them."""
    bucket = tmp_path / "bucket"
    store = packed(bucket, low_water_bytes=0)
    options = EmbeddedOptions(store=store, listen={RANGE_SERVER_LISTENER: ("127.0.0.1", 0)}, heartbeat_seconds=0.05)
    embedded = await start_embedded(tmp_path / "node", options)
    try:
        stream_id = (await embedded.client.create_stream()).stream_id
        writer = await embedded.client.open(stream_id, 0)
        for number in range(40):
            await awaited(lambda settle, number=number: writer.append(bytes([number]) * 8192, 1, 0, 5, settle))  # type: ignore[misc]

        async def known() -> list[m.ObjectInfo]:
            return await embedded.placement_driver.run(lambda tx: tx.objects_of_stream(stream_id))

        told = await until_asked(known, lambda found: len(found) >= 2)
        host, port = embedded.addresses[RANGE_SERVER_LISTENER]
        info = m.RangeServerInfo(embedded.range_server.info.server_id, f"{host}:{port}")
        there = tcp_connector()(info)
        answer = await there.call(m.FetchRequest(m.RangeInfo(stream_id, 0, 0, 0), 0, max_bytes=0))
        assert isinstance(answer, m.FetchResponse)
        assert not answer.entries
        assert {(one.start, one.count) for one in answer.objects} >= {(one.start, one.count) for one in told}
        entries = await embedded.client.fetch_entries(stream_id, 0, 1 << 20)
        sent = {entry.base_offset: entry_bytes(entry) for entry in entries}
        for one in answer.objects:
            data = (bucket / one.key).read_bytes()[: one.size]
            assert data == b"".join(sent[base] for base in range(one.start, one.start + one.count) if base in sent)
            if one.start + one.count > len(sent):
                break
        await there.close()
        await embedded.client.trim(stream_id, 40)
        await until_asked(known, lambda found: not found)
    finally:
        await embedded.close()
