"""Lines out of bytes as they come, and connections that are asked one thing after the other."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_kit.memory.budget import MemoryBudget
from anabranch_kit.net.framing import FrameError, ReceiveBuffer
from anabranch_kit.net.line_framing import LineFraming
from anabranch_kit.run.barrier import Barrier
from bridges.auth.quotas import QuotaRules
from bridges.net.quotas import Quotas
from bridges.net.request_response import RequestConnection, RequestServer
from bridges.net.server import Limits
from tests.bridges.net.echo import Counts
from tests.kit.waiting import until


def feed(framer: object, data: bytes, cuts: list[int]) -> list[bytes]:
    """The lines of ``data`` when it comes in pieces that end at ``cuts``."""
    found: list[bytes] = []
    places = [0, *sorted({min(cut, len(data)) for cut in cuts}), len(data)]
    for begin, end in itertools.pairwise(places):
        rest = memoryview(data)[begin:end]
        while rest:
            space = framer.space()  # type: ignore[attr-defined]
            size = min(len(space), len(rest))
            assert size, "there is no room"
            space[:size] = rest[:size]
            found += map(bytes, framer.received(size))  # type: ignore[attr-defined]
            framer.retry()  # type: ignore[attr-defined]
            rest = rest[size:]
    return found


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@given(
    lines=st.lists(st.binary(max_size=50) | st.integers(16_000, 60_000).map(lambda size: b"x" * size), max_size=8),
    cuts=st.lists(st.integers(0, 200_000), max_size=8),
)
def test_any_lines_come_out_however_they_come(end: bytes, lines: list[bytes], cuts: list[int]) -> None:
    wanted = [line.replace(b"\n", b"").replace(b"\r", b"") for line in lines]
    framer = LineFraming(60_000, end).framer(ReceiveBuffer())
    assert feed(framer, b"".join(line + end for line in wanted) + b"rest", cuts) == wanted
    assert framer.partial == 4


@pytest.mark.parametrize("most", [10, 60_000])
def test_a_line_that_is_too_long(most: int) -> None:
    framing = LineFraming(most)
    assert feed(framing.framer(ReceiveBuffer()), b"x" * most + b"\n", []) == [b"x" * most]
    for sent in (b"x" * (most + 1) + b"\n", b"x" * (most + 1)):
        with pytest.raises(FrameError, match=f"a line of more than {most} bytes"):
            feed(framing.framer(ReceiveBuffer()), sent, [])


def test_a_long_line_waits_for_its_room() -> None:
    room = False
    asked: list[int] = []

    def reserve(size: int) -> bool:
        asked.append(size)
        return room

    framer = LineFraming(60_000).framer(ReceiveBuffer(), reserve)
    first = b"x" * 40_000
    sent = 0
    while not framer.blocked:
        space = framer.space()
        space[:] = first[sent : sent + len(space)]
        sent += len(space)
        assert framer.received(len(space)) == []
    assert (framer.blocked_by, framer.stashed, framer.reserved) == (60_001, sent, 0)
    room = True
    framer.retry()
    assert (framer.blocked, framer.receiving, framer.reserved, framer.stashed) == (False, True, 60_001, 0)
    assert feed(framer, first[sent:] + b"\n", []) == [first]
    assert set(asked) == {60_001}


class Words:
    """Answers a line with itself; some with what a test wants to see."""

    def __init__(self) -> None:
        self.under_way = 0
        self.go_on = asyncio.Event()

    def must_log_in(self, listener: str) -> bool:
        return listener == "strict"

    async def greet(self, client: RequestConnection, frame: bytes | bytearray) -> bytes:
        return b"who are you?\n"

    async def answer(self, client: RequestConnection, frame: bytes | bytearray) -> bytes:
        self.under_way += 1
        assert self.under_way == 1, "one at a time"
        if frame == b"wait":
            await self.go_on.wait()
        if frame == b"fail":
            self.under_way -= 1
            raise KeyError("nobody expected this")
        self.under_way -= 1
        return bytes(frame) + b"\n"


@asynccontextmanager
async def serving(listener: str = "lines") -> AsyncIterator[tuple[Words, RequestServer, tuple[str, int]]]:
    words, barrier = Words(), Barrier()
    budget = MemoryBudget(1 << 24, asyncio.get_running_loop().call_soon)
    quotas = Quotas(QuotaRules(), 1, barrier)
    server = RequestServer("words", Limits(), Counts(), budget, barrier, quotas, LineFraming(60_000), words)
    try:
        yield words, server, await server.listen(listener, "127.0.0.1", 0)
    finally:
        await server.close(0.5)
    assert budget.held == 0


async def test_requests_are_answered_one_after_the_other() -> None:
    async with serving() as (words, _, address):
        reader, writer = await asyncio.open_connection(*address)
        long = b"x" * 50_000
        writer.write(b"wait\nsecond\n" + long + b"\n\n")
        words.go_on.set()
        assert [await reader.readline() for _ in range(4)] == [b"wait\n", b"second\n", long + b"\n", b"\n"]
        writer.close()


async def test_what_fails_costs_its_own_connection() -> None:
    async with serving() as (_, server, address):
        one, other = await asyncio.open_connection(*address), await asyncio.open_connection(*address)
        one[1].write(b"fail\n")
        assert await one[0].read() == b""
        other[1].write(b"go on\n")
        assert await other[0].readline() == b"go on\n"
        assert server.barrier.failures == {"request": 1}
        for _, writer in (one, other):
            writer.close()


async def test_who_must_say_who_it_is_gets_no_answer() -> None:
    async with serving("strict") as (words, _, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"wait\n")
        assert await reader.readline() == b"who are you?\n"
        assert words.under_way == 0
        writer.close()


async def test_a_request_under_way_is_answered_when_the_server_drains() -> None:
    async with serving() as (words, server, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"wait\n")
        await until(lambda: words.under_way)
        draining = asyncio.create_task(server.drain())
        words.go_on.set()
        assert await reader.readline() == b"wait\n"
        await draining
        writer.close()
