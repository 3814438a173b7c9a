"""A copy of stores in another store holds the same, however often it was begun, and says so only where it is so."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sbp_back.range_server.store.upkeep.copying import CopyFailed, Held, StoreCopy, read_range
from tests.sbp_back.range_server.store.store_harness import KIB, Driver, entry_bytes, make_entry, small_options

FIELDS = ("start", "min_offset", "next_offset", "end", "epoch")


@pytest.fixture
async def source(tmp_path: Path) -> AsyncIterator[Driver]:
    async with Driver(tmp_path / "source", small_options(evacuate_below=0.0)) as driver:
        yield driver


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[Driver]:
    async with Driver(tmp_path / "target", small_options(evacuate_below=0.0)) as driver:
        yield driver


class Paced:
    """Ends a copy before its so many-th append."""

    def __init__(self, most: int = 1 << 60) -> None:
        self.left = most
        self.bytes = 0

    async def pace(self, size: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise InterruptedError

    def told(self, size: int) -> None:
        self.bytes += size


def copy_of(sources: list[Driver], target: Driver, paced: Paced | None = None) -> StoreCopy:
    paced = paced or Paced()
    return StoreCopy([one.store for one in sources], target.store, paced.pace, paced.told)


async def content(held: Held) -> list[bytes]:
    return [entry_bytes(entry) async for entries in read_range(held) for entry in entries]


async def same(copy: StoreCopy, target: Driver) -> None:
    assert copy.strangers() == []
    for key, held in copy.ranges.items():
        assert copy.differs(held) == ""
        there = target.store.ranges.get(key)
        if there is not None:
            assert [getattr(there, field) for field in FIELDS] == [getattr(held.range, field) for field in FIELDS]
            assert await content(Held(target.store, there)) == await content(held)


async def fill(source: Driver, stream: int, draw: random.Random) -> None:
    """Some ranges, one behind the other, trimmed now and then."""
    start = draw.randrange(1000)
    for index in range(draw.randrange(1, 5)):
        await source.create(stream, index, index, start)
        for _ in range(draw.choice((0, 1, 20))):
            count = draw.randrange(1, 9)
            await source.append(make_entry(stream, start, count, draw.randrange(4 * KIB), index))
            start += count
            if draw.random() < 0.1:
                await source.trim(stream, draw.randrange(start + 1))
        if draw.random() < 0.8:
            await source.seal(stream, -1, index, index + draw.randrange(2))
        else:
            break


@pytest.mark.parametrize("seed", range(12))
async def test_a_copy_that_was_ended_anywhere_goes_on_and_is_the_same(
    source: Driver, target: Driver, seed: int
) -> None:
    draw = random.Random(seed)
    for stream in range(6):
        await fill(source, stream, draw)
    before = {key: await content(held) for key, held in copy_of([source], target).ranges.items()}
    total = Paced()
    for appends in (0, 1, 5, 1 << 60):
        paced = Paced(appends)
        try:
            await copy_of([source], target, paced).run()
        except InterruptedError:
            assert appends < 1 << 60
        total.bytes += paced.bytes
        target.reopen()
    await same(copy_of([source], target), target)
    assert {key: await content(held) for key, held in copy_of([source], target).ranges.items()} == before
    assert total.bytes == copy_of([source], target).bytes  # nothing twice
    again = Paced()
    await copy_of([source], target, again).run()
    assert again.bytes == 0


async def test_ranges_of_one_stream_in_two_stores_are_copied_in_their_order(
    tmp_path: Path, source: Driver, target: Driver
) -> None:
    async with Driver(tmp_path / "second") as second:
        await source.create(1)
        await source.append(make_entry(1, 0, 10), make_entry(1, 10, 10))
        await source.seal(1)
        await second.create(1, 1, 1, 20)
        await second.append(make_entry(1, 20, 10, index=1))
        await copy_of([source, second], target).run()
        copy = copy_of([source, second], target)
        assert [*copy.ranges] == [(1, 0), (1, 1)]
        await same(copy, target)
        await second.trim(1, 25)  # of which the other store has not heard
        await copy_of([source, second], target).run()
        copy = copy_of([source, second], target)
        assert [*copy.ranges] == [(1, 1)]
        await same(copy, target)
        assert target.store.ranges[1, 1].min_offset == 25


async def test_what_was_changed_since_is_copied_anew(source: Driver, target: Driver) -> None:
    for stream in (1, 2, 3):
        await source.create(stream)
        await source.append(make_entry(stream, 0, 10), make_entry(stream, 10, 10))
    await copy_of([source], target).run()
    await source.delete(1)
    await source.create(1, 0, 3)  # made anew under its number, shorter
    await source.append(make_entry(1, 0, 5, fill=1))
    await source.delete(2)
    await source.trim(3, 10)
    await source.append(make_entry(3, 20, 1))
    await source.seal(3)
    await copy_of([source], target).run()
    copy = copy_of([source], target)
    await same(copy, target)
    assert {key[0] for key in target.store.ranges} == {1, 3}


async def test_each_difference_is_told(source: Driver, target: Driver) -> None:
    await source.create(1)
    await source.append(make_entry(1, 0, 10))
    await target.create(1, 0, 1)
    copy = copy_of([source], target)
    (held,) = copy.ranges.values()
    assert "next_offset 0 instead of 10" in copy.differs(held)
    await target.delete(1)
    assert copy.differs(held) == "is not there"
    await target.create(1, 0, 1)
    await target.append(make_entry(1, 0, 10))
    assert "epoch 1 instead of 0" in copy.differs(held)
    await target.delete(1)
    await target.create(1)
    await target.append(make_entry(1, 0, 10))
    assert copy.differs(held) == ""
    await target.trim(1, 5)
    assert "min_offset 5 instead of 0" in copy.differs(held)
    await source.trim(1, 5)
    await target.seal(1)
    assert "end 10 instead of -1" in copy.differs(held)
    await target.create(9)
    assert copy.strangers() == [9]


async def test_damage_in_the_source_is_told_by_its_place(tmp_path: Path, target: Driver) -> None:
    source = Driver(tmp_path / "source")
    await source.create(7)
    for base in range(0, 40, 10):
        await source.append(make_entry(7, base, 10, 3000))
    source.reopen()
    (path,) = (tmp_path / "source" / "wal").glob("*.seg")
    data = bytearray(path.read_bytes())
    place = data.index(b"7/0/20/10/")
    data[place] ^= 1
    path.write_bytes(data)
    source.reopen()
    try:
        with pytest.raises(CopyFailed, match="offset 20 of range 0 of stream 7 is damaged") as raised:
            await copy_of([source], target).run()
        assert raised.value.stream_id == 7
    finally:
        source.close()


async def test_what_cannot_be_copied_is_refused_before_anything_was(tmp_path: Path, source: Driver) -> None:
    await source.create(1)
    await source.append(make_entry(1, 0, 1, 50 * KIB))
    async with Driver(tmp_path / "target", small_options(control_reserve_bytes=16 * KIB)) as target:
        with pytest.raises(CopyFailed, match=r"sbp.segment_bytes"):
            copy_of([source], target).check()


async def test_what_the_target_refuses_ends_the_copy(
    source: Driver, target: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await source.create(1)
    await source.append(make_entry(1, 0, 10), make_entry(1, 10, 10))
    append = target.store.append

    def second(entries: list[Any], done: Any) -> None:
        append(entries[1:], done)

    monkeypatch.setattr(target.store, "append", second)
    with pytest.raises(CopyFailed, match="could not be written"):
        await copy_of([source], target).run()
