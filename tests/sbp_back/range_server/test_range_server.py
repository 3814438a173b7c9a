"""The range server over a store that does what the test says, when the test says it.

What a real store adds (durability, recovery, files) is tested in test_range_server_store.py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch_kit.errors import DiskFull, StoreCorrupt, StoreError, StoreFailed
from sbp_back.errors import ErrorCode
from sbp_back.range_server.fetches import FetchLimits
from sbp_back.range_server.server import RangeServer, RangeServerOptions
from sbp_back.range_server.store.index import StoredRange
from sbp_back.wire import model as m
from sbp_back.wire.entry import pack_entry
from tests.kit.waiting import until

Done = Callable[[StoreError | None], None]


class PuppetStore:
    """Keeps everything in memory. ``hold`` makes it stop finishing operations until :meth:`finish`."""

    def __init__(self) -> None:
        self.ranges: dict[tuple[int, int], StoredRange] = {}
        self.entries: dict[tuple[int, int], list[m.Entry]] = {}
        self.on_failed: Callable[[StoreError], None] | None = None
        self.failed: StoreError | None = None
        self.hold = False
        self.hold_reads = False
        self.error: StoreError | None = None
        self.read_error: StoreError | None = None
        self.pending: deque[Callable[[StoreError | None], None]] = deque()
        self.reads: deque[Callable[[], None]] = deque()
        self.appended: list[list[m.Entry]] = []
        self.dones: list[Done] = []
        self.controls: list[tuple[Any, ...]] = []
        self.stats = SimpleNamespace()
        self.placement_driver = "whose"

    def finish(self, count: int = 1 << 30, error: StoreError | None = None) -> None:
        for _ in range(min(count, len(self.pending))):
            self.pending.popleft()(error)

    def _later(self, apply: Callable[[], None], done: Done) -> None:
        def run(error: StoreError | None) -> None:
            if error is None:
                apply()
            done(error)

        if self.hold:
            self.pending.append(run)
        else:
            run(self.error)

    def append(self, entries: list[m.Entry], done: Done) -> None:
        self.appended.append(entries)
        self.dones.append(done)

        def apply() -> None:
            for entry in entries:
                key = (entry.stream_id, entry.range_index)
                self.entries[key].append(entry)
                self.ranges[key].next_offset = entry.end_offset

        self._later(apply, done)

    def create_range(self, stream_id: int, index: int, epoch: int, start: int, done: Done) -> None:
        self.controls.append(("create", stream_id, index, epoch, start))

        def apply() -> None:
            self.ranges[stream_id, index] = StoredRange(stream_id, index, epoch, start, 0)
            self.entries[stream_id, index] = []

        self._later(apply, done)

    def seal_range(self, stream_id: int, index: int, epoch: int, end: int, done: Done) -> None:
        self.controls.append(("seal", stream_id, index, epoch, end))

        def apply() -> None:
            stored = self.ranges[stream_id, index]
            stored.end, stored.epoch = end, epoch
            stored.next_offset = min(stored.next_offset, end)

        self._later(apply, done)

    def trim_stream(self, stream_id: int, min_offset: int, done: Done) -> None:
        self.controls.append(("trim", stream_id, min_offset))

        def apply() -> None:
            kept = sorted(key for key in self.ranges if key[0] == stream_id)
            for key in kept:
                stored = self.ranges[key]
                if stored.start <= min_offset:
                    end = stored.next_offset if stored.end < 0 else stored.end
                    stored.min_offset = max(stored.min_offset, min(min_offset, end))
                if 0 <= stored.end <= min_offset and key != kept[-1]:
                    self.ranges.pop(key).dropped = True

        self._later(apply, done)

    def delete_stream(self, stream_id: int, done: Done) -> None:
        self.controls.append(("delete", stream_id))

        def apply() -> None:
            for key in [key for key in self.ranges if key[0] == stream_id]:
                self.ranges.pop(key).dropped = True

        self._later(apply, done)

    def read(
        self,
        stream_id: int,
        index: int,
        offset: int,
        limit: int,
        max_bytes: int,
        done: Callable[[list[m.Entry] | StoreError], None],
    ) -> None:
        def run() -> None:
            if self.read_error is not None:
                done(self.read_error)
                return
            found: list[m.Entry] = []
            size = 0
            for entry in self.entries[stream_id, index]:
                if entry.end_offset > offset and entry.base_offset < limit and (not found or size < max_bytes):
                    found.append(entry)
                    size += entry.size
            assert found, "the server asks only for what there is"
            done(found)

        if self.hold_reads:
            self.reads.append(run)
        else:
            run()

    def batch_bounds(self, stream_id: int, index: int, offset: int) -> tuple[int, int] | None:
        for entry in self.entries[stream_id, index]:
            if entry.base_offset <= offset < entry.end_offset:
                return entry.base_offset, entry.end_offset
        return None


class Answers(list[Any]):
    """Collects answers; the last one is the one a test usually looks at."""

    @property
    def code(self) -> int:
        assert len(self) == 1, f"expected one answer: {list(self)}"
        return int(self[0].status.code)


async def turns() -> None:
    """Let tasks go as far as they can."""
    for _ in range(10):
        await asyncio.sleep(0)


class Bench:
    def __init__(self, limits: FetchLimits | None = None) -> None:
        self.store = PuppetStore()
        self.failures: list[StoreError] = []
        self.limits = limits or FetchLimits()
        self.start()

    def start(self) -> None:
        self.server = RangeServer(
            self.store,  # type: ignore[arg-type]
            RangeServerOptions(server_id=4, advertise_addr="rs:1", fetch=self.limits),
            asyncio.get_running_loop(),
            on_failed=self.failures.append,
        )

    async def ask(self, request: m.Request) -> Answers:
        answers = Answers()
        self.server.handle(request, answers.append)
        await turns()
        return answers

    async def finish(self, count: int = 1 << 30, error: StoreError | None = None) -> None:
        """Have the store finish operations."""
        self.store.finish(count, error)
        await turns()

    async def create(
        self, stream_id: int = 1, index: int = 0, epoch: int = 1, start: int = 0, end: int = -1
    ) -> Answers:
        return await self.ask(m.CreateRangeRequest(m.RangeInfo(stream_id, epoch, index, start, end)))

    async def seal(self, epoch: int, end: int = -1, index: int = 0, start: int = 0, stream_id: int = 1) -> Answers:
        return await self.ask(m.SealRangeRequest(m.RangeInfo(stream_id, epoch, index, start, end)))

    async def append(self, *places: tuple[int, int], stream_id: int = 1, index: int = 0, size: int = 10) -> Answers:
        """``places``: (base, count) of each entry of one request."""
        entries = [pack_entry(stream_id, index, 0, base, count, 5, bytes(size)) for base, count in places]
        return await self.ask(m.AppendRequest(entries=entries))

    async def fetch(self, offset: int, **options: int) -> Answers:
        return await self.ask(m.FetchRequest(m.RangeInfo(1, 1, 0, 0), offset, **options))


@pytest.fixture
async def bench() -> Bench:
    return Bench()


def codes(answers: Answers) -> list[int]:
    assert len(answers) == 1, f"expected one answer: {list(answers)}"
    return [result.status.code for result in answers[0].results]


def bases(answers: Answers) -> list[int]:
    assert len(answers) == 1, f"expected one answer: {list(answers)}"
    response = answers[0]
    assert isinstance(response, m.FetchResponse)
    assert response.status.ok, response.status
    return [entry.base_offset for entry in response.entries]


OK = ErrorCode.OK


# --- create -----------------------------------------------------------------------------------------------------------


async def test_creating_again_is_the_same_and_otherwise_refused(bench: Bench) -> None:
    assert (await bench.create(start=5))[0].range == m.RangeInfo(1, 1, 0, 5, -1)
    assert (await bench.create(start=5)).code == OK
    assert (await bench.create(start=6)).code == ErrorCode.BAD_REQUEST
    assert (await bench.create(start=5, epoch=0)).code == ErrorCode.BAD_REQUEST
    assert bench.store.controls == [("create", 1, 0, 1, 5)], "only the first one was written"
    assert (await bench.create(start=5, epoch=2)).code == OK, "nothing was written to it yet"
    assert codes(await bench.append((5, 1))) == [OK]
    assert (await bench.create(start=5, epoch=3)).code == ErrorCode.BAD_REQUEST
    await bench.seal(7)
    assert (await bench.create(start=5, epoch=2)).code == ErrorCode.BAD_REQUEST
    assert (await bench.create(start=5, epoch=7))[0].range == m.RangeInfo(1, 7, 0, 5, 6)


@pytest.mark.parametrize(
    "wanted",
    [
        m.RangeInfo(-1, 1, 0, 0),
        m.RangeInfo(1, -1, 0, 0),
        m.RangeInfo(1, 1, -1, 0),
        m.RangeInfo(1, 1, 0, -1),
        m.RangeInfo(1, 1, 0, (1 << 63) - 1),
        m.RangeInfo(1, 1, 0, 0, 10),
    ],
)
async def test_ranges_that_cannot_be(bench: Bench, wanted: m.RangeInfo) -> None:
    assert (await bench.ask(m.CreateRangeRequest(wanted))).code == ErrorCode.BAD_REQUEST
    assert bench.store.controls == []


async def test_nothing_is_answered_before_it_is_durable(bench: Bench) -> None:
    bench.store.hold = True
    created, again = await bench.create(), await bench.create()
    assert codes(await bench.append((0, 1))) == [ErrorCode.RANGE_NOT_FOUND]
    assert created == again == []
    await bench.finish()
    assert created.code == OK
    await asyncio.sleep(0)
    assert again.code == OK
    appended = await bench.append((0, 1))
    sealed = await bench.seal(1)
    assert appended == sealed == []
    await bench.finish()
    assert (len(appended), len(sealed)) == (1, 1)


async def test_a_disk_that_is_full_when_a_range_is_created(bench: Bench) -> None:
    bench.store.error = DiskFull("no room on /data")
    answer = await bench.create()
    assert answer.code == ErrorCode.RS_INTERNAL_SERVER_ERROR
    assert "no room on /data" in answer[0].status.message
    bench.store.error = None
    assert (await bench.create()).code == OK


# --- append -----------------------------------------------------------------------------------------------------------


async def test_results_are_positional_and_all_pass_the_window_first(bench: Bench) -> None:
    await bench.create()
    await bench.create(stream_id=2)
    entries = [
        pack_entry(1, 0, 0, 0, 2, 0, b"a"),
        pack_entry(9, 0, 0, 0, 1, 0, b"no such stream"),
        pack_entry(2, 0, 0, 0, 1, 0, b"b"),
        pack_entry(1, 0, 0, 1, 1, 0, b"in the first"),
        pack_entry(1, 0, 0, 2, 1, 0, b"c"),
        pack_entry(2, 0, 0, 7, 1, 0, b"too far"),
        pack_entry(2, 0, 0, -1, 1, 0, b"unassigned"),
    ]
    assert codes(await bench.ask(m.AppendRequest(entries=entries))) == [
        OK,
        ErrorCode.RANGE_NOT_FOUND,
        OK,
        ErrorCode.APPEND_TO_PENDING_OFFSET,
        OK,
        ErrorCode.APPEND_TO_OVERTAKEN_OFFSET,
        ErrorCode.BAD_REQUEST,
    ]
    assert [[e.payload for e in group] for group in bench.store.appended] == [[b"a", b"b", b"c"]]


async def test_an_empty_request_and_one_with_nothing_to_store(bench: Bench) -> None:
    assert codes(await bench.append()) == []
    assert codes(await bench.append((0, 1))) == [ErrorCode.RANGE_NOT_FOUND]
    assert bench.store.appended == []


async def test_an_entry_longer_than_a_frame_can_be_answered_with(bench: Bench) -> None:
    await bench.create()
    assert codes(await bench.append((0, 1), size=16 << 20)) == [ErrorCode.PAYLOAD_TOO_LARGE]
    assert codes(await bench.append((0, 1))) == [OK]


async def test_committed_offsets(bench: Bench) -> None:
    await bench.create()
    await bench.append((0, 3), (3, 2))
    assert codes(await bench.append((0, 3), (3, 2))) == [ErrorCode.APPEND_TO_COMMITTED_OFFSET] * 2
    # Somebody else's batch is there: not a success by any means.
    assert codes(await bench.append((1, 2), (4, 1), (0, 5))) == [ErrorCode.BAD_REQUEST] * 3


async def test_acknowledgements_wait_for_predecessors(bench: Bench) -> None:
    await bench.create()
    bench.store.hold = True
    first, second, third = await bench.append((0, 1)), await bench.append((1, 1)), await bench.append((2, 1))
    one, two, three = bench.store.pending
    three(None)
    two(None)
    assert (first, second, third) == ([], [], [])
    one(None)
    assert codes(first) == codes(second) == codes(third) == [OK]


async def test_after_a_full_disk_writing_goes_on_where_it_stopped(bench: Bench) -> None:
    await bench.create()
    await bench.append((0, 1))
    bench.store.hold = True
    first, second = await bench.append((1, 1)), await bench.append((2, 1))
    await bench.finish(1, DiskFull("no room"))
    assert codes(first) == [ErrorCode.RS_INTERNAL_SERVER_ERROR]
    assert "no room" in first[0].results[0].status.message
    assert codes(await bench.append((1, 1))) == [ErrorCode.RS_INTERNAL_SERVER_ERROR], "the second is still under way"
    await bench.finish(1, DiskFull("no room"))
    assert codes(second) == [ErrorCode.RS_INTERNAL_SERVER_ERROR]
    bench.store.hold = False
    assert codes(await bench.append((1, 1))) == [OK]
    assert bases(await bench.fetch(0)) == [0, 1], "and reading never stopped"


async def test_a_request_of_which_only_the_first_part_could_be_stored(bench: Bench) -> None:
    """A store splits what is larger than its segments, and may run out of space in between."""
    await bench.create()
    bench.store.hold = True
    answer = await bench.append((0, 2), (2, 1), (3, 1))
    bench.store.pending.popleft()
    bench.store.entries[1, 0] = bench.store.appended[0][:1]
    bench.store.ranges[1, 0].next_offset = 2
    call = bench.store.dones.pop()
    call(DiskFull("no room for the rest"))
    assert codes(answer) == [OK, ErrorCode.RS_INTERNAL_SERVER_ERROR, ErrorCode.RS_INTERNAL_SERVER_ERROR]
    bench.store.hold = False
    assert codes(await bench.append((2, 1))) == [OK], "it goes on behind the part that is there"
    assert bases(await bench.fetch(0)) == [0, 2]


async def test_a_store_that_failed(bench: Bench) -> None:
    await bench.create()
    waiting = await bench.fetch(0, max_wait_ms=60_000)
    bench.store.hold = True
    first, second = await bench.append((0, 1)), await bench.append((1, 1))
    await bench.finish(error=StoreFailed("input/output error"))
    assert codes(first) == codes(second) == [ErrorCode.RS_INTERNAL_SERVER_ERROR]
    assert waiting.code == ErrorCode.RS_INTERNAL_SERVER_ERROR
    for request in (m.AppendRequest(), m.PingRequest(), m.FetchRequest(m.RangeInfo(1, 1, 0, 0), 0)):
        answer = await bench.ask(request)
        assert answer.code == ErrorCode.RS_INTERNAL_SERVER_ERROR
        assert "input/output error" in answer[0].status.message
    assert await bench.ask(m.GoAway()) == []
    assert len(bench.failures) == 1
    assert bench.server.failure is not None


# --- seal -------------------------------------------------------------------------------------------------------------


async def test_an_entry_that_commits_after_the_seal_is_never_acknowledged(bench: Bench) -> None:
    await bench.create()
    await bench.append((0, 4))
    bench.store.hold = True
    late = await bench.append((4, 2))
    sealed = await bench.seal(2)
    assert codes(await bench.append((6, 1))) == [ErrorCode.RANGE_ALREADY_SEALED], "the window closes at once"
    await bench.finish(1)
    assert late == [], "durable, but what it counts for is decided by the seal"
    assert (await bench.fetch(4)).code == ErrorCode.NO_NEW_RECORD, "and until then nobody sees it"
    await bench.finish()
    assert codes(late) == [ErrorCode.RANGE_ALREADY_SEALED]
    assert sealed[0].range == m.RangeInfo(1, 2, 0, 0, 4)
    bench.store.hold = False
    assert bases(await bench.fetch(0)) == [0]
    assert (await bench.fetch(4)).code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS


async def test_a_request_with_entries_of_two_streams_of_which_one_is_sealed(bench: Bench) -> None:
    await bench.create()
    await bench.create(stream_id=2)
    bench.store.hold = True
    entries = [pack_entry(stream_id, 0, 0, 0, 1, 0, b"") for stream_id in (1, 2)]
    answer = await bench.ask(m.AppendRequest(entries=entries))
    await bench.seal(1)
    await bench.finish()
    assert codes(answer) == [ErrorCode.RANGE_ALREADY_SEALED, OK]


async def test_a_seal_that_could_not_be_written_changes_nothing(bench: Bench) -> None:
    await bench.create()
    bench.store.hold = True
    append = await bench.append((0, 1))
    sealed = await bench.seal(2)
    await bench.finish(1)
    assert append == []
    await bench.finish(1, DiskFull("no room"))
    assert sealed.code == ErrorCode.RS_INTERNAL_SERVER_ERROR
    assert codes(append) == [OK]
    bench.store.hold = False
    assert codes(await bench.append((1, 1))) == [OK]
    assert (await bench.seal(1)).code == OK, "the epoch was not raised either"


async def test_seals_with_an_end(bench: Bench) -> None:
    await bench.create(start=2)
    await bench.append((2, 3), (5, 1), (6, 1))
    assert (await bench.seal(0)).code == ErrorCode.EXPIRED_RANGE_EPOCH
    assert (await bench.seal(1, end=1)).code == ErrorCode.BAD_REQUEST
    assert (await bench.seal(1, end=6))[0].range.end == 6, "cut to what was decided"
    assert (await bench.fetch(6)).code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS
    assert bases(await bench.fetch(2)) == [2, 5]
    assert (await bench.seal(1, end=9))[0].range.end == 6, "the caller sees that something is missing"
    assert (await bench.seal(1))[0].range.end == 6
    assert (await bench.seal(0)).code == ErrorCode.EXPIRED_RANGE_EPOCH
    assert (await bench.seal(3, end=5))[0].range.end == 5, "a decision that came later and is lower"
    assert (await bench.seal(1)).code == ErrorCode.EXPIRED_RANGE_EPOCH


async def test_seal_past_what_is_committed(bench: Bench) -> None:
    await bench.create()
    await bench.append((0, 2))
    assert (await bench.seal(1, end=10))[0].range.end == 2


async def test_sealing_an_unknown_range_shuts_its_writer_out(bench: Bench) -> None:
    sealed = await bench.seal(3, start=7)
    assert sealed[0].range == m.RangeInfo(1, 3, 0, 7, 7)
    assert bench.store.controls == [("create", 1, 0, 3, 7), ("seal", 1, 0, 3, 7)]
    assert (await bench.create(epoch=2, start=7)).code == ErrorCode.BAD_REQUEST
    assert codes(await bench.append((7, 1))) == [ErrorCode.RANGE_ALREADY_SEALED]
    assert (await bench.seal(3, start=-1, index=1)).code == ErrorCode.RANGE_NOT_FOUND


async def test_two_seals_at_a_time_give_one_answer(bench: Bench) -> None:
    await bench.create()
    await bench.append((0, 1))
    bench.store.hold = True
    first, second, older = await bench.seal(2), await bench.seal(3), await bench.seal(1)
    while bench.store.pending:
        await bench.finish()
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert first[0].range.end == second[0].range.end == 1
    assert older.code == ErrorCode.EXPIRED_RANGE_EPOCH


# --- fetch ------------------------------------------------------------------------------------------------------------


async def test_what_a_fetch_may_see(bench: Bench) -> None:
    assert (await bench.fetch(0)).code == ErrorCode.RANGE_NOT_FOUND
    await bench.create(start=10)
    await bench.append((10, 5), (15, 5))
    bench.store.hold = True
    await bench.append((20, 5))
    assert (await bench.fetch(9)).code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS
    assert bases(await bench.fetch(10)) == [10, 15]
    assert bases(await bench.fetch(14)) == [10, 15], "the batch that contains the offset comes whole"
    assert bases(await bench.fetch(10, limit=15)) == [10]
    assert bases(await bench.fetch(10, limit=16)) == [10, 15]
    assert bases(await bench.fetch(10, limit=99)) == [10, 15]
    assert (await bench.fetch(15, limit=15)).code == ErrorCode.NO_NEW_RECORD
    assert (await bench.fetch(20)).code == ErrorCode.NO_NEW_RECORD
    assert (await bench.fetch(25)).code == ErrorCode.NO_NEW_RECORD
    assert (await bench.fetch(26)).code == ErrorCode.OFFSET_OVERFLOW
    await bench.finish()
    assert bases(await bench.fetch(20)) == [20]


async def test_how_much_a_fetch_gets() -> None:
    bench = Bench(FetchLimits(default_bytes=350))
    await bench.create()
    await bench.append(*((base, 1) for base in range(10)), size=100)
    assert bases(await bench.fetch(0, max_bytes=1)) == [0], "always one batch at least"
    assert bases(await bench.fetch(0, max_bytes=2 * 173)) == [0, 1]
    assert bases(await bench.fetch(0)) == [0, 1, 2]
    assert bases(await bench.fetch(0, max_bytes=1 << 40)) == list(range(10))


async def test_damaged_data_and_other_failures_of_reading(bench: Bench) -> None:
    await bench.create()
    await bench.append((0, 1))
    bench.store.read_error = StoreCorrupt("bad checksum")
    assert (await bench.fetch(0)).code == ErrorCode.RS_DATA_CORRUPTED
    bench.store.read_error = StoreError("cannot open a segment")
    assert (await bench.fetch(0)).code == ErrorCode.RS_INTERNAL_SERVER_ERROR
    assert bench.failures == []


async def test_a_long_poll_ends_when_data_is_committed(bench: Bench) -> None:
    await bench.create()
    bench.store.hold = True
    await bench.append((0, 1))
    waiting = [await bench.fetch(offset, max_wait_ms=60_000) for offset in (0, 0, 1)]
    assert waiting == [[], [], []]
    await bench.finish()
    assert bases(waiting[0]) == bases(waiting[1]) == [0]
    assert waiting[2] == []
    bench.store.hold = False
    await bench.append((1, 1))
    assert bases(waiting[2]) == [1]


async def test_a_long_poll_waits_for_enough_bytes(bench: Bench) -> None:
    await bench.create()
    empty = await bench.fetch(0, max_wait_ms=60_000, min_bytes=3 * 173)
    await bench.append((0, 1), size=100)
    half = await bench.fetch(0, max_wait_ms=60_000, min_bytes=3 * 173)
    assert bases(await bench.fetch(0, min_bytes=1 << 20)) == [0], "who does not wait takes what there is"
    await bench.append((1, 1), size=100)
    assert (empty, half) == ([], [])
    await bench.append((2, 1), size=100)
    assert bases(empty) == bases(half) == [0, 1, 2]


async def test_more_minimum_than_maximum_does_not_wait_for_ever(bench: Bench) -> None:
    await bench.create()
    await bench.append((0, 1), (1, 1), size=100)
    assert bases(await bench.fetch(0, max_wait_ms=60_000, min_bytes=1 << 30, max_bytes=50)) == [0]


async def test_a_long_poll_gives_up_at_its_deadline(bench: Bench) -> None:
    await bench.create()
    future: asyncio.Future[m.Response] = asyncio.get_running_loop().create_future()
    bench.server.handle(m.FetchRequest(m.RangeInfo(1, 1, 0, 0), 0, max_wait_ms=5), future.set_result)
    assert (await future).status.code == ErrorCode.NO_NEW_RECORD
    await bench.append((0, 1))
    partial: asyncio.Future[m.Response] = asyncio.get_running_loop().create_future()
    bench.server.handle(m.FetchRequest(m.RangeInfo(1, 1, 0, 0), 0, max_wait_ms=5, min_bytes=10_000), partial.set_result)
    response = await partial
    assert isinstance(response, m.FetchResponse)
    assert [e.base_offset for e in response.entries] == [0], "too little is better than nothing"


async def test_deadlines_come_in_order_whatever_order_they_were_set_in(bench: Bench) -> None:
    await bench.create()
    ended: list[int] = []
    last = asyncio.Event()
    for wait in (60, 20, 100, 40):

        def answered(_response: m.Response, wait: int = wait) -> None:
            ended.append(wait)
            if len(ended) == 4:
                last.set()

        bench.server.handle(m.FetchRequest(m.RangeInfo(1, 1, 0, 0), 0, max_wait_ms=wait), answered)
    await last.wait()
    assert ended == [20, 40, 60, 100]


async def test_a_limit_that_cannot_be_passed_is_not_waited_for(bench: Bench) -> None:
    await bench.create()
    await bench.append((0, 1))
    assert (await bench.fetch(1, limit=1, max_wait_ms=60_000)).code == ErrorCode.NO_NEW_RECORD
    waiting = await bench.fetch(1, limit=2, max_wait_ms=60_000)
    assert waiting == []
    await bench.append((1, 1))
    assert bases(waiting) == [1]


async def test_long_polls_end_with_their_range(bench: Bench) -> None:
    await bench.create()
    sealed = await bench.fetch(0, max_wait_ms=60_000)
    await bench.seal(1)
    assert sealed.code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS
    await bench.create(index=1)
    deleted = await bench.ask(m.FetchRequest(m.RangeInfo(1, 1, 1, 0), 0, max_wait_ms=60_000))
    await bench.ask(m.DeleteStreamRequest(1))
    assert deleted.code == ErrorCode.RANGE_NOT_FOUND
    await bench.create(stream_id=2)
    closed = await bench.ask(m.FetchRequest(m.RangeInfo(2, 1, 0, 0), 0, max_wait_ms=60_000))
    await bench.server.close()
    assert closed.code == ErrorCode.NO_NEW_RECORD
    assert (await bench.ask(m.PingRequest())).code == ErrorCode.RS_INTERNAL_SERVER_ERROR


async def test_before_it_stops_a_server_lets_nobody_wait(bench: Bench) -> None:
    await bench.create()
    nothing = await bench.fetch(0, max_wait_ms=60_000)
    bench.server.stop_waiting()
    assert nothing.code == ErrorCode.NO_NEW_RECORD
    assert (await bench.fetch(0, max_wait_ms=60_000)).code == ErrorCode.NO_NEW_RECORD
    assert codes(await bench.append((0, 1))) == [OK]
    assert bases(await bench.fetch(0, max_wait_ms=60_000, min_bytes=10_000)) == [0]


async def test_only_so_many_may_wait() -> None:
    bench = Bench(FetchLimits(max_waiting=2))
    await bench.create()
    waiting = [await bench.fetch(0, max_wait_ms=60_000) for _ in range(3)]
    assert waiting[:2] == [[], []]
    assert waiting[2].code == ErrorCode.NO_NEW_RECORD
    await bench.append((0, 1))
    assert bases(waiting[0]) == bases(waiting[1]) == [0]
    assert await bench.fetch(1, max_wait_ms=60_000) == []


async def test_a_reader_that_asks_again_from_within_its_answer(bench: Bench) -> None:
    """As an in-process reader does: it must get every batch once, and not starve the others."""
    await bench.create()
    seen: list[int] = []

    def answered(response: m.Response) -> None:
        assert isinstance(response, m.FetchResponse)
        seen.extend(entry.base_offset for entry in response.entries)
        ask(seen[-1] + 1)

    def ask(offset: int) -> None:
        bench.server.handle(m.FetchRequest(m.RangeInfo(1, 1, 0, 0), offset, max_wait_ms=60_000), answered)

    ask(0)
    other = await bench.fetch(0, max_wait_ms=60_000)
    for base in range(5):
        await bench.append((base, 1))
    assert seen == list(range(5))
    assert bases(other) == [0]


async def test_trimmed_while_the_store_was_reading(bench: Bench) -> None:
    await bench.create()
    await bench.append((0, 1), (1, 1))
    bench.store.hold_reads = True
    trimmed, deleted = await bench.fetch(0), await bench.fetch(1)
    await bench.ask(m.TrimStreamRequest(1, 1))
    bench.store.read_error = StoreError("no such file")
    bench.store.reads.popleft()()
    assert trimmed.code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS
    await bench.ask(m.DeleteStreamRequest(1))
    bench.store.reads.popleft()()
    assert deleted.code == ErrorCode.RANGE_NOT_FOUND


async def test_more_is_committed_while_the_store_was_reading(bench: Bench) -> None:
    await bench.create()
    await bench.append((0, 1), size=100)
    bench.store.hold_reads = True
    waiting = await bench.fetch(0, max_wait_ms=60_000, min_bytes=2 * 173)
    await bench.append((1, 1), size=100)
    bench.store.reads.popleft()()
    bench.store.reads.popleft()()
    assert bases(waiting) == [0, 1]


# --- trim, delete, list and the rest ----------------------------------------------------------------------------------


async def test_a_trimmed_stream_begins_at_its_offset_in_every_range(bench: Bench) -> None:
    await bench.create()
    await bench.append((0, 5), (5, 5))
    await bench.seal(1)
    await bench.create(index=1, start=10)
    await bench.append((10, 5), index=1)
    assert (await bench.ask(m.TrimStreamRequest(1, -1))).code == ErrorCode.BAD_REQUEST
    assert (await bench.ask(m.TrimStreamRequest(1, 7)))[0].range == m.RangeInfo(1, 1, 0, 7, 10)
    assert (await bench.fetch(6)).code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS
    assert bases(await bench.fetch(7)) == [5], "the batch around the offset stays whole"
    written = len(bench.store.controls)
    assert (await bench.ask(m.TrimStreamRequest(1, 3)))[0].range.start == 7
    assert len(bench.store.controls) == written, "nothing new, nothing written"
    assert (await bench.ask(m.TrimStreamRequest(1, 10)))[0].range == m.RangeInfo(1, 1, 1, 10, -1)
    assert (await bench.fetch(7)).code == ErrorCode.RANGE_NOT_FOUND
    assert (await bench.ask(m.TrimStreamRequest(1, 1000)))[0].range.start == 15, (
        "what is not written yet cannot be trimmed"
    )
    assert codes(await bench.append((15, 1), index=1)) == [OK]
    assert (await bench.ask(m.TrimStreamRequest(8, 5))).code == OK, "a stream without data here"


async def test_delete(bench: Bench) -> None:
    await bench.create()
    await bench.append((0, 1))
    bench.store.hold = True
    late = await bench.append((1, 1))
    deleted = await bench.ask(m.DeleteStreamRequest(1))
    await bench.finish()
    assert deleted.code == OK
    assert codes(late) == [ErrorCode.RANGE_NOT_FOUND]
    bench.store.hold = False
    assert codes(await bench.append((2, 1))) == [ErrorCode.RANGE_NOT_FOUND]
    assert (await bench.fetch(0)).code == ErrorCode.RANGE_NOT_FOUND
    assert (await bench.ask(m.DeleteStreamRequest(1))).code == OK
    assert bench.store.controls.count(("delete", 1)) == 1


async def test_a_deletion_that_could_not_be_written_changes_nothing(bench: Bench) -> None:
    await bench.create()
    bench.store.hold = True
    late = await bench.append((0, 1))
    deleted = await bench.ask(m.DeleteStreamRequest(1))
    await bench.finish(1)
    await bench.finish(1, DiskFull("no room"))
    assert deleted.code == ErrorCode.RS_INTERNAL_SERVER_ERROR
    assert codes(late) == [OK]
    assert bases(await bench.fetch(0)) == [0]
    bench.store.hold = False
    assert (await bench.ask(m.DeleteStreamRequest(1))).code == OK


async def test_ranges_the_store_gave_up_by_itself(bench: Bench) -> None:
    await bench.create()
    await bench.append((0, 1))
    await bench.seal(1)
    await bench.create(index=1, start=1)
    bench.store.ranges.pop((1, 0)).dropped = True
    assert (await bench.fetch(0)).code == ErrorCode.RANGE_NOT_FOUND
    assert [r.index for r in (await bench.ask(m.ListRangeRequest(stream_id=1)))[0].ranges] == [1]


async def test_list(bench: Bench) -> None:
    await bench.create()
    await bench.append((0, 2))
    await bench.seal(4)
    await bench.create(index=1, epoch=4, start=2)
    await bench.create(stream_id=2)
    of_one = [m.RangeInfo(1, 4, 0, 0, 2), m.RangeInfo(1, 4, 1, 2, -1)]
    of_two = [m.RangeInfo(2, 1, 0, 0, -1)]
    assert (await bench.ask(m.ListRangeRequest(stream_id=1)))[0].ranges == of_one
    assert (await bench.ask(m.ListRangeRequest(server_id=4)))[0].ranges == of_one + of_two
    assert (await bench.ask(m.ListRangeRequest(server_id=4, stream_id=2)))[0].ranges == of_two
    assert (await bench.ask(m.ListRangeRequest(server_id=5, stream_id=2)))[0].ranges == []
    assert (await bench.ask(m.ListRangeRequest()))[0].ranges == []


async def test_requests_for_others_are_refused_and_pings_answered(bench: Bench) -> None:
    assert await bench.ask(m.PingRequest(b"h", b"p")) == [m.PingResponse(b"h", b"p")]
    assert (await bench.ask(m.HeartbeatRequest("me", 3)))[0].client_id == "me"
    for request in (m.AllocateIdRequest(), m.CreateStreamRequest(m.StreamInfo())):
        assert (await bench.ask(request)).code == ErrorCode.UNSUPPORTED_OPERATION
    (node,) = (await bench.ask(m.DescribePdRequest()))[0].nodes
    assert (node.name, node.is_leader) == (f"anabranch:range-server:{bench.server.info.server_id}:whose", False)
    assert await bench.ask(m.GoAway()) == []


async def test_a_restarted_server_knows_what_the_store_knows(bench: Bench) -> None:
    await bench.create()
    await bench.append((0, 3))
    await bench.create(stream_id=2)
    await bench.append((0, 1), stream_id=2)
    await bench.seal(5)
    bench.start()
    assert codes(await bench.append((3, 1))) == [ErrorCode.RANGE_ALREADY_SEALED]
    assert (await bench.seal(4)).code == ErrorCode.EXPIRED_RANGE_EPOCH
    assert (await bench.seal(5))[0].range == m.RangeInfo(1, 5, 0, 0, 3)
    assert codes(await bench.append((1, 1), stream_id=2)) == [OK]
    answer = await bench.seal(9, stream_id=2)
    assert isinstance(answer[0], m.RangeResponse)
    assert answer[0].range is not None
    assert answer[0].range.end == 2


async def test_many_operations_on_one_stream_do_not_nest(bench: Bench) -> None:
    bench.store.hold = True
    await bench.create()
    trims = [await bench.ask(m.TrimStreamRequest(1, 0)) for _ in range(5000)]
    bench.store.hold = False
    await bench.finish()
    await until(lambda: trims[-1])
    assert all(isinstance(answer[0], m.StreamResponse) and answer.code == OK for answer in trims)


# --- defects --------------------------------------------------------------------------------------------------------


def raising(*_: object) -> None:
    raise RuntimeError("a defect of whoever asked")


async def test_an_append_whose_reply_raises_still_wakes_the_readers(bench: Bench) -> None:
    await bench.create()
    waiting = await bench.fetch(0, max_wait_ms=60_000)
    assert waiting == []
    bench.server.handle(m.AppendRequest(entries=[pack_entry(1, 0, 0, 0, 1, 5, b"x")]), raising)
    assert waiting.code == ErrorCode.OK


async def test_a_reader_that_raises_keeps_no_other_from_its_answer(bench: Bench) -> None:
    await bench.create()
    fetch = m.FetchRequest(m.RangeInfo(1, 1, 0, 0), 0, max_wait_ms=60_000)
    before, after = Answers(), Answers()
    for reply in (before.append, raising, after.append):
        bench.server.handle(fetch, reply)
    assert (await bench.append((0, 1))).code == ErrorCode.OK
    assert (before.code, after.code) == (ErrorCode.OK, ErrorCode.OK)
    late = await bench.fetch(1, max_wait_ms=60_000)
    bench.server.handle(m.FetchRequest(m.RangeInfo(1, 1, 0, 0), 1, max_wait_ms=60_000), raising)
    last = await bench.fetch(1, max_wait_ms=60_000)
    bench.server.stop_waiting()
    assert (late.code, last.code) == (ErrorCode.NO_NEW_RECORD, ErrorCode.NO_NEW_RECORD)


async def test_a_store_that_raises_costs_the_fetch_that_woke_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.create()
    waiting = [await bench.fetch(0, max_wait_ms=60_000) for _ in range(2)]
    monkeypatch.setattr(bench.store, "read", raising)
    assert (await bench.append((0, 1))).code == ErrorCode.OK
    assert [answers.code for answers in waiting] == [ErrorCode.RS_INTERNAL_SERVER_ERROR] * 2
    assert bench.server.waiting_fetches == 0


async def test_an_append_behind_a_parked_one_whose_reply_raises_is_answered(bench: Bench) -> None:
    await bench.create()
    bench.store.hold = True
    bench.server.handle(m.AppendRequest(entries=[pack_entry(1, 0, 0, 0, 1, 5, b"x")]), Answers().append)
    bench.server.handle(m.AppendRequest(entries=[pack_entry(1, 0, 0, 1, 1, 5, b"x")]), raising)
    last = await bench.append((2, 1))
    first, *others = list(bench.store.pending)
    bench.store.pending.clear()
    for finish in (*others, first):
        finish(None)
    assert last.code == ErrorCode.OK


async def test_a_control_request_that_fails_unexpectedly_does_not_hold_up_its_stream(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.create()
    with monkeypatch.context() as patch:
        patch.setattr(bench.store, "seal_range", raising)
        assert (await bench.seal(1)).code == ErrorCode.RS_INTERNAL_SERVER_ERROR
    bench.store.hold = True
    first = await bench.ask(m.TrimStreamRequest(1, 0))
    assert first.code == ErrorCode.OK, "the stream's turn came"
    with monkeypatch.context() as patch:
        patch.setattr(type(bench.server._fetches), "wake_all", lambda _self, state: raising(state))
        sealed = await bench.seal(1)
        await bench.finish()
        assert sealed.code == ErrorCode.RS_INTERNAL_SERVER_ERROR, "so was one that failed behind the store"
    bench.server.handle(m.TrimStreamRequest(1, 0), raising)
    assert (await bench.ask(m.TrimStreamRequest(1, 0))).code == ErrorCode.OK


async def test_what_is_confirmed_is_believed_of_ranges_whose_entries_say_so_only(bench: Bench) -> None:
    """Of another range it would hide from readers what they were shown a moment ago."""
    await bench.create()
    await bench.append((0, 3))
    assert (await bench.ask(m.AppendRequest(0, [], [(1, 0, 1), (9, 9, 9)])))[0] == m.AppendResponse()
    assert [entry.base_offset for entry in (await bench.ask(m.FetchRequest(m.RangeInfo(1, 1, 0), 0)))[0].entries] == [0]
    await bench.create(stream_id=2)
    telling = [pack_entry(2, 0, 0, base, 1, 5, b"x", confirmed) for base, confirmed in ((0, 0), (1, 0), (2, 1))]
    assert (await bench.ask(m.AppendRequest(0, telling)))[0].status.ok
    fetch = m.FetchRequest(m.RangeInfo(2, 1, 0), 0)
    assert [entry.base_offset for entry in (await bench.ask(fetch))[0].entries] == [0], "what its last entry says"
    limited = m.FetchRequest(m.RangeInfo(2, 1, 0), 0, limit=3)
    assert len((await bench.ask(limited))[0].entries) == 3, "who names a limit vouches for it"
    await bench.ask(m.AppendRequest(0, [], [(2, 0, 2)]))
    assert len((await bench.ask(fetch))[0].entries) == 2
    await bench.ask(m.AppendRequest(0, [], [(2, 0, 1 << 62)]))
    assert len((await bench.ask(fetch))[0].entries) == 3, "never more than there is"
    assert (
        await bench.ask(m.FetchRequest(m.RangeInfo(2, 1, 0), 3, limit=(1 << 63) - 1))
    ).code == ErrorCode.NO_NEW_RECORD
