"""Streams written and read with nothing but the document: one frame for many, offsets from the answers, no fencing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sbp_back.errors import NO_SPACE_DETAIL, ConnectionLost, ErrorCode, NoSpace, SbpError
from sbp_back.transport.carrier import AnswerTo, Carrier, InProcessCarrier
from sbp_back.transport.tcp_carrier import TcpCarrier
from sbp_back.wire.model import Entry, Request, Response, Status
from sbp_document.client.client import DocumentClient
from sbp_document.client.document_writer import DocumentWriter
from sbp_document.client.follower import FollowOptions
from sbp_document.client.streams import DocumentStreams, StreamsOptions
from sbp_document.wire import messages as m
from sbp_document.wire.record_batch import FORMAT_FLAG
from sbp_document.wire.v01 import V01
from sbp_document.wire.wrapped import unwrap
from tests.sbp_document.document_lab import Served, running, write

KAFKA = 1
NOW = 1_700_000_000_000


class Tap:
    """A carrier that notes requests and may lose them, lose their answers, or answer instead of the server."""

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier
        self.requests: list[Request] = []
        self.lose_request: Callable[[Request], bool] = lambda request: False
        self.lose_answer: Callable[[Request], bool] = lambda request: False
        self.instead: Callable[[Request], Response | None] = lambda request: None
        self.late: list[Callable[[], None]] = []

    def submit(self, request: Request, reply: AnswerTo, timeout: float | None = None) -> None:
        self.requests.append(request)
        answer = self.instead(request)
        if answer is not None:
            reply(answer)
        elif self.lose_request(request):
            self.late.append(lambda: self.carrier.submit(request, lambda _: None, timeout))
            reply(ConnectionLost("lost on the way"))
        elif self.lose_answer(request):
            self.carrier.submit(request, lambda _: None, timeout)
            reply(ConnectionLost("lost on the way back"))
        else:
            self.carrier.submit(request, reply, timeout)

    async def call(self, request: Request, timeout: float | None = None) -> Response:
        return await self.carrier.call(request, timeout)

    async def close(self) -> None:
        await self.carrier.close()

    def appends(self) -> list[list[int]]:
        """The streams in each APPEND."""
        return [[i.stream_id for i in r.items] for r in self.requests if isinstance(r, m.AppendBatchRequest)]

    def fetches(self) -> list[list[int]]:
        """The streams in each FETCH."""
        return [[i.stream_id for i in r.items] for r in self.requests if isinstance(r, m.FetchBatchRequest)]


class Lab:
    """A backend, and streams on it; ``tap`` is the way to its range server."""

    def __init__(self, embedded: Served, kind: str) -> None:
        self.embedded = embedded
        self.kind = kind
        self.tap = Tap(self._carrier())
        # What others append is asked for after a while that no test here takes, unless it wants to.
        options = StreamsOptions(open_timeout=20, follow=FollowOptions(quiet=1e6))
        self.streams = DocumentStreams(self._carrier(), lambda server: self.tap, options)
        self.foreign: list[tuple[int, list[Entry]]] = []
        self.streams.overtaken = lambda stream, entries: self.foreign.append((stream, entries))

    def _carrier(self) -> Carrier:
        if self.kind == "in-process":
            return InProcessCarrier(self.embedded.document.server)
        return TcpCarrier(*self.embedded.addresses["sbp-v0.1"], V01)

    async def stream(self) -> int:
        return (await self.streams.create_stream()).stream_id

    async def read(self, stream_id: int, offset: int = 0) -> list[tuple[int, int, int, bytes]]:
        """Offset, records, flags and bytes of what is stored, as its writers made it."""
        found: list[Entry] = []
        while entries := await self.streams.fetch_entries(stream_id, offset, 1 << 20):
            assert entries[0].base_offset <= offset < entries[0].end_offset
            found += entries
            offset = entries[-1].end_offset
        return [(e.base_offset, e.count, e.flags, bytes(e.payload)) for entry in found for e in unwrap(entry)]


@pytest.fixture(params=["in-process", "tcp"])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Lab]:
    async with running(tmp_path) as embedded, opened(embedded, request.param) as lab:
        yield lab


@asynccontextmanager
async def opened(embedded: Served, kind: str) -> AsyncIterator[Lab]:
    lab = Lab(embedded, kind)
    yield lab
    await lab.streams.close()


def append(writer: DocumentWriter, payload: bytes, count: int = 1, flags: int = KAFKA) -> asyncio.Future[int]:
    """The offset the batch was expected at, once it is durable; ``writer.confirm_offset`` tells where it is."""
    return write(writer, payload, count, flags)


async def test_appends_of_many_streams_share_a_frame_and_come_back(lab: Lab) -> None:
    ids = [await lab.stream() for _ in range(50)]
    writers = [await lab.streams.open(stream_id, 1) for stream_id in ids]
    futures = [append(writer, b"%d" % writer.stream_id, 3) for writer in writers]
    assert await asyncio.gather(*futures) == [0] * 50
    assert lab.tap.appends() == [ids]
    found = await asyncio.gather(*(lab.streams.fetch_entries(stream_id, 1, 1000) for stream_id in ids))
    assert lab.tap.fetches() == [ids]
    assert [[(e.base_offset, e.count, e.flags, bytes(e.payload)) for e in unwrap(entry)] for (entry,) in found] == [
        [(0, 3, KAFKA, b"%d" % stream_id)] for stream_id in ids
    ]


async def test_batches_of_one_stream_travel_together_and_in_order(lab: Lab) -> None:
    stream = await lab.stream()
    writer = await lab.streams.open(stream, 1)
    order: list[int] = []
    futures = []
    for n in range(200):
        future = append(writer, b"payload %d" % n, 1 + n % 3, flags=KAFKA if n < 150 else 0)
        future.add_done_callback(lambda done: order.append(done.result()))
        futures.append(future)
    bases = await asyncio.gather(*futures)
    expected = [0]
    for n in range(199):
        expected.append(expected[-1] + 1 + n % 3)
    assert bases == order == expected
    assert lab.tap.appends() == [[stream], [stream]], "one batch of each format"
    assert (writer.next_offset, writer.confirm_offset) == (400 - 1, 400 - 1)
    assert await lab.read(stream) == [
        (base, 1 + n % 3, KAFKA if n < 150 else 0, b"payload %d" % n) for n, base in enumerate(expected)
    ]


def raising(*_: object) -> None:
    raise RuntimeError("a defect of the caller's")


async def test_callbacks_that_raise_keep_nobody_else_from_an_answer(lab: Lab) -> None:
    """Not in the same batch, nor in the same frame."""
    first, second = await lab.stream(), await lab.stream()
    writers = [await lab.streams.open(stream, 1) for stream in (first, second)]
    writers[0].append(b"raises", 1, KAFKA, NOW, raising)
    futures = [append(writer, b"behind it") for writer in writers]
    assert await asyncio.gather(*futures) == [1, 0]
    assert lab.tap.appends() == [[first, second]]
    lab.streams.fetch(first, 0, 1000, raising)
    assert len(await lab.streams.fetch_entries(second, 0, 1000)) == 1
    assert lab.tap.fetches() == [[first, second]]
    writers[0].append(b"raises", 1, KAFKA, NOW, raising)
    last = append(writers[0], b"behind it")
    writers[0].fail(SbpError(ErrorCode.NOT_FOUND, "ended"))
    with pytest.raises(SbpError, match="ended"):
        await last


async def test_a_home_that_cannot_be_told_of_another_writer_ends_the_writer(lab: Lab) -> None:
    """Its offsets would be wrong from then on."""
    stream = await lab.stream()
    writer = await lab.streams.open(stream, 1)
    await append(writer, b"ours")
    stranger = DocumentClient(lab._carrier())
    await stranger.append(stream, [b"theirs"])
    lab.streams.overtaken = raising
    with pytest.raises(SbpError, match="overtaken"):
        await append(writer, b"ours again")
    assert writer.failed is not None
    await stranger.close()


async def test_large_batches_do_not_travel_together(lab: Lab) -> None:
    streams = [await lab.stream() for _ in range(6)]
    writers = [await lab.streams.open(stream, 1) for stream in streams]
    payload = b"x" * 900_000
    await asyncio.gather(*(append(writer, payload) for writer in writers))
    frames = [r for r in lab.tap.requests if isinstance(r, m.AppendBatchRequest)]
    assert [len(one.items) for one in frames] == [2, 2, 2]
    assert all(sum(len(i.batch) for i in one.items) <= 2 * 1024 * 1024 for one in frames)
    lab.tap.requests.clear()
    await asyncio.gather(*(append(writers[0], payload) for _ in range(3)))
    assert lab.tap.appends() == [[streams[0]]] * 3, "nor do those of one stream become one batch"
    assert len(await lab.read(streams[0])) == 4


async def test_what_no_frame_can_carry_is_refused(lab: Lab) -> None:
    writer = await lab.streams.open(await lab.stream(), 1)
    for payload, count in ((b"x" * (16 << 20), 1), (b"x", 3_000_000)):  # the second for its many records
        with pytest.raises(SbpError) as refused:
            writer.append(payload, count, KAFKA, NOW, lambda error: None)
        assert refused.value.code == ErrorCode.PAYLOAD_TOO_LARGE
    assert await append(writer, b"small") == 0


async def test_another_writer_is_not_fenced_but_noticed(lab: Lab) -> None:
    """What the document cannot keep away is read before the next batch of ours is acknowledged."""
    stream = await lab.stream()
    writer = await lab.streams.open(stream, 1)
    await append(writer, b"ours", 2)
    stranger = DocumentClient(lab._carrier())
    await stranger.append(stream, [b"theirs", b"too"])
    first, second = append(writer, b"ours again", 2), append(writer, b"and again", 1, flags=0)
    assert (await first, await second) == (2, 4), "what was expected"
    ((noticed, entries),) = lab.foreign
    assert (noticed, [(e.base_offset, e.count) for e in entries]) == (stream, [(2, 2)])
    assert writer.confirm_offset == writer.next_offset == 7
    found = await lab.read(stream)
    assert [(base, count) for base, count, _, _ in found] == [(0, 2), (2, 2), (4, 2), (6, 1)]
    assert [flags for _, _, flags, _ in found] == [KAFKA, FORMAT_FLAG, KAFKA, 0]
    await stranger.close()


async def test_opening_takes_the_stream_from_a_writer_of_sbp_02(lab: Lab) -> None:
    stream = await lab.stream()
    theirs = await lab.embedded.client.open(stream, 5)
    await write(theirs, b"of sbp-0.2", 4, KAFKA)
    ours = await lab.streams.open(stream, 1)
    assert ours.next_offset == 4
    assert await append(ours, b"of sbp-v0.1", 2) == 4
    with pytest.raises(SbpError):
        await write(theirs, b"too late")
    assert await lab.read(stream) == [(0, 4, KAFKA, b"of sbp-0.2"), (4, 2, KAFKA, b"of sbp-v0.1")]
    # And the other way round, as both dialects see it.
    theirs = await lab.embedded.client.open(stream, 6)
    entries = await lab.embedded.client.fetch_entries(stream, 0, 1 << 20)
    assert [(e.base_offset, e.flags, bytes(e.payload)) for entry in entries for e in unwrap(entry)] == [
        (0, KAFKA, b"of sbp-0.2"),
        (4, KAFKA, b"of sbp-v0.1"),
    ]
    await write(theirs, b"again", 1, KAFKA)
    # A range that is taken while we write is taken back with the next append.
    assert await append(ours, b"and back", 1) == 6
    assert [(base, payload) for base, _, _, payload in await lab.read(stream, 6)] == [(6, b"again"), (7, b"and back")]


class Once:
    """Holds for the first APPEND only."""

    def __init__(self) -> None:
        self.left = 1

    def __call__(self, request: Request) -> bool:
        holds = isinstance(request, m.AppendBatchRequest) and self.left > 0
        self.left -= holds
        return holds


async def test_a_lost_answer_is_found_out(lab: Lab) -> None:
    """Nobody is told of it: the range is sealed, and what is not stored then is sent again."""
    stream = await lab.stream()
    writer = await lab.streams.open(stream, 1)
    await append(writer, b"before")
    order: list[int] = []
    for _ in range(10):
        lab.tap.lose_answer = Once()
        futures = [append(writer, b"stored %d" % n, 2, flags=n % 2) for n in range(4)]
        for future in futures:
            future.add_done_callback(lambda done: order.append(done.result()))
        await asyncio.gather(*futures)
    assert order == [1 + 2 * n for n in range(40)]
    assert (writer.failed, writer.confirm_offset, lab.foreign) == (None, 81, [])
    expected = [b"before", *[b"stored %d" % n for n in range(4)] * 10]
    assert [payload for *_, payload in await lab.read(stream)] == expected


async def test_a_lost_request_is_sent_again(lab: Lab) -> None:
    stream = await lab.stream()
    writer = await lab.streams.open(stream, 1)
    stranger = DocumentClient(lab._carrier())
    await stranger.append(stream, [b"theirs"])
    lab.tap.lose_request = Once()
    await append(writer, b"ours", 2)
    assert [payload for *_, payload in await lab.read(stream)][1:] == [b"ours"]
    ((_, entries),) = lab.foreign
    assert [(e.base_offset, e.count) for e in entries] == [(0, 1)]
    assert await append(writer, b"after") == 3
    await stranger.close()


async def test_a_server_that_stays_away_fails_the_writer(tmp_path: Path) -> None:
    async with running(tmp_path) as embedded, opened(embedded, "in-process") as lab:
        lab.streams = DocumentStreams(lab._carrier(), lambda server: lab.tap, StreamsOptions(patience=0.2))
        stream = await lab.stream()
        writer = await lab.streams.open(stream, 1)
        lab.tap.lose_request = lambda request: isinstance(request, m.AppendBatchRequest)
        for future in (append(writer, b"lost", 2), append(writer, b"never sent", flags=0)):
            with pytest.raises(ConnectionLost):
                await future
        assert isinstance(writer.failed, ConnectionLost)
        lab.tap.lose_request = lambda request: False
        again = await lab.streams.open(stream, 2)
        assert await append(again, b"after") == 0


async def test_a_request_that_comes_late_is_stored_twice_and_noticed(lab: Lab) -> None:
    """The one thing that sealing cannot prevent: the document has no epochs."""
    stream = await lab.stream()
    writer = await lab.streams.open(stream, 1)
    lab.tap.lose_request = Once()
    assert await append(writer, b"late", 2) == 0
    (late,) = lab.tap.late
    late()
    await append(writer, b"ours")
    ((_, entries),) = lab.foreign
    assert [(e.base_offset, e.count, bytes(e.payload)) for entry in entries for e in unwrap(entry)] == [(2, 2, b"late")]
    found = [(base, payload) for base, _, _, payload in await lab.read(stream)]
    assert found == [(0, b"late"), (2, b"late"), (4, b"ours")]


async def test_no_space_refuses_everything_under_way_and_the_writer_lives_on(lab: Lab) -> None:
    stream = await lab.stream()
    writer = await lab.streams.open(stream, 1)
    await append(writer, b"before")

    def full(request: Request) -> Response | None:
        if not isinstance(request, m.AppendBatchRequest):
            return None
        status = Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, "no room", NO_SPACE_DETAIL)
        return m.AppendBatchResponse(results=[m.AppendItemResult(i.stream_id, 0, -1, 0, status) for i in request.items])

    lab.tap.instead = full
    for future in (append(writer, b"one", 2), append(writer, b"two", flags=0)):
        with pytest.raises(NoSpace):
            await future
    assert (writer.failed, writer.next_offset) == (None, 1)
    lab.tap.instead = lambda request: None
    assert await append(writer, b"after") == 1
    assert [payload for *_, payload in await lab.read(stream)] == [b"before", b"after"]


async def test_an_offset_given_twice_is_not_believed(lab: Lab) -> None:
    writer = await lab.streams.open(await lab.stream(), 1)
    await append(writer, b"before", 5)
    lab.tap.instead = lambda request: (
        m.AppendBatchResponse(results=[m.AppendItemResult(writer.stream_id, 0, 3, NOW)])
        if isinstance(request, m.AppendBatchRequest)
        else None
    )
    with pytest.raises(SbpError) as refused:
        await append(writer, b"where?")
    assert refused.value.code == ErrorCode.RS_DATA_CORRUPTED
    assert writer.failed is refused.value


@pytest.mark.parametrize("answer", [m.AppendBatchResponse(), m.FetchBatchResponse()])
async def test_an_answer_that_says_nothing_leaves_the_outcome_unknown(tmp_path: Path, answer: Response) -> None:
    async with running(tmp_path) as embedded, opened(embedded, "in-process") as lab:
        stream = await lab.stream()
        writer = await lab.streams.open(stream, 1)
        nonsense = Once()
        lab.tap.instead = lambda request: answer if nonsense(request) else None
        assert await append(writer, b"sent again") == 0
        assert [payload for *_, payload in await lab.read(stream)] == [b"sent again"]


async def test_reading_trimmed_deleted_and_unknown_streams(lab: Lab) -> None:
    stream = await lab.stream()
    writer = await lab.streams.open(stream, 1)
    for n in range(10):
        await append(writer, b"%d" % n, 2)
    assert await lab.streams.trim(stream, 10) == 10
    with pytest.raises(SbpError) as below:
        await lab.streams.fetch_entries(stream, 8, 100)
    assert below.value.code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS
    with pytest.raises(SbpError) as beyond:
        await lab.streams.fetch_entries(stream, 21, 100)
    assert beyond.value.code in (ErrorCode.OFFSET_OVERFLOW, ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS)
    assert await lab.streams.fetch_entries(stream, 20, 100) == []
    assert [e.base_offset for e in await lab.streams.fetch_entries(stream, 10, 1 << 20, limit=14)] == [10, 12]
    # Everything: the stream goes on where it was.
    assert await lab.streams.trim(stream, 20) == 20
    again = await lab.streams.open(stream, 2)
    assert (again.start_offset, again.next_offset) == (20, 20)
    assert await append(again, b"on") == 20
    assert next(known.start for known in await lab.streams.list_ranges(stream)) == 20
    assert (await lab.streams.describe_stream(stream)).stream_id == stream
    await lab.streams.delete_stream(stream)
    with pytest.raises(SbpError) as gone:
        await append(again, b"gone")
    assert gone.value.code == ErrorCode.NOT_FOUND
    for unknown in (stream, 4711):
        assert await lab.streams.list_ranges(unknown) == []
        with pytest.raises(SbpError) as absent:
            await lab.streams.fetch_entries(unknown, 0, 100)
        assert absent.value.code == ErrorCode.NOT_FOUND
        with pytest.raises(SbpError) as unopened:
            await lab.streams.open(unknown, 1)
        assert unopened.value.code == ErrorCode.NOT_FOUND


async def test_a_new_stream_is_opened_without_a_new_range(lab: Lab) -> None:
    stream = await lab.stream()
    writer = await lab.streams.open(stream, 1)
    assert len(await lab.streams.list_ranges(stream)) == 1
    await append(writer, b"one")
    await writer.close()
    with pytest.raises(SbpError):
        await append(writer, b"closed")
    await lab.streams.open(stream, 2)
    assert len(await lab.streams.list_ranges(stream)) == 2


async def test_a_writer_closes_after_what_is_under_way(lab: Lab) -> None:
    writer = await lab.streams.open(await lab.stream(), 1)
    futures = [append(writer, b"%d" % n, flags=n % 2) for n in range(6)]
    await writer.close()
    assert [future.result() for future in futures] == list(range(6))


async def test_opening_twice_shuts_out_the_first(lab: Lab) -> None:
    stream = await lab.stream()
    first = await lab.streams.open(stream, 1)
    await append(first, b"first")
    second = await lab.streams.open(stream, 2)
    with pytest.raises(SbpError):
        await append(first, b"shut out")
    assert await append(second, b"second") == 1


async def test_closing_answers_everything(tmp_path: Path) -> None:
    async with running(tmp_path) as embedded, opened(embedded, "tcp") as lab:
        stream = await lab.stream()
        writer = await lab.streams.open(stream, 1)
        pending = append(writer, b"pending")
        fetching = asyncio.ensure_future(lab.streams.fetch_entries(stream, 0, 100))
        await asyncio.sleep(0)
        await lab.streams.close()
        with pytest.raises(ConnectionLost):
            await pending
        with pytest.raises(ConnectionLost):
            await fetching


async def test_what_another_writer_appends_to_a_quiet_stream_is_seen(lab: Lab) -> None:
    """One request waits for all quiet streams; our own appends are not taken for somebody else's."""
    lab.streams = DocumentStreams(
        lab._carrier(), lambda server: lab.tap, StreamsOptions(follow=FollowOptions(quiet=0, wait=0.5, pause=0))
    )
    seen: asyncio.Queue[tuple[int, int, int]] = asyncio.Queue()
    lab.streams.overtaken = lambda stream, found: seen.put_nowait((stream, found[0].base_offset, found[-1].end_offset))
    ids = [await lab.stream() for _ in range(20)]
    writers = [await lab.streams.open(stream_id, 1) for stream_id in ids]
    stranger = DocumentClient(lab._carrier())
    async with asyncio.timeout(30):
        await append(writers[3], b"ours", 5)
        for round_ in range(3):
            await stranger.append(ids[3], [b"theirs", b"too"])
            assert await seen.get() == (ids[3], 5 + 2 * round_, 7 + 2 * round_)
        assert writers[3].next_offset == writers[3].confirm_offset == 11
        assert await append(writers[3], b"ours again", 1) == 11
        await stranger.append(ids[7], [b"first"])
        assert await seen.get() == (ids[7], 0, 1)
    assert seen.empty()
    assert max(len(streams) for streams in lab.tap.fetches()) > 15, "many streams in one request"
    await stranger.close()


async def test_a_stream_that_was_just_opened_is_not_taken_for_a_quiet_one(lab: Lab) -> None:
    """Whatever the machine's clock, which most systems count from their start, says at that time."""
    options = StreamsOptions(follow=FollowOptions(quiet=asyncio.get_running_loop().time() / 2, pause=0))
    lab.streams = DocumentStreams(lab._carrier(), lambda server: lab.tap, options)
    stream = await lab.stream()
    await lab.streams.open(stream, 1)
    for _ in range(20):
        await lab.stream()  # the follower has many a turn meanwhile
    assert lab.tap.fetches() == []


async def test_a_sealed_stream_shuts_out_this_clients_writer_only(lab: Lab) -> None:
    stream = await lab.stream()
    writer = await lab.streams.open(stream, 1)
    assert await append(writer, b"one", 2) == 0
    assert await lab.streams.seal(stream, 1) == 2
    assert await lab.streams.seal(stream, 1) == 2
    with pytest.raises(SbpError) as refused:
        await append(writer, b"two")
    assert refused.value.code == ErrorCode.RANGE_ALREADY_SEALED
    # The document has no word for a stream's end: whoever opens it writes on behind.
    later = await lab.streams.open(stream, 2)
    assert later.start_offset == 0
    assert await append(later, b"three") == 2
