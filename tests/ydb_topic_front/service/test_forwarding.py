"""Streams and calls that another node serves: each safeguard on their way is needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from anabranch_kit.memory.budget import Kind, MemoryBudget
from anabranch_kit.net.address import Address
from anabranch_kit.run.barrier import Barrier
from bridges.cluster.members import Member, State
from bridges.cluster.peers import forwarded_grpc
from bridges.cluster.peers.forwarded_grpc import Opening
from bridges.cluster.peers.peers import LISTENER, Peers
from bridges.net.grpc_server import Code, GrpcRefusal
from tests.kit.waiting import until
from tests.left_out import Scenario, is_noticed, without
from tests.ports import free_port
from ydb_topic_front.service import forwarding
from ydb_topic_front.wire.statuses import YdbError

INIT_S = 0.3
patience: ContextVar[float] = ContextVar("patience", default=30.0)
"""Of a scenario; some safeguards are missed by waiting in vain, which need not take long."""
OPENING = Opening("Talk", {}, "ydb", "127.0.0.1", "")


class Client:
    """A stream of a client's, as gRPC gives it to a handler."""

    method, listener, host, certificate_name = "Talk", "ydb", "127.0.0.1", ""

    def __init__(self, budget: MemoryBudget, *messages: bytes | None, name: str = "ok") -> None:
        self.account = budget.account(lambda: None)
        self.headers = {"name": name}
        self.told: asyncio.Queue[bytes] = asyncio.Queue()
        self.said: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.draining = False
        self._drain: Callable[[], None] = lambda: None
        self._again: list[bytes] = []
        for message in messages:
            self.said.put_nowait(message)

    async def read(self) -> bytes | None:
        if self._again:
            return self._again.pop()
        message = await self.said.get()
        self.account.take(Kind.REQUESTS, len(message or b""))
        return message

    def unread(self, raw: bytes) -> None:
        self._again.append(raw)

    async def write(self, raw: bytes) -> None:
        self.told.put_nowait(raw)

    def when_draining(self, callback: Callable[[], None]) -> None:
        self._drain = callback
        if self.draining:
            callback()

    def drain(self) -> None:
        self.draining = True
        self._drain()


class Node:
    """What it serves it answers with its number before each message."""

    def __init__(self, made: ModuleType, number: int) -> None:
        self.number = self.node_id = number
        self.has = 0
        self.members: dict[int, Member] = {}
        self.served = 0
        self.failing = False
        self.heard = False
        self.budget = MemoryBudget(1 << 26, asyncio.get_running_loop().call_soon)
        self.peers = Peers(number, "secret", Barrier(), self.budget)
        kinds = SimpleNamespace(kind=lambda name: SimpleNamespace(done=lambda seconds: None))
        changes = SimpleNamespace(latest=self.hear)
        services = SimpleNamespace(node_id=number, metrics=kinds, db=SimpleNamespace(changes=changes))
        self.forwarding = made.Forwarding(services, INIT_S, self.identify, self.peers, self)
        self.talk = self.forwarding.led("Talk", self.handle, self.find, _last)
        self.call = self.forwarding.led_call("Call", lambda raw: self.slot)(self.answer)

    def identify(self, stream: Any) -> object:
        if stream.headers["name"] != "ok":
            raise GrpcRefusal(Code.UNAUTHENTICATED, "who are you?")
        return None

    async def hear(self) -> None:
        self.heard = True

    async def find(self, raw: bytes, stream: Any) -> Callable[[], int] | Member | None:
        if raw.startswith(b"at "):
            return self.members[int(raw[3:])]
        if raw == b"slowly":
            await asyncio.sleep(2 * INIT_S)  # longer than a client has to begin
        if raw == b"wrong":
            raise YdbError(400010, "that is wrong")  # type: ignore[arg-type]
        return None if raw == b"here" else self.slot

    def slot(self) -> int:
        return 0

    def is_mine(self, slot: int) -> bool:
        return self.has == self.number

    def owner(self, slot: int) -> Member | None:
        return self.members.get(self.has)

    async def handle(self, stream: Any) -> None:
        self.served += 1
        while (raw := await stream.read()) is not None:
            stream.account.give(Kind.REQUESTS, len(raw))
            if raw == b"refuse":
                raise GrpcRefusal(Code.RESOURCE_EXHAUSTED, "too much")
            await stream.write(b"%d:%s" % (self.number, raw))

    async def answer(self, raw: bytes, call: Any) -> bytes:
        self.served += 1
        if self.failing:
            self.failing = False
            await self.peers.close()
            await asyncio.Event().wait()
        return b"%d:%s" % (self.number, raw)


def _last(error: YdbError) -> bytes:
    return f"last {error.status.name}: {error}".encode()


@asynccontextmanager
async def nodes(made: ModuleType, owner: int = 2) -> AsyncIterator[list[Node]]:
    found = [Node(made, number) for number in (1, 2, 3)]
    members = {}
    for node in found:
        address = await node.peers.listen(Address("127.0.0.1", 0), None, None)
        members[node.number] = Member(node.number, node.number, State.UP, addresses={LISTENER: str(address)})
    for node in found:
        node.members, node.has = dict(members), owner
    try:
        async with asyncio.timeout(patience.get()):
            yield found
    finally:
        for node in found:
            await node.peers.close()


async def settled(found: list[Node]) -> None:
    """Nothing is held by anybody any more."""
    await until(lambda: not any(node.budget.held or node.peers.opened for node in found))


async def it_goes_to_the_owner_and_back_whole(made: ModuleType) -> None:
    async with nodes(made) as found:
        client = Client(found[0].budget, b"one", b"two", None)
        await found[0].talk(cast("Any", client))
        assert [client.told.get_nowait() for _ in range(2)] == [b"2:one", b"2:two"]
        assert client.told.empty()
        assert [node.served for node in found] == [0, 1, 0]
        assert found[1].heard, "of a topic that the first node has made a moment ago"
        await settled(found)


async def what_any_node_serves_is_served_here(made: ModuleType) -> None:
    async with nodes(made) as found:
        for first in (b"here", b"wrong"):
            client = Client(found[0].budget, first, None)
            await found[0].talk(cast("Any", client))
            assert client.told.get_nowait() == b"1:" + first
        await settled(found)


async def what_only_one_node_can_serve_goes_there_or_is_served_here(made: ModuleType) -> None:
    async with nodes(made) as found:
        found[0].members[9] = Member(9, 9, State.UP, addresses={LISTENER: f"127.0.0.1:{free_port()}"})
        for at, server in ((3, 3), (9, 1)):
            client = Client(found[0].budget, b"at %d" % at, None)
            await found[0].talk(cast("Any", client))
            assert client.told.get_nowait() == b"%d:at %d" % (server, at)
        await settled(found)


async def a_refusal_comes_as_it_is(made: ModuleType) -> None:
    async with nodes(made) as found:
        with pytest.raises(GrpcRefusal, match="too much") as refused:
            await found[0].talk(cast("Any", Client(found[0].budget, b"refuse", None)))
        assert refused.value.code is Code.RESOURCE_EXHAUSTED
        await settled(found)


async def the_owner_asks_who_it_is_as_well(made: ModuleType) -> None:
    async with nodes(made) as found:
        with pytest.raises(GrpcRefusal, match="who are you"):
            await found[0].talk(cast("Any", Client(found[0].budget, b"one", None, name="somebody")))
        assert found[1].served == 0


async def what_was_passed_on_goes_no_further(made: ModuleType) -> None:
    async with nodes(made) as found:
        found[1].has = 3  # it knows already, the first node does not
        client = Client(found[0].budget, b"one", None)
        await found[0].talk(cast("Any", client))
        assert client.told.get_nowait() == b"2:one"
        assert found[2].served == 0


async def an_owner_that_is_lost_is_told(made: ModuleType) -> None:
    async with nodes(made) as found:
        client = Client(found[0].budget, b"one")
        talking = asyncio.create_task(found[0].talk(cast("Any", client)))
        assert await client.told.get() == b"2:one"
        found[0].peers.keep_only([1, 3])
        assert (await client.told.get()).startswith(b"last UNAVAILABLE")
        await talking
        await settled(found)


async def a_node_that_stops_lets_its_clients_go(made: ModuleType) -> None:
    async with nodes(made) as found:
        client = Client(found[0].budget, b"one")
        talking = asyncio.create_task(found[0].talk(cast("Any", client)))
        assert await client.told.get() == b"2:one"
        client.drain()
        assert (await client.told.get()).startswith(b"last UNAVAILABLE")
        await talking


async def nobody_is_kept_waiting_by_a_node_that_stops(made: ModuleType) -> None:
    async with nodes(made, owner=0) as found:
        client = Client(found[0].budget, b"one", None)
        talking = asyncio.create_task(found[0].talk(cast("Any", client)))
        await asyncio.sleep(0.05)  # it looks for the owner meanwhile
        client.drain()
        await talking
        assert client.told.get_nowait() == b"1:one", "its own handler tells why not"


async def the_next_owner_is_waited_for(made: ModuleType) -> None:
    async with nodes(made, owner=0) as found:
        client = Client(found[0].budget, b"one", None)
        talking = asyncio.create_task(found[0].talk(cast("Any", client)))
        await asyncio.sleep(0.6)  # longer than it looks in one go
        found[0].has = 3
        assert await client.told.get() == b"3:one"
        await talking


async def who_cannot_be_reached_is_left_when_another_is_owner(made: ModuleType) -> None:
    async with nodes(made, owner=9) as found:
        found[0].members[9] = Member(9, 9, State.UP, addresses={LISTENER: f"127.0.0.1:{free_port()}"})
        client = Client(found[0].budget, b"one", None)
        talking = asyncio.create_task(found[0].talk(cast("Any", client)))
        await asyncio.sleep(0.1)  # it tries the owner that does not answer meanwhile
        found[0].has = 2
        assert await client.told.get() == b"2:one"
        await talking


async def who_says_nothing_is_told_so(made: ModuleType) -> None:
    async with nodes(made) as found:
        client = Client(found[0].budget)
        await found[0].talk(cast("Any", client))
        assert client.told.get_nowait().startswith(b"last TIMEOUT")


async def who_has_said_nothing_is_not_waited_for_by_a_node_that_stops(made: ModuleType) -> None:
    async with nodes(made) as found:
        found[0].forwarding.init_timeout_s = patience.get()
        for early in (True, False):
            client = Client(found[0].budget)
            if early:
                client.drain()
            talking = asyncio.create_task(found[0].talk(cast("Any", client)))
            await asyncio.sleep(0)
            client.drain()
            await talking
            assert client.told.get_nowait().startswith(b"last UNAVAILABLE: the node is stopping")


async def to_find_the_place_may_take_its_time(made: ModuleType) -> None:
    async with nodes(made) as found:
        client = Client(found[0].budget, b"slowly", None)
        await found[0].talk(cast("Any", client))
        assert client.told.get_nowait() == b"2:slowly"


async def a_lost_answer_is_asked_for_again(made: ModuleType) -> None:
    async with nodes(made) as found:
        found[1].failing = True
        asking = asyncio.create_task(found[0].call(b"one", cast("Any", Client(found[0].budget))))
        await until(lambda: not found[1].failing)
        found[0].has = 3
        assert await asking == b"3:one"
        found[0].has = 1
        assert await found[0].call(b"two", cast("Any", Client(found[0].budget))) == b"1:two"
        await settled(found)


SCENARIOS: list[Scenario] = [
    it_goes_to_the_owner_and_back_whole,
    what_any_node_serves_is_served_here,
    what_only_one_node_can_serve_goes_there_or_is_served_here,
    a_refusal_comes_as_it_is,
    the_owner_asks_who_it_is_as_well,
    what_was_passed_on_goes_no_further,
    an_owner_that_is_lost_is_told,
    a_node_that_stops_lets_its_clients_go,
    nobody_is_kept_waiting_by_a_node_that_stops,
    the_next_owner_is_waited_for,
    who_cannot_be_reached_is_left_when_another_is_owner,
    who_says_nothing_is_told_so,
    who_has_said_nothing_is_not_waited_for_by_a_node_that_stops,
    to_find_the_place_may_take_its_time,
    a_lost_answer_is_asked_for_again,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
async def test_a_promise_is_kept(scenario: Scenario) -> None:
    await scenario(forwarding)


WITHOUT = {
    "the owner asks who it is": ("            self._identify(stream)\n", ""),
    "the owner hears of new topics": ("            await self._node.db.changes.latest()", "            pass"),
    "what was passed on is served where it is": ("return serve", "self._handlers[method] = serve\nreturn serve"),
    "a refusal is told": ("await stream.refuse(refusal)", "pass"),
    "the end is told": ("        await peer.done_writing()\n", "        await asyncio.sleep(9)\n"),
    "a message has to come in time": ("asyncio.timeout(self.init_timeout_s)", "asyncio.timeout(9)"),
    "a node that stops waits for no message": ("patience.reschedule(0)", "None"),
    "the handler tells what is wrong": ("except (YdbError, LogError, GrpcRefusal):", "except LogError:"),
    "a node that stops waits for nobody": ("if stream.draining:", "if False:"),
    "a call's stream is closed": ("self._peers.close_stream(owner, peer)", "pass", "ask"),
    "a stream is closed": ("self._peers.close_stream(owner, peer)", "pass", "_led"),
    "the first message is held no more": ("stream.account.give(Kind.REQUESTS, len(raw))", "pass", "_pass"),
    "what any node serves is served here": (
        "        if slot is None:\n            return False",
        "        if slot is None:\n            slot = lambda: 0",
    ),
    "the first message is read again here": ("                    stream.unread(raw)", "                    pass"),
}


@pytest.mark.parametrize("safeguard", WITHOUT)
async def test_a_safeguard_that_is_left_out_is_noticed(safeguard: str) -> None:
    patience.set(1.5)
    assert await is_noticed(without(forwarding, *WITHOUT[safeguard]), SCENARIOS)


WITHOUT_BETWEEN = {
    "the client's end is passed on": ("    await peer.done_writing()", "    pass"),
    "what was passed on is held no more": (
        "            stream.account.give(Kind.REQUESTS, len(raw))",
        "            pass",
    ),
    "what came back is held no more": ("    peer.account.give(Kind.REQUESTS, len(raw))\n", ""),
    "a node that stops lets go": (
        "stream.when_draining(lambda: None if stopping.done() else stopping.set_result(None))",
        "pass",
    ),
    "a loss is told": ("        await stream.write(lost(reason))", "        pass"),
    "a status is no message": ("if raw[:1] == _MESSAGE:", "if True:"),
}


@pytest.mark.parametrize("safeguard", WITHOUT_BETWEEN)
async def test_a_safeguard_between_nodes_that_is_left_out_is_noticed(
    safeguard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience.set(1.5)
    made = without(forwarded_grpc, *WITHOUT_BETWEEN[safeguard])
    for name in ("forward", "read_answer", "ForwardedStream"):
        monkeypatch.setattr(forwarding, name, getattr(made, name))
    assert await is_noticed(forwarding, SCENARIOS)
