"""Streams between nodes: messages of any size, an end that is told, and one that is not; memory that is short."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from anabranch_kit.memory.budget import Kind, MemoryBudget
from anabranch_kit.net.address import Address
from anabranch_kit.run.barrier import Barrier
from bridges.cluster.members import Member, State
from bridges.cluster.peers.peers import LISTENER, Peers
from bridges.cluster.peers.stream import PeerStream
from bridges.errors import PeerUnreachable

Serve = Callable[["Opening", PeerStream], Awaitable[None]]


class Opening(msgspec.Struct, array_like=True):
    word: str


@asynccontextmanager
async def stream_to(serve: Serve, secret: str = "s", budget: int = 1 << 28) -> AsyncIterator[tuple[Peers, PeerStream]]:
    """A stream from one end to another, which serves it."""
    loop = asyncio.get_running_loop()
    asking, serving = (
        Peers(start, word, Barrier(), MemoryBudget(size, loop.call_soon))
        for start, word, size in ((1, "s", 1 << 28), (2, secret, budget))
    )
    serving.serve_stream("talk", Opening, serve)
    told = await serving.listen(Address("127.0.0.1", 0), None, None)
    member = Member(2, 2, State.UP, addresses={LISTENER: str(told)})
    try:
        stream = await asking.stream(member, "talk", Opening("hello"))
        try:
            yield asking, stream
        finally:
            asking.close_stream(member, stream)
    finally:
        await asking.close()
        await serving.close()


async def echo(opening: Opening, stream: PeerStream) -> None:
    await stream.write(opening.word.encode())
    while (raw := await stream.read()) is not None:
        await stream.write(raw)
        stream.account.give(Kind.REQUESTS, len(raw))
    await stream.done_writing()


async def test_messages_of_any_size_and_an_end_that_is_told() -> None:
    async with stream_to(echo) as (_, stream):
        assert await stream.read() == b"hello"
        for size in (0, 1, 100, 5_000_000, 70_000_000):
            sent = asyncio.create_task(stream.write(b"x" * size))
            raw = await stream.read()
            await sent
            assert raw is not None
            assert len(raw) == size
            stream.account.give(Kind.REQUESTS, size)
        await stream.done_writing()
        assert await stream.read() is None
        assert stream.account.held == len(b"hello")


async def test_an_end_that_is_not_told_is_a_loss() -> None:
    async def leave(opening: Opening, stream: PeerStream) -> None:
        await stream.write(b"one")

    async with stream_to(leave) as (_, stream):
        assert await stream.read() == b"one"
        with pytest.raises(PeerUnreachable):
            await stream.read()


async def test_a_stream_ends_when_the_cluster_goes_on_without_the_node() -> None:
    async with stream_to(echo) as (asking, stream):
        assert await stream.read() == b"hello"
        reading = asyncio.create_task(stream.read())
        await asyncio.sleep(0)
        asking.keep_only([1])
        with pytest.raises(PeerUnreachable, match="no more"):
            await reading


async def test_whoever_does_not_know_the_secret_gets_no_stream() -> None:
    with pytest.raises(PeerUnreachable):
        async with stream_to(echo, secret="another"):
            pass


async def test_nothing_is_read_while_memory_is_short() -> None:
    held: list[int] = []
    room = asyncio.Event()

    async def hold(opening: Opening, stream: PeerStream) -> None:
        while (raw := await stream.read()) is not None:
            held.append(len(raw))
            if len(held) == 1:
                room.set()
        await stream.done_writing()

    async with stream_to(hold, budget=1 << 20) as (_, stream):

        async def send() -> None:
            for _ in range(64):
                await stream.write(b"x" * (1 << 20))

        sending = asyncio.create_task(send())
        await asyncio.wait_for(room.wait(), 30)
        await asyncio.wait({sending}, timeout=0.5)
        assert not sending.done()
        assert len(held) == 1
        sending.cancel()
