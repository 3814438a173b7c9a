"""The clients of all nodes: asks the other nodes for theirs, and answers them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nlargest
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.turns import in_turns, sorting
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

    With ``topic`` the answer has the clients that use it (in the ``direction`` "writes" or "reads"), and with ``left``
    those that have left. Without, it has all open connections. ``address`` and ``search`` (small letters) are parts of
    texts. ``most``: how many clients are wanted at most, the busiest; 0: all.
    """

    topic: str = ""
    user: str = ""
    protocol: str = ""
    address: str = ""
    search: str = ""
    left: bool = False
    direction: str = ""
    most: int = 0

    def flows(self, client: Client) -> list[tuple[bool, Flow]]:
        """Return the traffic of a client that is asked for, each flow with whether it writes."""
        both = (("writes", client.writes), ("reads", client.reads))
        asked = [(direction == "writes", flows) for direction, flows in both if self.direction in ("", direction)]
        if self.topic:
            return [(writes, flows[self.topic]) for writes, flows in asked if self.topic in flows]
        return [(writes, flow) for writes, flows in asked for flow in flows.values()]

    def takes(self, client: Client) -> bool:
        if not (client.is_open or self.left) or (self.protocol and client.front != self.protocol):
            return False
        if self.topic and not self.flows(client):
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
    """The busiest clients of ``total``; ``more``: how many others there are, or were in the last minutes.
    ``unanswered``: nodes that did not answer."""

    clients: list[ClientView]
    more: int
    unanswered: list[int] = []
    total: int = 0

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
        peers.serve(_CLIENTS, Choice, self.answer)
        peers.serve(_END, _End, self._end_here)

    async def find(self, choice: Choice) -> Found:
        """Return the clients of all nodes that can be asked."""
        found = await self._find_here(choice)
        answers, unanswered = await ask_others(self._owners, self._peers, _CLIENTS, choice, Found, _ASKED_S)
        for one in answers:
            found.clients += one.clients
            found.more += one.more
            found.total += one.total or len(one.clients)  # a node of an earlier release sends no total
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

    async def answer(self, choice: Choice) -> Found:
        return await self._find_here(choice, ANSWER_BYTES)

    async def _find_here(self, choice: Choice, room: float = inf) -> Found:
        clients = [*self._clients]
        ranks: list[tuple[float, str, str]] = []
        async for place, client in in_turns(enumerate(clients)):
            if choice.takes(client):
                away = 0.0 if client.is_open else inf
                ranks.append((away - sum(_rates(choice.flows(client))), "", f"{place:09}"))
        found = Found([], self._clients.forgotten, total=len(ranks))
        view, most = self._viewer(choice), choice.most or len(ranks)
        async for rank in in_turns(sorting(ranks)):
            if rank is None:
                continue
            if len(found.clients) == most:
                break
            found.clients.append(view(clients[int(rank[2])]))
            if room != inf:
                room -= len(msgspec.msgpack.encode(found.clients[-1]))
                if room < 0:
                    found.more += found.total - len(found.clients)
                    found.total = len(found.clients)
                    break
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
            flows = choice.flows(client)
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
                *_rates(flows),
                shown,
            )

        return view


def _rates(flows: Sequence[tuple[bool, Flow]]) -> tuple[float, float]:
    """Return the bytes per second that are written, and that are read."""
    rates = [0.0, 0.0]
    for writes, flow in flows:
        rates[not writes] += flow.rates().bytes
    return rates[0], rates[1]


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
