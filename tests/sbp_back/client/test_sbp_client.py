"""The client against servers that can be told to misbehave: nothing acknowledged is lost, doubled or reordered."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sbp_back.client.client import Client, ClientOptions, StreamWriter
from sbp_back.client.control import ControlOptions
from sbp_back.client.replica import MAX_ENTRY_PAYLOAD, RetryOptions
from sbp_back.client.stream_writer import WriterOptions
from sbp_back.errors import NO_SPACE_DETAIL, ConnectionLost, ErrorCode, FencedError, NoSpace, SbpError
from sbp_back.transport.carrier import AnswerTo, Carrier, InProcessCarrier
from sbp_back.transport.handler import Reply
from sbp_back.wire import model as m
from tests.kit.waiting import until

# --- small servers, written from the rules and not from the real ones ----------------------------------------------


class MiniPd:
    def __init__(self, servers: list[m.RangeServerInfo]) -> None:
        self.servers = servers
        self.streams: dict[int, m.StreamInfo] = {}
        self.ranges: dict[int, list[m.RangeInfo]] = {}
        self.trims: dict[int, int] = {}
        self.turn = 0

    def handle(self, request: m.Request, reply: Reply) -> None:
        reply(self.serve(request))

    def serve(self, request: m.Request) -> m.Response:
        match request:
            case m.CreateStreamRequest():
                info = m.StreamInfo(len(self.streams), request.stream.replica, request.stream.ack_count)
                self.streams[info.stream_id] = info
                self.ranges[info.stream_id] = []
                return m.StreamResponse(stream=info)
            case m.DescribeStreamRequest():
                if request.stream_id not in self.streams:
                    return m.StreamResponse(m.Status(ErrorCode.NOT_FOUND))
                return m.StreamResponse(stream=self.streams[request.stream_id])
            case m.DeleteStreamRequest():
                self.ranges.pop(request.stream_id)
                return m.StreamResponse(stream=self.streams.pop(request.stream_id))
            case m.ListRangeRequest():
                trim = self.trims.get(request.stream_id, 0)
                return m.ListRangeResponse(
                    ranges=[copy(known, max(known.start, trim)) for known in self.ranges.get(request.stream_id, [])]
                )
            case m.TrimStreamRequest():
                ranges = self.ranges[request.stream_id]
                self.trims[request.stream_id] = request.min_offset
                while len(ranges) > 1 and 0 <= ranges[0].end <= request.min_offset:
                    ranges.pop(0)
                return m.StreamResponse(stream=self.streams[request.stream_id], range=ranges[0])
            case m.CreateRangeRequest():
                return self.create(request.range)
            case m.SealRangeRequest():
                return self.seal(request.range)
        return m.SystemErrorResponse(m.Status(ErrorCode.UNSUPPORTED_OPERATION))

    def create(self, wanted: m.RangeInfo) -> m.RangeResponse:
        ranges = self.ranges.get(wanted.stream_id)
        if ranges is None:
            return m.RangeResponse(m.Status(ErrorCode.NOT_FOUND))
        if not self.servers:
            return m.RangeResponse(m.Status(ErrorCode.PD_NO_AVAILABLE_RS))
        if ranges and ranges[-1].end < 0:
            return m.RangeResponse(m.Status(ErrorCode.CREATE_RANGE_BEFORE_SEAL))
        index, start, epoch = (ranges[-1].index + 1, ranges[-1].end, ranges[-1].epoch) if ranges else (0, 0, -1)
        if (wanted.index, wanted.start) != (index, start):
            return m.RangeResponse(m.Status(ErrorCode.BAD_REQUEST))
        if wanted.epoch < epoch:
            return m.RangeResponse(m.Status(ErrorCode.EXPIRED_RANGE_EPOCH))
        self.turn += 1
        server = self.servers[self.turn % len(self.servers)]
        ranges.append(m.RangeInfo(wanted.stream_id, wanted.epoch, index, start, -1, [server], 1, 1))
        return m.RangeResponse(range=copy(ranges[-1], start))

    def seal(self, wanted: m.RangeInfo) -> m.RangeResponse:
        ranges = self.ranges.get(wanted.stream_id, [])
        if not ranges or wanted.index > ranges[-1].index:
            return m.RangeResponse(m.Status(ErrorCode.RANGE_NOT_FOUND))
        last = ranges[-1]
        if wanted.index < last.index or last.end >= 0:
            return m.RangeResponse(m.Status(ErrorCode.RANGE_ALREADY_SEALED))
        if wanted.epoch < last.epoch:
            return m.RangeResponse(m.Status(ErrorCode.EXPIRED_RANGE_EPOCH))
        assert wanted.end >= last.start
        last.end, last.epoch = wanted.end, wanted.epoch
        return m.RangeResponse(range=copy(last, last.start))


def copy(known: m.RangeInfo, start: int) -> m.RangeInfo:
    return m.RangeInfo(known.stream_id, known.epoch, known.index, start, known.end, known.servers, 1, 1)


class MiniRange:
    def __init__(self, info: m.RangeInfo) -> None:
        self.start, self.epoch = info.start, info.epoch
        self.end = -1
        self.next = self.committed = info.start
        self.entries: list[m.Entry] = []


class MiniServer:
    """A range server in memory. While ``hold`` is set, appends are let in but neither stored nor answered."""

    def __init__(self) -> None:
        self.ranges: dict[tuple[int, int], MiniRange] = {}
        self.requests: list[m.Request] = []
        self.full = False
        self.hold = False
        self.held: list[tuple[list[tuple[MiniRange, m.Entry] | m.AppendResult], Reply]] = []

    def handle(self, request: m.Request, reply: Reply) -> None:
        self.requests.append(request)
        if isinstance(request, m.AppendRequest):
            self.append(request, reply)
        else:
            reply(self.serve(request))

    def serve(self, request: m.Request) -> m.Response:
        match request:
            case m.CreateRangeRequest():
                key = (request.range.stream_id, request.range.index)
                known = self.ranges.setdefault(key, MiniRange(request.range))
                if (known.start, known.epoch) != (request.range.start, request.range.epoch):
                    return m.RangeResponse(m.Status(ErrorCode.BAD_REQUEST))
                return m.RangeResponse(range=request.range)
            case m.SealRangeRequest():
                wanted = request.range
                sealed = self.ranges.setdefault((wanted.stream_id, wanted.index), MiniRange(wanted))
                if wanted.epoch < sealed.epoch:
                    return m.RangeResponse(m.Status(ErrorCode.EXPIRED_RANGE_EPOCH))
                end = sealed.committed if sealed.end < 0 else sealed.end
                sealed.end = end if wanted.end < 0 else min(end, wanted.end)
                sealed.epoch = wanted.epoch
                return m.RangeResponse(range=m.RangeInfo(wanted.stream_id, wanted.epoch, wanted.index, 0, sealed.end))
            case m.FetchRequest():
                return self.fetch(request)
            case m.ListRangeRequest():
                return m.ListRangeResponse(
                    ranges=[
                        m.RangeInfo(request.stream_id, known.epoch, index, known.start, known.end)
                        for (stream_id, index), known in self.ranges.items()
                        if stream_id == request.stream_id
                    ]
                )
            case m.TrimStreamRequest() | m.DeleteStreamRequest():
                if isinstance(request, m.DeleteStreamRequest):
                    for key in [key for key in self.ranges if key[0] == request.stream_id]:
                        del self.ranges[key]
                return m.StreamResponse(stream=m.StreamInfo(request.stream_id))
        return m.SystemErrorResponse(m.Status(ErrorCode.UNSUPPORTED_OPERATION))

    def fetch(self, request: m.FetchRequest) -> m.FetchResponse:
        known = self.ranges.get((request.range.stream_id, request.range.index))
        if known is None:
            return m.FetchResponse(m.Status(ErrorCode.RANGE_NOT_FOUND))
        limit = known.committed if known.end < 0 else known.end
        if known.end >= 0 and request.offset >= known.end:
            return m.FetchResponse(m.Status(ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS))
        if request.offset > known.next:
            return m.FetchResponse(m.Status(ErrorCode.OFFSET_OVERFLOW))
        limit = limit if request.limit < 0 else min(limit, request.limit)
        found: list[m.Entry] = []
        size = 0
        for entry in known.entries:
            if entry.end_offset > request.offset and entry.base_offset < limit and size < request.max_bytes:
                found.append(entry)
                size += entry.size
        return m.FetchResponse(m.Status() if found else m.Status(ErrorCode.NO_NEW_RECORD), found)

    def append(self, request: m.AppendRequest, reply: Reply) -> None:
        items: list[tuple[MiniRange, m.Entry] | m.AppendResult] = [self.admit(entry) for entry in request.entries]
        self.held.append((items, reply))
        if not self.hold:
            self.release()

    def admit(self, entry: m.Entry) -> tuple[MiniRange, m.Entry] | m.AppendResult:
        known = self.ranges.get((entry.stream_id, entry.range_index))
        code = 0
        if known is None:
            code = ErrorCode.RANGE_NOT_FOUND
        elif known.end >= 0:
            code = ErrorCode.RANGE_ALREADY_SEALED
        elif entry.base_offset < known.committed:
            assert any(e.base_offset == entry.base_offset and e.payload == entry.payload for e in known.entries)
            code = ErrorCode.APPEND_TO_COMMITTED_OFFSET
        elif entry.base_offset < known.next:
            code = ErrorCode.APPEND_TO_PENDING_OFFSET
        elif entry.base_offset > known.next:
            code = ErrorCode.APPEND_TO_OVERTAKEN_OFFSET
        elif self.full:
            return m.AppendResult(m.Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, "disk full", NO_SPACE_DETAIL))
        if code or known is None:
            return m.AppendResult(m.Status(code))
        known.next = entry.end_offset
        return known, entry

    def release(self) -> None:
        held, self.held = self.held, []
        for items, reply in held:
            results = []
            for item in items:
                if isinstance(item, m.AppendResult):
                    results.append(item)
                elif item[0].end >= 0:
                    results.append(m.AppendResult(m.Status(ErrorCode.RANGE_ALREADY_SEALED)))
                else:
                    known, entry = item
                    assert entry.base_offset == known.committed
                    known.committed = entry.end_offset
                    known.entries.append(entry)
                    results.append(m.AppendResult(m.Status(), 1))
            reply(m.AppendResponse(results=results))


class Wire(Carrier):
    """A carrier that can lose requests (``before`` they are served) and answers (``after``)."""

    def __init__(self, handler: Any) -> None:
        self.inner = InProcessCarrier(handler)
        self.before: Callable[[m.Request], bool] = lambda request: False
        self.after: Callable[[m.Request], bool] = lambda request: False

    def submit(self, request: m.Request, reply: AnswerTo, timeout: float | None = None) -> None:
        if self.before(request):
            asyncio.get_running_loop().call_soon(reply, ConnectionLost("lost before"))
        elif self.after(request):
            self.inner.submit(request, lambda answer: reply(ConnectionLost("lost after")), timeout)
        else:
            self.inner.submit(request, reply, timeout)

    async def close(self) -> None:
        await self.inner.close()


FAST = ClientOptions(
    control=ControlOptions(timeout=5, tries=4, delay_first=0.001, delay_limit=0.002),
    writer=WriterOptions(
        range_tries=3,
        retry=RetryOptions(tries=3, pending_tries=50, delay_first=0.001, delay_limit=0.004, append_timeout=5),
        control=ControlOptions(timeout=5, tries=4, delay_first=0.001, delay_limit=0.002),
    ),
)


class World:
    def __init__(self, servers: int = 1) -> None:
        infos = [m.RangeServerInfo(k, f"server-{k}:1") for k in range(servers)]
        self.pd = MiniPd(infos)
        self.servers = [MiniServer() for _ in infos]
        self.pd_wire = Wire(self.pd)
        self.wires = [Wire(server) for server in self.servers]

    def client(self) -> Client:
        return Client(self.pd_wire, lambda info: self.wires[info.server_id], FAST)


class Book:
    """Appends and remembers what became of it."""

    def __init__(self, writer: StreamWriter) -> None:
        self.writer = writer
        self.answers: list[tuple[int, SbpError | None]] = []
        self.payloads: dict[int, bytes] = {}

    def append(self, payload: bytes, count: int = 1) -> int:
        base = self.writer.append(payload, count, 0, 1234, lambda error: self.answers.append((base, error)))
        self.payloads[base] = payload
        return base

    @property
    def good(self) -> dict[int, bytes]:
        return {base: self.payloads[base] for base, error in self.answers if error is None}

    async def settled(self, count: int) -> None:
        await until(lambda: len(self.answers) >= count)


async def read_all(client: Client, stream_id: int, offset: int = 0) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while entries := await client.fetch_entries(stream_id, offset, 200):
        for entry in entries:
            assert entry.base_offset not in found
            found[entry.base_offset] = bytes(entry.payload)
        offset = entries[-1].end_offset
    return found


async def opened(world: World, epoch: int = 1) -> tuple[Client, StreamWriter, Book]:
    client = world.client()
    stream = await client.create_stream()
    writer = await client.open(stream.stream_id, epoch)
    return client, writer, Book(writer)


# --- the good case --------------------------------------------------------------------------------------------------


async def test_append_and_read_back() -> None:
    world = World()
    client, writer, book = await opened(world)
    assert not world.pd.ranges[writer.stream_id], "nothing is created before the first append"
    assert [book.append(b"a", 3), book.append(b"b", 1), book.append(b"c", 2)] == [0, 3, 4]
    assert writer.next_offset == 6
    assert writer.confirm_offset == 0
    assert book.answers == []
    await book.settled(3)
    assert book.answers == [(0, None), (3, None), (4, None)]
    assert writer.confirm_offset == 6
    assert await read_all(client, writer.stream_id) == {0: b"a", 3: b"b", 4: b"c"}
    (entry,) = await client.fetch_entries(writer.stream_id, 1, 1)
    assert (entry.base_offset, entry.count) == (0, 3), "the batch that contains the offset, whole"
    assert await read_all(world.client(), writer.stream_id) == {0: b"a", 3: b"b", 4: b"c"}, "another client sees it"


async def test_one_turn_of_the_loop_is_one_request() -> None:
    world = World()
    client, _writer, book = await opened(world)
    second = await client.open((await client.create_stream()).stream_id, 1)
    other = Book(second)
    book.append(b"x")
    other.append(b"x")
    await until(lambda: len(book.answers) + len(other.answers) == 2)
    world.servers[0].requests.clear()
    for _ in range(50):
        book.append(b"x")
        other.append(b"y")
    await book.settled(51)
    requests = [r for r in world.servers[0].requests if isinstance(r, m.AppendRequest) and r.entries]
    assert [len(r.entries) for r in requests] == [100]


async def test_requests_stay_short_enough_for_the_server_to_work_meanwhile() -> None:
    world = World()
    _, _, book = await opened(world)
    book.append(b"x")
    await book.settled(1)
    for size in (700_000, 700_000, 700_000, 5_000_000, 5_000_000, 100, 700_000):
        book.append(bytes(size))
    await book.settled(8)
    requests = [r for r in world.servers[0].requests if isinstance(r, m.AppendRequest) and r.entries]
    sizes = [[len(entry.payload) for entry in request.entries] for request in requests]
    # A batch that is longer than a request should be has one of its own.
    assert sizes == [[1], [700_000, 700_000], [700_000], [5_000_000], [5_000_000], [100, 700_000]]


async def test_impossible_batches_use_no_offset() -> None:
    _, writer, book = await opened(World())
    with pytest.raises(ValueError, match="0 records"):
        book.append(b"x", 0)
    with pytest.raises(SbpError) as caught:
        book.append(bytes(MAX_ENTRY_PAYLOAD + 1))
    assert caught.value.code == ErrorCode.PAYLOAD_TOO_LARGE
    assert writer.next_offset == 0
    book.append(bytes(MAX_ENTRY_PAYLOAD))
    await book.settled(1)
    assert book.answers == [(0, None)]


async def test_appends_from_inside_done() -> None:
    _, writer, _book = await opened(World())
    order: list[int] = []

    def again(error: SbpError | None) -> None:
        assert error is None
        order.append(writer.confirm_offset)
        if writer.next_offset < 20:
            writer.append(b"x", 1, 0, 0, again)

    writer.append(b"x", 1, 0, 0, again)
    await until(lambda: writer.confirm_offset == 20)
    assert order == list(range(1, 21))


def raising(*_: object) -> None:
    raise RuntimeError("a defect of the caller's")


async def test_a_callback_that_raises_keeps_no_other_stream_of_its_request_from_its_answer() -> None:
    world = World()
    client, first, book = await opened(world)
    second = await client.open((await client.create_stream()).stream_id, 1)
    other = Book(second)
    book.append(b"range")
    other.append(b"range")
    await until(lambda: len(book.answers) == len(other.answers) == 1)
    world.servers[0].requests.clear()
    first.append(b"raises", 1, 0, 0, raising)
    book.append(b"behind it")
    other.append(b"another stream")
    await until(lambda: len(book.answers) == len(other.answers) == 2)
    assert len([one for one in world.servers[0].requests if one.entries]) == 1, "all in one request"
    assert book.answers[1] == (2, None)
    assert other.answers[1] == (1, None)
    assert first.confirm_offset == 3
    assert first.unconfirmed == 0


async def test_a_callback_that_raises_at_an_error_keeps_no_other_from_it() -> None:
    client, writer, book = await opened(World())
    writer.append(b"raises", 1, 0, 0, raising)
    book.append(b"behind it")
    closing = asyncio.ensure_future(writer.close())
    await asyncio.sleep(0)
    writer.fail(SbpError(ErrorCode.PRECONDITION_FAILED, "ended"))
    await closing
    ((base, error),) = book.answers
    assert base == 1
    assert error is not None
    await client.close()


async def test_a_defect_in_finding_a_range_ends_the_writer_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _, writer, book = await opened(World())
    monkeypatch.setattr(writer, "_create", raising)
    book.append(b"x")
    await book.settled(1)
    assert writer.failed is not None
    assert book.answers == [(0, writer.failed)]


async def test_a_reader_that_raises_keeps_none_of_those_who_share_its_listing_from_their_answer() -> None:
    world = World()
    client, writer, book = await opened(world)
    book.append(b"x")
    await book.settled(1)
    reader = world.client()
    got: list[Any] = []
    reader.fetch(writer.stream_id, 0, 100, raising)
    reader.fetch(writer.stream_id, 0, 100, got.append)
    reader.refresh(writer.stream_id, raising)
    reader.refresh(writer.stream_id, got.append)
    await until(lambda: len(got) == 2)
    assert not any(isinstance(answer, SbpError) for answer in got)
    await reader.close()
    await client.close()


async def test_a_defect_in_an_answer_costs_its_own_fetch() -> None:
    world = World()
    client, writer, book = await opened(world)
    book.append(b"x")
    await book.settled(1)

    class Odd(MiniServer):
        def handle(self, request: m.Request, reply: Reply) -> None:
            reply(m.FetchResponse(entries=["no entry at all"]))  # type: ignore[list-item]

    world.wires[0].inner = InProcessCarrier(Odd())
    with pytest.raises(SbpError, match="unexpected"):
        await client.fetch_entries(writer.stream_id, 0, 100)
    await client.close()


# --- fencing --------------------------------------------------------------------------------------------------------


async def test_a_later_writer_fences_the_earlier_one() -> None:
    world = World()
    first, _, book = await opened(world)
    for k in range(5):
        book.append(b"%d" % k)
    await book.settled(5)
    second = world.client()
    writer = await second.open(book.writer.stream_id, 2)
    assert writer.next_offset == writer.confirm_offset == 5
    later = Book(writer)
    for k in range(3):
        book.append(b"late")
        later.append(b"new %d" % k)
    await book.settled(8)
    await later.settled(3)
    assert [type(error) for _, error in book.answers[5:]] == [FencedError] * 3
    assert isinstance(book.writer.failed, FencedError)
    assert later.answers == [(5, None), (6, None), (7, None)]
    expected = {k: b"%d" % k for k in range(5)} | {5 + k: b"new %d" % k for k in range(3)}
    assert await read_all(first, writer.stream_id) == expected, "with the list of ranges that was true before"
    book.append(b"dead")
    await book.settled(9)
    assert isinstance(book.answers[8][1], FencedError)


async def test_fencing_with_appends_in_flight() -> None:
    world = World()
    _, writer, book = await opened(world)
    book.append(b"stored")
    await book.settled(1)
    world.servers[0].hold = True
    book.append(b"in flight")
    await until(lambda: bool(world.servers[0].held))
    successor = await world.client().open(writer.stream_id, 2)
    world.servers[0].hold = False
    world.servers[0].release()
    await book.settled(2)
    assert isinstance(book.answers[1][1], FencedError)
    assert successor.next_offset == 1


async def test_fenced_before_its_range_reached_the_server() -> None:
    world = World()
    _, writer, book = await opened(world)
    world.wires[0].before = lambda request: isinstance(request, m.CreateRangeRequest)
    book.append(b"x")
    await until(lambda: any(isinstance(r, m.AppendRequest) for r in world.servers[0].requests))
    assert (await world.client().open(writer.stream_id, 2)).next_offset == 0
    world.wires[0].before = lambda request: False
    await book.settled(1)
    assert isinstance(book.answers[0][1], FencedError)


async def test_an_earlier_epoch_is_refused() -> None:
    world = World()
    _, writer, book = await opened(world, epoch=5)
    book.append(b"x")
    await book.settled(1)
    for client in (world.client(), world.client()):
        with pytest.raises(FencedError):
            await client.open(writer.stream_id, 4)
    book.append(b"y")
    await book.settled(2)
    assert book.answers[1] == (1, None)


async def test_a_writer_without_a_range_that_wakes_up_late_loses_nothing() -> None:
    """Neither has appended when the later one opens; whoever comes second must not write at a stale offset."""
    world = World()
    _, early, book = await opened(world, epoch=1)
    late = Book(await world.client().open(early.stream_id, 2))
    book.append(b"early")
    await book.settled(1)
    late.append(b"late")
    await late.settled(1)
    assert book.answers == [(0, None)]
    assert isinstance(late.answers[0][1], FencedError)
    third = await world.client().open(early.stream_id, 3)
    assert third.next_offset == 1


async def test_opening_again_in_the_same_client() -> None:
    world = World()
    client, writer, book = await opened(world)
    book.append(b"x")
    await book.settled(1)
    again = await client.open(writer.stream_id, 2)
    assert isinstance(writer.failed, FencedError)
    with pytest.raises(FencedError):
        await client.open(writer.stream_id, 1)
    later = Book(again)
    later.append(b"y")
    await later.settled(1)
    assert await read_all(client, writer.stream_id) == {0: b"x", 1: b"y"}


async def test_open_meets_a_seal_at_the_same_time() -> None:
    """Another opener seals at the placement driver between our two seals (1460): look again, do not guess."""
    world = World()
    _, writer, book = await opened(world)
    book.append(b"x", 4)
    await book.settled(1)

    def rival(request: m.Request) -> bool:
        if isinstance(request, m.SealRangeRequest):
            world.pd_wire.before = lambda _: False
            world.pd.seal(m.RangeInfo(writer.stream_id, 2, 0, 0, 4))
        return False

    world.pd_wire.before = rival
    assert (await world.client().open(writer.stream_id, 3)).next_offset == 4

    def overtaken(request: m.Request) -> bool:
        if isinstance(request, m.SealRangeRequest):
            world.pd.ranges[writer.stream_id][-1].epoch = 9
        return False

    book = Book(await world.client().open(writer.stream_id, 4))
    book.append(b"y")
    await book.settled(1)
    world.pd_wire.before = overtaken
    with pytest.raises(FencedError):
        await world.client().open(writer.stream_id, 5)


# --- losses ---------------------------------------------------------------------------------------------------------


def once(kind: type[m.Request], times: int = 1) -> Callable[[m.Request], bool]:
    left = times

    def matches(request: m.Request) -> bool:
        nonlocal left
        if isinstance(request, kind) and left > 0:
            left -= 1
            return True
        return False

    return matches


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", [m.AppendRequest, m.CreateRangeRequest])
async def test_a_lost_request_or_answer_is_repeated(when: str, kind: type[m.Request]) -> None:
    world = World()
    client, writer, book = await opened(world)
    setattr(world.wires[0], when, once(kind))
    for k in range(10):
        book.append(b"%d" % k)
    await book.settled(10)
    assert book.answers == [(k, None) for k in range(10)]
    assert await read_all(client, writer.stream_id) == {k: b"%d" % k for k in range(10)}
    assert len(world.pd.ranges[writer.stream_id]) == 1


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "kind", [m.CreateRangeRequest, m.ListRangeRequest, m.SealRangeRequest, m.DescribeStreamRequest]
)
async def test_the_placement_driver_is_asked_again(when: str, kind: type[m.Request]) -> None:
    world = World()
    _, writer, book = await opened(world)
    book.append(b"x")
    await book.settled(1)
    setattr(world.pd_wire, when, once(kind))
    later = Book(await world.client().open(writer.stream_id, 2))
    later.append(b"y")
    await later.settled(1)
    assert later.answers == [(1, None)]


async def test_a_server_that_stays_away_is_replaced() -> None:
    world = World(servers=2)
    client, writer, book = await opened(world)
    book.append(b"0")
    await book.settled(1)
    dead = world.pd.ranges[0][0].servers[0].server_id
    # Served, but never answered: what it stored must not appear twice.
    world.wires[dead].after = lambda request: True
    for k in range(1, 5):
        book.append(b"%d" % k)
    await book.settled(5)
    assert book.answers == [(k, None) for k in range(5)]
    ranges = await client.list_ranges(writer.stream_id)
    assert [(r.start, r.end, r.index) for r in ranges] == [(0, 1, 0), (1, -1, 1)]
    world.wires[dead].after = lambda request: False
    expected = {k: b"%d" % k for k in range(5)}
    assert await read_all(client, writer.stream_id) == expected
    assert await read_all(world.client(), writer.stream_id) == expected


async def test_with_no_server_left_batches_are_refused_and_the_writer_lives_on() -> None:
    world = World()
    _, writer, book = await opened(world)
    book.append(b"0")
    await book.settled(1)
    world.wires[0].before = lambda request: True
    book.append(b"1")
    book.append(b"2")
    await book.settled(3)
    assert [base for base, error in book.answers if isinstance(error, SbpError)] == [1, 2]
    # The placement driver has sealed what they went to: they are not stored and their offsets are free.
    assert writer.failed is None
    assert writer.next_offset == 1
    world.wires[0].before = lambda request: False
    assert book.append(b"one") == 1
    await book.settled(4)
    assert await read_all(world.client(), writer.stream_id) == {0: b"0", 1: b"one"}
    successor = await world.client().open(writer.stream_id, 2)
    assert successor.next_offset == 2


async def test_a_writer_that_cannot_settle_what_became_of_its_batches_fails() -> None:
    world = World()
    _, writer, book = await opened(world)
    book.append(b"0")
    await book.settled(1)
    # Stored, unanswered, and nobody there to end the range: the batch may or may not be found later.
    world.wires[0].after = lambda request: isinstance(request, m.AppendRequest)
    world.pd_wire.before = lambda request: isinstance(request, m.SealRangeRequest)
    book.append(b"1")
    await book.settled(2)
    assert isinstance(book.answers[1][1], SbpError)
    assert writer.failed is not None
    assert not isinstance(writer.failed, FencedError)
    world.wires[0].after = world.pd_wire.before = lambda request: False
    successor = await world.client().open(writer.stream_id, 2)
    assert successor.next_offset == 2


async def test_patience_bounds_the_time_without_progress() -> None:
    world = World()
    silent = ControlOptions(timeout=0.05, tries=4, delay_first=0.001, delay_limit=0.002)
    retry = RetryOptions(tries=1000, append_timeout=0.02, patience=0.05)
    options = ClientOptions(silent, WriterOptions(range_tries=1000, patience=0.2, retry=retry, control=silent))
    client = Client(world.pd_wire, lambda info: world.wires[info.server_id], options)
    stream = await client.create_stream()
    writer = await client.open(stream.stream_id, 1)
    book = Book(writer)
    world.wires[0].before = lambda request: isinstance(request, m.AppendRequest)
    book.append(b"0")
    await book.settled(1)
    assert isinstance(book.answers[0][1], SbpError)
    assert writer.failed is None
    world.wires[0].before = lambda request: False
    assert book.append(b"0") == 0
    await book.settled(2)
    assert book.answers[1] == (0, None)


async def test_opening_is_given_up_in_time() -> None:
    world = World()
    _, writer, book = await opened(world)
    book.append(b"0")
    await book.settled(1)
    world.wires[0].before = lambda request: True
    control = ControlOptions(tries=1_000_000, delay_first=0.001, delay_limit=0.001)
    hasty = Client(world.pd_wire, lambda info: world.wires[0], ClientOptions(control, open_timeout=0.05))
    with pytest.raises(ConnectionLost, match="could not be opened"):
        await hasty.open(writer.stream_id, 2)


async def test_no_server_available_refuses_and_lives_on() -> None:
    world = World()
    _, writer, book = await opened(world)
    servers, world.pd.servers = world.pd.servers, []
    book.append(b"0")
    await book.settled(1)
    assert isinstance(book.answers[0][1], SbpError)
    assert writer.failed is None
    assert writer.next_offset == 0
    world.pd.servers = servers
    book.append(b"again")
    await book.settled(2)
    assert book.answers[1] == (0, None)


async def test_a_range_the_server_forgot_is_created_again() -> None:
    world = World()
    _, _, book = await opened(world)
    world.wires[0].before = once(m.CreateRangeRequest)
    book.append(b"x")
    await book.settled(1)
    assert book.answers == [(0, None)]


async def test_a_deleted_stream_ends_its_writer() -> None:
    world = World()
    client, writer, book = await opened(world)
    book.append(b"x")
    await book.settled(1)
    await client.delete_stream(writer.stream_id)
    assert writer.failed is not None
    assert not world.servers[0].ranges
    with pytest.raises(SbpError) as caught:
        await client.open(writer.stream_id, 2)
    assert caught.value.code == ErrorCode.NOT_FOUND


async def test_full_disk_refuses_and_the_writer_lives_on() -> None:
    world = World()
    client, writer, book = await opened(world)
    book.append(b"0")
    await book.settled(1)
    world.servers[0].full = True
    assert [book.append(b"lost"), book.append(b"lost too")] == [1, 2]
    await book.settled(3)
    assert [type(error) for _, error in book.answers[1:]] == [NoSpace, NoSpace]
    assert "disk full" in str(book.answers[1][1])
    assert writer.failed is None
    assert writer.next_offset == writer.confirm_offset == 1
    world.servers[0].full = False
    assert book.append(b"1") == 1
    await book.settled(4)
    assert book.answers[3] == (1, None)
    assert await read_all(client, writer.stream_id) == {0: b"0", 1: b"1"}
    assert len(world.pd.ranges[writer.stream_id]) == 1


async def test_full_disk_after_a_lost_answer_does_not_reuse_an_offset_in_place() -> None:
    """The unanswered batch may be stored: its offset may only be given again behind a seal."""
    world = World()
    client, writer, book = await opened(world)
    book.append(b"0")
    await book.settled(1)
    world.servers[0].hold = True
    lost = once(m.AppendRequest)

    def lose(request: m.Request) -> bool:
        return lost(request)

    world.wires[0].after = lose
    book.append(b"maybe")
    await until(lambda: bool(world.servers[0].held))
    held, world.servers[0].held = world.servers[0].held, []
    world.servers[0].hold = False
    range_, entry = held[0][0][0]  # type: ignore[misc]
    range_.next = entry.base_offset  # the server forgets it, as it would in a restart
    world.servers[0].full = True
    held[0][1](m.AppendResponse())  # the answer that gets lost
    await book.settled(2)
    assert isinstance(book.answers[1][1], NoSpace)
    assert [r.end for r in world.pd.ranges[writer.stream_id]] == [1, -1], "sealed before the offset was free"
    world.servers[0].full = False
    assert book.append(b"1") == 1
    await book.settled(3)
    assert await read_all(client, writer.stream_id) == {0: b"0", 1: b"1"}


async def test_pending_answers_are_waited_for() -> None:
    """The first try is still being written when the second arrives (1465)."""
    world = World()
    _, _, book = await opened(world)
    book.append(b"0")
    await book.settled(1)
    server = world.servers[0]
    server.hold = True
    world.wires[0].after = once(m.AppendRequest)
    book.append(b"1")
    await until(lambda: len(server.held) == 1)
    first = server.held.pop()
    first[1](m.AppendResponse())  # its answer is lost; it is neither stored nor refused yet
    await until(lambda: len(server.held) >= 1)
    server.held.insert(0, (first[0], lambda response: None))
    server.hold = False
    server.release()
    await book.settled(2)
    assert book.answers[1] == (1, None)


async def test_refusals_that_make_no_sense_end_the_writer() -> None:
    world = World()
    _, writer, book = await opened(world)
    book.append(b"0")
    await book.settled(1)

    class Refuser:
        def handle(self, request: m.Request, reply: Reply) -> None:
            reply(m.SystemErrorResponse(m.Status(ErrorCode.BAD_REQUEST, "what is this")))

    world.wires[0].inner = InProcessCarrier(Refuser())
    book.append(b"1")
    await book.settled(2)
    assert writer.failed is not None
    assert writer.failed.code == ErrorCode.BAD_REQUEST


@pytest.mark.parametrize("seed", range(30))
async def test_random_losses_never_lose_or_double_an_acknowledged_batch(seed: int) -> None:
    chance = random.Random(seed)
    world = World(servers=3)
    client = world.client()
    stream_id = (await client.create_stream()).stream_id
    acknowledged: dict[int, bytes] = {}
    attempts: dict[int, set[bytes]] = {}
    trouble = False

    def unlucky(request: m.Request) -> bool:
        return trouble and chance.random() < 0.25

    for wire in [*world.wires, world.pd_wire]:
        wire.before = unlucky
        wire.after = unlucky
    number = 0
    for epoch in range(1, 7):
        trouble = False
        writer = await world.client().open(stream_id, epoch)
        # Everything acknowledged is there, and what is there besides was at least attempted.
        assert writer.next_offset >= max((base + 1 for base in acknowledged), default=0)
        book = Book(writer)
        trouble = True
        for _ in range(25):
            for _ in range(chance.randrange(1, 4)):
                payload = b"%d" % number
                base = book.append(payload)
                attempts.setdefault(base, set()).add(payload)
                number += 1
            world.servers[0].full = chance.random() < 0.1
            await asyncio.sleep(0.001 * chance.random())
            if writer.failed is not None:
                break
        world.servers[0].full = False
        if chance.random() < 0.5:
            await writer.close()
        bases = [base for base, error in book.answers if error is None]
        assert bases == sorted(bases), "in order of offset"
        for base, payload in book.good.items():
            assert acknowledged.setdefault(base, payload) == payload
    trouble = False
    final = await world.client().open(stream_id, 100)
    found = await read_all(world.client(), stream_id)
    assert sorted(found) == list(range(final.next_offset))
    for base, payload in found.items():
        assert payload in attempts[base]
    for base, payload in acknowledged.items():
        assert found[base] == payload
    ranges = await client.list_ranges(stream_id)
    assert all(before.end == after.start for before, after in itertools.pairwise(ranges))


# --- reading --------------------------------------------------------------------------------------------------------


async def several_ranges(world: World, count: int = 4) -> tuple[Client, int]:
    """A stream with ranges of three batches each, written in as many epochs."""
    client = world.client()
    stream_id = (await client.create_stream()).stream_id
    for epoch in range(1, count + 1):
        book = Book(await client.open(stream_id, epoch))
        for k in range(3):
            book.append(b"%d.%d" % (epoch, k), 2)
        await book.settled(3)
    return client, stream_id


async def test_fetch_goes_on_in_the_next_range() -> None:
    world = World(servers=2)
    client, stream_id = await several_ranges(world)
    entries = await client.fetch_entries(stream_id, 3, 1_000_000)
    assert [entry.base_offset for entry in entries] == [2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22]
    entries = await client.fetch_entries(stream_id, 3, 1_000_000, limit=9)
    assert [entry.base_offset for entry in entries] == [2, 4, 6, 8]
    size = entries[0].size
    entries = await client.fetch_entries(stream_id, 3, 3 * size)
    assert [entry.base_offset for entry in entries] == [2, 4, 6]
    assert await client.fetch_entries(stream_id, 24, 100) == []
    assert await client.fetch_entries(stream_id, 9, 100, limit=9) == []


async def test_fetch_outside_the_stream() -> None:
    world = World()
    client, stream_id = await several_ranges(world)
    assert await client.trim(stream_id, 9) == 9
    for offset, code in ((3, ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS), (25, ErrorCode.OFFSET_OVERFLOW)):
        for reader in (client, world.client()):
            with pytest.raises(SbpError) as caught:
                await reader.fetch_entries(stream_id, offset, 100)
            assert caught.value.code == code
    empty = (await client.create_stream()).stream_id
    assert await client.fetch_entries(empty, 0, 100) == []
    with pytest.raises(SbpError) as caught:
        await client.fetch_entries(empty, 1, 100)
    assert caught.value.code == ErrorCode.OFFSET_OVERFLOW


async def test_a_stale_list_of_ranges_is_refreshed() -> None:
    world = World()
    client, stream_id = await several_ranges(world, 1)
    reader = world.client()
    assert len(await reader.fetch_entries(stream_id, 0, 1000)) == 3
    book = Book(await client.open(stream_id, 7))
    book.append(b"new")
    await book.settled(1)
    assert [e.base_offset for e in await reader.fetch_entries(stream_id, 6, 1000)] == [6]


async def test_many_fetches_share_one_listing() -> None:
    world = World()
    _, stream_id = await several_ranges(world, 1)
    reader = world.client()
    asked: list[m.Request] = []
    gate: list[tuple[m.Request, Reply]] = []

    class Slow:
        def handle(self, request: m.Request, reply: Reply) -> None:
            asked.append(request)
            gate.append((request, reply))

    world.pd_wire.inner = InProcessCarrier(Slow())
    reads: list[Awaitable[list[m.Entry]]] = [
        asyncio.ensure_future(reader.fetch_entries(stream_id, 0, 10)) for _ in range(20)
    ]
    await until(lambda: bool(gate))
    for request, reply in gate:
        world.pd.handle(request, reply)
    assert [len(entries) for entries in await asyncio.gather(*reads)] == [1] * 20
    assert len(asked) == 1


async def test_fetch_from_inside_the_process_answers_at_once() -> None:
    client, stream_id = await several_ranges(World(), 1)
    got: list[object] = []
    client.fetch(stream_id, 0, 10, got.append)
    assert len(got) == 1


async def test_waiting_at_the_end_of_a_sealed_stream_sees_the_next_writer() -> None:
    world = World()
    client, stream_id = await several_ranges(world, 1)
    writer = await client.open(stream_id, 2)
    waiting = asyncio.ensure_future(world.client().fetch_entries(stream_id, 6, 100, max_wait_ms=20_000))
    book = Book(writer)
    await asyncio.sleep(0)
    book.append(b"at last")
    (entry,) = await waiting
    assert bytes(entry.payload) == b"at last"
    assert await world.client().fetch_entries(stream_id, 7, 100, max_wait_ms=1) == []


async def test_the_end_of_a_range_between_its_two_seals() -> None:
    """Sealed on its server and not yet at the placement driver: that is the end of the stream, not beyond it."""
    world = World()
    client, stream_id = await several_ranges(world, 1)
    world.servers[0].handle(m.SealRangeRequest(m.RangeInfo(stream_id, 2, 0, 0)), lambda response: None)
    assert await client.fetch_entries(stream_id, 6, 100) == []
    waiting = asyncio.ensure_future(client.fetch_entries(stream_id, 6, 100, max_wait_ms=20_000))
    book = Book(await world.client().open(stream_id, 3))
    book.append(b"next")
    (entry,) = await waiting
    assert bytes(entry.payload) == b"next"
    with pytest.raises(SbpError) as caught:
        await client.fetch_entries(stream_id, 9, 100)
    assert caught.value.code == ErrorCode.OFFSET_OVERFLOW


async def test_a_wrong_answer_is_not_passed_on() -> None:
    world = World()
    client, stream_id = await several_ranges(world, 1)

    class Liar:
        def handle(self, request: m.Request, reply: Reply) -> None:
            world.servers[0].handle(m.FetchRequest(request.range, 0, max_bytes=1), reply)  # type: ignore[union-attr]

    world.wires[0].inner = InProcessCarrier(Liar())
    with pytest.raises(SbpError) as caught:
        await client.fetch_entries(stream_id, 3, 10)
    assert caught.value.code == ErrorCode.RS_DATA_CORRUPTED


# --- the rest -------------------------------------------------------------------------------------------------------


async def test_trim_moves_the_start() -> None:
    world = World()
    client, stream_id = await several_ranges(world)
    writer = await client.open(stream_id, 9)
    assert await client.trim(stream_id, 7) == 7
    assert writer.start_offset == 7
    assert [r.index for r in await client.list_ranges(stream_id)] == [1, 2, 3]
    assert isinstance(world.servers[0].requests[-1], m.TrimStreamRequest)
    assert (await world.client().open(stream_id, 10)).start_offset == 7


async def test_streams_with_replicas_are_refused() -> None:
    client = World().client()
    stream = await client.create_stream(replica=3, ack_count=2)
    with pytest.raises(SbpError) as caught:
        await client.open(stream.stream_id, 1)
    assert caught.value.code == ErrorCode.UNSUPPORTED_OPERATION


async def test_writer_close_waits_for_its_batches() -> None:
    world = World()
    _, writer, book = await opened(world)
    for _ in range(5):
        book.append(b"x")
    await writer.close()
    assert book.answers == [(k, None) for k in range(5)]
    book.append(b"late")
    await book.settled(6)
    assert book.answers[5][1] is not None
    await writer.close()


async def test_client_close_answers_everything() -> None:
    world = World()
    client, _, book = await opened(world)
    book.append(b"0")
    await book.settled(1)
    world.servers[0].hold = True
    book.append(b"1")
    book.append(b"2")
    await until(lambda: bool(world.servers[0].held))
    await client.close()
    assert [type(error) for _, error in book.answers[1:]] == [ConnectionLost, ConnectionLost]
    with pytest.raises(ConnectionLost):
        await client.create_stream()
