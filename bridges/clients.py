"""The clients of a node: who writes to and reads from which topic, over which connection, and how much.

A front enters a client when its connection or stream opens (:meth:`Clients.enter`), and counts each batch on the object
that it gets (:meth:`Client.wrote`, :meth:`Client.read`). A client that has left stays for ten minutes, together with
others of the same address and description: jobs that connect every minute, and requests over HTTP, have no lasting
connection.

Clients decide how many topics they use, and under how many names they come. So the traffic that is remembered is
bounded by a part of the node's memory budget. First the clients that left longest ago are forgotten, then the flows
that are quiet for longest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from time import monotonic
from typing import NamedTuple

from anabranch_kit.memory.budget import Kind, MemoryBudget
from anabranch_kit.run.clock import now_ms

CLIENT_BYTES = 1500
"""Memory of a client that has left: its description may have 768 characters."""
FLOW_BYTES = 600
"""Memory of a client's traffic in one topic and direction."""
_PART = 32
"""Flows take at most this part (1/n) of the node's memory budget."""
MOST_TOPICS = 500
"""Most topics that are remembered of one client and direction."""
MOST_PARTITIONS = 1000
"""Numbers of partitions that are remembered of a flow: those below this one."""
_SHOWN = 256
"""Most characters of what a client says about itself."""
_WINDOW_S = 5.0
"""A rate is that of the last one to two windows."""
_KEPT_S = 600.0


class Description(NamedTuple):
    """A client's claims about itself, which are never checked, and the user as which it has logged in.

    ``software``: name and version. ``user`` is empty for an anonymous client.
    """

    name: str = ""
    software: str = ""
    user: str = ""

    def cut(self) -> Description:
        """Return it with the beginnings of what is too long."""
        return Description(*(one[:_SHOWN] for one in self))


class Rates(NamedTuple):
    """Per second."""

    records: float
    bytes: float


class Flow:
    """The records that a client has written to a topic, or read from it. ``last``: when it was last active (monotonic
    clock, s). ``partitions`` has a bit for each partition."""

    __slots__ = ("_before", "_due", "_partition", "_since", "bytes", "client", "last", "partitions", "records", "topic")

    def __init__(self, client: Client, topic: str) -> None:
        self.client = client
        self.topic = topic
        self.records = self.bytes = self.partitions = 0
        self._partition = -1
        self.last = now = monotonic()
        self._due = now + _WINDOW_S
        # (time, records, bytes) at the beginnings of the window before this one, and of this one.
        self._before = self._since = (now, 0, 0)

    def count(self, partition: int, records: int, size: int) -> None:
        self.last = now = monotonic()
        if now >= self._due:
            self._turn(now)
        self.records += records
        self.bytes += size
        if partition != self._partition:
            self._partition = partition
            self.partitions |= 1 << min(partition, MOST_PARTITIONS)

    def let_go(self, partition: int) -> None:
        self.partitions &= ~(1 << min(partition, MOST_PARTITIONS))
        self._partition = -1

    def _turn(self, now: float) -> None:
        here = now, self.records, self.bytes
        self._before = self._since if now < self._due + _WINDOW_S else here
        self._since = here
        self._due = now + _WINDOW_S
        self.client.stirred(self)

    def add(self, other: Flow) -> None:
        """Add the flow of a client of the same description."""
        self.count(self._partition, other.records, other.bytes)
        self.partitions |= other.partitions

    def rates(self) -> Rates:
        """Return the present rates; zero after two windows without traffic."""
        now = monotonic()
        if now - self.last > 2 * _WINDOW_S:
            return Rates(0.0, 0.0)
        since, records, size = self._before
        seconds = max(now - since, 1.0)
        return Rates((self.records - records) / seconds, (self.bytes - size) / seconds)

    def numbers(self) -> list[int]:
        """Return the partitions, of those below :data:`MOST_PARTITIONS`."""
        most = min(self.partitions.bit_length(), MOST_PARTITIONS)
        return [number for number in range(most) if self.partitions >> number & 1]


class Client:
    """A client of a front, while its connection or stream is open, and for some time later.

    ``describe`` is called when somebody looks. ``end`` closes its connection for a reason; None once it has left.
    """

    __slots__ = (
        "_clients",
        "describe",
        "end",
        "front",
        "host",
        "left",
        "listener",
        "number",
        "port",
        "reads",
        "since_ms",
        "writes",
    )

    def __init__(
        self,
        clients: Clients,
        number: int,
        front: str,
        listener: str,
        address: tuple[str, int],
        describe: Callable[[], Description],
        end: Callable[[str], None],
    ) -> None:
        self._clients = clients
        self.number = number
        self.front = front
        self.listener = listener
        self.host, self.port = address
        self.since_ms = now_ms()
        self.describe = describe
        self.end: Callable[[str], None] | None = end
        self.left = 0.0
        """When it left (monotonic clock, s); 0 while its connection is open."""
        self.writes: dict[str, Flow] = {}
        self.reads: dict[str, Flow] = {}

    def wrote(self, topic: str, partition: int, records: int, size: int) -> None:
        """Count a batch that became durable."""
        flow = self.writes.get(topic)
        if flow is None:
            flow = self._clients.begin(self, self.writes, topic)
        flow.count(partition, records, size)

    def read(self, topic: str, partition: int, records: int = 0, size: int = 0) -> None:
        """Count records that were sent to the client; without them: it waits for some."""
        flow = self.reads.get(topic)
        if flow is None:
            flow = self._clients.begin(self, self.reads, topic)
        flow.count(partition, records, size)

    def let_go(self, topic: str, partition: int) -> None:
        """Note that the client reads a partition no more."""
        if (flow := self.reads.get(topic)) is not None:
            flow.let_go(partition)

    def stirred(self, flow: Flow) -> None:
        """Note that a flow is not quiet."""
        self._clients.stirred(flow)

    @property
    def flows(self) -> Iterator[Flow]:
        yield from self.writes.values()
        yield from self.reads.values()

    @property
    def is_open(self) -> bool:
        return not self.left


class Clients:
    """All clients of a node. Belongs to the event loop."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._hold = partial(budget.attach, kind=Kind.HISTORY)
        self.most = max(16, budget.total // _PART // FLOW_BYTES)
        """Most flows that are remembered."""
        # Numbers begin with the time, so that after a restart none of them names another connection.
        self._numbers = count(now_ms())
        self._open: dict[int, Client] = {}
        # Clients that have left, the one that left longest ago first.
        self._left: OrderedDict[tuple[str, ...], Client] = OrderedDict()
        # Flows of open clients, the quietest first: a flow moves to the end with the first batch of a window.
        self._flows: OrderedDict[Flow, None] = OrderedDict()
        self._of_left = 0
        self._forgotten = 0
        self._forgot_at = 0.0

    def __len__(self) -> int:
        """Return the number of flows that are remembered."""
        return len(self._flows) + self._of_left

    def __iter__(self) -> Iterator[Client]:
        """Iterate over a copy: the open clients, then those that have left."""
        self._forget_old()
        return iter([*self._open.values(), *reversed(self._left.values())])

    @property
    def forgotten(self) -> int:
        """Return how many flows were forgotten for lack of room and could be shown otherwise."""
        return self._forgotten if monotonic() - self._forgot_at < _KEPT_S else 0

    def enter(
        self,
        front: str,
        listener: str,
        address: tuple[str, int],
        describe: Callable[[], Description],
        end: Callable[[str], None],
    ) -> Client:
        """Add a client that has connected from ``address``; :meth:`leave` removes it.

        ``describe`` is called whenever somebody looks; ``end`` closes this connection alone, and gets the reason.
        """
        client = Client(self, next(self._numbers), front, listener, address, describe, end)
        self._open[client.number] = client
        return client

    def leave(self, client: Client) -> None:
        """Remove a client whose connection has ended. Does nothing when repeated."""
        if self._open.pop(client.number, None) is None:
            return
        description = client.describe().cut()
        client.describe, client.end, client.left = lambda: description, None, monotonic()
        flows = [*client.flows]
        for flow in flows:
            self._flows.pop(flow, None)
        if not flows:
            return
        key = (client.front, client.listener, client.host, *description)
        kept = self._left.get(key)
        if kept is None:
            self._left[key] = client
            self._of_left += len(flows)
            self._hold(CLIENT_BYTES)
        else:
            self._left.move_to_end(key)
            kept.left = client.left
            self._merge(client.writes, kept, kept.writes)
            self._merge(client.reads, kept, kept.reads)
        self._forget_old()

    def _merge(self, flows: dict[str, Flow], kept: Client, known: dict[str, Flow]) -> None:
        for topic, flow in flows.items():
            if topic in known:
                known[topic].add(flow)
                self._hold(-FLOW_BYTES)
            elif len(known) < MOST_TOPICS:
                flow.client, known[topic] = kept, flow
                self._of_left += 1
            else:
                self._hold(-FLOW_BYTES)
        flows.clear()

    def find(self, number: int) -> Client | None:
        """Return an open client."""
        return self._open.get(number)

    # --- flows --------------------------------------------------------------------------------------------------------

    def begin(self, client: Client, flows: dict[str, Flow], topic: str) -> Flow:
        """Return a new flow of a client, which is remembered while there is room and the client is open."""
        flow = Flow(client, topic)
        if client.is_open:
            if len(flows) >= MOST_TOPICS:
                self._forget(next(iter(flows.values())))
            elif len(self) >= self.most:
                self._make_room()
            flows[topic] = flow
            self._flows[flow] = None
            self._hold(FLOW_BYTES)
        return flow

    def stirred(self, flow: Flow) -> None:
        """Put a flow behind those that were quiet for longer."""
        if flow in self._flows:
            self._flows.move_to_end(flow)

    def _make_room(self) -> None:
        if self._left:
            self._count_forgotten(self._drop_left())
        else:
            self._forget(next(iter(self._flows)))

    def _forget(self, flow: Flow) -> None:
        """Forget a flow of an open client; it begins again with the next batch."""
        del self._flows[flow]
        flows = flow.client.writes if flow.client.writes.get(flow.topic) is flow else flow.client.reads
        del flows[flow.topic]
        self._hold(-FLOW_BYTES)
        self._count_forgotten(1)

    def _count_forgotten(self, flows: int) -> None:
        self._forgotten = self.forgotten + flows
        self._forgot_at = monotonic()

    def _forget_old(self) -> None:
        """Forget the clients that left ten minutes ago."""
        before = monotonic() - _KEPT_S
        while self._left and next(iter(self._left.values())).left < before:
            self._drop_left()

    def _drop_left(self) -> int:
        """Forget the client that left longest ago; return the number of its flows."""
        _, client = self._left.popitem(last=False)
        flows = len(client.writes) + len(client.reads)
        client.writes.clear()
        client.reads.clear()
        self._of_left -= flows
        self._hold(-CLIENT_BYTES - flows * FLOW_BYTES)
        return flows
