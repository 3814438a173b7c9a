"""A range server that was away learns what the placement driver decided meanwhile; and it reports to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sbp_back.errors import ConnectionLost, SbpError
from sbp_back.placement_driver.driver import PlacementDriver
from sbp_back.placement_driver.sqlite import SqliteState
from sbp_back.range_server.ranges import RangeState, RangeTable
from sbp_back.range_server.reconcile import Reconciled, reconcile
from sbp_back.range_server.reporter import Reporter
from sbp_back.range_server.store.index import StoredRange
from sbp_back.transport.carrier import InProcessCarrier
from sbp_back.transport.handler import Reply
from sbp_back.wire.model import (
    ClientRole,
    CreateRangeRequest,
    CreateStreamRequest,
    DeleteStreamRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    ListRangeRequest,
    RangeInfo,
    RangeResponse,
    RangeServerInfo,
    RangeServerMetrics,
    ReportMetricsRequest,
    ReportMetricsResponse,
    Request,
    Response,
    SealKind,
    SealRangeRequest,
    StreamInfo,
    StreamResponse,
    TrimStreamRequest,
)


@pytest.fixture
async def pd(tmp_path: Path) -> AsyncIterator[InProcessCarrier]:
    driver = PlacementDriver(SqliteState(tmp_path / "pd.sqlite", asyncio.get_running_loop()))
    carrier = InProcessCarrier(driver)
    await carrier.call(HeartbeatRequest("rs", ClientRole.RANGE_SERVER, RangeServerInfo(0, "rs:1")))
    yield carrier
    await driver.close()


async def new_stream(pd: InProcessCarrier, *ends: int) -> int:
    """A stream at the placement driver with sealed ranges that end at ``ends``, and an open one."""
    created: Any = await pd.call(CreateStreamRequest(StreamInfo()))
    stream_id: int = created.stream.stream_id
    start = 0
    for index, end in enumerate([*ends, -1]):
        assert (await pd.call(CreateRangeRequest(RangeInfo(stream_id, 1, index, start)))).status.ok
        if end >= 0:
            sealed = RangeInfo(stream_id, 1, index, start, end)
            assert (await pd.call(SealRangeRequest(sealed, SealKind.PLACEMENT_DRIVER))).status.ok
            start = end
    return stream_id


class Local:
    """What a server has, and what reconciliation asks of it."""

    def __init__(self) -> None:
        self.table = RangeTable()
        self.asked: list[Request] = []

    def add(self, stream_id: int, index: int, start: int, next_offset: int, end: int = -1) -> StoredRange:
        stored = StoredRange(stream_id, index, 1, start, 0)
        stored.next_offset = next_offset
        stored.end = end
        self.table.add(RangeState(stored))
        return stored

    async def call(self, request: Request) -> Response:
        self.asked.append(request)
        return RangeResponse() if isinstance(request, SealRangeRequest) else StreamResponse()


async def test_nothing_to_do(pd: InProcessCarrier) -> None:
    local = Local()
    stream_id = await new_stream(pd, 10)
    local.add(stream_id, 0, 0, 10, 10)
    local.add(stream_id, 1, 10, 15)
    assert await reconcile(local.table, pd, local.call) == Reconciled()
    assert local.asked == []


async def test_deleted_trimmed_sealed_and_unknown_streams(pd: InProcessCarrier) -> None:
    local = Local()
    deleted = await new_stream(pd, 10)
    trimmed = await new_stream(pd, 10, 20)
    sealed = await new_stream(pd, 7)
    unknown = 1000
    local.add(deleted, 0, 0, 10, 10)
    local.add(trimmed, 0, 0, 10, 10)
    local.add(trimmed, 1, 10, 20, 20)
    local.add(trimmed, 2, 20, 25)
    local.add(sealed, 0, 0, 9)  # it never heard of the seal, and has more than counts
    local.add(unknown, 0, 0, 50)
    await pd.call(DeleteStreamRequest(deleted))
    await pd.call(TrimStreamRequest(trimmed, 13))
    assert await reconcile(local.table, pd, local.call) == Reconciled(deleted=1, trimmed=1, sealed=1, unknown=1)
    assert DeleteStreamRequest(deleted) in local.asked
    assert TrimStreamRequest(trimmed, 13) in local.asked
    seals = [request.range for request in local.asked if isinstance(request, SealRangeRequest)]
    assert [(r.stream_id, r.index, r.end) for r in seals] == [(sealed, 0, 7)]
    assert len(local.asked) == 3, "what the placement driver never knew is left alone"


async def test_a_stream_trimmed_to_where_this_server_has_nothing(pd: InProcessCarrier) -> None:
    local = Local()
    stream_id = await new_stream(pd, 10, 20)
    local.add(stream_id, 0, 0, 10, 10)
    await pd.call(TrimStreamRequest(stream_id, 15))
    assert (await reconcile(local.table, pd, local.call)).trimmed == 1
    assert local.asked == [TrimStreamRequest(stream_id, 15)]


async def test_an_end_that_the_placement_driver_has_given_holds_whatever_epoch_went_on_here(
    pd: InProcessCarrier,
) -> None:
    """A later writer sealed the range here and never got to the placement driver, where an earlier one was first."""
    local = Local()
    stream_id = await new_stream(pd, 10)
    local.add(stream_id, 0, 0, 12, 12).epoch = 5
    assert (await reconcile(local.table, pd, local.call)).sealed == 1
    (asked,) = local.asked
    assert isinstance(asked, SealRangeRequest)
    assert (asked.kind, asked.range.end) == (SealKind.PLACEMENT_DRIVER, 10), "which no epoch overrules"


async def test_many_streams_and_a_placement_driver_that_goes_away(pd: InProcessCarrier) -> None:
    local = Local()
    for _ in range(200):
        local.add(await new_stream(pd), 0, 0, 1)

    class Failing:
        calls = 0

        async def call(self, request: Request, timeout: float | None = None) -> Response:
            Failing.calls += 1
            if Failing.calls > 100:
                raise ConnectionLost("gone")
            return await pd.call(request)

        def submit(self, *_arguments: object) -> None:
            raise NotImplementedError

        async def close(self) -> None:
            pass

    with pytest.raises(SbpError, match="gone"):
        await reconcile(local.table, Failing(), local.call)
    assert await reconcile(local.table, pd, local.call) == Reconciled()


class Listening:
    """A placement driver that only listens; ``mute`` makes it unreachable."""

    def __init__(self) -> None:
        self.mute = False
        self.heard: asyncio.Queue[Request] = asyncio.Queue()

    def handle(self, request: Request, reply: Reply) -> None:
        self.heard.put_nowait(request)
        if isinstance(request, ReportMetricsRequest):
            reply(ReportMetricsResponse(request.range_server))
        else:
            reply(HeartbeatResponse())

    def submit(
        self, request: Request, reply: Callable[[Response | ConnectionLost], None], timeout: float | None = None
    ) -> None:
        self.heard.put_nowait(request)
        reply(ConnectionLost("unreachable") if self.mute else HeartbeatResponse())

    async def call(self, request: Request, timeout: float | None = None) -> Response:
        if self.mute:
            raise ConnectionLost("unreachable")
        return await InProcessCarrier(self).call(request)

    async def close(self) -> None:
        pass


async def test_reports_go_on_and_changes_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "sbp_back.range_server.reporter")
    pd = Listening()
    asked: list[float] = []

    def metrics(seconds: float) -> RangeServerMetrics:
        asked.append(seconds)
        return RangeServerMetrics(disk_free_space=1)

    reporter = Reporter(pd, RangeServerInfo(3, "rs:1"), metrics, 0.001, asyncio.get_running_loop())
    assert await reporter.announce()
    first, second = await pd.heard.get(), await pd.heard.get()
    assert isinstance(first, HeartbeatRequest)
    assert (first.role, first.range_server) == (ClientRole.RANGE_SERVER, RangeServerInfo(3, "rs:1"))
    assert second == ReportMetricsRequest(RangeServerInfo(3, "rs:1"), RangeServerMetrics(disk_free_space=1))
    pd.mute = True
    for _ in range(6):
        await pd.heard.get()
    pd.mute = False
    for _ in range(6):
        await pd.heard.get()
    reporter.stop()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert all(seconds >= 0 for seconds in asked)


async def test_a_placement_driver_that_is_not_there_yet() -> None:
    pd = Listening()
    pd.mute = True
    reporter = Reporter(pd, RangeServerInfo(3, ""), lambda _: RangeServerMetrics(), 0.001, asyncio.get_running_loop())
    assert not await reporter.announce()
    pd.mute = False
    assert isinstance(await pd.heard.get(), HeartbeatRequest)
    reporter.stop()


async def test_list_by_stream_shows_where_the_stream_starts(pd: InProcessCarrier) -> None:
    """What reconciliation rests on: the first range listed starts where the stream does."""
    stream_id = await new_stream(pd, 10, 20)
    await pd.call(TrimStreamRequest(stream_id, 13))
    listed: Any = await pd.call(ListRangeRequest(stream_id=stream_id))
    assert [(r.index, r.start) for r in listed.ranges] == [(1, 13), (2, 20)]
