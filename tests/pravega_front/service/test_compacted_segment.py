"""A segment whose topic is compacted while it is read: every reader goes on among whole events, and misses none."""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path

import pytest

from bridges.errors import OffsetOutOfRange, PositionLost
from bridges.log.partition.partition_log import PartitionLog
from pravega_front.service.segment import Cursors, Segment
from tests.bridges.log.test_compaction import Lab, plain, put, visible

KEYS = 20


def written(number: int) -> bytes:
    """The value of a record: it says its number, and is longer or shorter."""
    return b"%d:" % number + bytes(number * 7 % 40)


def events(data: bytes) -> tuple[list[bytes], bytes]:
    """The whole events at the beginning of ``data``, and the rest."""
    found, at = [], 0
    while len(data) - at >= 8:
        kind, size = struct.unpack_from(">iI", data, at)
        assert kind == 0, "an event begins where the one before ends"
        if len(data) - at < 8 + size:
            break
        found.append(data[at + 8 : at + 8 + size])
        at += 8 + size
    return found, data[at:]


async def read(segment: Segment, position: int, until: bytes, most: int) -> list[bytes]:
    """Events as Java's client reads them: from the segment's head again where it is told that something is gone."""
    found: list[bytes] = []
    rest = b""
    while until not in found:
        try:
            data = b"".join(await segment.read(position, most))
        except (PositionLost, OffsetOutOfRange):
            position, rest = await segment.start(), b""
            continue
        position += len(data)
        whole, rest = events(rest + data)
        found += whole
        await asyncio.sleep(0)
    return found


async def fill(log: PartitionLog, numbers: range) -> None:
    rng = random.Random(numbers.start)
    for first in range(numbers.start, numbers.stop, 4):
        pairs = [(b"k%d" % rng.randrange(KEYS), written(number)) for number in range(first, first + 4)]
        await put(log, plain(*pairs))


@pytest.mark.parametrize("most", [13, 100, 5000])
async def test_readers_go_on_among_whole_events_while_a_segment_is_compacted(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridges.log.compaction.cleaning.READ_BYTES", 500)  # so that it takes many replacements
    async with Lab(tmp_path, log__positions_idle_ms="0") as lab:
        log = await lab.topic()

        def opened() -> Segment:
            return Segment("s/t/0", log, lab.node.floors.log.translator, 100, Cursors())

        segment = opened()
        await fill(log, range(400))
        tail = (await log.byte_end()).position
        for numbers in (range(400, 600), range(600, 800)):
            middle = await log.byte_position((log.log_start_offset + log.high_watermark) // 2)
            await fill(log, numbers)
            last = written(numbers.stop - 1)
            readers = asyncio.gather(
                *(read(opened(), position, last, most) for position in (await segment.start(), middle, tail))
            )
            await lab.compact()
            from_head, from_middle, from_tail = await readers
            assert log.replacements > 0
            left = [value or b"" for _, _, value in await visible(log)]
            assert len(left) == KEYS
            assert [value for value in from_head if value in left][-KEYS:] == left
            new = {value for value in map(written, numbers) if value in left}
            assert set(from_middle) >= new
            assert set(from_tail) >= new
            assert await read(segment, await segment.start(), last, most) == left
            tail = (await log.byte_end()).position


async def test_a_reader_that_stopped_within_an_event_does_not_go_on_in_another(tmp_path: Path) -> None:
    async with Lab(tmp_path, log__positions_idle_ms="0") as lab:
        log = await lab.topic()
        segment = Segment("s/t/0", log, lab.node.floors.log.translator, 100, Cursors())
        await put(log, plain((b"a", bytes(10)), (b"b", bytes(30)), (b"c", bytes(20)), (b"a", bytes(40))))
        await segment.length()
        data = b"".join(await segment.read(0, 28))
        assert len(data) == 28, "the first event, and a part of the second"
        await put(log, plain((b"b", bytes(3))))
        await lab.compact()
        with pytest.raises((PositionLost, OffsetOutOfRange)):
            await segment.read(28, 100)
        found = await segment.read(await segment.start(), 1000)
        assert events(b"".join(found)) == ([bytes(20), bytes(40), bytes(3)], b"")


async def test_the_rest_of_an_event_is_not_taken_from_one_that_begins_there_now(tmp_path: Path) -> None:
    async with Lab(tmp_path, log__positions_idle_ms="0") as lab:
        log = await lab.topic()
        segment = Segment("s/t/0", log, lab.node.floors.log.translator, 100, Cursors())
        await put(log, plain((b"x", bytes(10)), (b"b", bytes(30)), (b"c", bytes(20))))
        await segment.length()
        assert sum(map(len, await segment.read(0, 38))) == 38
        await put(log, plain((b"b", bytes(3))))
        await lab.compact()
        assert await log.byte_position(0) == 38, "where the reader has stopped within what is gone"
        with pytest.raises(PositionLost):
            await segment.read(38, 100)
        assert events(b"".join(await segment.read(38, 100)))[0] == [bytes(10), bytes(20), bytes(3)]
