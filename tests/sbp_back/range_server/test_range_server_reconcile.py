"""A range server that was away learns what the placement driver decided meanwhile; and it reports to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sbp_back.errors import ConnectionLost, SbpError
from sbp_back.placement_driver.driver import PlacementDriver
from sbp_back.range_server.ranges import RangeState, RangeTable
from sbp_back.range_server.reconcile import Reconciled, reconcile
from sbp_back.range_server.reporter import Reporter
from sbp_back.range_server.store.index import StoredRange
from sbp_back.transport.carrier import InProcessCarrier
from sbp_back.transport.handler import Reply
from sbp_back.wire import model as m
from tests.databases import pd_state

SERVER = 0


@pytest.fixture
async def pd(tmp_path: Path) -> AsyncIterator[InProcessCarrier]:
    driver = PlacementDriver(pd_state(tmp_path / "pd.sqlite", asyncio.get_running_loop()))
    carrier = InProcessCarrier(driver)
    await carrier.call(m.HeartbeatRequest("rs", m.ClientRole.RANGE_SERVER, m.RangeServerInfo(SERVER, "rs:1")))
    yield carrier
    await driver.close()


async def new_stream(pd: InProcessCarrier, *ends: int) -> int:
    """A stream at the placement driver with sealed ranges that end at ``ends``, and an open one."""
    created: Any = await pd.call(m.CreateStreamRequest(m.StreamInfo()))
    stream_id: int = created.stream.stream_id
    start = 0
    for index, end in enumerate([*ends, -1]):
        assert (await pd.call(m.CreateRangeRequest(m.RangeInfo(stream_id, 1, index, start)))).status.ok
        if end >= 0:
            sealed = m.RangeInfo(stream_id, 1, index, start, end)
            assert (await pd.call(m.SealRangeRequest(sealed, m.SealKind.PLACEMENT_DRIVER))).status.ok
            start = end
    return stream_id


class Local:
    """What a server has, and what reconciliation asks of it."""

    def __init__(self) -> None:
        self.table = RangeTable()
        self.asked: list[m.Request] = []

    def add(self, stream_id: int, index: int, start: int, next_offset: int, end: int = -1) -> StoredRange:
        stored = StoredRange(stream_id, index, 1, start, 0)
        stored.next_offset = next_offset
        stored.end = end
        self.table.add(RangeState(stored))
        return stored

    async def call(self, request: m.Request) -> m.Response:
        self.asked.append(request)
        return m.RangeResponse() if isinstance(request, m.SealRangeRequest) else m.StreamResponse()


async def test_nothing_to_do(pd: InProcessCarrier) -> None:
    local = Local()
    stream_id = await new_stream(pd, 10)
    local.add(stream_id, 0, 0, 10, 10)
    local.add(stream_id, 1, 10, 15)
    assert await reconcile(local.table, SERVER, pd, local.call) == Reconciled()
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
    await pd.call(m.DeleteStreamRequest(deleted))
    await pd.call(m.TrimStreamRequest(trimmed, 13))
    assert await reconcile(local.table, SERVER, pd, local.call) == Reconciled(deleted=1, trimmed=1, sealed=1, unknown=1)
    assert m.DeleteStreamRequest(deleted) in local.asked
    assert m.TrimStreamRequest(trimmed, 13) in local.asked
    seals = [request.range for request in local.asked if isinstance(request, m.SealRangeRequest)]
    assert [(r.stream_id, r.index, r.end) for r in seals] == [(sealed, 0, 7)]
    assert len(local.asked) == 3, "what the placement driver never knew is left alone"


async def test_a_stream_trimmed_to_where_this_server_has_nothing(pd: InProcessCarrier) -> None:
    local = Local()
    stream_id = await new_stream(pd, 10, 20)
    local.add(stream_id, 0, 0, 10, 10)
    await pd.call(m.TrimStreamRequest(stream_id, 15))
    assert (await reconcile(local.table, SERVER, pd, local.call)).trimmed == 1
    assert local.asked[-1] == m.TrimStreamRequest(stream_id, 15)


async def test_a_range_that_ended_here_and_that_the_log_has_lost_is_made_again_without_anything(
    pd: InProcessCarrier, caplog: pytest.LogCaptureFixture
) -> None:
    """Or its readers would be told that it is not there, by a server that must have it."""
    local = Local()
    stream_id = await new_stream(pd, 10, 20)
    local.add(stream_id, 0, 0, 7, 7)
    assert (await reconcile(local.table, SERVER, pd, local.call)).sealed == 1
    assert [(r.range.index, r.range.start, r.range.end) for r in local.asked if isinstance(r, m.SealRangeRequest)] == [
        (1, 10, 20)
    ]
    assert "offsets 7 to 9 of stream" in caplog.text
    local.asked.clear()
    assert (await reconcile(local.table, SERVER + 1, pd, local.call)).sealed == 0, "ranges of other servers are theirs"


async def test_ranges_that_were_trimmed_away_here_are_not_made_again(pd: InProcessCarrier) -> None:
    local = Local()
    stream_id = await new_stream(pd, 10, 20)
    local.add(stream_id, 1, 10, 20, 20)
    assert await reconcile(local.table, SERVER, pd, local.call) == Reconciled()


async def test_an_end_that_the_placement_driver_has_given_holds_whatever_epoch_went_on_here(
    pd: InProcessCarrier,
) -> None:
    """A later writer sealed the range here and never got to the placement driver, where an earlier one was first."""
    local = Local()
    stream_id = await new_stream(pd, 10)
    local.add(stream_id, 0, 0, 12, 12).epoch = 5
    assert (await reconcile(local.table, SERVER, pd, local.call)).sealed == 1
    (asked,) = local.asked
    assert isinstance(asked, m.SealRangeRequest)
    assert (asked.kind, asked.range.end) == (m.SealKind.PLACEMENT_DRIVER, 10), "which no epoch overrules"


async def test_many_streams_and_a_placement_driver_that_goes_away(pd: InProcessCarrier) -> None:
    local = Local()
    for _ in range(200):
        local.add(await new_stream(pd), 0, 0, 1)

    class Failing:
        calls = 0

        async def call(self, request: m.Request, timeout: float | None = None) -> m.Response:
            Failing.calls += 1
            if Failing.calls > 100:
                raise ConnectionLost("gone")
            return await pd.call(request)

        def submit(self, *_arguments: object) -> None:
            raise NotImplementedError

        async def close(self) -> None:
            pass

    with pytest.raises(SbpError, match="gone"):
        await reconcile(local.table, SERVER, Failing(), local.call)
    assert await reconcile(local.table, SERVER, pd, local.call) == Reconciled()


class Listening:
    """A placement driver that only listens; ``mute`` makes it unreachable."""

    def __init__(self) -> None:
        self.mute = False
        self.heard: asyncio.Queue[m.Request] = asyncio.Queue()

    def handle(self, request: m.Request, reply: Reply) -> None:
        self.heard.put_nowait(request)
        if isinstance(request, m.ReportMetricsRequest):
            reply(m.ReportMetricsResponse(request.range_server))
        else:
            reply(m.HeartbeatResponse())

    def submit(
        self, request: m.Request, reply: Callable[[m.Response | ConnectionLost], None], timeout: float | None = None
    ) -> None:
        self.heard.put_nowait(request)
        reply(ConnectionLost("unreachable") if self.mute else m.HeartbeatResponse())

    async def call(self, request: m.Request, timeout: float | None = None) -> m.Response:
        if self.mute:
            raise ConnectionLost("unreachable")
        return await InProcessCarrier(self).call(request)

    async def close(self) -> None:
        pass


async def test_reports_go_on_and_changes_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "sbp_back.range_server.reporter")
    pd = Listening()
    asked: list[float] = []

    def metrics(seconds: float) -> m.RangeServerMetrics:
        asked.append(seconds)
        return m.RangeServerMetrics(disk_free_space=1)

    reporter = Reporter(pd, m.RangeServerInfo(3, "rs:1"), metrics, 0.001, asyncio.get_running_loop())
    assert await reporter.announce()
    first, second = await pd.heard.get(), await pd.heard.get()
    assert isinstance(first, m.HeartbeatRequest)
    assert (first.role, first.range_server) == (m.ClientRole.RANGE_SERVER, m.RangeServerInfo(3, "rs:1"))
    assert second == m.ReportMetricsRequest(m.RangeServerInfo(3, "rs:1"), m.RangeServerMetrics(disk_free_space=1))
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
    reporter = Reporter(
        pd, m.RangeServerInfo(3, ""), lambda _: m.RangeServerMetrics(), 0.001, asyncio.get_running_loop()
    )
    assert not await reporter.announce()
    pd.mute = False
    assert isinstance(await pd.heard.get(), m.HeartbeatRequest)
    reporter.stop()


async def test_list_by_stream_shows_where_the_stream_starts(pd: InProcessCarrier) -> None:
    """What reconciliation rests on: the first range listed starts where the stream does."""
    stream_id = await new_stream(pd, 10, 20)
    await pd.call(m.TrimStreamRequest(stream_id, 13))
    listed: Any = await pd.call(m.ListRangeRequest(stream_id=stream_id))
    assert [(r.index, r.start) for r in listed.ranges] == [(1, 13), (2, 20)]
