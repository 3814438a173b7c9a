"""The placement driver: every check and its code, in order; ids; restarts; choice of servers; deletions."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_kit.run.barrier import Barrier
from anabranch_kit.sql.connection import Connection, Cursor
from anabranch_kit.sql.engine import Job, Refuse
from anabranch_kit.sql.sqlite import SqliteEngine
from sbp_back.errors import ConnectionLost, ErrorCode, SbpError
from sbp_back.placement_driver import rules
from sbp_back.placement_driver.driver import PlacementDriver, PlacementDriverOptions
from sbp_back.placement_driver.rules import SERVER_IDS
from sbp_back.placement_driver.servers import Servers, score
from sbp_back.placement_driver.state import (
    RangeRow,
    Seen,
    StateError,
    StateVersionError,
    StreamRow,
    Transaction,
)
from sbp_back.transport.carrier import AnswerTo
from sbp_back.wire import model as m
from tests.databases import on_each_engine, pd_state
from tests.kit.clock import Clock


class Bench:
    """A placement driver on a file, that can be restarted."""

    def __init__(self, path: Path, **arguments: Any) -> None:
        self.path = path
        self.clock = Clock()
        self.barrier = Barrier()
        self.arguments = arguments
        self.start()

    def start(self) -> None:
        self.state = state = pd_state(self.path, asyncio.get_running_loop())
        self.pd = PlacementDriver(
            state,
            PlacementDriverOptions(name="pd", advertise_addr="pd:1"),
            clock=self.clock,
            rng=random.Random(7),
            barrier=self.barrier,
            **self.arguments,
        )

    async def restart(self) -> None:
        await self.pd.close()
        self.start()

    async def call(self, request: m.Request) -> Any:
        future: asyncio.Future[m.Response] = asyncio.get_running_loop().create_future()
        self.pd.handle(request, future.set_result)
        return await future

    async def servers(self, count: int) -> None:
        for server_id in range(count):
            await self.heartbeat(server_id)

    async def heartbeat(self, server_id: int) -> Any:
        info = m.RangeServerInfo(server_id, f"rs{server_id}:1")
        return await self.call(m.HeartbeatRequest("rs", m.ClientRole.RANGE_SERVER, info))

    async def stream(self, replica: int = 1, ack_count: int = 1) -> int:
        response = await self.call(m.CreateStreamRequest(m.StreamInfo(-1, replica, ack_count, 0)))
        assert response.status.ok
        return int(response.stream.stream_id)

    async def create(self, stream_id: int, epoch: int, index: int, start: int) -> Any:
        return await self.call(m.CreateRangeRequest(m.RangeInfo(stream_id, epoch, index, start)))

    async def seal(
        self, stream_id: int, epoch: int, index: int, end: int, kind: int = m.SealKind.PLACEMENT_DRIVER
    ) -> Any:
        return await self.call(m.SealRangeRequest(m.RangeInfo(stream_id, epoch, index, -1, end), kind))

    async def state_of(self, look: Callable[[Transaction], Any]) -> Any:
        return await self.pd.run(look)

    async def ranges(self, stream_id: int = -1, server_id: int = -1) -> list[m.RangeInfo]:
        response = await self.call(m.ListRangeRequest(server_id=server_id, stream_id=stream_id))
        assert response.status.ok
        return list(response.ranges)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path / "pd.sqlite")
    yield bench
    await bench.pd.close()


@on_each_engine
async def test_stream_ids_count_from_zero_and_are_never_given_again(bench: Bench) -> None:
    assert [await bench.stream() for _ in range(3)] == [0, 1, 2]
    await bench.call(m.DeleteStreamRequest(2))
    await bench.restart()
    assert await bench.stream() == 3


@on_each_engine
async def test_server_ids_are_never_given_again(bench: Bench) -> None:
    assert [(await bench.call(m.AllocateIdRequest())).id for _ in range(2)] == [0, 1]
    await bench.restart()
    assert (await bench.call(m.AllocateIdRequest())).id == 2
    await bench.heartbeat(9)  # somebody configured an id by hand
    assert (await bench.call(m.AllocateIdRequest())).id == 10


async def test_no_server_can_use_up_the_ids(bench: Bench) -> None:
    """The largest numbers a frame can hold are no ids, or the next one would fit no frame."""
    for server_id in (SERVER_IDS, (1 << 31) - 1):
        info = m.RangeServerInfo(server_id, "rs:1")
        for request in (m.HeartbeatRequest("rs", m.ClientRole.RANGE_SERVER, info), m.ReportMetricsRequest(info)):
            assert (await bench.call(request)).status.code == ErrorCode.BAD_REQUEST
    assert bench.pd.servers.alive() == []
    assert (await bench.call(m.AllocateIdRequest())).id == 0
    await bench.heartbeat(SERVER_IDS - 1)
    assert (await bench.call(m.AllocateIdRequest())).status.code == ErrorCode.PD_INTERNAL_SERVER_ERROR


@pytest.mark.parametrize(
    ("replica", "ack_count", "retention"), [(0, 0, 0), (1, 0, 0), (1, 2, 0), (128, 1, 0), (-1, -1, 0), (1, 1, -5)]
)
async def test_replication_is_validated(bench: Bench, replica: int, ack_count: int, retention: int) -> None:
    response = await bench.call(m.CreateStreamRequest(m.StreamInfo(-1, replica, ack_count, retention)))
    assert response.status.code == ErrorCode.BAD_REQUEST
    stream_id = await bench.stream()
    assert stream_id == 0, "a refused creation takes no id"
    response = await bench.call(m.UpdateStreamRequest(m.StreamInfo(stream_id, replica, ack_count, retention)))
    assert response.status.code == ErrorCode.BAD_REQUEST


async def test_update_and_describe(bench: Bench) -> None:
    stream_id = await bench.stream()
    wanted = m.StreamInfo(stream_id, 3, 2, 1000)
    assert (await bench.call(m.UpdateStreamRequest(wanted))).stream == wanted
    await bench.restart()
    assert (await bench.call(m.DescribeStreamRequest(stream_id))).stream == wanted
    response = await bench.call(m.UpdateStreamRequest(m.StreamInfo(77, 1, 1, 0)))
    assert response.status.code == ErrorCode.NOT_FOUND


@on_each_engine
async def test_a_deleted_stream_is_told_from_one_never_known(bench: Bench) -> None:
    stream_id = await bench.stream()
    await bench.servers(1)
    await bench.create(stream_id, 1, 0, 0)
    assert (await bench.call(m.DeleteStreamRequest(stream_id))).stream.stream_id == stream_id
    await bench.restart()
    for request in (
        m.DescribeStreamRequest(stream_id),
        m.DeleteStreamRequest(stream_id),
        m.UpdateStreamRequest(m.StreamInfo(stream_id)),
        m.TrimStreamRequest(stream_id, 0),
        m.CreateRangeRequest(m.RangeInfo(stream_id, 5, 1, 0)),
    ):
        response = await bench.call(request)
        assert (response.status.code, response.status.detail) == (ErrorCode.NOT_FOUND, m.DELETED_DETAIL)
    never = await bench.call(m.DescribeStreamRequest(stream_id + 1))
    assert (never.status.code, never.status.detail) == (ErrorCode.NOT_FOUND, b"")
    assert await bench.ranges(stream_id) == []
    assert await bench.ranges(server_id=0) == []


@on_each_engine
async def test_create_range_checks_in_order(bench: Bench) -> None:
    # Each request breaks every rule from the checked one on, so the order of the checks shows.
    assert (await bench.create(5, -9, 9, 9)).status.code == ErrorCode.NOT_FOUND
    stream_id = await bench.stream()
    assert (await bench.create(stream_id, 3, 1, 9)).status.code == ErrorCode.BAD_REQUEST
    assert (await bench.create(stream_id, 3, 0, 9)).status.code == ErrorCode.BAD_REQUEST
    assert (await bench.create(stream_id, 3, 0, 0)).status.code == ErrorCode.PD_NO_AVAILABLE_RS
    await bench.servers(1)
    created = await bench.create(stream_id, 3, 0, 0)
    assert created.range == m.RangeInfo(stream_id, 3, 0, 0, -1, [m.RangeServerInfo(0, "rs0:1")], 1, 1)
    assert (await bench.create(stream_id, 1, 9, 9)).status.code == ErrorCode.CREATE_RANGE_BEFORE_SEAL
    assert (await bench.seal(stream_id, 4, 0, 10)).status.ok
    assert (await bench.create(stream_id, 3, 2, 9)).status.code == ErrorCode.BAD_REQUEST
    assert (await bench.create(stream_id, 3, 1, 9)).status.code == ErrorCode.BAD_REQUEST
    assert (await bench.create(stream_id, 3, 1, 10)).status.code == ErrorCode.EXPIRED_RANGE_EPOCH
    assert (await bench.create(stream_id, 4, 1, 10)).status.ok


@on_each_engine
async def test_seal_range_checks_in_order(bench: Bench) -> None:
    await bench.servers(1)
    stream_id = await bench.stream()
    assert (await bench.seal(stream_id, 0, 0, 0)).status.code == ErrorCode.RANGE_NOT_FOUND
    await bench.create(stream_id, 5, 0, 0)
    await bench.seal(stream_id, 5, 0, 10)
    await bench.create(stream_id, 5, 1, 10)
    assert (await bench.seal(stream_id, 4, 9, 1, m.SealKind.RANGE_SERVER)).status.code == ErrorCode.BAD_REQUEST
    assert (await bench.seal(stream_id, 4, 9, 1)).status.code == ErrorCode.RANGE_NOT_FOUND
    earlier = await bench.seal(stream_id, 4, 0, 1)
    assert earlier.status.code == ErrorCode.RANGE_ALREADY_SEALED
    assert (earlier.range.index, earlier.range.end) == (0, 10)
    assert (await bench.seal(stream_id, 4, 1, 9)).status.code == ErrorCode.BAD_REQUEST
    assert (await bench.seal(stream_id, 4, 1, 15)).status.code == ErrorCode.EXPIRED_RANGE_EPOCH
    sealed = await bench.seal(stream_id, 7, 1, 15)
    assert sealed.status.ok
    assert (sealed.range.epoch, sealed.range.start, sealed.range.end) == (7, 10, 15)
    again = await bench.seal(stream_id, 8, 1, 12)
    assert again.status.code == ErrorCode.RANGE_ALREADY_SEALED
    assert (again.range.epoch, again.range.end) == (7, 15), "the first seal stands"


@on_each_engine
async def test_ranges_survive_a_restart_with_their_addresses(bench: Bench) -> None:
    await bench.servers(3)
    stream_id = await bench.stream(3, 2)
    await bench.create(stream_id, 1, 0, 0)
    await bench.seal(stream_id, 2, 0, 0)
    await bench.create(stream_id, 2, 1, 0)
    before = await bench.ranges(stream_id)
    assert [(r.index, r.epoch, r.start, r.end) for r in before] == [(0, 2, 0, 0), (1, 2, 0, -1)]
    assert {s.advertise_addr for s in before[0].servers} == {"rs0:1", "rs1:1", "rs2:1"}
    await bench.restart()
    assert await bench.ranges(stream_id) == before
    assert await bench.ranges(server_id=1) == before
    assert await bench.ranges(stream_id, 1) == before
    assert await bench.ranges(stream_id, 8) == []
    assert await bench.ranges() == []


async def test_never_two_replicas_on_one_server(bench: Bench) -> None:
    await bench.servers(2)
    stream_id = await bench.stream(3, 2)
    assert (await bench.create(stream_id, 1, 0, 0)).status.code == ErrorCode.PD_NO_AVAILABLE_RS
    await bench.servers(3)
    created = await bench.create(stream_id, 1, 0, 0)
    assert {s.server_id for s in created.range.servers} == {0, 1, 2}


async def test_servers_die_and_fill_up(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    await bench.servers(2)
    assert sorted(bench.pd.servers.alive()) == [0, 1]
    bench.clock.now = 100.0
    assert sorted(bench.pd.servers.alive()) == [0, 1]
    bench.clock.now = 100.5
    assert bench.pd.servers.alive() == []
    full = m.RangeServerMetrics(disk_free_space=0)
    await bench.call(m.ReportMetricsRequest(m.RangeServerInfo(0, "rs0:1"), full))
    assert bench.pd.servers.alive() == []
    await bench.heartbeat(0)
    assert bench.pd.servers.alive() == [], "a heartbeat does not make room on a disk"
    await bench.call(m.ReportMetricsRequest(m.RangeServerInfo(0, "rs0:1"), full))
    assert [one.getMessage() for one in caplog.records] == [
        "range server 0 (rs0:1) reports no free space: it is given no ranges"
    ], "nobody else tells why ranges are made elsewhere, or nowhere; once is enough"
    await bench.call(m.ReportMetricsRequest(m.RangeServerInfo(0, "rs0:1"), m.RangeServerMetrics(disk_free_space=1)))
    assert bench.pd.servers.alive() == [0]


async def test_a_new_address_is_told_to_clients(bench: Bench) -> None:
    await bench.servers(1)
    stream_id = await bench.stream()
    await bench.create(stream_id, 1, 0, 0)
    moved = m.RangeServerInfo(0, "elsewhere:1")
    await bench.call(m.HeartbeatRequest("rs", m.ClientRole.RANGE_SERVER, moved))
    assert (await bench.ranges(stream_id))[0].servers == [moved]


@on_each_engine
@pytest.mark.parametrize("offset", range(-1, 36, 3))
async def test_trim_drops_and_cuts_ranges(bench: Bench, offset: int) -> None:
    await bench.servers(1)
    stream_id = await bench.stream()
    for index, (start, end) in enumerate([(0, 10), (10, 20), (20, 20), (20, 30)]):
        await bench.create(stream_id, 1, index, start)
        await bench.seal(stream_id, 1, index, end)
    response = await bench.call(m.TrimStreamRequest(stream_id, offset))
    if offset < 0:
        assert response.status.code == ErrorCode.BAD_REQUEST
        return
    assert response.stream.stream_id == stream_id
    left = await bench.ranges(stream_id)
    assert response.range == left[0]
    effective = min(offset, 30)
    assert left[0].start == effective
    assert all(r.end > effective for r in left[:-1]), "what ends at or below the offset is gone"
    assert [r.start for r in left[1:]] == [r.end for r in left[:-1]], "no gap"
    assert left[-1].end == 30
    await bench.restart()
    assert await bench.ranges(stream_id) == left
    lower = await bench.call(m.TrimStreamRequest(stream_id, offset // 2))
    assert lower.range == left[0], "trimming to a lower offset changes nothing"
    await bench.servers(1)
    assert (await bench.create(stream_id, 1, 4, 30)).status.ok, "the next range continues the last one"


class OpenRange:
    """The server of an open range ``index`` that has data up to ``end``; it trims as range servers do."""

    def __init__(self, end: int, index: int = 0) -> None:
        self.end = end
        self.index = index
        self.answer: m.Response | ConnectionLost | None = None
        self.asked: list[m.TrimStreamRequest] = []

    def submit(self, request: m.Request, reply: AnswerTo, timeout: float | None = None) -> None:
        assert isinstance(request, m.TrimStreamRequest)
        self.asked.append(request)
        start = min(request.min_offset, self.end)
        reply(self.answer or m.StreamResponse(range=m.RangeInfo(request.stream_id, 1, self.index, start)))

    async def call(self, request: m.Request, timeout: float | None = None) -> m.Response:
        raise NotImplementedError

    async def close(self) -> None:
        pass


async def test_an_open_range_is_trimmed_no_further_than_its_server_has_data(tmp_path: Path) -> None:
    server = OpenRange(7)
    bench = Bench(tmp_path / "pd.sqlite", connect=lambda _server: server)
    await bench.servers(1)
    stream_id = await bench.stream()
    assert (await bench.call(m.TrimStreamRequest(stream_id, 0))).status.ok
    assert (await bench.call(m.TrimStreamRequest(stream_id, 1))).status.code == ErrorCode.BAD_REQUEST
    await bench.create(stream_id, 1, 0, 0)
    for wanted, start in ((5, 5), (5, 5), (3, 5), (100, 7)):
        trimmed = await bench.call(m.TrimStreamRequest(stream_id, wanted))
        assert (trimmed.range.start, trimmed.range.end) == (start, -1)
        assert [known.start for known in await bench.ranges(stream_id)] == [start]
    assert [request.min_offset for request in server.asked] == [5, 100], "what is trimmed already asks nobody"
    # The range is one its server has not heard of yet, and has older ones of the stream.
    server.index = -1
    assert (await bench.call(m.TrimStreamRequest(stream_id, 200))).range.start == 7
    # A writer that was lost had appended less than somebody trimmed to: the stream must not be stuck for that.
    sealed = await bench.seal(stream_id, 2, 0, 5)
    assert (sealed.range.start, sealed.range.end) == (5, 5)
    assert (await bench.create(stream_id, 2, 1, 5)).range.start == 5
    await bench.pd.close()


@on_each_engine
@pytest.mark.parametrize(
    "silence", [ConnectionLost("down"), m.StreamResponse(m.Status(ErrorCode.RS_INTERNAL_SERVER_ERROR))]
)
async def test_a_trim_of_an_open_range_whose_server_is_silent_is_refused(
    tmp_path: Path, silence: m.StreamResponse | ConnectionLost
) -> None:
    server = OpenRange(20, index=1)
    bench = Bench(tmp_path / "pd.sqlite", connect=lambda _server: server)
    await bench.servers(1)
    stream_id = await bench.stream()
    await bench.create(stream_id, 1, 0, 0)
    await bench.seal(stream_id, 1, 0, 10)
    await bench.create(stream_id, 1, 1, 10)
    server.answer = silence
    refused = await bench.call(m.TrimStreamRequest(stream_id, 15))
    assert refused.status.code == ErrorCode.PD_INTERNAL_SERVER_ERROR, "which is worth another try"
    assert [known.start for known in await bench.ranges(stream_id)] == [10], "what is sealed is trimmed for certain"
    assert (await bench.call(m.TrimStreamRequest(stream_id, 10))).status.ok, "nobody needs to be asked for that"
    server.answer = None
    assert (await bench.call(m.TrimStreamRequest(stream_id, 15))).range.start == 15
    await bench.pd.close()


async def test_a_foreign_server_that_cannot_trim_leaves_it_to_the_client_how_far(tmp_path: Path) -> None:
    server = OpenRange(0)
    server.answer = m.SystemErrorResponse(m.Status(ErrorCode.UNSUPPORTED_OPERATION))
    bench = Bench(tmp_path / "pd.sqlite", connect=lambda _server: server)
    await bench.servers(1)
    stream_id = await bench.stream()
    await bench.create(stream_id, 1, 0, 0)
    assert (await bench.call(m.TrimStreamRequest(stream_id, 15))).range.start == 15
    await bench.pd.close()


async def test_requests_of_the_connection_itself(bench: Bench) -> None:
    assert (await bench.call(m.PingRequest(b"h", b"p"))).payload == b"p"
    nodes = (await bench.call(m.DescribePdRequest())).nodes
    assert [(n.name, n.advertise_addr, n.is_leader) for n in nodes] == [("pd", "pd:1", True)]
    client = await bench.call(m.HeartbeatRequest("me", m.ClientRole.FRONTEND))
    assert (client.client_id, client.role, client.status.code) == ("me", m.ClientRole.FRONTEND, ErrorCode.OK)
    nameless = await bench.call(m.HeartbeatRequest("me", m.ClientRole.RANGE_SERVER, m.RangeServerInfo()))
    assert nameless.status.code == ErrorCode.BAD_REQUEST
    assert (await bench.call(m.ReportMetricsRequest(m.RangeServerInfo()))).status.code == ErrorCode.BAD_REQUEST
    for request in (m.AppendRequest(), m.FetchRequest(m.RangeInfo(), 0)):
        assert (await bench.call(request)).status.code == ErrorCode.UNSUPPORTED_OPERATION
    bench.pd.handle(m.GoAway(), lambda response: pytest.fail(f"a GOAWAY was answered: {response}"))


@on_each_engine
async def test_concurrent_creations_of_a_range_have_one_winner(bench: Bench) -> None:
    await bench.servers(1)
    stream_id = await bench.stream()
    codes = [r.status.code for r in await asyncio.gather(*(bench.create(stream_id, e, 0, 0) for e in range(20)))]
    assert sorted(codes) == [ErrorCode.OK] + [ErrorCode.CREATE_RANGE_BEFORE_SEAL] * 19


async def test_after_closing_requests_are_refused_not_lost(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "pd.sqlite")
    pending = asyncio.ensure_future(bench.stream())
    await asyncio.sleep(0)
    await bench.pd.close()
    assert await pending == 0, "what was received before is answered"
    response = await bench.call(m.CreateStreamRequest(m.StreamInfo()))
    assert response.status.code == ErrorCode.PD_INTERNAL_SERVER_ERROR
    await bench.pd.close()


class FakeCarrier:
    """A range server that notes what it is asked, and answers what it is told to."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.answers: list[m.Response | ConnectionLost] = []
        self.changed = asyncio.Condition()

    def submit(
        self, request: m.Request, reply: Callable[[m.Response | ConnectionLost], None], timeout: float | None = None
    ) -> None:
        assert isinstance(request, m.DeleteStreamRequest)
        self.asked.append(request.stream_id)
        reply(self.answers.pop(0) if self.answers else m.StreamResponse())

    async def call(self, request: m.Request, timeout: float | None = None) -> m.Response:
        raise NotImplementedError

    async def close(self) -> None:
        pass


async def settle(bench: Bench) -> None:
    """State requests are answered in order, so after three of them what one request set off is through."""
    for _ in range(3):
        await bench.ranges()


@on_each_engine
async def test_deletions_reach_servers_even_if_they_are_down_at_first(tmp_path: Path) -> None:
    carrier = FakeCarrier()
    bench = Bench(tmp_path / "pd.sqlite", connect=lambda _server: carrier)
    await bench.servers(1)
    stream_id = await bench.stream()
    await bench.create(stream_id, 1, 0, 0)
    carrier.answers = [
        ConnectionLost("down"),
        m.StreamResponse(m.Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, "disk full")),
    ]
    await bench.call(m.DeleteStreamRequest(stream_id))
    await settle(bench)
    assert carrier.asked == [stream_id]
    await bench.heartbeat(0)
    await settle(bench)
    assert carrier.asked == [stream_id] * 2
    await bench.restart()
    await bench.heartbeat(0)
    await settle(bench)
    assert carrier.asked == [stream_id] * 3, "the queue survives a restart"
    await bench.heartbeat(0)
    await settle(bench)
    assert carrier.asked == [stream_id] * 3, "done is done"
    await bench.pd.close()


async def test_a_server_that_is_to_be_told_twice_in_one_turn_is_told_by_one_task(tmp_path: Path) -> None:
    carrier = FakeCarrier()
    bench = Bench(tmp_path / "pd.sqlite", connect=lambda _server: carrier)
    await bench.servers(1)
    stream_id = await bench.stream()
    await bench.create(stream_id, 1, 0, 0)
    carrier.answers = [ConnectionLost("down")]
    await bench.call(m.DeleteStreamRequest(stream_id))
    await settle(bench)
    bench.pd.tell_servers()
    bench.pd.tell_servers()
    await settle(bench)
    assert carrier.asked == [stream_id] * 2
    assert not bench.barrier.failures
    await bench.pd.close()


@pytest.mark.parametrize("broken", ["connect", "submit"])
async def test_what_breaks_while_a_server_is_told_leaves_it_queued_for_the_next_sign_of_life(
    tmp_path: Path, broken: str
) -> None:
    carrier = FakeCarrier()
    faults = [RuntimeError("a defect")]
    submit = carrier.submit

    def faulty(request: m.Request, reply: AnswerTo, timeout: float | None = None) -> None:
        if broken == "submit" and faults:
            raise faults.pop()
        submit(request, reply, timeout)

    def connect(_server: m.RangeServerInfo) -> FakeCarrier:
        if broken == "connect" and faults:
            raise faults.pop()
        return carrier

    carrier.submit = faulty  # type: ignore[method-assign]
    bench = Bench(tmp_path / "pd.sqlite", connect=connect)
    await bench.servers(1)
    stream_id = await bench.stream()
    await bench.create(stream_id, 1, 0, 0)
    await bench.call(m.DeleteStreamRequest(stream_id))
    await settle(bench)
    assert (carrier.asked, faults) == ([], [])
    assert sum(bench.barrier.failures.values()) == 1, "it is seen"
    await bench.heartbeat(0)
    await settle(bench)
    assert carrier.asked == [stream_id]
    await bench.pd.close()


class Told:
    """A range server that is told what was decided."""

    def __init__(self) -> None:
        self.asked: list[m.Request] = []
        self.answer: m.Response | ConnectionLost | None = None

    def submit(self, request: m.Request, reply: AnswerTo, timeout: float | None = None) -> None:
        self.asked.append(request)
        good: m.Response = m.RangeResponse() if isinstance(request, m.SealRangeRequest) else m.StreamResponse()
        reply(good if self.answer is None else self.answer)

    async def call(self, request: m.Request, timeout: float | None = None) -> m.Response:
        raise NotImplementedError

    async def close(self) -> None:
        pass

    def take(self) -> list[m.Request]:
        asked, self.asked = self.asked, []
        return asked


@on_each_engine
async def test_trims_and_seals_reach_servers_even_if_they_are_down_at_first(tmp_path: Path) -> None:
    server = Told()
    bench = Bench(tmp_path / "pd.sqlite", connect=lambda _server: server)
    await bench.servers(1)
    stream_id = await bench.stream()
    await bench.create(stream_id, 1, 0, 0)
    server.answer = ConnectionLost("down")
    await bench.seal(stream_id, 1, 0, 10)
    await settle(bench)
    decided = m.SealRangeRequest(m.RangeInfo(stream_id, 1, 0, 0, 10), m.SealKind.PLACEMENT_DRIVER)
    assert server.take() == [decided], "at once"
    server.answer = m.RangeResponse(m.Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, "not now"))
    await bench.heartbeat(0)
    await settle(bench)
    assert server.take() == [decided]
    await bench.call(m.TrimStreamRequest(stream_id, 4))
    await settle(bench)
    trimmed = m.TrimStreamRequest(stream_id, 4)
    assert server.take() == [trimmed, decided]
    await bench.restart()
    server.answer = None
    await bench.heartbeat(0)
    await settle(bench)
    assert server.take() == [trimmed, decided], "the queue survives a restart"
    await bench.heartbeat(0)
    await settle(bench)
    assert server.take() == [], "done is done"
    await bench.call(m.TrimStreamRequest(stream_id, 4))
    await bench.heartbeat(0)
    await settle(bench)
    assert server.take() == [], "and what changes nothing is no news"
    await bench.pd.close()


@on_each_engine
async def test_what_concerns_a_deleted_stream_is_told_no_more(tmp_path: Path) -> None:
    server = Told()
    bench = Bench(tmp_path / "pd.sqlite", connect=lambda _server: server)
    await bench.servers(1)
    stream_id = await bench.stream()
    await bench.create(stream_id, 1, 0, 0)
    server.answer = ConnectionLost("down")
    await bench.seal(stream_id, 1, 0, 10)
    await bench.call(m.DeleteStreamRequest(stream_id))
    await settle(bench)
    server.take()
    server.answer = None
    await bench.heartbeat(0)
    await settle(bench)
    assert server.take() == [m.DeleteStreamRequest(stream_id)]
    assert await bench.pd.run(lambda tx: tx.news_of_server(0, 10)) == []
    await bench.pd.close()


class Holding:
    """A range server that has entries of one offset each up to ``end``."""

    def __init__(self, end: int) -> None:
        self.end = end

    def submit(self, request: m.Request, reply: Any, _timeout: float | None = None) -> None:
        if not isinstance(request, m.FetchRequest):
            reply(m.RangeResponse())
            return
        offset = request.offset
        there = offset < min(self.end, request.limit)
        entries = [m.Entry(request.range.stream_id, 0, 0, offset, 1, 0, b"", b"")] if there else []
        reply(m.FetchResponse(m.Status() if there else m.Status(ErrorCode.OFFSET_OVERFLOW, "beyond"), entries))


@on_each_engine
async def test_nothing_is_promised_to_readers_that_no_server_of_the_range_has(tmp_path: Path) -> None:
    """Whoever asks: a range that has to end at the largest offset there is could never be written to again."""
    server = Holding(7)
    bench = Bench(tmp_path / "pd.sqlite", connect=lambda _server: server)
    await bench.servers(1)
    stream_id = await bench.stream()
    await bench.create(stream_id, 1, 0, 0)
    for wanted in (8, (1 << 63) - 1):
        refused = await bench.seal(stream_id, 1, 0, wanted, m.SealKind.AT_LEAST)
        assert refused.status.code == ErrorCode.PD_INTERNAL_SERVER_ERROR
    assert (await bench.seal(stream_id, 1, 0, 3)).range.end == 3
    await bench.pd.close()
    nobody = Bench(tmp_path / "pd.sqlite")
    await nobody.servers(1)
    await nobody.create(stream_id, 1, 1, 3)
    assert (await nobody.seal(stream_id, 1, 1, 5, m.SealKind.AT_LEAST)).status.code == 1500, "nobody could be asked"
    await nobody.pd.close()


@on_each_engine
async def test_no_range_ends_below_what_was_promised_to_readers(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "pd.sqlite", connect=lambda _server: Holding(7))
    await bench.servers(1)
    stream_id = await bench.stream()
    missing = await bench.seal(stream_id, 1, 0, 7, m.SealKind.AT_LEAST)
    assert missing.status.code == ErrorCode.RANGE_NOT_FOUND
    await bench.create(stream_id, 3, 0, 0)
    for wanted in (7, 5):
        promised = await bench.seal(stream_id, 1, 0, wanted, m.SealKind.AT_LEAST)
        assert promised.status.ok, "whatever the epoch: it changes no writer"
        assert promised.range.end == -1
    assert (await bench.seal(stream_id, 3, 0, -2, m.SealKind.AT_LEAST)).status.code == ErrorCode.BAD_REQUEST
    await bench.restart()
    sealed = await bench.seal(stream_id, 3, 0, 4)
    assert sealed.range.end == 7, "and the sealer is told"
    late = await bench.seal(stream_id, 3, 0, 9, m.SealKind.AT_LEAST)
    assert late.status.code == ErrorCode.RANGE_ALREADY_SEALED
    assert late.range.end == 7
    await bench.servers(1)
    assert (await bench.create(stream_id, 3, 1, 7)).status.ok
    await bench.pd.close()


@on_each_engine
async def test_what_an_adopted_server_had_is_its_adopters_and_it_gets_nothing_more(bench: Bench) -> None:
    await bench.heartbeat(0)
    streams = [await bench.stream() for _ in range(4)]
    for stream_id in streams:
        assert (await bench.create(stream_id, 1, 0, 0)).status.ok
    sealed, ended, silent, deleted = streams
    assert (await bench.seal(sealed, 1, 0, 3)).status.ok
    await bench.call(m.DeleteStreamRequest(deleted))
    for server_id in (1, 2):
        await bench.heartbeat(server_id)
    ends = [(sealed, 0, 9), (ended, 0, 5), (ended, 7, 5), (99, 0, 5)]
    some = await bench.call(m.AdoptServerRequest(0, 1, ends, last=False))
    assert (some.status.ok, some.server_id) == (True, 1)
    assert [known.end for known in await bench.ranges(server_id=0)] == [3, 5, -1], "more is to come"
    for _ in range(2):
        assert (await bench.call(m.AdoptServerRequest(0, 1))).status.ok
    assert [(known.end, known.servers) for known in await bench.ranges(server_id=1)] == [
        (end, [m.RangeServerInfo(1, "rs1:1")]) for end in (3, 5, 0)
    ]
    assert await bench.ranges(server_id=0) == []
    assert await bench.state_of(lambda tx: tx.deletions_of_server(1, 9)) == [deleted]
    assert set(await bench.state_of(lambda tx: tx.news_of_server(1, 9))) >= {(sealed, 0)}
    assert await bench.state_of(lambda tx: tx.deletions_of_server(0, 9) + tx.news_of_server(0, 9)) == []
    # It may not have heard of that: neither what it says nor that it says it makes it a server again.
    assert (await bench.heartbeat(0)).status.code == ErrorCode.BAD_REQUEST
    for stream_id, start in ((silent, 0), (ended, 5)):
        created = await bench.create(stream_id, 1, 1, start)
        assert created.range.servers[0].server_id in (1, 2)
    # Another one comes too late, for it and through it; who adopts the adopter has both.
    late = await bench.call(m.AdoptServerRequest(0, 2))
    assert (late.status.code, late.server_id) == (ErrorCode.BAD_REQUEST, 1)
    assert (await bench.call(m.AdoptServerRequest(1, 2))).status.ok
    assert {one.server_id for known in await bench.ranges(ended) for one in known.servers} == {2}
    late = await bench.call(m.AdoptServerRequest(0, 1))
    assert (late.status.code, late.server_id) == (ErrorCode.BAD_REQUEST, 2)
    await bench.restart()
    assert await bench.state_of(lambda tx: tx.adopted_servers()) == {0: 2, 1: 2}
    for wrong in (m.AdoptServerRequest(2, 2), m.AdoptServerRequest(-1, 2), m.AdoptServerRequest(2, SERVER_IDS)):
        assert (await bench.call(wrong)).status.code == ErrorCode.BAD_REQUEST


class Counting:
    """A connection that counts what is asked of it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.statements = 0
        self.reads = 0

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Cursor:
        self.statements += 1
        self.reads += statement.startswith("SELECT")
        return self.connection.execute(statement, values)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> Cursor:
        self.statements += 1
        return self.connection.executemany(statement, rows)


@on_each_engine
async def test_very_many_ranges_are_adopted_in_as_many_statements_as_few(bench: Bench) -> None:
    """Each is a way to the database and back, and nobody writes to any of them meanwhile."""
    asked: list[int] = []
    for server_id, ranges in ((0, 3), (1, 60)):
        await bench.heartbeat(server_id)
        streams = [await bench.stream() for _ in range(ranges)]
        for stream_id in streams:
            assert (await bench.create(stream_id, 1, 0, 0)).status.ok
        request = m.AdoptServerRequest(server_id, 9, [(stream_id, 0, 4) for stream_id in streams[:-1]])

        def adopt(tx: Any, request: m.AdoptServerRequest = request) -> int:
            counting = Counting(tx._db)
            assert rules.adopt_server(Transaction(counting), request).status.ok
            return counting.statements

        asked.append(await bench.state_of(adopt))
        ends = [(await bench.ranges(stream_id))[0].end for stream_id in streams]
        assert ends == [4] * (ranges - 1) + [0]
    assert asked[0] == asked[1]


@on_each_engine
async def test_a_stream_that_was_trimmed_beyond_what_an_adopted_log_has_starts_where_it_ends(bench: Bench) -> None:
    """Or its next range would begin below what readers may read."""
    await bench.servers(1)
    streams = [await bench.stream() for _ in range(2)]

    def adopt(tx: Transaction) -> list[int]:
        for stream_id, trimmed in zip(streams, (9, 2), strict=True):
            tx.put_range(RangeRow(stream_id, 0, 1, 0, -1, 1, 1, [0]))
            tx.put_stream(StreamRow(stream_id, 1, 1, 0, trim_offset=trimmed))
        request = m.AdoptServerRequest(0, 1, [(stream_id, 0, 4) for stream_id in streams])
        assert rules.adopt_server(tx, request).status.ok
        return [stream.trim_offset for one in streams if (stream := tx.get_stream(one)) is not None]

    assert await bench.state_of(adopt) == [4, 2]


@on_each_engine
async def test_very_many_streams_are_opened_by_as_many_reads_as_few(bench: Bench) -> None:
    """A topic's partitions are opened together, and each read is a way to the database and back."""
    await bench.servers(1)
    reads: list[int] = []
    for count in (3, 60):
        streams = [await bench.stream() for _ in range(count)]

        def open_all(tx: Any, streams: Sequence[int] = streams) -> int:
            counting = Counting(tx._db)
            shared = Seen(named=streams)
            for stream_id in streams:
                opened = Transaction(counting, shared)
                assert rules.describe_stream(opened, stream_id).status.ok
                assert not rules.list_ranges(opened, m.ListRangeRequest(stream_id=stream_id)).ranges
                made = rules.create_range(opened, m.CreateRangeRequest(m.RangeInfo(stream_id, 1, 0, 0)), [0])
                assert made.status.ok
            return counting.reads

        reads.append(await bench.state_of(open_all))
        for stream_id in streams:
            assert [one.epoch for one in await bench.ranges(stream_id)] == [1]
    assert reads[0] == reads[1]


@on_each_engine
async def test_what_a_failed_request_has_changed_is_not_seen_by_those_of_its_transaction(bench: Bench) -> None:
    stream_id = await bench.stream()

    def fail(tx: Transaction) -> None:
        row = tx.get_stream(stream_id)
        assert row is not None
        row.deleted = True
        tx.put_stream(row)
        raise StateError("after a change")

    queued = threading.Event()
    held = asyncio.ensure_future(bench.state_of(lambda tx: queued.wait() and None))
    failed = asyncio.ensure_future(bench.state_of(fail))
    described = asyncio.ensure_future(bench.call(m.DescribeStreamRequest(stream_id)))
    await asyncio.sleep(0)
    queued.set()  # the two wait for one transaction
    assert (await described).status.ok
    await held
    with pytest.raises(SbpError):
        await failed


async def test_what_an_undone_transaction_has_changed_is_not_seen_when_it_is_repeated(bench: Bench) -> None:
    """A transaction that conflicts with another one, or has found the disk full, runs again."""
    await bench.servers(1)
    stream_id = await bench.stream()
    engine = bench.state.engine
    execute = engine.execute
    undone: list[Job] = []

    def execute_twice(group: list[Job], refuse: Refuse) -> None:
        if not undone:
            undone.extend(group)
            connection = engine.connection
            connection.execute("BEGIN IMMEDIATE")
            engine.begun += 1
            for job in group:
                job.fn(connection)
            connection.execute("ROLLBACK")
        execute(group, refuse)

    engine.execute = execute_twice  # type: ignore[method-assign]
    assert (await bench.create(stream_id, 1, 0, 0)).status.ok
    assert undone
    assert [one.index for one in await bench.ranges(stream_id)] == [0]


@on_each_engine
async def test_a_range_that_was_promised_to_go_further_than_its_log_ends_there(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "pd.sqlite", connect=lambda _server: Holding(7))
    await bench.servers(1)
    stream_id = await bench.stream()
    await bench.create(stream_id, 3, 0, 0)
    assert (await bench.seal(stream_id, 1, 0, 7, m.SealKind.AT_LEAST)).status.ok
    await bench.call(m.AdoptServerRequest(0, 1, [(stream_id, 0, 4)]))
    assert [known.end for known in await bench.ranges(stream_id)] == [7]
    await bench.pd.close()


def test_a_better_score_for_a_less_busy_server() -> None:
    idle = m.RangeServerMetrics(disk_free_space=1 << 30)
    for field in (
        "disk_in_rate",
        "disk_out_rate",
        "disk_unindexed_data_size",
        "memory_used",
        "network_append_rate",
        "network_fetch_rate",
        "network_fetch_avg_latency",
        "range_active_cnt",
    ):
        busy = m.RangeServerMetrics(disk_free_space=1 << 30)
        setattr(busy, field, 1000)
        assert score(busy) < score(idle), field
    assert score(m.RangeServerMetrics(disk_free_space=1 << 40)) > score(idle)


@given(
    rates=st.lists(st.integers(0, 30_000), min_size=1, max_size=8),
    count=st.integers(1, 9),
    seed=st.integers(0, 1 << 30),
)
def test_choice_is_distinct_complete_and_never_the_worst_alone(rates: list[int], count: int, seed: int) -> None:
    servers = Servers(10.0, lambda: 0.0, random.Random(seed))
    for server_id, rate in enumerate(rates):
        metrics = m.RangeServerMetrics(disk_free_space=1, network_append_rate=rate)
        servers.note_report(m.RangeServerInfo(server_id, "a"), metrics)
    chosen = servers.choose(count)
    if count > len(rates):
        assert chosen is None
        return
    assert chosen is not None
    assert len(set(chosen)) == count
    if len(rates) >= 2:
        # The first of two drawn is the better one, so the single worst server cannot come first.
        worst = max(rates)
        assert rates.count(worst) > 1 or rates[chosen[0]] != worst


@on_each_engine
async def test_a_failing_request_does_not_undo_its_neighbours(tmp_path: Path) -> None:
    state = pd_state(tmp_path / "pd.sqlite", asyncio.get_running_loop())
    results: list[object] = []
    finished = asyncio.Event()

    def break_down(tx: Any) -> int:
        tx.next_stream_id()
        raise ZeroDivisionError("defect")

    state.submit(lambda tx: tx.next_stream_id(), results.append, results.append)
    state.submit(break_down, results.append, results.append)
    state.submit(lambda tx: tx.next_stream_id(), results.append, results.append)
    state.submit(lambda tx: None, lambda _: finished.set(), results.append)
    await finished.wait()
    assert results[0] == 0
    assert isinstance(results[1], StateError)
    assert results[2] == 1
    await state.close()


async def test_answers_of_one_transaction_are_given_in_many_turns_in_their_order_and_before_the_end(
    tmp_path: Path,
) -> None:
    loop = asyncio.get_running_loop()
    state = pd_state(tmp_path / "pd.sqlite", loop)
    turn, given = 0, Counter[int]()
    answers: list[int] = []

    def count() -> None:
        nonlocal turn
        turn += 1
        if len(answers) < 1000:
            loop.call_soon(count)

    def answered(number: int) -> None:
        answers.append(number)
        given[turn] += 1

    release = threading.Event()
    state.submit(lambda tx: release.wait(), lambda _: None, raise_)
    for number in range(1000):
        state.submit(lambda tx, number=number: number, answered, raise_)  # type: ignore[misc]
    loop.call_soon(count)
    release.set()
    await state.close()
    assert answers == list(range(1000))
    assert max(given.values()) < 100


def raise_(error: StateError) -> None:
    raise error


async def test_a_transaction_that_cannot_even_be_undone_concerns_its_requests_only(tmp_path: Path) -> None:
    state = pd_state(tmp_path / "pd.sqlite", asyncio.get_running_loop())

    class Failing:
        """A connection whose next end of a transaction fails, in whatever way."""

        def __init__(self, db: sqlite3.Connection) -> None:
            self._db = db
            self._left = {"COMMIT", "ROLLBACK"}

        def execute(self, statement: str, *arguments: object) -> sqlite3.Cursor:
            if statement in self._left:
                self._left.discard(statement)
                raise sqlite3.OperationalError("disk I/O error")
            return self._db.execute(statement, *arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._db, name)

    state.engine.connection = Failing(state.engine.connection)  # type: ignore[misc]

    async def next_stream() -> object:
        result: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        state.submit(lambda tx: tx.next_stream_id(), result.set_result, result.set_result)
        return await result

    assert isinstance(await next_stream(), StateError)
    # The next finds the transaction open that could not be undone, and undoes it.
    assert isinstance(await next_stream(), StateError)
    assert await next_stream() == 0
    await state.close()


async def test_streams_are_trimmed_and_deleted_on_a_full_disk(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "pd.sqlite")
    await bench.stream()
    reserve = tmp_path / "pd.sqlite-reserve"
    assert reserve.stat().st_blocks * 512 >= 8 * 1024 * 1024
    engine = cast("SqliteEngine", bench.state.engine)

    class Filling:
        """As on a disk of which the reserve is all that is left."""

        def __init__(self, db: sqlite3.Connection) -> None:
            self._db = db

        def execute(self, statement: str, *arguments: object) -> sqlite3.Cursor:
            if statement.startswith(("INSERT", "UPDATE", "DELETE")):
                pages = self._db.execute("PRAGMA page_count").fetchone()[0]
                self._db.execute(f"PRAGMA max_page_count = {pages if reserve.exists() else 10 * pages}")
                self._db.execute("CREATE TABLE IF NOT EXISTS filler (v TEXT)")
                self._db.execute("INSERT INTO filler VALUES (?)", ("x" * 20_000,))
            return self._db.execute(statement, *arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._db, name)

    engine.connection = Filling(engine.connection)  # type: ignore[assignment]
    refused, deleted, refused_too = await asyncio.gather(
        bench.call(m.CreateStreamRequest(m.StreamInfo())),
        bench.call(m.DeleteStreamRequest(0)),
        bench.call(m.CreateStreamRequest(m.StreamInfo())),
    )
    assert deleted.status.ok
    assert not reserve.exists()
    assert "full" in refused.status.message
    assert "full" in refused_too.status.message
    await bench.pd.close()


async def test_no_damage_of_the_state_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "pd.sqlite"
    bench = Bench(path)
    for _ in range(200):
        await bench.stream()
    await bench.pd.close()

    def content() -> dict[str, list[Any]]:
        with closing(sqlite3.connect(path)) as db:
            tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            return {table: sorted(db.execute(f"SELECT * FROM {table}")) for table in tables}

    before, good, refused, rng = content(), path.read_bytes(), 0, random.Random(5)
    for number in range(150):
        damaged = bytearray(good)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        for left in tmp_path.glob("pd.sqlite-*"):
            left.unlink()
        try:
            state = pd_state(path, asyncio.get_running_loop())
        except StateError:
            refused += 1
            continue
        await state.close()
        assert content() == before, number  # what was hit holds nothing
    assert refused > 10


async def test_foreign_and_newer_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "pd.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StateVersionError, match="99"):
        pd_state(path, asyncio.get_running_loop())
    path.write_bytes(b"this is no database" * 1000)
    with pytest.raises(StateError):
        pd_state(path, asyncio.get_running_loop())


def test_many_ranges_at_once_leave_no_server_out() -> None:
    servers = Servers(10.0, lambda: 0.0, random.Random(4))
    for server_id in range(3):
        # The last one looks worst, by very little: of two drawn it would never be the better.
        servers.note_report(
            m.RangeServerInfo(server_id, ""), m.RangeServerMetrics(disk_free_space=1, memory_used=server_id)
        )
    given = Counter(chosen[0] for _ in range(300) if (chosen := servers.choose(3)) is not None)
    assert all(80 <= given[server_id] <= 120 for server_id in range(3)), given


def test_a_server_whose_connections_ended_is_chosen_only_if_need_be() -> None:
    servers = Servers(10.0, lambda: 0.0, random.Random(4))
    for server_id in range(3):
        servers.note_report(m.RangeServerInfo(server_id, ""), None)
        servers.note_connection(server_id)
    servers.note_connection(2)
    servers.note_disconnection(2)
    assert {chosen[0] for _ in range(50) if (chosen := servers.choose(1))} == {0, 1, 2}, "it has another connection"
    servers.note_disconnection(1)
    assert {chosen[0] for _ in range(50) if (chosen := servers.choose(1))} == {0, 2}
    assert {(len(chosen), chosen[2]) for _ in range(50) if (chosen := servers.choose(3))} == {(3, 1)}
    assert sorted(servers.alive()) == [0, 1, 2], "it may come back at any moment"
    servers.note_report(m.RangeServerInfo(1, ""), None)
    assert {chosen[0] for _ in range(50) if (chosen := servers.choose(1))} == {0, 1, 2}
    servers.note_connection(99)
    servers.note_disconnection(99)  # never heard of


async def test_a_session_joins_once_for_every_server_that_reports_over_it(bench: Bench) -> None:
    await bench.servers(2)
    session, other = bench.pd.session(), bench.pd.session()
    report = m.ReportMetricsRequest(m.RangeServerInfo(0, "rs0:1"), m.RangeServerMetrics(disk_free_space=1))
    heartbeat = m.HeartbeatRequest("rs0", m.ClientRole.RANGE_SERVER, m.RangeServerInfo(0, "rs0:1"))
    client = m.HeartbeatRequest("client", m.ClientRole.FRONTEND)
    answers: list[m.Response] = []
    for request in (report, heartbeat, client, report):
        session.handle(request, answers.append)
    other.handle(heartbeat, answers.append)

    async def chosen() -> set[int]:
        streams = [await bench.stream() for _ in range(20)]
        created = [await bench.create(stream_id, 1, 0, 0) for stream_id in streams]
        return {one.range.servers[0].server_id for one in created}

    session.ended()
    assert await chosen() == {0, 1}, "it reports over another connection"
    other.ended()
    other.ended()
    assert await chosen() == {1}
    await bench.heartbeat(0)
    assert 0 in await chosen()


@on_each_engine
async def test_objects_of_ranges_are_remembered_until_they_are_gone(bench: Bench) -> None:
    await bench.servers(1)
    stream_id = await bench.stream()
    assert (await bench.create(stream_id, 1, 0, 0)).status.ok

    async def commit(start: int, count: int, index: int = 0, size: int = 10) -> int:
        known = m.ObjectInfo(stream_id, index, 1, start, count, size, b"12345678")
        return int((await bench.call(m.CommitObjectRequest(known))).status.code)

    async def known() -> list[tuple[int, int]]:
        found = await bench.state_of(lambda tx: tx.objects_of_stream(stream_id))
        assert all((one.index, one.epoch, one.size, one.sparse) == (0, 1, 10, b"12345678") for one in found)
        return [(one.start, one.count) for one in found]

    for start in (0, 10, 20, 10):
        assert await commit(start, 10) == m.OK
    assert await known() == [(0, 10), (10, 10), (20, 10)]
    await bench.restart()
    await bench.servers(1)
    assert await commit(5, 20) == m.OK
    assert await known() == [(5, 20)], "in the place of what it has offsets of"
    assert await commit(25, 5) == m.OK
    for wrong in ((-1, 5, 0, 10), (30, 0, 0, 10), (30, 5, 0, 0)):
        assert await commit(*wrong) == ErrorCode.BAD_REQUEST
    assert await commit(30, 5, 1) == ErrorCode.RANGE_NOT_FOUND
    assert (await bench.seal(stream_id, 1, 0, 32)).status.ok
    assert await commit(30, 5) == ErrorCode.BAD_REQUEST
    assert (await bench.call(m.TrimStreamRequest(stream_id, 26))).status.ok
    assert await known() == [(25, 5)]
    assert await commit(10, 10) == m.OK
    assert await known() == [(25, 5)], "it was trimmed meanwhile"
    assert (await bench.call(m.DeleteStreamRequest(stream_id))).status.ok
    assert await known() == []
    assert await commit(25, 5) == ErrorCode.NOT_FOUND
    missing = m.ObjectInfo(stream_id + 1, 0, 1, 0, 1, 1)
    assert (await bench.call(m.CommitObjectRequest(missing))).status.code == ErrorCode.NOT_FOUND
