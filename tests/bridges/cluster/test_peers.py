"""Nodes ask one another over real sockets: who may, what is told of errors, what becomes of a lost answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from anabranch_kit.memory.budget import Kind, MemoryBudget
from anabranch_kit.net.address import Address
from anabranch_kit.run.barrier import Barrier
from bridges.cluster.members import Member, State
from bridges.cluster.peers.peers import LISTENER, Peers, PeerUnreachable
from bridges.errors import GroupHeld, LogError, LogUnavailable, NotOwner
from tests.kit.waiting import until


class Number(Struct):
    value: int
    padding: bytes = b""


class Lab:
    """Nodes that listen, by their numbers."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.budget = MemoryBudget(256 * 1024**2, asyncio.get_running_loop().call_soon)
        self.barrier = Barrier()
        self._stack = stack

    async def node(self, start: int, secret: str = "s3cret") -> tuple[Peers, Member]:
        peers = Peers(start, secret, self.barrier, self.budget)
        self._stack.push_async_callback(peers.close)
        address = await peers.listen(Address("127.0.0.1", 0), None, None)
        return peers, Member(start, start, State.UP, addresses={LISTENER: str(address)})


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with AsyncExitStack() as stack:
        yield Lab(stack)


def doubling(seen: list[int] | None = None) -> Callable[[Number], Any]:
    async def answer(asked: Number) -> Number:
        if seen is not None:
            seen.append(asked.value)
        return Number(2 * asked.value, asked.padding)

    return answer


async def test_many_questions_at_once_get_each_its_own_answer(lab: Lab) -> None:
    (asks, _), (answers, there) = await lab.node(1), await lab.node(2)

    async def slow_first(asked: Number) -> Number:
        for _ in range(10 - asked.value % 10):
            await asyncio.sleep(0)
        return Number(2 * asked.value)

    answers.serve("double", Number, slow_first)
    told = await asyncio.gather(*(asks.ask(there, "double", Number(n), Number) for n in range(1000)))
    assert [one.value for one in told] == [2 * n for n in range(1000)]
    assert lab.budget.by_kind[Kind.REQUESTS] == 0


async def test_a_process_is_past_when_nobody_or_another_start_is_where_it_was(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    (asks, _), (lives, there) = await lab.node(1), await lab.node(2)
    assert not await asks.is_past(there)
    assert await asks.is_past(replace(there, start=7))
    assert not await asks.is_past(replace(there, addresses={})), "it has not come so far"
    await lives.close()
    assert await asks.is_past(there)
    # One that sleeps has its listener still.
    monkeypatch.setattr("bridges.cluster.peers.peers.HELLO_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as asleep:
        address = f"127.0.0.1:{asleep.getsockname()[1]}"
        assert not await asks.is_past(replace(there, addresses={LISTENER: address}))


async def test_both_ends_must_know_the_secret(lab: Lab) -> None:
    (knows, there), (stranger, elsewhere) = await lab.node(1), await lab.node(2, "another")
    seen: list[int] = []
    for one in (knows, stranger):
        one.serve("double", Number, doubling(seen))
    with pytest.raises(PeerUnreachable):
        await stranger.ask(there, "double", Number(1), Number)
    with pytest.raises(PeerUnreachable):
        await knows.ask(elsewhere, "double", Number(1), Number)
    assert not seen


async def test_who_proves_nothing_is_not_heard(lab: Lab) -> None:
    answers, there = await lab.node(1)
    seen: list[int] = []
    answers.serve("double", Number, doubling(seen))
    address = Address.parse(there.addresses[LISTENER])
    for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff", b"\0\0\0\2\x93\x01", b"\0\0\0\1\x90"):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(sent)
        writer.write_eof()
        await reader.read()
        writer.close()
    (asks, _) = await lab.node(2)
    assert (await asks.ask(there, "double", Number(4), Number)).value == 8
    assert seen == [4]
    assert not lab.barrier.failures


async def test_an_address_that_belongs_to_another_start_answers_nothing(lab: Lab) -> None:
    (asks, _), (answers, there) = await lab.node(1), await lab.node(2)
    answers.serve("double", Number, doubling())
    former = Member(7, 2, State.UP, addresses=there.addresses)
    with pytest.raises(PeerUnreachable, match="another start"):
        await asks.ask(former, "double", Number(1), Number)
    with pytest.raises(PeerUnreachable, match="no address"):
        await asks.ask(Member(8, 3, State.UP), "double", Number(1), Number)


class OnlyHere(LogError):
    """An error that other nodes need not know."""

    retriable = True


async def test_errors_come_as_what_they_are(lab: Lab) -> None:
    (asks, _), (answers, there) = await lab.node(1), await lab.node(2)
    errors: list[Exception] = [
        NotOwner("slot 3", 9),
        LogUnavailable("not now"),
        LogError("never"),
        KeyError("?"),
        GroupHeld("in use"),
        OnlyHere("later"),
    ]

    async def failing(asked: Number) -> Number:
        raise errors[asked.value]

    answers.serve("fail", Number, failing)
    with pytest.raises(NotOwner) as owner:
        await asks.ask(there, "fail", Number(0), Number)
    assert owner.value.node_id == 9
    heard = [
        (LogUnavailable, "not now"),
        (LogError, "never"),
        (LogUnavailable, "fail"),
        (GroupHeld, "in use"),
        (LogUnavailable, "later"),
    ]
    for number, (kind, text) in enumerate(heard):
        with pytest.raises(kind, match=text) as found:
            await asks.ask(there, "fail", Number(number + 1), Number)
        assert type(found.value) is kind
    assert lab.barrier.failures == {"answering another node": 1}
    with pytest.raises(LogUnavailable, match="answers no nothing"):
        await asks.ask(there, "nothing", Number(0), Number)


async def test_an_answer_that_does_not_come_is_unknown_and_may_be_asked_for_again(lab: Lab) -> None:
    (asks, _), (answers, there) = await lab.node(1), await lab.node(2)
    asked = asyncio.Event()

    async def silent(_: Number) -> Number:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    answers.serve("silent", Number, silent)
    with pytest.raises(PeerUnreachable, match=r"0\.05 s"):
        await asks.ask(there, "silent", Number(0), Number, 0.05)
    waiting = asyncio.create_task(asks.ask(there, "silent", Number(0), Number))
    asked.clear()
    await asked.wait()
    asks.keep_only([1])  # the other one is a member no more
    with pytest.raises(PeerUnreachable):
        await waiting
    answers.serve("double", Number, doubling())
    assert (await asks.ask(there, "double", Number(1), Number)).value == 2
    await answers.close()
    with pytest.raises(PeerUnreachable):
        await asks.ask(there, "double", Number(1), Number)


async def test_what_is_being_answered_has_a_bound(lab: Lab) -> None:
    (asks, _), (answers, there) = await lab.node(1), await lab.node(2)
    free = asyncio.Event()
    most = 0

    async def held(asked: Number) -> Number:
        nonlocal most
        most = max(most, lab.budget.by_kind[Kind.REQUESTS])
        await free.wait()
        return Number(asked.value)

    answers.serve("hold", Number, held)
    size = 1024**2
    waiting = [asyncio.create_task(asks.ask(there, "hold", Number(n, bytes(size)), Number)) for n in range(30)]
    await until(lambda: most >= 8 * size)
    free.set()
    assert [(await one).value for one in waiting] == list(range(30))
    assert most < 10 * size
    with pytest.raises(LogError, match="more than a node is asked"):
        await asks.ask(there, "hold", Number(0, bytes(5 * size)), Number)
