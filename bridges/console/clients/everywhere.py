"""The clients of all nodes: asks the other nodes for theirs, and answers them."""

from __future__ import annotations

from collections.abc import Callable
from heapq import nlargest
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.turns import Turns
from bridges.clients import Client, Clients, Flow
from bridges.cluster.at_owner import ask_others

if TYPE_CHECKING:
    from bridges.cluster.ownership import Membership, Others

_CLIENTS, _END = "clients", "end of a client"
_ASKED_S = 3.0
ANSWER_BYTES = 1024**2
"""Most bytes of clients that a node sends another node, which decodes them at once; it counts the others."""
_FLOWS = 20
"""Most topics of a connection in an answer, those last used first."""
_NUMBERS = 100
"""Most partitions of a flow in an answer."""


class FlowView(Struct, array_like=True):
    """A client's traffic in a topic; see :class:`bridges.clients.Flow`. ``partitions``: the first of them."""

    topic: str
    writes: bool
    partitions: list[int]
    partition_count: int
    records: int
    bytes: int
    records_per_s: float
    bytes_per_s: float
    last_ms: int


class ClientView(Struct, array_like=True):
    """A client of a node. ``number`` is None once its connection has ended; ``topics``: how many it uses."""

    node_id: int
    number: int | None
    front: str
    listener: str
    host: str
    port: int
    name: str
    software: str
    user: str
    since_ms: int
    topics: int
    bytes_in_per_s: float
    bytes_out_per_s: float
    flows: list[FlowView]

    @property
    def order(self) -> float:
        """The key by which the busiest are first, and those that have left last."""
        return (inf if self.number is None else 0) - self.bytes_in_per_s - self.bytes_out_per_s

    @property
    def address(self) -> str:
        """The address, with the port if it is known and the connection is open."""
        return f"{self.host}:{self.port}" if self.port and self.number is not None else self.host


class Choice(Struct, array_like=True, frozen=True):
    """Which clients are asked for; an empty text chooses all.

    With ``topic`` the answer has the clients that use it, and those that have left. Without, it has all open
    connections. ``address`` and ``search`` (small letters) are parts of texts.
    """

    topic: str = ""
    user: str = ""
    protocol: str = ""
    address: str = ""
    search: str = ""
    left: bool = False

    def takes(self, client: Client) -> bool:
        if not (client.is_open or self.left) or (self.protocol and client.front != self.protocol):
            return False
        if self.topic and self.topic not in client.writes and self.topic not in client.reads:
            return False
        address = f"{client.host}:{client.port}"
        if self.address not in address:
            return False
        if not self.user and not self.search:
            return True
        described = client.describe()
        if self.user and described.user != self.user:
            return False
        texts = (described.name, described.software, described.user, address, client.front)
        return any(self.search in one.lower() for one in texts)


class Found(Struct, array_like=True):
    """Clients; ``more``: how many others there are, or were in the last minutes. ``unanswered``: nodes that did not
    answer."""

    clients: list[ClientView]
    more: int
    unanswered: list[int] = []

    def as_json(self) -> dict[str, object]:
        """Return the fields of an answer that say what it lacks."""
        return {"more": self.more} | ({"unanswered": sorted(self.unanswered)} if self.unanswered else {})


class _End(Struct, array_like=True):
    number: int
    reason: str


class _Ended(Struct, array_like=True):
    view: ClientView | None


class ClientsEverywhere:
    """Access to the clients of all nodes."""

    def __init__(self, clients: Clients, owners: Membership, peers: Others) -> None:
        self._clients = clients
        self._owners = owners
        self._peers = peers
        peers.serve(_CLIENTS, Choice, self._answer)
        peers.serve(_END, _End, self._end_here)

    async def find(self, choice: Choice) -> Found:
        """Return the clients of all nodes that can be asked."""
        found = await self._find_here(choice)
        answers, unanswered = await ask_others(self._owners, self._peers, _CLIENTS, choice, Found, _ASKED_S)
        for one in answers:
            found.clients += one.clients
            found.more += one.more
        found.unanswered += unanswered
        return found

    async def end(self, node_id: int, number: int, reason: str) -> ClientView | None:
        """End a connection of a node, for a reason that its log names; return what it was, None if there is none.

        Raises LogError if the node cannot be asked.
        """
        if node_id == self._owners.node_id:
            return (await self._end_here(_End(number, reason))).view
        member = next((one for one in self._owners.nodes if one.node_id == node_id), None)
        if member is None:
            return None
        return (await self._peers.ask(member, _END, _End(number, reason), _Ended, _ASKED_S)).view

    # --- at each node -------------------------------------------------------------------------------------------------

    async def _answer(self, choice: Choice) -> Found:
        return await self._find_here(choice, ANSWER_BYTES)

    async def _find_here(self, choice: Choice, most: float = inf) -> Found:
        found = Found([], self._clients.forgotten)
        view = self._viewer(choice)
        size, turns = 0, Turns()
        for client in self._clients:
            await turns.rest()
            if not choice.takes(client):
                continue
            if size >= most:
                found.more += 1
                continue
            found.clients.append(view(client))
            if most != inf:
                size += len(msgspec.msgpack.encode(found.clients[-1]))
        return found

    async def _end_here(self, asked: _End) -> _Ended:
        client = self._clients.find(asked.number)
        if client is None or client.end is None:
            return _Ended(None)
        view = self._viewer(Choice())(client)
        client.end(asked.reason)
        return _Ended(view)

    def _viewer(self, choice: Choice) -> Callable[[Client], ClientView]:
        now, wall_ms, node_id = monotonic(), now_ms(), self._owners.node_id

        def view(client: Client) -> ClientView:
            description = client.describe().cut()
            flows = [*((True, one) for one in client.writes.values()), *((False, one) for one in client.reads.values())]
            if choice.topic:
                flows = [one for one in flows if one[1].topic == choice.topic]
            rates = [0.0, 0.0]
            for writes, flow in flows:
                rates[not writes] += flow.rates().bytes
            some = nlargest(_FLOWS, flows, key=lambda one: one[1].last)
            shown = [_view(flow, writes, wall_ms - int((now - flow.last) * 1000)) for writes, flow in some]
            return ClientView(
                node_id,
                client.number if client.is_open else None,
                client.front,
                client.listener,
                client.host,
                client.port,
                description.name,
                description.software,
                description.user,
                client.since_ms,
                len(client.writes.keys() | client.reads.keys()),
                rates[0],
                rates[1],
                shown,
            )

        return view


def _view(flow: Flow, writes: bool, last_ms: int) -> FlowView:
    rates, numbers = flow.rates(), flow.numbers()
    count = flow.partitions.bit_count()
    return FlowView(
        flow.topic,
        writes,
        numbers[:_NUMBERS],
        count,
        flow.records,
        flow.bytes,
        round(rates.records, 1),
        round(rates.bytes, 1),
        last_ms,
    )
