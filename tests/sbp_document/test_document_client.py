"""The client of sbp-v0.1: typed results, typed errors, several streams at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sbp_back import InProcessCarrier
from sbp_back.client.leader import encode_cluster
from sbp_back.errors import ConnectionLost, ErrorCode
from sbp_back.transport.listener import Listener, ListenerOptions
from sbp_back.wire.model import PdNode, Request, Response, Status, SystemErrorResponse
from sbp_document import (
    Appended,
    DocumentClient,
    DocumentCode,
    DocumentError,
    DocumentRecord,
    DocumentStream,
    Fetched,
    RecordBatch,
    Wanted,
    encode_batch,
)
from sbp_document.wire import messages as m
from sbp_document.wire.v01 import V01
from tests.kit.waiting import until
from tests.sbp_document.document_lab import Served, running


class Lab:
    def __init__(self, embedded: Served, kind: str) -> None:
        self.embedded = embedded
        if kind == "in-process":
            self.client = DocumentClient(InProcessCarrier(embedded.document.server))
        else:
            name = "sbp-v0.1" if kind == "tcp" else "sbp-v0.1-april"
            self.client = DocumentClient.connect(*embedded.addresses[name], dialect=name)


@pytest.fixture(params=["in-process", "tcp", "april"])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Lab]:
    async with running(tmp_path) as embedded:
        lab = Lab(embedded, request.param)
        yield lab
        await lab.client.close()


async def test_document_client_streams(lab: Lab) -> None:
    client = lab.client
    made = await client.create_stream(1, 5000)
    stream_id = made.stream.stream_id
    assert (made.range.index, made.range.is_open, made.stream.retention_period_ms) == (0, True, 5000)
    assert await client.describe_stream(stream_id) == made.stream
    changed = DocumentStream(stream_id, 1, 6000)
    assert await client.update_stream(changed) == changed
    assert await client.delete_stream(stream_id) == changed
    for refused in (client.describe_stream, client.delete_stream):
        with pytest.raises(DocumentError) as caught:
            await refused(stream_id)
        assert (caught.value.document_code, caught.value.code) == (DocumentCode.UNKNOWN, ErrorCode.NOT_FOUND)
    with pytest.raises(DocumentError) as caught:
        await client.create_stream(0)
    assert (caught.value.document_code, caught.value.code) == (DocumentCode.INVALID_REQUEST, ErrorCode.BAD_REQUEST)
    results = await client.create_streams([DocumentStream(-1, 1, 0), DocumentStream(-1, 0, 0)])
    assert [result.status.ok for result in results] == [True, False]
    created = results[0].stream
    assert created is not None
    described = await client.describe_streams([created.stream_id, stream_id])
    assert [result.stream for result in described] == [created, None]


async def test_document_client_records(lab: Lab) -> None:
    client = lab.client
    stream_id = (await client.create_stream()).stream.stream_id
    records = [
        DocumentRecord(b"a", timestamp=1_700_000_000_001),
        DocumentRecord(b"b", [("h", "1")], [("p", "2")], 1_700_000_000_000),
    ]
    first = await client.append(stream_id, records)
    second = await client.append(stream_id, encode_batch([DocumentRecord(b"c")]))
    assert (first.base_offset, second.base_offset) == (0, 2)
    found = await client.fetch(stream_id, 1)
    assert [(one.offset, bytes(one.body), one.headers) for one in found.records] == [
        (1, b"b", [("h", "1")]),
        (2, b"c", []),
    ]
    assert found.records[0].timestamp == 1_700_000_000_000
    assert (found.batches[0].base_offset, found.next_offset) == (0, 3)
    nothing = await client.fetch(stream_id, 3, max_wait_ms=10)
    assert (nothing.records, nothing.next_offset) == ([], 3)
    with pytest.raises(DocumentError) as caught:
        await client.fetch(stream_id, 17)
    assert caught.value.code == ErrorCode.OFFSET_OVERFLOW
    no_batches: list[list[DocumentRecord | bytes]] = [[], [*records, b"much later"]]
    for no_batch in no_batches:
        with pytest.raises(ValueError, match=r"at (least|most)"):
            await client.append(stream_id, no_batch)
    with pytest.raises(DocumentError) as caught:
        await client.append(stream_id, b"not a batch")
    assert caught.value.code == ErrorCode.BAD_REQUEST


async def test_document_client_many_streams_at_once(lab: Lab) -> None:
    client = lab.client
    first, second = [(await client.create_stream()).stream.stream_id for _ in range(2)]
    outcomes = await client.append_many([(first, [b"a"]), (4711, [b"x"]), (second, [b"b", b"c"]), (first, [b"d"])])
    bases = [one.base_offset if isinstance(one, Appended) else one.code for one in outcomes]
    assert bases == [0, ErrorCode.NOT_FOUND, 0, 1]
    wanted = [Wanted(first, 2), Wanted(second, 0), Wanted(4711, 0)]
    seen: list[tuple[Wanted, object]] = []

    async def read() -> None:
        async for one, outcome in client.fetch_many(wanted, max_wait_ms=60_000):
            bodies = (
                [bytes(record.body) for record in outcome.records] if isinstance(outcome, Fetched) else outcome.code
            )
            seen.append((one, bodies))

    reading = asyncio.ensure_future(read())
    await until(lambda: len(seen) == 2)
    await client.append(first, [b"e"])
    await reading
    assert sorted(seen[:2], key=lambda one: one[0].stream_id) == [
        (wanted[1], [b"b", b"c"]),
        (wanted[2], ErrorCode.NOT_FOUND),
    ]
    assert seen[2] == (wanted[0], [b"e"])


async def test_document_client_ranges(lab: Lab) -> None:
    client = lab.client
    stream_id = (await client.create_stream()).stream.stream_id
    await client.append(stream_id, [b"a", b"b"])
    assert (await client.describe_range(stream_id, 0)).next == 2
    opened = await client.seal_range(stream_id, 0)
    assert (opened.index, opened.start) == (1, 2)
    ranges = await client.list_ranges(stream_id)
    assert [(one.index, one.end) for one in ranges] == [(0, 2), (1, -1)]
    assert await client.list_server_ranges(0) == ranges
    assert await client.sync_ranges(stream_id, ranges) == ranges
    trimmed = await client.trim_stream(stream_id, 2)
    assert trimmed.first is not None
    assert (trimmed.first.index, trimmed.first.start) == (1, 2)
    with pytest.raises(DocumentError) as caught:
        await client.fetch(stream_id, 0)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS
    with pytest.raises(DocumentError) as caught:
        await client.describe_range(stream_id, 5)
    assert caught.value.code == ErrorCode.RANGE_NOT_FOUND


async def test_document_client_watches(lab: Lab) -> None:
    """Every batch as it becomes durable, over ranges, from inside a batch on."""
    client = lab.client
    stream_id = (await client.create_stream()).stream.stream_id
    await client.append(stream_id, [b"a", b"b", b"c"])
    seen: list[tuple[int, list[bytes]]] = []

    async def watch() -> None:
        async for one in client.watch(stream_id, 1, max_bytes=1, max_wait_ms=60_000):
            seen.append((one.base_offset, [bytes(record.body) for record in one.records]))
            if one.end_offset == 7:
                return

    async with asyncio.timeout(30):
        watching = asyncio.ensure_future(watch())
        await until(lambda: len(seen) == 1)
        await until(lambda: lab.embedded.range_server.waiting_fetches > 0)
        await client.append(stream_id, [b"d"])
        await until(lambda: len(seen) == 2)
        await client.seal_range(stream_id, 0)
        await client.append_many([(stream_id, [b"e"]), (stream_id, [b"f", b"g"])])
        await watching
    assert seen == [(0, [b"a", b"b", b"c"]), (3, [b"d"]), (4, [b"e"]), (5, [b"f", b"g"])]


@pytest.mark.parametrize("max_wait_ms", [0, 10, 60_000])
async def test_document_client_watch_ends_with_its_stream(lab: Lab, max_wait_ms: int) -> None:
    client = lab.client
    stream_id = (await client.create_stream()).stream.stream_id
    await client.append(stream_id, [b"a"])
    seen: list[int] = []

    async def watch() -> None:
        async for one in client.watch(stream_id, 0, max_wait_ms=max_wait_ms):
            seen.append(one.base_offset)

    async with asyncio.timeout(30):
        watching = asyncio.ensure_future(watch())
        await until(lambda: bool(seen))
        if max_wait_ms == 60_000:
            await until(lambda: lab.embedded.range_server.waiting_fetches > 0)
        await client.delete_stream(stream_id)
        with pytest.raises(DocumentError) as caught:
            await watching
        assert caught.value.code == ErrorCode.NOT_FOUND
        with pytest.raises(DocumentError) as caught:
            await watch()
        assert caught.value.code == ErrorCode.NOT_FOUND
    assert seen == [0]


async def test_document_client_watch_that_a_trim_overtook(lab: Lab) -> None:
    client = lab.client
    stream_id = (await client.create_stream()).stream.stream_id
    for body in (b"a", b"b", b"c"):
        await client.append(stream_id, [body])
    watching = client.watch(stream_id, 0, max_bytes=1)
    assert (await anext(watching)).end_offset == 1
    await client.trim_stream(stream_id, 2)
    with pytest.raises(DocumentError) as caught:
        await anext(watching)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS
    assert [one.base_offset async for one in _some(client, stream_id, 2, 1)] == [2]


async def _some(client: DocumentClient, stream_id: int, offset: int, count: int) -> AsyncIterator[RecordBatch]:
    watching = client.watch(stream_id, offset)
    for _ in range(count):
        yield await anext(watching)
    await watching.aclose()


async def test_document_client_server(lab: Lab) -> None:
    client = lab.client
    await client.ping(b"there?")
    await client.heartbeat("me")
    assert await client.allocate_id("host") + 1 == await client.allocate_id("host")
    (node,) = await client.describe_cluster()
    assert node.is_leader


async def test_document_client_create_range(tmp_path: Path) -> None:
    async with running(tmp_path) as embedded:
        client = DocumentClient.connect(*embedded.addresses["sbp-v0.1"])
        stream_id = (await client.create_stream()).stream.stream_id
        with pytest.raises(DocumentError) as caught:
            await client.create_range(stream_id)
        assert caught.value.code == ErrorCode.CREATE_RANGE_BEFORE_SEAL
        await embedded.client.open(stream_id, 1)  # seals, and opens nothing before it writes
        opened = await client.create_range(stream_id)
        assert (opened.index, opened.start, opened.is_open) == (1, 0, True)
        await client.close()


# --- servers that misbehave -----------------------------------------------------------------------------------------


class Scripted:
    """A server that answers with what a test makes of the request."""

    def __init__(self, answers: Callable[[Request], list[Response]]) -> None:
        self._answers = answers

    def handle(self, request: Request, reply: Callable[[Response], None]) -> None:
        for response in self._answers(request):
            reply(response)


def item(index: int, status: Status | None = None) -> m.AppendItemResult:
    return m.AppendItemResult(1, index, 100 + index, 5, status or Status())


async def test_document_client_puts_parts_together() -> None:
    """In any order, in any number of frames."""
    parts: list[Response] = [
        m.AppendBatchResponse(last=False, results=[item(2), item(0)]),
        m.AppendBatchResponse(last=False),
        m.AppendBatchResponse(last=False, results=[item(1, Status(ErrorCode.RANGE_ALREADY_SEALED, "sealed"))]),
        m.AppendBatchResponse(last=True),
    ]
    listener = Listener(Scripted(lambda _: parts), V01, "127.0.0.1", 0, ListenerOptions())
    await listener.start()
    client = DocumentClient.connect(*listener.address)
    outcomes = await client.append_many([(1, [b"a"]), (1, [b"b"]), (1, [b"c"]), (1, [b"d"])])
    assert isinstance(outcomes[0], Appended)
    assert [outcomes[0].base_offset, isinstance(outcomes[2], Appended)] == [100, True]
    assert [one.code for one in outcomes if isinstance(one, DocumentError)] == [
        ErrorCode.RANGE_ALREADY_SEALED,
        ErrorCode.DECODE,  # the server said nothing of the last one
    ]
    await client.close()
    await listener.close()


async def test_document_client_is_told_who_leads() -> None:
    nodes = [PdNode("a", "a:1"), PdNode("b", "b:1", True)]
    status = Status(ErrorCode.PD_NOT_LEADER, "not me", encode_cluster(nodes))
    server = Scripted(lambda _: [m.DescribeStreamsResponse(status)])
    listener = Listener(server, V01, "127.0.0.1", 0, ListenerOptions())
    await listener.start()
    client = DocumentClient.connect(*listener.address)
    with pytest.raises(DocumentError) as caught:
        await client.describe_stream(1)
    assert caught.value.document_code == DocumentCode.PD_NOT_LEADER
    assert caught.value.cluster == nodes
    await client.close()
    await listener.close()


async def test_document_client_watch_of_a_server_that_repeats_itself() -> None:
    """It does not go on for ever with the same batch."""
    same = m.FetchBatchResponse(results=[m.FetchItemResult(1, 0, parts=[encode_batch([DocumentRecord(b"a")])])])
    described = m.DescribeStreamsResponse(results=[m.StreamItemResult(DocumentStream(1, 1, 0))])
    server = Scripted(lambda request: [same if isinstance(request, m.FetchBatchRequest) else described])
    client = DocumentClient(InProcessCarrier(server))
    watching = client.watch(1, 0)
    assert (await anext(watching)).end_offset == 1
    with pytest.raises(DocumentError) as caught:
        await anext(watching)
    assert caught.value.code == ErrorCode.DECODE
    await client.close()


@pytest.mark.parametrize(
    "answer",
    [
        SystemErrorResponse(Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, "broken")),
        m.DescribeStreamsResponse(),
        m.DescribeStreamsResponse(results=[m.StreamItemResult()]),
        m.DescribeStreamsResponse(results=[m.StreamItemResult(), m.StreamItemResult()]),
        m.DescribeRangesResponse(),
    ],
)
async def test_document_client_takes_no_nonsense(answer: Response) -> None:
    client = DocumentClient(InProcessCarrier(Scripted(lambda _: [answer])))
    with pytest.raises(DocumentError):
        await client.describe_stream(1)
    with pytest.raises(DocumentError):
        await client.append(1, [b"a"])
    with pytest.raises(DocumentError):
        await client.fetch(1, 0)
    await client.close()


async def test_document_client_of_a_silent_server() -> None:
    silent = Scripted(lambda _: [])
    client = DocumentClient(InProcessCarrier(silent), timeout=0.01)
    for call in (client.ping(), client.append(1, [b"a"]), client.fetch(1, 0), client.list_ranges(1)):
        with pytest.raises(ConnectionLost):
            await call
    await client.close()


async def test_document_client_loses_its_connection_between_two_parts(tmp_path: Path) -> None:
    """What came is kept by whoever reads as it comes; the rest is unknown."""
    async with running(tmp_path) as embedded:
        client = DocumentClient.connect(*embedded.addresses["sbp-v0.1"])
        first, second = [(await client.create_stream()).stream.stream_id for _ in range(2)]
        await client.append(first, [b"a"])
        seen = []

        async def read() -> None:
            async for one, _ in client.fetch_many([Wanted(first, 0), Wanted(second, 0)], max_wait_ms=60_000):
                seen.append(one.stream_id)
                await embedded.listeners["sbp-v0.1"].close()

        with pytest.raises(ConnectionLost):
            await read()
        assert seen == [first]
        await client.close()
