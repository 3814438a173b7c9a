"""sbp-v0.1 frame by frame: in this process, over TCP, and over TCP in the variant of April.

Real placement driver, range server and store behind the real handler; what is particular to bytes on a wire is in
``test_document_wire.py``, what concerns writers of sbp-0.2 on the same streams in ``test_document_dialects.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sbp_back.errors import ErrorCode
from sbp_back.placement_driver.state import RangeRow
from sbp_back.range_server.store import StoreOptions
from sbp_back.transport.carrier import Carrier, InProcessCarrier
from sbp_back.transport.tcp_carrier import TcpCarrier
from sbp_back.wire import model as w
from sbp_document.server import pd_rules as rules
from sbp_document.server.server import RangeServerSide
from sbp_document.wire import messages as m
from sbp_document.wire.record_batch import count_records, parse_batches
from sbp_document.wire.v01 import V01
from tests.kit.waiting import until
from tests.sbp_document.document_lab import (
    Served,
    appended,
    ask,
    batch,
    carrier,
    created,
    exchange,
    fetched,
    running,
    write,
)

BROKEN = (ErrorCode.RS_INTERNAL_SERVER_ERROR, ErrorCode.PD_INTERNAL_SERVER_ERROR)
"""What must not come of anything a client says."""


class Lab:
    def __init__(self, embedded: Served, kind: str) -> None:
        self.embedded = embedded
        self.kind = kind
        self.to: Carrier = carrier(embedded, kind)

    @property
    def address(self) -> str:
        """What clients are told of the range server."""
        name = "sbp-v0.1-april" if self.kind == "april" else "sbp-v0.1-range-server"
        return "{}:{}".format(*self.embedded.addresses[name])


@asynccontextmanager
async def lab_of(path: Path, kind: str) -> AsyncIterator[Lab]:
    async with running(path) as embedded:
        lab = Lab(embedded, kind)
        yield lab
        await lab.to.close()


@pytest.fixture(params=["in-process", "tcp", "april"])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Lab]:
    async with lab_of(tmp_path, request.param) as lab:
        yield lab


@pytest.fixture(params=["in-process", "tcp"])
async def document_lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Lab]:
    """For what the variant of April does not have."""
    async with lab_of(tmp_path, request.param) as lab:
        yield lab


def codes(results: list[m.StreamItemResult] | list[m.RangeItemResult] | list[m.AppendItemResult]) -> list[int]:
    return [result.status.code for result in results]


def bodies(result: m.FetchItemResult) -> list[tuple[int, bytes]]:
    found = parse_batches(b"".join(bytes(part) for part in result.parts))
    return [(record.offset, bytes(record.body)) for one in found for record in one.records]


# --- the connection and the cluster ---------------------------------------------------------------------------------


async def test_document_ping(lab: Lab) -> None:
    answer = await lab.to.call(w.PingRequest(b"head", b"payload"))
    assert isinstance(answer, w.PingResponse)
    assert (answer.header, bytes(answer.payload)) == (b"head", b"payload")


async def test_document_goaway(lab: Lab) -> None:
    """What was asked before it is still answered."""
    stream_id = await created(lab.to)
    answer = asyncio.ensure_future(appended(lab.to, stream_id, b"last words"))
    await asyncio.sleep(0)
    lab.to.submit(w.GoAway(), lambda _: None)
    assert (await answer).status == w.Status()


async def test_document_heartbeat(lab: Lab) -> None:
    for request in (
        w.HeartbeatRequest("me", w.ClientRole.FRONTEND),
        w.HeartbeatRequest("rs", w.ClientRole.RANGE_SERVER, w.RangeServerInfo(77, "elsewhere:1")),
    ):
        answer = await lab.to.call(request)
        assert isinstance(answer, w.HeartbeatResponse)
        assert answer == w.HeartbeatResponse(request.client_id, request.role, request.range_server, w.Status())


async def test_document_allocate_id(lab: Lab) -> None:
    first, second = [await lab.to.call(w.AllocateIdRequest(1000, "host")) for _ in range(2)]
    assert isinstance(first, w.AllocateIdResponse)
    assert isinstance(second, w.AllocateIdResponse)
    assert (first.status, second.status) == (w.Status(), w.Status())
    assert second.id == first.id + 1


async def test_document_report_metrics(lab: Lab) -> None:
    server = w.RangeServerInfo(78, "elsewhere:1")
    answer = await lab.to.call(w.ReportMetricsRequest(server, w.RangeServerMetrics(1, 2, 1 << 40)))
    assert answer == w.ReportMetricsResponse(server, w.Status())
    assert 78 in lab.embedded.placement_driver.servers.alive()


async def test_what_is_said_of_our_own_range_server_does_not_move_it(lab: Lab) -> None:
    """Clients of the document know it at their own listener: that address is of no use to those of sbp-0.2."""
    stream = await lab.embedded.client.create_stream()
    await write(await lab.embedded.client.open(stream.stream_id, 1), b"x")
    (before,) = await lab.embedded.client.list_ranges(stream.stream_id)
    said = w.RangeServerInfo(before.servers[0].server_id, "listener-of-the-document:1")
    heard = await lab.to.call(w.ReportMetricsRequest(said, w.RangeServerMetrics(1, 2, 1 << 40)))
    assert heard == w.ReportMetricsResponse(said, w.Status())
    heartbeat = await lab.to.call(w.HeartbeatRequest("rs", w.ClientRole.RANGE_SERVER, said))
    assert heartbeat == w.HeartbeatResponse("rs", w.ClientRole.RANGE_SERVER, said, w.Status())
    (after,) = await lab.embedded.client.list_ranges(stream.stream_id)
    assert after.servers == before.servers


async def test_document_describe_pd_cluster(lab: Lab) -> None:
    answer = await lab.to.call(w.DescribePdRequest(w.RangeServerInfo(0, "me:1")))
    assert isinstance(answer, w.DescribePdResponse)
    name = "sbp-v0.1-april" if lab.kind == "april" else "sbp-v0.1"
    (node,) = answer.nodes
    assert (node.advertise_addr, node.is_leader) == ("{}:{}".format(*lab.embedded.addresses[name]), True)


EDGES = (-(1 << 63), -1, 4711, (1 << 63) - 1)


@pytest.mark.parametrize("edge", EDGES)
async def test_document_numbers_at_their_edges(lab: Lab, edge: int) -> None:
    """Whatever number a field holds, every element is answered in its own place, and nothing of ours breaks."""
    small, tiny = max(-(1 << 31), min(edge, (1 << 31) - 1)), max(-128, min(edge, 127))
    stream_id = await created(lab.to)
    await appended(lab.to, stream_id, b"a")
    server = w.RangeServerInfo(small, "edge:1")
    named = [m.DocumentStream(edge, 1, 0)]
    ids = [m.RangeId(stream_id, small), m.RangeId(edge, 0)]
    fetches = [m.FetchItem(stream_id, small, edge, small), m.FetchItem(edge, small, 0, 1)]
    requests: list[w.DocumentRequest] = [
        m.AppendBatchRequest(small, [m.AppendItem(edge, small, batch(b"x"))]),
        m.FetchBatchRequest(0, small, fetches),
        m.ListRangesRequest(small, [m.RangeOwner(server, edge), m.RangeOwner(server), m.RangeOwner(None, edge)]),
        m.SealRangesRequest(small, ids),
        m.SyncRangesRequest(small, [m.StreamRanges(one, [m.DocumentRange(one, small)]) for one in (stream_id, edge)]),
        m.DescribeRangesRequest(small, ids),
        m.CreateStreamsRequest(small, [m.DocumentStream(edge, tiny, 0), m.DocumentStream(edge, 1, edge)]),
        m.UpdateStreamsRequest(small, [*named, m.DocumentStream(stream_id, tiny, edge)]),
        m.DescribeStreamsRequest(small, [edge]),
        m.TrimStreamsRequest(small, [m.TrimItem(edge, 0)]),
        m.DeleteStreamsRequest(small, named),
    ]
    for request in requests:
        asked = next(
            len(value) for name in request.__struct_fields__ if isinstance(value := getattr(request, name), list)
        )
        parts = await exchange(lab.to, request)
        assert all(isinstance(part, w.DocumentResponse) and part.status == w.Status() for part in parts), parts
        results = [result for part in parts for result in getattr(part, "results", [])]
        assert len(results) == asked, request
        assert not any(result.status.code in BROKEN for result in results), results
    for own in (
        w.HeartbeatRequest("edge", w.ClientRole.RANGE_SERVER, server),
        w.ReportMetricsRequest(server, w.RangeServerMetrics(edge, edge, edge)),
        w.AllocateIdRequest(small, "edge"),
        w.DescribePdRequest(server, small),
    ):
        answer = await lab.to.call(own)
        assert not isinstance(answer, w.SystemErrorResponse)
        assert answer.status.code not in BROKEN
    assert bodies(await fetched(lab.to, stream_id, 0)) == [(0, b"a")]
    assert (await appended(lab.to, stream_id, b"b")).base_offset == 1


# --- streams --------------------------------------------------------------------------------------------------------


async def test_document_create_streams(lab: Lab) -> None:
    """Many at once; each answers with the range that takes its first record (docs/protocols/sbp.md, "Placement
    driver")."""
    wanted = [m.DocumentStream(-1, 1, 60_000), m.DocumentStream(-1, 0, 0), m.DocumentStream(-1, 3, 0)]
    wanted.append(m.DocumentStream(-1, 1, -1))
    answer = await ask(lab.to, m.CreateStreamsRequest(streams=wanted), m.CreateStreamsResponse)
    good, *bad = answer.results
    assert good.stream is not None
    assert (good.stream.replica_nums, good.stream.retention_period_ms) == (1, 60_000)
    assert good.range == m.DocumentRange(
        good.stream.stream_id, 0, 0, -1, 0, [m.Replica(w.RangeServerInfo(0, lab.address), True)]
    )
    assert codes(bad) == [ErrorCode.BAD_REQUEST, ErrorCode.PD_NO_AVAILABLE_RS, ErrorCode.BAD_REQUEST]
    assert (await appended(lab.to, good.stream.stream_id, b"at once")).base_offset == 0


async def test_document_describe_streams(lab: Lab) -> None:
    stream_id = await created(lab.to)
    request = m.DescribeStreamsRequest(stream_ids=[stream_id, 4711])
    answer = await ask(lab.to, request, m.DescribeStreamsResponse)
    known, unknown = answer.results
    assert (known.stream, known.status) == (m.DocumentStream(stream_id, 1, 0), w.Status())
    assert (unknown.stream, unknown.status.code) == (None, ErrorCode.NOT_FOUND)


async def test_document_update_streams(lab: Lab) -> None:
    stream_id = await created(lab.to)
    changed = m.DocumentStream(stream_id, 1, 12345)
    request = m.UpdateStreamsRequest(streams=[changed, m.DocumentStream(4711, 1, 0), m.DocumentStream(stream_id, 2, 0)])
    answer = await ask(lab.to, request, m.UpdateStreamsResponse)
    assert codes(answer.results) == [ErrorCode.OK, ErrorCode.NOT_FOUND, ErrorCode.PD_NO_AVAILABLE_RS]
    assert answer.results[0].stream == changed
    described = await ask(lab.to, m.DescribeStreamsRequest(stream_ids=[stream_id]), m.DescribeStreamsResponse)
    assert described.results[0].stream == changed


async def test_document_delete_streams(lab: Lab) -> None:
    stream_id = await created(lab.to)
    await appended(lab.to, stream_id, b"gone")
    request = m.DeleteStreamsRequest(streams=[m.DocumentStream(stream_id), m.DocumentStream(4711)])
    answer = await ask(lab.to, request, m.DeleteStreamsResponse)
    assert codes(answer.results) == [ErrorCode.OK, ErrorCode.NOT_FOUND]
    assert answer.results[0].stream == m.DocumentStream(stream_id, 1, 0)
    assert (await appended(lab.to, stream_id, b"too late")).status.code == ErrorCode.NOT_FOUND
    assert (await fetched(lab.to, stream_id, 0)).status.code == ErrorCode.NOT_FOUND
    assert not any(key[0] == stream_id for key in lab.embedded.store.ranges)


async def test_document_trim_streams(lab: Lab) -> None:
    stream_id = await created(lab.to)
    for body in (b"a", b"b", b"c"):
        await appended(lab.to, stream_id, body)
    await ask(lab.to, m.SealRangesRequest(ranges=[m.RangeId(stream_id, 0)]), m.SealRangesResponse)
    await appended(lab.to, stream_id, b"d")
    for offset, smallest in ((1, (0, 1, 3)), (3, (1, 3, -1)), (2, (1, 3, -1))):
        request = m.TrimStreamsRequest(items=[m.TrimItem(stream_id, offset), m.TrimItem(4711, 0)])
        answer = await ask(lab.to, request, m.TrimStreamsResponse)
        trimmed, unknown = answer.results
        assert (trimmed.stream, trimmed.status) == (m.DocumentStream(stream_id, 1, 0), w.Status())
        assert trimmed.range is not None
        assert (trimmed.range.index, trimmed.range.start, trimmed.range.end) == smallest
        assert unknown.status.code == ErrorCode.NOT_FOUND
    assert (await fetched(lab.to, stream_id, 2)).status.code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS
    assert bodies(await fetched(lab.to, stream_id, 3)) == [(3, b"d")]


async def test_document_trim_inside_a_batch_and_of_everything(lab: Lab) -> None:
    stream_id = await created(lab.to)
    for _ in range(3):
        await appended(lab.to, stream_id, b"a", b"b", b"c")
    for offset, next_to_read in ((4, 3), (9, 9)):
        request = m.TrimStreamsRequest(items=[m.TrimItem(stream_id, offset)])
        (trimmed,) = (await ask(lab.to, request, m.TrimStreamsResponse)).results
        assert trimmed.range is not None
        assert (trimmed.range.index, trimmed.range.start, trimmed.range.end, trimmed.range.next) == (0, offset, -1, 9)
        assert (await fetched(lab.to, stream_id, offset - 1)).status.code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS
        left = bodies(await fetched(lab.to, stream_id, offset))
        assert [at for at, _ in left] == list(range(next_to_read, 9)), "whole batches"
    assert lab.embedded.store.ranges[stream_id, 0].live_bytes == 0
    assert (await appended(lab.to, stream_id, b"d")).base_offset == 9
    assert bodies(await fetched(lab.to, stream_id, 9)) == [(9, b"d")]


# --- ranges ---------------------------------------------------------------------------------------------------------


async def test_document_list_ranges_of_streams(lab: Lab) -> None:
    first, second = await created(lab.to), await created(lab.to)
    await appended(lab.to, first, b"a", b"b")
    await ask(lab.to, m.SealRangesRequest(ranges=[m.RangeId(first, 0)]), m.SealRangesResponse)
    owners = [m.RangeOwner(None, first), m.RangeOwner(None, second), m.RangeOwner(None, 4711), m.RangeOwner()]
    answer = await ask(lab.to, m.ListRangesRequest(owners=owners), m.ListRangesResponse)
    assert [result.owner for result in answer.results] == owners
    told = [m.Replica(w.RangeServerInfo(0, lab.address), True)]
    assert answer.results[0].ranges == [
        m.DocumentRange(first, 0, 0, 2, 2, told),
        m.DocumentRange(first, 1, 2, -1, 2, told),
    ]
    assert answer.results[1].ranges == [m.DocumentRange(second, 0, 0, -1, 0, told)]
    assert [result.status.code for result in answer.results[2:]] == [ErrorCode.NOT_FOUND, ErrorCode.BAD_REQUEST]


async def test_document_list_ranges_of_a_server(lab: Lab) -> None:
    streams = [await created(lab.to) for _ in range(3)]
    owners = [m.RangeOwner(w.RangeServerInfo(0, "")), m.RangeOwner(w.RangeServerInfo(5, ""))]
    owners.append(m.RangeOwner(w.RangeServerInfo(0, ""), streams[1]))
    answer = await ask(lab.to, m.ListRangesRequest(owners=owners), m.ListRangesResponse)
    assert [[one.stream_id for one in result.ranges] for result in answer.results] == [streams, [], [streams[1]]]


async def test_document_describe_ranges(lab: Lab) -> None:
    """What the client learns the end of a stream from: ``next_offset`` counts what is confirmed."""
    stream_id = await created(lab.to)
    await appended(lab.to, stream_id, b"a", b"b", b"c")
    ids = [m.RangeId(stream_id, 0), m.RangeId(stream_id, 1), m.RangeId(4711, 0)]
    answer = await ask(lab.to, m.DescribeRangesRequest(ranges=ids), m.DescribeRangesResponse)
    assert codes(answer.results) == [ErrorCode.OK, ErrorCode.RANGE_NOT_FOUND, ErrorCode.RANGE_NOT_FOUND]
    known = answer.results[0].range
    assert known is not None
    assert (known.start, known.end, known.next) == (0, -1, 3)


async def test_document_seal_ranges(lab: Lab) -> None:
    """The placement driver's meaning: the answer is the range to write to, and asking again changes nothing."""
    stream_id = await created(lab.to)
    await appended(lab.to, stream_id, b"a", b"b")
    for _ in range(2):
        request = m.SealRangesRequest(ranges=[m.RangeId(stream_id, 0), m.RangeId(stream_id, 7), m.RangeId(4711, 0)])
        answer = await ask(lab.to, request, m.SealRangesResponse)
        opened = answer.results[0].range
        assert opened is not None
        assert (opened.index, opened.start, opened.end, opened.next) == (1, 2, -1, 2)
        assert codes(answer.results[1:]) == [ErrorCode.RANGE_NOT_FOUND, ErrorCode.NOT_FOUND]
    assert (await appended(lab.to, stream_id, b"c")).base_offset == 2
    assert bodies(await fetched(lab.to, stream_id, 0)) == [(0, b"a"), (1, b"b"), (2, b"c")]


async def test_document_seal_ranges_on_the_range_server(document_lab: Lab) -> None:
    """The range server's meaning: the answer is the sealed range, and what comes next is the placement driver's."""
    lab = document_lab
    stream_id = await created(lab.to)
    await appended(lab.to, stream_id, b"a", b"b")
    side: Carrier = InProcessCarrier(RangeServerSide(lab.embedded.document.server))
    if lab.kind == "tcp":
        side = TcpCarrier(*lab.embedded.addresses["sbp-v0.1-range-server"], V01)
    request = m.SealRangesRequest(ranges=[m.RangeId(stream_id, 0), m.RangeId(stream_id, 1)])
    answer = await ask(side, request, m.SealRangesResponse)
    sealed = answer.results[0].range
    assert sealed is not None
    assert (sealed.index, sealed.start, sealed.end, sealed.next) == (0, 0, 2, 2)
    assert sealed.servers == [m.Replica(w.RangeServerInfo(0, lab.address), True)]
    assert answer.results[1].status.code == ErrorCode.RANGE_NOT_FOUND
    assert (await appended(side, stream_id, b"c")).status.code == ErrorCode.RANGE_ALREADY_SEALED
    assert bodies(await fetched(side, stream_id, 0)) == [(0, b"a"), (1, b"b")]
    (opened,) = (await ask(lab.to, m.SealRangesRequest(ranges=[m.RangeId(stream_id, 0)]), m.SealRangesResponse)).results
    assert opened.range is not None
    assert (opened.range.index, opened.range.start) == (1, 2)
    assert (await appended(side, stream_id, b"c")).base_offset == 2
    await side.close()


async def test_document_sync_ranges(lab: Lab) -> None:
    stream_id = await created(lab.to)
    await appended(lab.to, stream_id, b"a")
    known = m.DocumentRange(stream_id, 0)
    items = [m.StreamRanges(stream_id, [known]), m.StreamRanges(stream_id, [m.DocumentRange(stream_id, 9)])]
    items.append(m.StreamRanges(4711, [known]))
    answer = await ask(lab.to, m.SyncRangesRequest(items=items), m.SyncRangesResponse)
    good, absent, unknown = answer.results
    assert (good.stream_id, good.status) == (stream_id, w.Status())
    assert [(one.index, one.start, one.end, one.next) for one in good.ranges] == [(0, 0, -1, 1)]
    assert [absent.status.code, unknown.status.code] == [ErrorCode.RANGE_NOT_FOUND, ErrorCode.NOT_FOUND]


async def test_document_sync_tells_the_range_server(lab: Lab) -> None:
    """Ranges that the placement driver has given the server and it has not heard of, an open one and a sealed one."""
    run = lab.embedded.placement_driver.run
    _, first = await run(lambda tx: rules.create_stream(tx, w.StreamInfo(-1, 1, 1, 0), 0))
    assert first is not None
    stream_id = first.stream_id
    sealed = w.RangeInfo(stream_id, first.epoch, 0, 0, 0)
    assert isinstance(await run(lambda tx: rules.seal_and_next(tx, sealed, 0)), RangeRow)
    _, elsewhere = await run(lambda tx: rules.create_stream(tx, w.StreamInfo(-1, 1, 1, 0), 5))
    assert elsewhere is not None
    held = lab.embedded.store.ranges
    assert not [key for key in held if key[0] in (stream_id, elsewhere.stream_id)]
    # What the request says of the ranges beyond their numbers is not believed.
    told = [m.DocumentRange(stream_id, 0, 7, 9, 9), m.DocumentRange(stream_id, 1, 8)]
    items = [m.StreamRanges(stream_id, told)]
    items.append(m.StreamRanges(elsewhere.stream_id, [m.DocumentRange(elsewhere.stream_id, 0)]))
    answer = await ask(lab.to, m.SyncRangesRequest(items=items), m.SyncRangesResponse)
    good, refused = answer.results
    assert good.status == w.Status()
    assert [(one.index, one.start, one.end, one.next) for one in good.ranges] == [(0, 0, 0, 0), (1, 0, -1, 0)]
    assert refused.status.code == ErrorCode.PRECONDITION_FAILED
    assert {key: (one.start, one.end) for key, one in held.items()} == {(stream_id, 0): (0, 0), (stream_id, 1): (0, -1)}


async def test_document_create_range(document_lab: Lab) -> None:
    lab = document_lab
    stream_id = await created(lab.to)
    for expected in (-1, 0, 1, 7):
        (refused,) = await exchange(lab.to, m.NextRangeRequest(range=m.DocumentRange(stream_id, expected)))
        assert isinstance(refused, m.NextRangeResponse), "no system error: those are for what nobody expects"
        assert (refused.status.code, refused.range) == (ErrorCode.CREATE_RANGE_BEFORE_SEAL, None)
        assert refused.status.message == f"range 0 of stream {stream_id} is still open"
    # A writer of sbp-0.2 that opens a stream seals its range, and makes the next one with its first batch only.
    writer = await lab.embedded.client.open(stream_id, 5)
    await writer.close()
    for wanted, code in (
        (m.DocumentRange(stream_id, 3), ErrorCode.BAD_REQUEST),
        (m.DocumentRange(stream_id, 1, 9), ErrorCode.BAD_REQUEST),
        (m.DocumentRange(4711), ErrorCode.NOT_FOUND),
    ):
        (refused,) = await exchange(lab.to, m.NextRangeRequest(range=wanted))
        assert isinstance(refused, m.NextRangeResponse)
        assert refused.status.code == code
    answer = await ask(lab.to, m.NextRangeRequest(range=m.DocumentRange(stream_id)), m.NextRangeResponse)
    assert answer.range is not None
    assert (answer.range.index, answer.range.start, answer.range.end) == (1, 0, -1)
    assert (await appended(lab.to, stream_id, b"there")).base_offset == 0


# --- append ---------------------------------------------------------------------------------------------------------


async def test_document_append_to_many_streams(lab: Lab) -> None:
    """One frame, several streams and batches, one bad one among them: each has its own result and index."""
    first, second = await created(lab.to), await created(lab.to)
    items = [
        m.AppendItem(first, 10, batch(b"a", b"b")),
        m.AppendItem(second, 11, batch(b"x")),
        m.AppendItem(first, 12, b"not a batch"),
        m.AppendItem(4711, 13, batch(b"nobody")),
        m.AppendItem(first, 14, batch(b"c")),
        m.AppendItem(second, 15, batch(b"y", b"z")),
    ]
    parts = await exchange(lab.to, m.AppendBatchRequest(1000, items))
    results = [one for part in parts if isinstance(part, m.AppendBatchResponse) for one in part.results]
    assert [getattr(part, "last", None) for part in parts] == [False] * (len(parts) - 1) + [True]
    by_index = {one.request_index: one for one in results}
    assert len(results) == len(by_index) == 6
    assert {index: one.stream_id for index, one in by_index.items()} == {
        10: first,
        11: second,
        12: first,
        13: 4711,
        14: first,
        15: second,
    }
    assert {index: one.base_offset for index, one in by_index.items() if one.status == w.Status()} == {
        10: 0,
        11: 0,
        14: 2,
        15: 1,
    }
    assert by_index[12].status.code == ErrorCode.BAD_REQUEST
    assert by_index[13].status.code == ErrorCode.NOT_FOUND
    assert all(one.append_time_ms > 1_700_000_000_000 for one in results if one.status == w.Status())
    assert bodies(await fetched(lab.to, first, 0)) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert bodies(await fetched(lab.to, second, 0)) == [(0, b"x"), (1, b"y"), (2, b"z")]


async def test_document_append_of_nothing(lab: Lab) -> None:
    answer = await ask(lab.to, m.AppendBatchRequest(), m.AppendBatchResponse)
    assert answer.results == []


async def test_document_batches_are_kept_as_they_came(lab: Lab) -> None:
    """But for the eight bytes of the base offset (docs/protocols/sbp.md, "Record batches of the document")."""
    stream_id = await created(lab.to)
    await appended(lab.to, stream_id, b"before")
    sent = batch(b"a", b"b", stream_id=99, flags=7, properties=[("k", "v")])
    items = [m.AppendItem(stream_id, 0, bytes(sent))]
    await exchange(lab.to, m.AppendBatchRequest(0, items))
    result = await fetched(lab.to, stream_id, 1)
    data = b"".join(bytes(part) for part in result.parts)
    assert data == bytes(sent[:1]) + (1).to_bytes(8, "big") + bytes(sent[9:])
    assert bytes(items[0].batch) == bytes(sent), "the caller's bytes are not touched"


async def test_document_concurrent_appenders(lab: Lab) -> None:
    """Several clients, one stream, no coordination: every record gets an offset of its own, in each client's order."""
    stream_id = await created(lab.to)
    clients = [lab.to, *(carrier(lab.embedded, lab.kind) for _ in range(3))]
    given: dict[int, bytes] = {}

    async def append_all(number: int, to: Carrier) -> list[int]:
        async def one(k: int) -> int:
            result = await appended(to, stream_id, b"%d/%d/0" % (number, k), b"%d/%d/1" % (number, k))
            assert result.status == w.Status()
            for delta in range(2):
                given[result.base_offset + delta] = b"%d/%d/%d" % (number, k, delta)
            return result.base_offset

        return list(await asyncio.gather(*(one(k) for k in range(50))))

    orders = await asyncio.gather(*(append_all(number, to) for number, to in enumerate(clients)))
    assert all(order == sorted(order) for order in orders)
    assert sorted(given) == list(range(400))
    found: list[tuple[int, bytes]] = []
    while len(found) < 400:
        result = await fetched(lab.to, stream_id, len(found), max_bytes=5000)
        assert result.parts
        found += bodies(result)
    assert dict(found) == given
    for to in clients[1:]:
        await to.close()


async def test_document_first_appends_wait_for_the_range(lab: Lab) -> None:
    """Appends to a stream whose range the server has to find first keep their order."""
    stream = await lab.embedded.client.create_stream()
    results = await asyncio.gather(*(appended(lab.to, stream.stream_id, b"%d" % k) for k in range(20)))
    assert [one.base_offset for one in results] == list(range(20))
    assert bodies(await fetched(lab.to, stream.stream_id, 0)) == [(k, b"%d" % k) for k in range(20)]


# --- fetch ----------------------------------------------------------------------------------------------------------


async def test_document_fetch(lab: Lab) -> None:
    stream_id = await created(lab.to)
    for k in range(10):
        await appended(lab.to, stream_id, b"%d-a" % k, b"%d-b" % k)
    result = await fetched(lab.to, stream_id, 5)
    # Whole batches, from the one that contains the offset.
    assert [offset for offset, _ in bodies(result)] == list(range(4, 20))
    assert (await fetched(lab.to, stream_id, 20)).parts == []
    assert (await fetched(lab.to, stream_id, 20)).status.code in (ErrorCode.OK, ErrorCode.NO_NEW_RECORD)
    assert (await fetched(lab.to, stream_id, 21)).status.code == ErrorCode.OFFSET_OVERFLOW
    assert (await fetched(lab.to, 4711, 0)).status.code == ErrorCode.NOT_FOUND


async def test_document_fetch_bounds_its_batches(lab: Lab) -> None:
    """At least one batch, about as many as ``batch_max_bytes`` says."""
    stream_id = await created(lab.to)
    for _ in range(10):
        await appended(lab.to, stream_id, bytes(1000))
    one = await fetched(lab.to, stream_id, 0, max_bytes=1)
    some = await fetched(lab.to, stream_id, 0, max_bytes=5000)
    assert len(bodies(one)) == 1
    assert 1 < len(bodies(some)) < 6
    assert len(bodies(await fetched(lab.to, stream_id, 0, max_bytes=0))) == 10
    assert sum(count_records(part) for part in some.parts if lab.kind == "in-process") in (0, len(bodies(some)))


async def test_document_fetch_over_ranges(lab: Lab) -> None:
    stream_id = await created(lab.to)
    for index in range(4):
        await appended(lab.to, stream_id, b"%d" % index)
        await ask(lab.to, m.SealRangesRequest(ranges=[m.RangeId(stream_id, index)]), m.SealRangesResponse)
    assert bodies(await fetched(lab.to, stream_id, 0)) == [(k, b"%d" % k) for k in range(4)]


async def test_document_fetch_waits_for_data(lab: Lab) -> None:
    stream_id = await created(lab.to)
    waiting = asyncio.ensure_future(fetched(lab.to, stream_id, 0, max_wait_ms=60_000))
    await until(lambda: lab.embedded.range_server.waiting_fetches > 0)
    await appended(lab.to, stream_id, b"at last")
    assert bodies(await waiting) == [(0, b"at last")]


async def test_document_fetch_waits_no_longer_than_it_may(lab: Lab) -> None:
    stream_id = await created(lab.to)
    result = await fetched(lab.to, stream_id, 0, max_wait_ms=20)
    assert (result.parts, result.status.code in (ErrorCode.OK, ErrorCode.NO_NEW_RECORD)) == ([], True)


async def test_document_fetch_waits_for_min_bytes(lab: Lab) -> None:
    stream_id = await created(lab.to)
    await appended(lab.to, stream_id, bytes(100))
    waiting = asyncio.ensure_future(fetched(lab.to, stream_id, 0, max_wait_ms=60_000, min_bytes=2000))
    await until(lambda: lab.embedded.range_server.waiting_fetches > 0)
    assert not waiting.done()
    await appended(lab.to, stream_id, bytes(3000))
    assert [len(body) for _, body in bodies(await waiting)] == [100, 3000]


async def test_document_fetch_waits_beyond_a_sealed_range(lab: Lab) -> None:
    stream_id = await created(lab.to)
    await appended(lab.to, stream_id, b"a")
    waiting = asyncio.ensure_future(fetched(lab.to, stream_id, 1, max_wait_ms=60_000))
    await until(lambda: lab.embedded.range_server.waiting_fetches > 0)
    await ask(lab.to, m.SealRangesRequest(ranges=[m.RangeId(stream_id, 0)]), m.SealRangesResponse)
    await appended(lab.to, stream_id, b"b")
    assert bodies(await waiting) == [(1, b"b")]


async def test_document_fetch_answers_each_stream_as_data_arrives(lab: Lab) -> None:
    """Several frames for one request; only the last one ends it."""
    streams = [await created(lab.to) for _ in range(4)]
    await appended(lab.to, streams[2], b"there already")
    parts: list[m.FetchBatchResponse] = []
    items = [m.FetchItem(stream_id, 100 + k, 0, 0) for k, stream_id in enumerate(streams)]
    ended = asyncio.get_running_loop().create_future()

    def reply(answer: object) -> None:
        assert isinstance(answer, m.FetchBatchResponse)
        parts.append(answer)
        if answer.last:
            ended.set_result(None)

    lab.to.submit(m.FetchBatchRequest(60_000, 0, [*items, m.FetchItem(4711, 104, 0, 0)]), reply, 60.0)

    def indexes() -> list[int]:
        return [result.request_index for part in parts for result in part.results]

    await until(lambda: sorted(indexes()) == [102, 104])
    for k in (1, 3, 0):
        await appended(lab.to, streams[k], b"stream %d" % k)
        await until(lambda k=k: 100 + k in indexes())  # type: ignore[misc]
    await ended
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert indexes()[2:] == [101, 103, 100]
    results = {result.request_index: result for part in parts for result in part.results}
    assert results[104].status.code == ErrorCode.NOT_FOUND
    assert {k: bodies(results[100 + k]) for k in range(4)} == {
        0: [(0, b"stream 0")],
        1: [(0, b"stream 1")],
        2: [(0, b"there already")],
        3: [(0, b"stream 3")],
    }


async def test_document_fetch_of_nothing(lab: Lab) -> None:
    answer = await ask(lab.to, m.FetchBatchRequest(60_000), m.FetchBatchResponse)
    assert answer.results == []


async def test_document_fetch_of_more_than_a_frame(lab: Lab) -> None:
    """Results that do not fit one frame come in several."""
    streams = [await created(lab.to) for _ in range(3)]
    body = bytes(250_000)
    for stream_id in streams:
        batches = [m.AppendItem(stream_id, k, batch(body)) for k in range(30)]
        for part in await exchange(lab.to, m.AppendBatchRequest(0, batches)):
            assert isinstance(part, m.AppendBatchResponse)
            assert all(result.status == w.Status() for result in part.results)
    items = [m.FetchItem(stream_id, k, 0, 8 << 20) for k, stream_id in enumerate(streams)]
    parts = await exchange(lab.to, m.FetchBatchRequest(0, 0, items))
    assert len(parts) > 1
    results = [one for part in parts if isinstance(part, m.FetchBatchResponse) for one in part.results]
    assert sorted(one.request_index for one in results) == [0, 1, 2]
    assert [[offset for offset, _ in bodies(one)] for one in results] == [list(range(30))] * 3


@pytest.mark.parametrize("kind", ["in-process", "tcp", "april"])
async def test_document_fetch_over_ranges_of_more_than_a_frame(tmp_path: Path, kind: str) -> None:
    """At least one batch of each range, however long, would be more than a frame: what does not fit comes next."""
    async with running(tmp_path, store=StoreOptions(segment_bytes=64 << 20, low_water_bytes=0)) as embedded:
        to = carrier(embedded, kind)
        stream_id = await created(to)
        bodies_of = [bytes(500_000), bytes(300_000), bytes((16 << 20) - (128 << 10)), bytes(10)]
        for index, body in enumerate(bodies_of):
            assert (await appended(to, stream_id, body)).base_offset == index
            await ask(to, m.SealRangesRequest(ranges=[m.RangeId(stream_id, index)]), m.SealRangesResponse)
        sizes: list[int] = []
        while len(sizes) < len(bodies_of):
            found = bodies(await fetched(to, stream_id, len(sizes)))
            assert [offset for offset, _ in found][:1] == [len(sizes)]
            sizes += [len(body) for _, body in found]
        assert sizes == [len(body) for body in bodies_of]
        await to.close()


async def test_document_append_with_more_results_than_a_frame_holds(lab: Lab) -> None:
    items = [m.AppendItem(4711, k, b"") for k in range(20_000)]
    parts = await exchange(lab.to, m.AppendBatchRequest(0, items))
    assert [getattr(part, "last", None) for part in parts] == [False] * (len(parts) - 1) + [True]
    results = [one for part in parts if isinstance(part, m.AppendBatchResponse) for one in part.results]
    assert sorted(one.request_index for one in results) == list(range(20_000))
    assert {one.status.code for one in results} == {ErrorCode.BAD_REQUEST}


async def test_document_append_of_too_much(tmp_path: Path) -> None:
    """Inside the process no frame bounds a batch."""
    async with lab_of(tmp_path, "in-process") as lab:
        stream_id = await created(lab.to)
        result = await appended(lab.to, stream_id, bytes(17 << 20))
        assert result.status.code == ErrorCode.PAYLOAD_TOO_LARGE
        assert (await appended(lab.to, stream_id, b"small")).base_offset == 0
