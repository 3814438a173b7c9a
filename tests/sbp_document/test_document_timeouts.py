"""``timeout_ms``: a request of sbp-v0.1 is answered in time, and what it began goes on to its end.

The disk and the placement driver are held up for as long as a test likes, so no outcome depends on speed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from anabranch_kit.memory.buffers import Buffer
from sbp_back.errors import ConnectionLost, ErrorCode, SbpError
from sbp_back.placement_driver.state import RangeRow
from sbp_back.range_server.store import StoreOptions
from sbp_back.transport.carrier import AnswerTo, Carrier, InProcessCarrier
from sbp_back.transport.handler import Reply
from sbp_back.wire import model as w
from sbp_document import Appended, DocumentClient, DocumentCode, DocumentError
from sbp_document.client.streams import DocumentStreams
from sbp_document.server import appends
from sbp_document.server.server import DocumentServer
from sbp_document.wire import messages as m
from sbp_document.wire.record_batch import parse_batches
from sbp_document.wire.v01 import V01
from sbp_document.wire.wrapped import unwrap
from tests.kit.waiting import until
from tests.sbp_back.range_server.store.store_harness import FaultyFiles
from tests.sbp_document.document_lab import (
    Served,
    Wire,
    appended,
    ask,
    batch,
    carrier,
    created,
    exchange,
    fetched,
    running,
)
from tests.sbp_document.test_document_tables import Oracle

UNKNOWN = ErrorCode.RS_INTERNAL_SERVER_ERROR
KINDS = ["in-process", "tcp", "april"]


class SlowDisk(FaultyFiles):
    """Writes wait while it is held."""

    def __init__(self) -> None:
        super().__init__()
        self._free = threading.Event()
        self._free.set()

    def write(self, fd: int, parts: Sequence[Buffer], offset: int, durable: bool) -> int:
        self._free.wait()
        return super().write(fd, parts, offset, durable)

    @contextmanager
    def held(self) -> Iterator[None]:
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()


class Lab:
    def __init__(self, embedded: Served, kind: str, disk: SlowDisk) -> None:
        self.embedded = embedded
        self.kind = kind
        self.disk = disk
        self.to: Carrier = carrier(embedded, kind)

    @asynccontextmanager
    async def busy_placement_driver(self) -> AsyncIterator[None]:
        """It is occupied with a transaction and takes no other."""
        begun, end = threading.Event(), threading.Event()

        def transaction(_: object) -> None:
            begun.set()
            end.wait()

        task = asyncio.ensure_future(self.embedded.placement_driver.run(transaction))
        try:
            await asyncio.to_thread(begun.wait)
            yield
        finally:
            end.set()
            await task


@asynccontextmanager
async def lab_of(path: Path, kind: str) -> AsyncIterator[Lab]:
    disk = SlowDisk()
    store = StoreOptions(
        segment_bytes=1 << 20, allocate_step_bytes=1 << 20, zero_ahead_bytes=0, low_water_bytes=0, files=disk
    )
    async with running(path, store=store) as embedded:
        lab = Lab(embedded, kind, disk)
        yield lab
        await lab.to.close()


@pytest.fixture(params=KINDS)
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Lab]:
    async with lab_of(tmp_path, request.param) as lab:
        yield lab


def results_of(parts: list[w.Response]) -> dict[int, tuple[int, int]]:
    """Code and base offset by request index."""
    assert [getattr(part, "last", None) for part in parts] == [False] * (len(parts) - 1) + [True]
    results = [one for part in parts if isinstance(part, m.AppendBatchResponse) for one in part.results]
    by_index = {one.request_index: (one.status.code, one.base_offset) for one in results}
    assert len(by_index) == len(results), "no element is answered twice"
    return by_index


async def bodies(lab: Lab, stream_id: int) -> list[bytes]:
    result = await fetched(lab.to, stream_id, 0)
    found = parse_batches(b"".join(bytes(part) for part in result.parts))
    return [bytes(record.body) for one in found for record in one.records]


# --- APPEND ---------------------------------------------------------------------------------------------------------


async def test_document_append_is_answered_in_time(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """What is not durable by then is answered as unknown, the rest as ever; both come to their end."""
    stream_id = await created(lab.to)
    await appended(lab.to, stream_id, b"before")
    items = [m.AppendItem(stream_id, 1, batch(b"a")), m.AppendItem(stream_id, 2, b"no batch")]
    items.append(m.AppendItem(stream_id, 3, batch(b"b")))
    with caplog.at_level(logging.ERROR):
        with lab.disk.held():
            parts = await exchange(lab.to, m.AppendBatchRequest(20, items))
            assert results_of(parts) == {1: (UNKNOWN, -1), 2: (ErrorCode.BAD_REQUEST, -1), 3: (UNKNOWN, -1)}
            later = asyncio.ensure_future(appended(lab.to, stream_id, b"c"))  # without a limit
            await asyncio.sleep(0)
            assert not later.done()
        assert (await later).base_offset == 3
        assert await bodies(lab, stream_id) == [b"before", b"a", b"b", b"c"]
    assert not caplog.records, "later outcomes go nowhere"
    assert not lab.embedded.client.barrier.failures
    assert lab.embedded.document.server.late_append_bytes == 0


async def test_document_appends_in_time_are_answered_as_ever(lab: Lab) -> None:
    stream_id = await created(lab.to)
    for timeout_ms in (60_000, (1 << 31) - 1, -1, 0):
        items = [m.AppendItem(stream_id, k, batch(b"a")) for k in range(3)]
        results = results_of(await exchange(lab.to, m.AppendBatchRequest(timeout_ms, items)))
        assert [code for code, _ in results.values()] == [ErrorCode.OK] * 3


async def test_document_an_append_that_waits_for_its_range_is_dropped_when_its_time_is_up(lab: Lab) -> None:
    """It was handed to nobody: "request would be valid within the duration"."""
    stream_id = (await lab.embedded.client.create_stream()).stream_id  # of sbp-0.2: no range yet
    async with lab.busy_placement_driver():
        parts = await exchange(lab.to, m.AppendBatchRequest(20, [m.AppendItem(stream_id, 5, batch(b"late"))]))
        assert results_of(parts) == {5: (UNKNOWN, -1)}
        waiting = asyncio.ensure_future(appended(lab.to, stream_id, b"patient"))
        await asyncio.sleep(0)
    assert (await waiting).base_offset == 0
    assert await bodies(lab, stream_id) == [b"patient"]
    assert lab.embedded.document.server.late_append_bytes == 0


async def test_document_an_owner_may_take_longer_than_its_client_waits(lab: Lab) -> None:
    stream_id, other = await created(lab.to), await created(lab.to)
    given: list[Callable[[int, SbpError | None], None]] = []

    class Owner:
        def append(self, batch: bytearray, count: int, flags: int, done: Callable[..., None]) -> None:
            if count == 2:
                raise SbpError(ErrorCode.PRECONDITION_FAILED, "not here")
            given.append(done)

    lab.embedded.document.lanes.owner_of = lambda asked: Owner() if asked == stream_id else None
    items = [m.AppendItem(stream_id, 1, batch(b"a")), m.AppendItem(other, 2, batch(b"b"))]
    items += [m.AppendItem(stream_id, 3, batch(b"c", b"d")), m.AppendItem(stream_id, 4, batch(b"e"))]
    results = results_of(await exchange(lab.to, m.AppendBatchRequest(100, items)))
    assert results.pop(2) in ((ErrorCode.OK, 0), (UNKNOWN, -1)), "as fast as the disk is"
    assert results == {1: (UNKNOWN, -1), 3: (ErrorCode.PRECONDITION_FAILED, -1), 4: (UNKNOWN, -1)}
    first, second = given
    first(0, None)
    second(-1, SbpError(ErrorCode.BAD_REQUEST, "too late to tell"))
    assert lab.embedded.document.server.late_append_bytes == 0


async def test_document_late_appends_are_bounded(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is not held back by what was answered, so something else must be."""
    monkeypatch.setattr(appends, "MAX_LATE_BYTES", 2000)
    stream_id = await created(lab.to)
    with lab.disk.held():
        for _ in range(2):
            items = [m.AppendItem(stream_id, 0, batch(bytes(1500)))]
            assert results_of(await exchange(lab.to, m.AppendBatchRequest(10, items))) == {0: (UNKNOWN, -1)}
        for timeout_ms in (0, 10):
            items = [m.AppendItem(stream_id, k, batch(b"more")) for k in range(2)]
            results = results_of(await exchange(lab.to, m.AppendBatchRequest(timeout_ms, items)))
            assert results == {0: (ErrorCode.TOO_MANY_REQUESTS, -1), 1: (ErrorCode.TOO_MANY_REQUESTS, -1)}

    async def accepted() -> bool:
        return (await appended(lab.to, stream_id, b"again")).status == w.Status()

    async with asyncio.timeout(30):
        while not await accepted():
            await asyncio.sleep(0)
    assert len(await bodies(lab, stream_id)) == 3


async def test_document_a_late_append_on_the_wire(tmp_path: Path) -> None:
    """Read by the flatbuffers package: UNKNOWN, in the last frame."""
    async with lab_of(tmp_path, "tcp") as lab, Wire.connect(lab.embedded.addresses["sbp-v0.1"]) as wire:
        stream_id = await created(lab.to)
        with lab.disk.held():
            wire.request(V01, 9, m.AppendBatchRequest(20, [m.AppendItem(stream_id, 4, batch(b"a"))]))
            frame = await wire.frame()
        assert (frame.opcode, frame.stream_id, frame.flags) == (0x1001, 9, 3)
        answer = Oracle("doc").read("APPEND", frame.header)
        (result,) = answer["append_responses"]
        assert (answer["status"]["code"], result["status"]["code"], result["request_index"]) == (0, 1, 4)
        assert result["status"]["message"] == (
            "2500 RS_INTERNAL_SERVER_ERROR: not done in 20 ms, the outcome is unknown"
        )
        # The id is free, and nothing follows.
        wire.send(1, 9)
        assert (await wire.frame()).opcode == 1


# --- streams and ranges ---------------------------------------------------------------------------------------------


async def test_document_requests_to_the_placement_driver_are_answered_in_time(lab: Lab) -> None:
    """As a whole, with an answer of their kind; the work goes on to its end."""
    streams = [await created(lab.to) for _ in range(4)]
    sealed, trimmed, deleted, updated = streams
    await appended(lab.to, trimmed, b"a")
    requests: list[tuple[m.ControlRequest, type[w.DocumentResponse]]] = [
        (m.CreateStreamsRequest(20, [m.DocumentStream(-1, 1, 77)]), m.CreateStreamsResponse),
        (m.DeleteStreamsRequest(20, [m.DocumentStream(deleted)]), m.DeleteStreamsResponse),
        (m.UpdateStreamsRequest(20, [m.DocumentStream(updated, 1, 55)]), m.UpdateStreamsResponse),
        (m.DescribeStreamsRequest(20, streams), m.DescribeStreamsResponse),
        (m.TrimStreamsRequest(20, [m.TrimItem(trimmed, 1)]), m.TrimStreamsResponse),
        (m.ListRangesRequest(20, [m.RangeOwner(None, sealed)]), m.ListRangesResponse),
        (m.DescribeRangesRequest(20, [m.RangeId(sealed, 0)]), m.DescribeRangesResponse),
        (m.SealRangesRequest(20, [m.RangeId(sealed, 0)]), m.SealRangesResponse),
        (m.SyncRangesRequest(20, [m.StreamRanges(sealed, [m.DocumentRange(sealed, 0)])]), m.SyncRangesResponse),
    ]
    if lab.kind != "april":
        requests.append((m.NextRangeRequest(range=m.DocumentRange(updated), timeout_ms=20), m.NextRangeResponse))
    async with lab.busy_placement_driver():
        answers = await asyncio.gather(*(exchange(lab.to, request) for request, _ in requests))
        for (_, kind), (answer,) in zip(requests, answers, strict=True):
            assert isinstance(answer, kind)
            assert answer.status == w.Status(UNKNOWN, "not done in 20 ms, the outcome is unknown")
            assert not getattr(answer, "results", [])
        allocated = await lab.to.call(w.AllocateIdRequest(20, "host"))
        assert isinstance(allocated, w.AllocateIdResponse)
        assert allocated.status.code == UNKNOWN

    async def ended() -> bool:
        wanted = m.DescribeStreamsRequest(0, [*streams, updated + 1])
        described = await ask(lab.to, wanted, m.DescribeStreamsResponse)
        known = [one.stream.retention_period_ms if one.stream else None for one in described.results]
        owners = [m.RangeOwner(None, sealed), m.RangeOwner(None, trimmed)]
        listed = await ask(lab.to, m.ListRangesRequest(0, owners), m.ListRangesResponse)
        starts = [one.ranges[0].start if one.ranges else -1 for one in listed.results]
        return known == [0, 0, None, 55, 77] and len(listed.results[0].ranges) == 2 and starts == [0, 1]

    async with asyncio.timeout(30):
        while not await ended():
            await asyncio.sleep(0)
    server = await ask(lab.to, m.ListRangesRequest(60_000, [m.RangeOwner(None, updated)]), m.ListRangesResponse)
    assert [len(one.ranges) for one in server.results] == [1]


async def test_document_seal_on_the_range_server_is_answered_in_time(tmp_path: Path) -> None:
    async with lab_of(tmp_path, "tcp") as lab, Wire.connect(lab.embedded.addresses["sbp-v0.1-range-server"]) as wire:
        stream_id = await created(lab.to)
        dialect = V01
        with lab.disk.held():
            wire.request(dialect, 1, m.SealRangesRequest(20, [m.RangeId(stream_id, 0)]))
            frame = await wire.frame()
        answer = dialect.decode_response(frame.opcode, frame.flags, frame.header, frame.payload)
        assert isinstance(answer, m.SealRangesResponse)
        assert (answer.status.code, answer.results, frame.flags) == (UNKNOWN, [], 3)


# --- clients --------------------------------------------------------------------------------------------------------


class Watched:
    """Notes what it carries, and for how long at most."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self.seen: list[tuple[w.Request, float | None]] = []

    def submit(self, request: w.Request, reply: AnswerTo, timeout: float | None = None) -> None:
        self.seen.append((request, timeout))
        self._carrier.submit(request, reply, timeout)

    async def call(self, request: w.Request, timeout: float | None = None) -> w.Response:
        self.seen.append((request, timeout))
        return await self._carrier.call(request, timeout)

    async def close(self) -> None:
        await self._carrier.close()


@pytest.mark.parametrize("timeout", [0.0001, 0.1, 30.0, 1e9, float("inf")])
async def test_document_client_waits_longer_than_it_tells_the_server(lab: Lab, timeout: float) -> None:
    """Or its own time would be up when the answer, that time is up, is on its way."""
    watched = Watched(lab.to)
    client = DocumentClient(watched, timeout)
    for call in (client.allocate_id("host"), client.list_ranges(4711), client.append(4711, [b"a"])):
        with suppress(SbpError):  # what comes of it depends on speed
            await call
    assert len(watched.seen) == 3
    for request, waits in watched.seen:
        told = getattr(request, "timeout_ms", None)
        assert told is not None
        assert waits is not None
        assert 0 < told <= (1 << 31) - 1
        assert waits >= min(timeout, told / 1000 + 0.05)
        assert waits <= timeout + 1


async def test_document_client_is_told_that_the_outcome_is_unknown(tmp_path: Path) -> None:
    """In the process: both clocks are one, and the server's goes off first."""
    async with lab_of(tmp_path, "in-process") as lab:
        stream_id = await created(lab.to)
        await appended(lab.to, stream_id, b"a")
        client = DocumentClient(lab.to, 0.05)
        with lab.disk.held():
            with pytest.raises(DocumentError) as caught:
                await client.append(stream_id, [b"b"])
            assert (caught.value.code, caught.value.document_code) == (UNKNOWN, DocumentCode.UNKNOWN)
            assert caught.value.outcome_unknown
            outcomes = await client.append_many([(stream_id, [b"c"]), (stream_id, b"no batch")])
            late, refused = outcomes
            assert isinstance(late, DocumentError)
            assert isinstance(refused, DocumentError)
            assert (late.outcome_unknown, refused.outcome_unknown) == (True, False)
        patient = DocumentClient(lab.to)
        outcome = await patient.append(stream_id, [b"d"])
        assert isinstance(outcome, Appended)
        assert outcome.base_offset == 3
        assert await bodies(lab, stream_id) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("kind", ["in-process", "tcp"])
async def test_a_late_append_is_not_taken_for_one_that_was_not_stored(tmp_path: Path, kind: str) -> None:
    """The writer of a partition must neither go on as if the offsets were free nor just send the batch again."""

    class Hurried(Watched):
        """Leaves it to the server to say that the first append's time is up."""

        def __init__(self, carrier: Carrier) -> None:
            super().__init__(carrier)
            self.late: list[w.Response | ConnectionLost] = []

        def submit(self, request: w.Request, reply: AnswerTo, timeout: float | None = None) -> None:
            if isinstance(request, m.AppendBatchRequest) and not self.late:
                request.timeout_ms = 30

                def noted(answer: w.Response | ConnectionLost) -> None:
                    self.late.append(answer)
                    reply(answer)

                super().submit(request, noted)
            else:
                super().submit(request, reply)

    async with lab_of(tmp_path, kind) as lab:
        way = Hurried(lab.to)
        streams = DocumentStreams(carrier(lab.embedded, kind), lambda server: way)
        stream_id = (await streams.create_stream()).stream_id
        writer = await streams.open(stream_id, 1)
        outcome: asyncio.Future[SbpError | None] = asyncio.get_running_loop().create_future()
        with lab.disk.held():
            writer.append(b"late", 1, 0, 1, outcome.set_result)
            await until(lambda: bool(way.late))
        (answer,) = way.late
        assert isinstance(answer, m.AppendBatchResponse)
        assert answer.results[0].status.code == UNKNOWN
        error = await outcome
        assert error is None or (isinstance(error, DocumentError) and error.outcome_unknown and writer.failed is error)
        again = await streams.open(stream_id, 2)
        after: asyncio.Future[SbpError | None] = asyncio.get_running_loop().create_future()
        again.append(b"after", 1, 0, 1, after.set_result)
        assert await after is None
        found = [one for entry in await streams.fetch_entries(stream_id, 0, 1000) for one in unwrap(entry)]
        # The disk may have had it or not when the range was sealed: who was told that it is stored is right.
        payloads = [bytes(one.payload) for one in found]
        assert payloads in ([b"late", b"after"], [b"after"][: 0 if error is None else 1])
        assert [one.base_offset for one in found] == list(range(len(found)))
        await streams.close()


# --- nothing stays without an answer --------------------------------------------------------------------------------


async def test_document_requests_are_answered_when_the_server_stops_before_it_began(tmp_path: Path) -> None:
    """Their tasks are cancelled before the first step."""
    async with lab_of(tmp_path, "in-process") as lab:
        stream_id = (await lab.embedded.client.create_stream()).stream_id
        document = lab.embedded.document
        appending = asyncio.ensure_future(appended(lab.to, stream_id, b"a"))
        describing = asyncio.ensure_future(exchange(lab.to, m.DescribeStreamsRequest(60_000, [stream_id])))
        stopping = [asyncio.ensure_future(document.lanes.close()), asyncio.ensure_future(document.server.close())]
        async with asyncio.timeout(30):
            assert (await appending).status == w.Status(UNKNOWN, "the server is shutting down")
            (described,) = await describing
            assert described.status == w.Status(UNKNOWN, "the server is shutting down")
            await asyncio.gather(*stopping)
            assert (await appended(lab.to, stream_id, b"b")).status.code == UNKNOWN


async def test_document_a_defect_of_an_owner_is_answered(lab: Lab) -> None:
    stream_id, other = await created(lab.to), await created(lab.to)

    class Owner:
        def append(self, batch: bytearray, count: int, flags: int, done: Callable[..., None]) -> None:
            raise LookupError("a defect")

    lab.embedded.document.lanes.owner_of = lambda asked: Owner() if asked == stream_id else None
    items = [m.AppendItem(one, k, batch(b"a")) for k, one in enumerate((other, stream_id, other))]
    results = results_of(await exchange(lab.to, m.AppendBatchRequest(0, items)))
    assert results == {0: (ErrorCode.OK, 0), 1: (UNKNOWN, -1), 2: (ErrorCode.OK, 1)}
    assert lab.embedded.client.barrier.failures == {"owner of a stream": 1}


async def test_document_no_append_overtakes_those_that_wait_for_the_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One arrives when the range was just found, but by a change of ranges that those before it wait behind."""
    async with lab_of(tmp_path, "in-process") as lab:
        stream_id = await created(lab.to)
        lanes = lab.embedded.document.lanes
        adopt = lanes._adopt
        second: list[int] = []

        def reply(answer: w.Response | ConnectionLost) -> None:
            assert isinstance(answer, m.AppendBatchResponse)
            second.extend(one.base_offset for one in answer.results)

        overtaking = [m.AppendBatchRequest(0, [m.AppendItem(stream_id, 0, batch(b"second"))])]

        async def adopted(row: RangeRow) -> None:
            await adopt(row)
            if overtaking:
                lab.to.submit(overtaking.pop(), reply)

        monkeypatch.setattr(lanes, "_adopt", adopted)
        async with lab.busy_placement_driver():
            lanes.forget(stream_id)
            sealing = asyncio.ensure_future(exchange(lab.to, m.SealRangesRequest(0, [m.RangeId(stream_id, 0)])))
            for _ in range(3):
                await asyncio.sleep(0)
            first = asyncio.ensure_future(appended(lab.to, stream_id, b"first"))
            await asyncio.sleep(0)
        await sealing
        assert (await first).base_offset == 0
        await until(lambda: bool(second))
        assert second == [1]


@pytest.mark.parametrize("answer", [w.AppendResponse(), m.FetchBatchResponse()])
async def test_document_an_answer_that_does_not_fit_is_no_success(tmp_path: Path, answer: w.Response) -> None:
    class Confused:
        def handle(self, request: w.Request, reply: Reply) -> None:
            reply(answer)

    async with lab_of(tmp_path, "in-process") as lab:
        stream_id = await created(lab.to)
        embedded = lab.embedded
        lanes = embedded.document.lanes
        lanes.to_range_server = InProcessCarrier(Confused())
        server = DocumentServer(lanes, embedded.client)
        result = await appended(InProcessCarrier(server), stream_id, b"a")
        assert (result.status.code, result.base_offset) == (UNKNOWN, -1)


async def test_document_a_defect_in_finding_the_range_is_answered(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    stream_id = (await lab.embedded.client.create_stream()).stream_id

    async def broken(work: object) -> None:
        raise LookupError("a defect")

    monkeypatch.setattr(lab.embedded.placement_driver, "run", broken)
    result = await appended(lab.to, stream_id, b"a")
    assert (result.status.code, result.base_offset) == (UNKNOWN, -1)
    assert lab.embedded.client.barrier.failures == {"looking for a range": 1}
    monkeypatch.undo()
    assert (await appended(lab.to, stream_id, b"a")).base_offset == 0
