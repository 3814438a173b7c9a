"""Whose appends go first when more waits to be written than the disk takes."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch_kit.disk.files import Files
from anabranch_kit.errors import StoreError
from anabranch_kit.memory.buffers import Buffer
from sbp_back.embedded import EmbeddedOptions, start_embedded
from sbp_back.range_server.store import StoreOptions
from sbp_back.range_server.store.layout.format import RecordType
from sbp_back.range_server.store.writing import wal_writer
from sbp_back.range_server.store.writing.fair_queue import FairQueue
from sbp_back.range_server.store.writing.wal_items import Append, Control, Item
from sbp_back.wire.model import Entry
from tests.kit.waiting import until
from tests.sbp_back.range_server.store.store_harness import KIB, Driver, make_entry

MIB = 1024 * KIB
GREEDY, MODEST = 1, 2
FEW = MIB


class SlowDisk:
    """System calls of a disk that writes so many bytes in a second of ``clock``, and nothing while it is ``held``."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.clock = 0.0
        self.flushed: list[int] = []
        """Bytes of each flush of the log's."""
        self._written = 0
        self._may = threading.Event()
        self._may.set()
        self.waits = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def perf_counter(self) -> float:
        return self.clock

    def hold(self) -> None:
        self._may.clear()
        self.waits.clear()

    def go_on(self) -> None:
        self._may.set()

    async def until_held(self) -> None:
        await until(self.waits.is_set)

    def _log(self) -> bool:
        return threading.current_thread().name == "anabranch-wal"

    def _flush(self) -> None:
        if not self._may.is_set():
            self.waits.set()
            self._may.wait()
        self.flushed.append(self._written)
        self.clock += self._written / self.rate
        self._written = 0

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int, flags: int = 0) -> int:
        written = os.pwritev(fd, buffers, offset)
        if self._log():
            self._written += written
            if flags:
                self._flush()
        return written

    def fdatasync(self, fd: int) -> None:
        if self._log():
            self._flush()


def store_options(disk: SlowDisk) -> StoreOptions:
    return StoreOptions(segment_bytes=256 * MIB, low_water_bytes=0, zero_ahead_bytes=0, files=Files(disk))


@pytest.mark.parametrize("rate", [20 * MIB, 2_000 * MIB])
async def test_a_small_append_goes_with_the_next_group_however_much_others_have_queued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: int
) -> None:
    disk = SlowDisk(rate)
    monkeypatch.setattr(wal_writer, "time", SimpleNamespace(perf_counter=disk.perf_counter))
    async with Driver(tmp_path, store_options(disk)) as driver:
        await asyncio.gather(driver.create(GREEDY), driver.create(MODEST))
        await driver.append(make_entry(GREEDY, 0, size=2 * MIB))
        disk.hold()
        greedy = [driver.append(make_entry(GREEDY, 1 + n, size=512 * KIB)) for n in range(100)]
        await disk.until_held()
        answered: list[int] = []

        def done(error: StoreError | None) -> None:
            assert error is None
            answered.append(sum(answer.done() for answer in greedy))
            modest.set_result(None)

        modest: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        driver.store.append([make_entry(MODEST, 0)], done)
        disk.flushed.clear()
        disk.go_on()
        await modest
        # What was under way, and the group it went with; the thread may be at the next ones by now.
        first = disk.flushed[:2]
        most = max(MIB, min(8 * MIB, wal_writer.GROUP_SECONDS * rate)) + 512 * KIB + 8 * KIB
        assert len(first) == 2
        assert max(first[1:]) <= most, first
        assert answered[0] < 50
        await asyncio.gather(*greedy)
        assert [entry.base_offset for entry in await driver.read_all(GREEDY)] == list(range(101))


async def test_a_group_holds_what_the_disk_writes_in_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rate = 50 * MIB
    disk = SlowDisk(rate)
    monkeypatch.setattr(wal_writer, "time", SimpleNamespace(perf_counter=disk.perf_counter))
    async with Driver(tmp_path, store_options(disk)) as driver:
        await driver.create(GREEDY)
        answers = [driver.append(make_entry(GREEDY, n, size=256 * KIB)) for n in range(200)]
        await asyncio.gather(*answers)
    large = [size for size in disk.flushed if size >= MIB]
    assert max(large[1:]) <= wal_writer.GROUP_SECONDS * rate + 256 * KIB + 8 * KIB
    assert sum(large) / len(large) > MIB  # and not much less either, or flushes would be all there is


async def test_who_appends_little_does_not_wait_for_what_others_append_in_the_same_cycle(
    tmp_path: Path,
) -> None:
    disk = SlowDisk(100 * MIB)
    embedded = await start_embedded(tmp_path, EmbeddedOptions(store=store_options(disk)))
    try:
        client = embedded.client
        greedy, modest = [await client.open((await client.create_stream()).stream_id, 0) for _ in range(2)]
        order: list[str] = []
        done: list[asyncio.Future[object]] = []

        def append(writer: Any, who: str, size: int) -> None:
            answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()

            def answered(error: object) -> None:
                assert error is None
                order.append(who)
                answer.set_result(None)

            writer.append(bytes(size), 1, 0, 0, answered)
            done.append(answer)

        for writer in (greedy, modest):
            append(writer, "first", 10)
        await asyncio.gather(*done)
        disk.hold()
        for _ in range(60):
            append(greedy, "greedy", 512 * KIB)
        await disk.until_held()
        order.clear()
        append(greedy, "greedy", 10)
        append(modest, "modest", 10)
        queue = embedded.store.writer.queue
        before = queue.qsize()
        await until(lambda: queue.qsize() != before)  # the log's thread takes nothing while it is held
        disk.go_on()
        await asyncio.gather(*done)
        assert order.index("modest") < 45, order.index("modest")
    finally:
        await embedded.close()


# --- the order by itself


def appended(number: int, *sizes: tuple[int, int]) -> Append:
    """An item of so many bytes of each stream; its number is the base of its entries."""
    entries = [Entry(stream, 0, 0, number, 1, 0, bytes(size), b"") for stream, size in sizes]
    return Append(entries, sum(size for _, size in sizes), _nothing)


def _nothing(_error: StoreError | None) -> None:
    pass


def taken(queue: FairQueue) -> list[Item]:
    items = []
    while (item := queue.take()) is not None:
        items.append(item)
    return items


def test_little_is_taken_in_the_order_in_which_it_came() -> None:
    queue = FairQueue(FEW)
    items = [appended(number, (number % 3, 100)) for number in range(100)]
    for item in items:
        queue.put(item)
    assert taken(queue) == items


def test_streams_that_have_much_get_as_many_bytes_as_each_other() -> None:
    queue = FairQueue(FEW)
    large = [appended(number, (1, 64 * KIB)) for number in range(100)]
    for item in large:
        queue.put(item)
    for number in range(400):
        queue.put(appended(number, (2, 16 * KIB)))
    got: dict[int, int] = {1: 0, 2: 0}
    for _ in range(200):
        item = queue.take()
        assert isinstance(item, Append)
        got[item.entries[0].stream_id] += item.bytes
    assert abs(got[1] - got[2]) <= 128 * KIB


def test_nobody_gets_more_by_coming_again_and_again_with_little_left() -> None:
    queue = FairQueue(FEW)
    for number in range(40):
        queue.put(appended(number, (1, 64 * KIB)))
    got = {1: 0, 2: 0}
    for number in range(40):
        queue.put(appended(number, (2, 64 * KIB)))
        item = queue.take()
        assert isinstance(item, Append)
        got[item.entries[0].stream_id] += 1
    assert got[1] >= 19


@pytest.mark.parametrize("seed", range(20))
def test_of_each_stream_items_are_taken_in_the_order_in_which_they_came(seed: int) -> None:
    rng = random.Random(seed)
    queue = FairQueue(FEW)
    put: list[Item] = []
    got: list[Item] = []
    for number in range(600):
        while len(queue) and rng.random() < 0.4:
            item = queue.take()
            assert item is not None
            got.append(item)
        stream = rng.randrange(6)
        item = appended(number, (stream, rng.choice((10, 200 * KIB))))
        if rng.random() < 0.2:
            item = appended(number, (stream, 10), (6, FEW), (rng.randrange(6), 10))
        elif rng.random() < 0.1:
            item = Control(RecordType.TRIM_STREAM, stream, 0, 0, 0, _nothing)
        queue.put(item)
        put.append(item)
    got += taken(queue)
    assert len(got) == len(put) == 600

    def of(stream: int, items: list[Item]) -> list[Item]:
        return [
            item
            for item in items
            if (isinstance(item, Control) and item.stream_id == stream)
            or (isinstance(item, Append) and any(entry.stream_id == stream for entry in item.entries))
        ]

    for stream in range(7):
        assert list(map(id, of(stream, got))) == list(map(id, of(stream, put)))


def test_streams_that_have_had_their_turn_are_forgotten() -> None:
    queue = FairQueue(FEW)
    for number in range(2):
        queue.put(appended(number, (0, FEW)))
    for stream in range(1, 10_000):
        queue.put(appended(0, (stream, 10)))
        if stream % 10 == 0:
            queue.put(appended(0, (0, FEW)))
            queue.take()
        queue.take()
    assert len(queue.ends) < 5_000
