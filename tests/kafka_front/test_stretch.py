"""A stretch gives exactly the bytes it promised, however it is read, or fails; the next request is told why."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bridges.errors import LogError
from bridges.formats import FormatId
from bridges.formats.records import Buffer, StoredBatch
from bridges.log.partition.partition_log import PartitionLog
from kafka_front.service.fetch.stretch import Stretch
from sbp_back.errors import ErrorCode, SbpError
from sbp_back.wire.entry import pack_entry
from tests.bridges.log.log_lab import World, batch


class Lab(World):
    """A log whose backend knows where everything lies, and of which nothing is in memory."""

    async def start(self, batches: int = 40, **options: int) -> PartitionLog:
        rng = random.Random(3)
        log = await self.boot()
        for _ in range(batches):
            log.append(batch(rng.randint(1, 3), size=rng.choice((1, 200, 5000))), self.done)
        self.writer.acknowledge(batches)
        log = await self.boot()
        backend: Any = self.backend
        backend.locate = self.locate
        backend.fetch = self.fetch
        return log

    def locate(self, stream_id: int, offset: int, max_bytes: int, limit: int) -> tuple[int, int, int, int] | None:
        found = [e for e in self.backend.entries if e.end_offset > offset and e.base_offset < limit]
        size = 0
        for number, entry in enumerate(found):
            if number and size + len(entry.payload) > max_bytes:
                found = found[:number]
                break
            size += len(entry.payload)
        return (found[0].base_offset, found[-1].end_offset, size, len(found)) if found else None

    def fetch(self, stream_id: int, offset: int, max_bytes: int, done: Any, *, limit: int) -> None:
        found = []
        for entry in self.backend.entries:
            if entry.end_offset > offset and entry.base_offset < limit:
                max_bytes -= len(entry.payload)
                if found and max_bytes < 0:
                    break
                found.append(entry)
        done(found)

    @property
    def bytes(self) -> bytes:
        return b"".join(bytes(entry.payload) for entry in self.backend.entries)


def take(stored: StoredBatch) -> Buffer:
    return stored.payload


def stretch_of(log: PartitionLog, offset: int = 0, most: int = 1 << 30) -> Stretch:
    place = log.locate(offset, most)
    assert place is not None
    return Stretch(log, place.start, place.end, place.size, take)


def read(stretch: Stretch, most: int) -> tuple[bytes, LogError | None]:
    answers: list[tuple[list[Buffer], LogError | None]] = []
    stretch.read(most, lambda pieces, error: answers.append((pieces, error)))
    ((pieces, error),) = answers
    return b"".join(pieces), error


@pytest.mark.parametrize("seed", range(8))
async def test_every_way_to_read_gives_the_same_bytes(seed: int) -> None:
    lab = Lab()
    log = await lab.start()
    rng = random.Random(seed)
    stretch = stretch_of(log)
    assert len(stretch) == stretch.left == len(lab.bytes)
    got = b""
    while stretch.left:
        assert stretch.least() > 0
        data, error = read(stretch, rng.choice((1, 100, 7000, 40_000)))
        assert error is None
        assert data
        kept = rng.randint(0, len(data)) if rng.random() < 0.4 else len(data)
        if kept < len(data):
            stretch.rewind(len(data) - kept)
        got += data[:kept]
        assert len(got) + stretch.left == len(stretch)
    assert got == lab.bytes


async def test_what_was_trimmed_meanwhile_fails_the_stretch_and_nothing_else() -> None:
    lab = Lab()
    log = await lab.start()
    stretch = stretch_of(log)
    read(stretch, 10_000)
    await log.trim(log.high_watermark - 2)
    data, error = read(stretch, 10_000)
    assert (data, type(error).__name__) == (b"", "OffsetOutOfRange")
    assert log.locate(log.log_start_offset, 1 << 20) is not None


async def test_another_size_than_promised_is_never_sent_and_the_log_is_read_first_from_then_on() -> None:
    lab = Lab()
    log = await lab.start()
    entries = lab.backend.entries
    stretch = stretch_of(log)
    victim = len(entries) // 2
    good = b"".join(bytes(entry.payload) for entry in entries[:victim])
    old = entries[victim]
    entries[victim] = pack_entry(1, 0, old.flags, old.base_offset, old.count, 0, bytes(old.payload) * 30)
    got = b""
    error = None
    while error is None:
        data, error = read(stretch, 10_000)
        got += data
    assert got == good
    assert log.locate(0, 1 << 20) is None


async def test_a_batch_of_another_format_is_never_sent_as_one_of_kafka() -> None:
    lab = Lab()
    log = await lab.start()
    entries = lab.backend.entries
    stretch = stretch_of(log)
    old = entries[5]
    entries[5] = pack_entry(1, 0, int(FormatId.RAW), old.base_offset, old.count, 0, bytes(old.payload))
    data, error = read(stretch, 1 << 20)
    assert (data, error) == (b"".join(bytes(entry.payload) for entry in entries[:5]), None)
    data, error = read(stretch, 1 << 20)
    assert data == b""
    assert error is not None
    assert not log.reading.locatable


async def test_a_damaged_batch_ends_what_is_located_before_it_and_is_read_first() -> None:
    lab = Lab()
    log = await lab.start()
    entries = lab.backend.entries
    bad = entries[20].base_offset
    fetch = lab.fetch

    def damaged(stream_id: int, offset: int, max_bytes: int, done: Any, *, limit: int) -> None:
        if offset >= bad:
            done(SbpError(ErrorCode.RS_DATA_CORRUPTED, "damaged"))
        else:
            fetch(stream_id, offset, max_bytes, done, limit=min(limit, bad))

    backend: Any = lab.backend
    backend.fetch = damaged
    stretch = stretch_of(log)
    error = None
    while error is None:
        _, error = read(stretch, 10_000)
    place = log.locate(0, 1 << 30)
    assert place is not None
    assert place.end == bad
    assert log.locate(bad, 1 << 30) is None
    later = log.locate(entries[21].base_offset, 1 << 30)
    assert later is not None
    assert later.end == log.high_watermark
