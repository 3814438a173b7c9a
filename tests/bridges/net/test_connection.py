"""What every TCP front has from the node: order of answers, places for connections, memory, a quiet end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import pairwise

import pytest

from anabranch_kit.net import connection as connection_module
from bridges.net.server import Limits
from tests.bridges.net.echo import ALONE, LATER, NOW, frame, receive, serving
from tests.kit.waiting import until


async def test_answers_leave_in_the_order_of_their_requests() -> None:
    async with serving() as (server, address):
        reader, writer = await asyncio.open_connection(*address)
        sent = [frame(LATER, b"a"), frame(NOW, b"b"), frame(LATER, b"c" * 10_000), frame(NOW)]
        writer.write(b"".join(sent))
        await until(lambda: len(server.started) == 4)
        assert server.budget.held >= 10_000
        server.answer_all()  # the last one first
        assert [await receive(reader) for _ in sent] == sent
        await until(lambda: server.budget.held == 0)
        writer.close()


async def test_a_request_that_may_not_overlap_waits_for_all_before_it() -> None:
    async with serving() as (server, address):
        reader, writer = await asyncio.open_connection(*address)
        sent = [frame(LATER, b"a"), frame(ALONE, b"b"), frame(NOW, b"c")]
        writer.write(b"".join(sent))
        await until(lambda: len(server.later) == 1)
        assert server.started == [LATER]
        server.answer_all()
        assert [await receive(reader) for _ in sent] == sent
        assert server.started == [LATER, ALONE, NOW]
        writer.close()


async def test_a_large_request_is_received_when_it_could_start() -> None:
    async with serving() as (server, address):
        reader, writer = await asyncio.open_connection(*address)
        sent = [frame(LATER, b"a"), frame(LATER, b"b" * 3_000_000)]
        writer.write(b"".join(sent))
        await until(lambda: any(not connection.reading for connection in server.connections))
        assert server.started == [LATER]
        assert server.budget.held < 300_000
        server.answer_all()
        await until(lambda: len(server.later) == 1)
        assert server.budget.held >= 3_000_000
        server.answer_all()
        assert [await receive(reader) for _ in sent] == sent
        await until(lambda: server.budget.held == 0)
        writer.close()


async def test_a_connection_with_too_much_under_way_is_not_read() -> None:
    async with serving(Limits(connection_bytes=100_000)) as (server, address):
        reader, writer = await asyncio.open_connection(*address)
        sent = [frame(LATER, bytes([n]) * 10_000) for n in range(100)]
        writer.write(b"".join(sent))
        await until(lambda: len(server.later) >= 11 or not server.connections)
        (connection,) = server.connections
        await until(lambda: not connection.reading)
        assert len(server.later) < 100
        got: list[bytes] = []
        while len(got) < len(sent):
            await until(lambda: bool(server.later))
            expected = len(server.later)
            server.answer_all()
            got += [await receive(reader) for _ in range(expected)]
        assert got == sent
        await until(lambda: server.budget.held == 0)
        writer.close()


async def test_small_frames_that_wait_count_with_what_they_take() -> None:
    async with serving() as (server, address):
        reader, writer = await asyncio.open_connection(*address)
        sent = [frame(LATER), frame(ALONE)] + [frame(NOW)] * 2000
        writer.write(b"".join(sent))
        await until(lambda: bool(server.later) and server.budget.held > 2000 * 100)
        (connection,) = server.connections
        assert not connection.reading
        server.answer_all()
        assert [await receive(reader) for _ in sent] == sent
        await until(lambda: server.budget.held == 0)
        writer.write(b"".join(sent))
        await until(lambda: server.budget.held > 2000 * 100)
        connection.abort()
        await until(lambda: not server.connections and server.budget.held == 0)
        writer.close()


async def test_a_new_connection_takes_the_place_of_an_idle_one() -> None:
    async with serving(Limits(max_connections=2)) as (server, address):
        busy_reader, busy = await asyncio.open_connection(*address)
        busy.write(frame(LATER, b"x"))
        await until(lambda: len(server.later) == 1)
        idle_reader, _ = await asyncio.open_connection(*address)
        await until(lambda: len(server.connections) == 2)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(frame(LATER, b"y"))
        await until(lambda: len(server.later) == 2)
        assert server.counts.refused == 1
        with suppress(ConnectionError):
            assert await idle_reader.read() == b""
        late_reader, _ = await asyncio.open_connection(*address)  # nobody is idle now
        with suppress(ConnectionError):
            assert await late_reader.read() == b""
        assert server.counts.refused == 2
        server.answer_all()
        assert await receive(busy_reader) == frame(LATER, b"x")
        assert await receive(reader) == frame(LATER, b"y")
        busy.close()
        writer.close()


async def test_what_a_client_has_sent_before_it_closes_is_started() -> None:
    """Kafka's producers with acks=0, for one, wait for no answer before they close."""
    async with serving() as (server, address):
        _, writer = await asyncio.open_connection(*address)
        writer.write(frame(LATER) + frame(ALONE) + frame(NOW) * 100)
        writer.close()
        await until(lambda: bool(server.later))
        await until(lambda: all(connection.half_closed for connection in server.connections))
        server.answer_all()
        await until(lambda: not server.connections)
        assert server.started == [LATER, ALONE] + [NOW] * 100
        assert server.budget.held == 0


async def test_what_is_no_frame_costs_its_connection_only() -> None:
    async with serving() as (server, address):
        reader, writer = await asyncio.open_connection(*address)
        other_reader, other = await asyncio.open_connection(*address)
        writer.write(b"\xff" * 20)
        assert await reader.read() == b""
        other.write(frame(NOW, b"fine"))
        assert await receive(other_reader) == frame(NOW, b"fine")
        other.close()
        await until(lambda: server.counts.closed == 2)
        assert server.budget.held == 0


async def test_draining_answers_what_was_started() -> None:
    async with serving() as (server, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(frame(LATER, b"last"))
        await until(lambda: len(server.later) == 1)
        draining = asyncio.create_task(server.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        server.answer_all()
        assert await receive(reader) == frame(LATER, b"last")
        assert await reader.read() == b""
        writer.close()
        await draining


async def test_very_many_requests_that_came_together_leave_others_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones may be long: a record to each of a thousand partitions that are to be opened is a request each."""
    now = 0.0

    def later() -> float:
        nonlocal now
        now += 0.001  # what each request takes
        return now

    async with serving() as (server, address):
        reader, writer = await asyncio.open_connection(*address)
        monkeypatch.setattr(connection_module, "monotonic", later)
        turns: list[int] = []

        def turn() -> None:
            turns.append(len(server.started))
            if len(server.started) < 200:
                asyncio.get_running_loop().call_soon(turn)

        turn()
        writer.write(frame(NOW) * 200)
        assert [await receive(reader) for _ in range(200)] == [frame(NOW)] * 200
        steps = [after - before for before, after in pairwise(turns)]
        assert 0 < max(steps) <= 8
        writer.close()
