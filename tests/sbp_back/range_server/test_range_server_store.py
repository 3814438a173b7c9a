"""The range server over the real store: what survives a restart, what a broken disk does, what trimming frees."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch_kit.disk.files import Files
from anabranch_kit.errors import StoreError
from anabranch_kit.memory.buffers import Buffer
from sbp_back.errors import ErrorCode
from sbp_back.range_server.server import RangeServer, RangeServerOptions
from sbp_back.range_server.store import Store, StoreOptions
from sbp_back.wire import model as m
from sbp_back.wire.entry import pack_entry
from tests.kit.waiting import until

OK = ErrorCode.OK
SEGMENT = 256 * 1024


class Bench:
    """A range server on a directory, that can be restarted. ``small`` options make many segments of little data."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.options = {
            "segment_bytes": SEGMENT,
            "allocate_step_bytes": SEGMENT,
            "zero_ahead_bytes": 0,
            "low_water_bytes": 0,
            **options,
        }
        self.failures: list[StoreError] = []

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.store = await asyncio.to_thread(Store.open, self.path, StoreOptions(**self.options))
        self.store.start(loop)
        options = RangeServerOptions(server_id=0)
        self.server = RangeServer(self.store, options, loop, on_failed=self.failures.append)

    async def stop(self) -> None:
        await self.server.close()
        self.store.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def ask(self, request: m.Request) -> asyncio.Future[Any]:
        """Handed over at once, so that the order of calls is the order of requests."""
        future: asyncio.Future[m.Response] = asyncio.get_running_loop().create_future()
        self.server.handle(request, future.set_result)
        return future

    def create(self, epoch: int = 1, index: int = 0, start: int = 0, stream_id: int = 1) -> asyncio.Future[Any]:
        return self.ask(m.CreateRangeRequest(m.RangeInfo(stream_id, epoch, index, start)))

    def seal(self, epoch: int, index: int = 0, end: int = -1, stream_id: int = 1) -> asyncio.Future[Any]:
        return self.ask(m.SealRangeRequest(m.RangeInfo(stream_id, epoch, index, 0, end)))

    def append(
        self, base: int, count: int = 1, payload: bytes = b"payload", index: int = 0, stream_id: int = 1
    ) -> asyncio.Future[Any]:
        entry = pack_entry(stream_id, index, 3, base, count, 1_700_000_000_000, payload)
        return self.ask(m.AppendRequest(entries=[entry]))

    def fetch(self, offset: int, index: int = 0, stream_id: int = 1, **options: int) -> asyncio.Future[Any]:
        return self.ask(m.FetchRequest(m.RangeInfo(stream_id, 1, index, 0), offset, **options))

    async def all_entries(self, offset: int = 0, index: int = 0, stream_id: int = 1) -> list[m.Entry]:
        """Everything that can be read from ``offset`` on, in order."""
        entries: list[m.Entry] = []
        while True:
            response = await self.fetch(offset, index, stream_id, max_bytes=100_000)
            if response.status.code in (ErrorCode.NO_NEW_RECORD, ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS):
                return entries
            assert response.status.ok, response.status
            entries += response.entries
            offset = entries[-1].end_offset


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    await bench.start()
    yield bench
    await bench.stop()


async def code(future: asyncio.Future[Any]) -> int:
    response = await future
    if response.status.ok and hasattr(response, "results"):
        return int(response.results[0].status.code)
    return int(response.status.code)


async def test_appended_entries_come_back_verbatim_also_after_a_restart(bench: Bench) -> None:
    await bench.create()
    payloads = [bytes([n]) * (n * 997) for n in range(40)]
    base = 0
    for n, payload in enumerate(payloads):
        assert await code(bench.append(base, n + 1, payload)) == OK
        base += n + 1
    for _ in range(2):
        entries = await bench.all_entries()
        assert [bytes(e.payload) for e in entries] == payloads
        assert [(e.count, e.flags, e.timestamp) for e in entries] == [
            (n + 1, 3, 1_700_000_000_000) for n in range(len(payloads))
        ]
        await bench.restart()
    assert await code(bench.append(base)) == OK


async def test_a_seal_and_its_epoch_survive_a_restart(bench: Bench) -> None:
    await bench.create(epoch=3)
    await bench.append(0, 5)
    sealed = await bench.seal(7)
    assert (sealed.range.end, sealed.range.epoch) == (5, 7)
    await bench.restart()
    assert await code(bench.append(5)) == ErrorCode.RANGE_ALREADY_SEALED
    assert await code(bench.seal(6)) == ErrorCode.EXPIRED_RANGE_EPOCH
    assert (await bench.seal(7)).range == sealed.range
    assert await code(bench.create(epoch=3)) == ErrorCode.BAD_REQUEST
    assert await code(bench.fetch(5)) == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS


async def test_a_fenced_writer_stays_fenced_over_a_restart_even_where_the_range_was_unknown(bench: Bench) -> None:
    await bench.seal(9)
    await bench.restart()
    assert await code(bench.create(epoch=8)) == ErrorCode.BAD_REQUEST
    assert await code(bench.append(0)) == ErrorCode.RANGE_ALREADY_SEALED


async def test_entries_in_flight_at_the_seal_are_refused_and_gone_after_a_restart(bench: Bench) -> None:
    await bench.create()
    await bench.append(0, 4)
    late = [bench.append(4 + n) for n in range(20)]
    sealed = bench.seal(2)
    assert [await code(future) for future in late] == [ErrorCode.RANGE_ALREADY_SEALED] * 20
    assert (await sealed).range.end == 4
    for _ in range(2):
        assert [e.base_offset for e in await bench.all_entries()] == [0]
        await bench.restart()


async def test_a_seal_in_the_middle_of_what_is_committed(bench: Bench) -> None:
    await bench.create()
    for base in range(10):
        await bench.append(base)
    assert (await bench.seal(1, end=6)).range.end == 6
    for _ in range(2):
        assert [e.base_offset for e in await bench.all_entries()] == list(range(6))
        await bench.restart()


async def test_a_lower_end_decided_after_the_seal_survives_a_restart(bench: Bench) -> None:
    await bench.create()
    for base in range(10):
        await bench.append(base)
    assert (await bench.seal(2)).range.end == 10
    assert (await bench.seal(2, end=7)).range.end == 7
    for _ in range(2):
        assert [e.base_offset for e in await bench.all_entries()] == list(range(7))
        assert (await bench.seal(2, end=9)).range.end == 7, "never up again"
        await bench.restart()


async def test_the_next_range_continues_after_a_restart(bench: Bench) -> None:
    await bench.create()
    await bench.append(0, 3)
    await bench.seal(2)
    await bench.create(epoch=2, index=1, start=3)
    await bench.append(3, 2, index=1)
    await bench.restart()
    assert await code(bench.append(5, index=1)) == OK
    listed = await bench.ask(m.ListRangeRequest(stream_id=1))
    assert [(r.index, r.start, r.end) for r in listed.ranges] == [(0, 0, 3), (1, 3, -1)]


async def test_a_long_poll_sees_data_once_it_is_durable(bench: Bench) -> None:
    await bench.create()
    waiting = bench.fetch(0, max_wait_ms=60_000)
    appended = bench.append(0, payload=b"news")
    assert not waiting.done()
    response = await waiting
    assert [bytes(e.payload) for e in response.entries] == [b"news"]
    assert await code(appended) == OK


async def test_trim_in_the_middle_of_a_batch(bench: Bench) -> None:
    await bench.create()
    for base in range(0, 50, 5):
        await bench.append(base, 5)
    trimmed = await bench.ask(m.TrimStreamRequest(1, 12))
    assert trimmed.range.start == 12
    for _ in range(2):
        assert await code(bench.fetch(11)) == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS
        assert [e.base_offset for e in await bench.all_entries(12)] == list(range(10, 50, 5))
        await bench.restart()


async def test_trimming_everything_frees_the_disk_and_writing_goes_on(bench: Bench) -> None:
    await bench.create()
    base = 0
    for _ in range(30):
        assert await code(bench.append(base, payload=bytes(50_000))) == OK
        base += 1
    full = disk_usage(bench.path)
    assert full > 4 * SEGMENT
    assert (await bench.ask(m.TrimStreamRequest(1, 10_000))).range.start == base
    await bench.restart()
    assert await code(bench.append(base)) == OK
    assert [e.base_offset for e in await bench.all_entries(base)] == [base]
    await until(lambda: disk_usage(bench.path) <= 3 * SEGMENT)  # files go in the background


async def test_deleting_a_stream_frees_the_disk_and_leaves_its_neighbour(bench: Bench) -> None:
    await bench.create()
    await bench.create(stream_id=2)
    await bench.append(0, payload=b"neighbour", stream_id=2)
    for base in range(30):
        assert await code(bench.append(base, payload=bytes(50_000))) == OK
    assert await code(bench.ask(m.DeleteStreamRequest(1))) == OK
    await bench.restart()
    assert await code(bench.fetch(0)) == ErrorCode.RANGE_NOT_FOUND
    assert [bytes(e.payload) for e in await bench.all_entries(stream_id=2)] == [b"neighbour"]
    await until(lambda: disk_usage(bench.path) <= 3 * SEGMENT)


def disk_usage(path: Path) -> int:
    usage = 0
    for file in path.rglob("*.seg"):
        with suppress(FileNotFoundError):  # removed since it was listed
            usage += file.stat().st_blocks * 512
    return usage


class BrokenFiles(Files):
    """A disk that can be told to break."""

    def __init__(self) -> None:
        super().__init__()
        self.write_error: int | None = None
        self.free: int | None = None

    def write(self, fd: int, parts: Sequence[Buffer], offset: int, durable: bool) -> int:
        if self.write_error is not None:
            raise OSError(self.write_error, "told to")
        return super().write(fd, parts, offset, durable)

    def free_bytes(self, path: Path) -> int:
        return super().free_bytes(path) if self.free is None else self.free


async def test_an_error_of_the_disk_stops_everything(tmp_path: Path) -> None:
    files = BrokenFiles()
    bench = Bench(tmp_path, files=files)
    await bench.start()
    await bench.create()
    assert await code(bench.append(0)) == OK
    files.write_error = errno.EIO
    first, second = bench.append(1), bench.append(2)
    assert await code(first) == await code(second) == ErrorCode.RS_INTERNAL_SERVER_ERROR
    for request in (m.PingRequest(), m.FetchRequest(m.RangeInfo(1, 1, 0, 0), 0), m.AppendRequest()):
        assert await code(bench.ask(request)) == ErrorCode.RS_INTERNAL_SERVER_ERROR
    assert len(bench.failures) == 1
    files.write_error = None
    await bench.server.close()
    bench.store.close()
    await bench.start()
    assert [e.base_offset for e in await bench.all_entries()] == [0], "what was refused is not there"
    await bench.stop()


async def test_a_full_disk_refuses_appends_and_nothing_else(tmp_path: Path) -> None:
    files = BrokenFiles()
    bench = Bench(tmp_path, files=files, low_water_bytes=1 << 20)
    await bench.start()
    await bench.create()
    assert await code(bench.append(0)) == OK
    files.free = 0
    await bench.restart()
    response = await bench.append(1)
    status = response.results[0].status
    assert status.code == ErrorCode.RS_INTERNAL_SERVER_ERROR
    assert status.message
    assert [e.base_offset for e in await bench.all_entries()] == [0]
    assert await code(bench.ask(m.TrimStreamRequest(1, 1))) == OK
    assert bench.server.metrics(1.0).disk_free_space == 0, "the placement driver must stop choosing this server"
    assert bench.failures == []
    files.free = None
    await bench.restart()
    assert bench.server.metrics(1.0).disk_free_space > 0
    assert await code(bench.append(1)) == OK
    assert (await bench.seal(2)).range.end == 2
    await bench.stop()


async def test_damaged_data_is_told_not_served(bench: Bench) -> None:
    await bench.create()
    marker = b"these very bytes " * 100
    await bench.append(0, payload=marker)
    await bench.append(1)
    (segment,) = [file for file in bench.path.rglob("*.seg") if marker in file.read_bytes()]
    data = segment.read_bytes()
    with segment.open("r+b") as file:
        file.seek(data.index(marker) + 5)
        file.write(b"!")
    assert await code(bench.fetch(0)) == ErrorCode.RS_DATA_CORRUPTED
    assert (await bench.fetch(1)).entries[0].base_offset == 1


@dataclass
class Model:
    """What a stream must look like: entries by base, ranges as (start, end, epoch)."""

    ranges: list[tuple[int, int, int]] = field(default_factory=list)
    entries: dict[int, bytes] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    trimmed: int = 0

    @property
    def next_offset(self) -> int:
        last = max(self.counts, default=None)
        ends = [start for start, _, _ in self.ranges] + [0]
        return max(ends) if last is None else max(max(ends), last + self.counts[last])


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4), st.integers(0, 3000)),
        st.tuples(st.just("seal"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("trim"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
async def test_any_history_reads_back(tmp_path_factory: pytest.TempPathFactory, actions: list[Any]) -> None:
    bench = Bench(tmp_path_factory.mktemp("history"), segment_bytes=64 * 1024, durability="os")
    await bench.start()
    model = Model()
    epoch = 1
    is_open = False
    for number, (action, a, b) in enumerate(actions):
        index = len(model.ranges) - (1 if is_open else 0)
        if action == "append":
            if not is_open:
                assert await code(bench.create(epoch, index, model.next_offset)) == OK
                model.ranges.append((model.next_offset, -1, epoch))
                is_open = True
            base = model.next_offset
            payload = bytes([number]) * b
            assert await code(bench.append(base, a, payload, index)) == OK
            model.entries[base], model.counts[base] = payload, a
        elif action == "seal" and is_open:
            epoch += a
            sealed = await bench.seal(epoch, index)
            assert sealed.range.end == model.next_offset
            model.ranges[-1] = (model.ranges[-1][0], model.next_offset, epoch)
            is_open = False
        elif action == "trim" and model.ranges:
            model.trimmed = max(model.trimmed, min(a, model.next_offset))
            assert await code(bench.ask(m.TrimStreamRequest(1, a))) == OK
        elif action == "restart":
            await bench.restart()
    listed = (await bench.ask(m.ListRangeRequest(stream_id=1))).ranges
    kept = [n for n, (_, end, _) in enumerate(model.ranges) if end < 0 or end > model.trimmed]
    # A range with nothing left stays while it is the last one, and may then stay until the next trim.
    assert [r.index for r in listed if r.end < 0 or r.start < r.end] == kept
    assert not model.ranges or listed[-1].index == len(model.ranges) - 1
    seen: dict[int, bytes] = {}
    for n in kept:
        start, end, _ = model.ranges[n]
        first = max(start, model.trimmed)
        if end >= 0 and first >= end:
            continue
        for entry in await bench.all_entries(first, n):
            seen[entry.base_offset] = bytes(entry.payload)
    wanted = {base: data for base, data in model.entries.items() if base + model.counts[base] > model.trimmed}
    assert seen == wanted
    await bench.stop()
