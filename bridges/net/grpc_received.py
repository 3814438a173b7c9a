"""What clients have sent of gRPC messages that are not whole yet: gRPC does not tell, but the kernel does.

Whoever waits for the next message of a stream has gRPC receive it, up to its largest size, and hears of it when it is
whole. So what the kernel has received on a connection, less what came out of it as messages, is counted in the memory
budget, from the sockets themselves: every second, soon after the process has grown, and twenty times a second while
much is held, since a client on the same machine sends a gigabyte in that time. What HTTP/2 adds is taken for somewhat
more than it is, so that long-lived connections do not seem to hold what they do not.

Nobody can be kept from sending the rest of a message. So while memory is short, a connection that holds much of one and
has completed none for a while is closed, and while more is held than there may be, that which holds most. What gRPC had
for them lies all over the heap, from where it goes back to the system only when that is asked for.
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic, thread_time
from typing import TYPE_CHECKING
from urllib.parse import unquote

import structlog

from anabranch_kit.memory.budget import Kind
from anabranch_kit.memory.heap import give_back, resident
from anabranch_kit.net.sockets import Peer, Sockets, close, plain

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from anabranch_kit.memory.budget import MemoryBudget
    from anabranch_kit.net.sockets import Arrived
    from anabranch_kit.run.barrier import Barrier

LOOK_SECONDS = 1.0
GLANCE_SECONDS = 0.2
"""How often it is asked whether the process has grown, for which it is looked at once: what comes in this time on a
machine of two cores fits into what there is for all."""
HURRY_SECONDS = 0.05
"""How often it is looked while much is held: what comes in this time may come too much."""
_MUCH = 8
"""One part in so many of the budget is much to hold."""
_GROWN = 16
"""One part in so many of it is much to grow by."""
_PAUSE = 20
"""Looking takes one part in so many of a core's time at most."""
_SHORT_SECONDS = 0.002
"""Looking that takes no longer, as with some hundred descriptors, is done on the event loop."""
GIVE_BACK_BYTES = 32 * 1024 * 1024
"""When connections have gone with so many bytes of messages, the heap's free memory goes back to the system."""
GIVE_BACK_SECONDS = 0.2
"""Not more often than that."""
GIVE_BACK_FIRST_SECONDS = 10.0
"""So long after the last time, also as soon as much is held: what the heap keeps of other work is not needed for it."""
PATIENCE_SECONDS = 10.0
"""While memory is short, a message of which much is there has to be whole after this time."""
LARGE_BYTES = 256 * 1024
"""What a connection may hold of messages, however short memory is, while all that do fit into a quarter of it."""
_LARGE_PART = 4
MESSAGE_BYTES = 96
"""At most, what HTTP/2 and gRPC add to a small message, and to the answer that the client acknowledges."""
CALL_BYTES = 512
"""The same of a call, besides its headers."""
PING_BYTES = 8
"""What a connection that does nothing receives in a second: a ping now and then."""
PINGS_BYTES = 60 * PING_BYTES
"""As much of that may come at once."""
_PER_BYTE = 200
"""One byte in so many is a frame's, or TLS's."""
log = structlog.get_logger(__name__)


class Connection:
    """One client's connection: ``pending`` bytes of it are no message yet, as far as is known."""

    __slots__ = (
        "_ahead",
        "_cookie",
        "_looked",
        "_marked",
        "_memory",
        "_pings",
        "_seen",
        "leaving",
        "pending",
        "since",
        "unseen",
    )

    def __init__(self, memory: ReceivedMemory) -> None:
        self._memory = memory
        self.pending = 0
        self.since = monotonic()
        """When the last message was whole."""
        self.unseen = 0
        """How often it was looked for in vain."""
        self.leaving = False
        """It was closed, and gRPC has not given it up yet."""
        self._cookie = b""
        self._looked = self.since
        self._pings = 0.0  # bytes of pings that may have come
        self._seen = 0  # the kernel's bytes when it was last looked
        self._ahead = 0  # bytes of messages beyond what the kernel had told by then
        self._marked = 0

    def took(self, size: int) -> None:
        """A message of ``size`` bytes came out of it."""
        size += MESSAGE_BYTES + size // _PER_BYTE
        settled = min(self.pending, size)
        if settled:
            self.hold(-settled)
        self._ahead += size - settled
        self.since = monotonic()

    def sent(self) -> None:
        """A message went to the client, which says that it has room again."""
        self._ahead += MESSAGE_BYTES

    def called(self, headers: int) -> None:
        """A call began, with so many bytes of headers."""
        self._ahead += headers + CALL_BYTES

    def hold(self, change: int) -> None:
        """So many bytes more, or less, are no message yet."""
        self.pending += change
        self._memory.count(change)

    def mark(self) -> None:
        """The kernel is about to be asked."""
        self._marked = self._ahead

    def is_of(self, cookie: bytes) -> None:
        """The socket's; another than before is a new connection from the same place."""
        if cookie != self._cookie and self._cookie:
            self.hold(-self.pending)
            self._seen = 0
            self.leaving = False
        self._cookie = cookie

    def received(self, total: int) -> None:
        """The kernel has received so many bytes since the connection began."""
        new, self._seen = total - self._seen, total
        later = self._ahead - self._marked  # of messages that may have come after the kernel was asked
        missing = new - self._ahead
        self._ahead = max(0, min(-missing, later))
        now = monotonic()
        self._pings = min(PINGS_BYTES, self._pings + PING_BYTES * (now - self._looked))
        self._looked = now
        if missing > 0:
            pings = min(missing, int(self._pings))
            self._pings -= pings
            self.hold(missing - pings)


class ReceivedMemory:
    """What all connections of a gRPC server hold in this way. ``watch`` follows the sockets of its ``ports``."""

    def __init__(self, budget: MemoryBudget, barrier: Barrier) -> None:
        self._budget = budget
        self._barrier = barrier
        self._account = budget.account(lambda: None)
        self._connections: dict[Peer, Connection] = {}
        self._sockets = Sockets()
        self.cut = 0
        """Connections that were closed for what they held."""
        self._looked = monotonic()
        self._took = 0.0  # seconds of a core's time, to look
        self._size = 0  # of the process, when it was looked
        self._gone = 0  # bytes of messages that connections have left behind
        self._gave_back = -GIVE_BACK_FIRST_SECONDS  # when, by the monotonic clock

    @property
    def held(self) -> int:
        """Bytes."""
        return self._account.held

    def count(self, change: int) -> None:
        """Bytes of a connection."""
        self._account.count(Kind.REQUESTS, change)

    def of(self, peer: str) -> Connection:
        """The connection of a client, whose address is written as gRPC writes it (``ipv4:127.0.0.1:50123``)."""
        return self._at(peer_of(peer))

    def _at(self, peer: Peer) -> Connection:
        found = self._connections.get(peer)
        if found is None:
            found = self._connections[peer] = Connection(self)
        return found

    async def watch(self, ports: Collection[int]) -> None:
        """Look at the sockets again and again; never returns."""
        while True:
            await asyncio.sleep(HURRY_SECONDS if self._much else GLANCE_SECONDS)
            try:
                if self._due():
                    await self.look(ports)
                if self._leaves_much():
                    self._gone = 0
                    await asyncio.to_thread(give_back)
                    self._gave_back = monotonic()
            except Exception as error:  # noqa: BLE001 - logged and counted; it is looked again
                self._barrier.caught("looking at sockets", error)

    def _due(self) -> bool:
        """Whether it is time to look. Raises OSError."""
        since = monotonic() - self._looked
        if since < _PAUSE * self._took:
            return False
        return since >= LOOK_SECONDS or self._much or resident() - self._size > self._budget.total // _GROWN

    def _leaves_much(self) -> bool:
        """Whether it is time to give back what is free."""
        ago = monotonic() - self._gave_back
        if self._gone >= GIVE_BACK_BYTES:
            return ago > GIVE_BACK_SECONDS
        return self._much and ago > GIVE_BACK_FIRST_SECONDS

    @property
    def _much(self) -> bool:
        return self.held > self._budget.total // _MUCH

    async def look(self, ports: Collection[int]) -> None:
        """Count what there is now, and close what may not stay. Raises OSError."""
        connections = self._connections
        self._looked = monotonic()
        self._size = resident()
        for connection in connections.values():
            connection.mark()
        ask = partial(self._ask, frozenset(ports))
        # A thread waits for the interpreter where others compute, up to a quarter of a second, in which much comes.
        found = ask() if self._took < _SHORT_SECONDS else await asyncio.to_thread(ask)
        for peer, arrived in found.items():
            connection = self._at(peer)
            connection.unseen = 0
            connection.is_of(arrived.cookie)
            connection.received(arrived.received)
        for peer in [peer for peer in connections if peer not in found]:
            connection = connections[peer]
            connection.unseen += 1
            if connection.unseen > 1:  # it may have been made since the kernel was asked
                self._gone += connection.pending
                connection.hold(-connection.pending)
                del connections[peer]
        for peer in self._too_much():
            if peer in found and close(found[peer].number, peer):
                self._connections[peer].leaving = True
                self.cut += 1
                log.warning("connection closed: it keeps a part of a message", peer="{}:{}".format(*peer))

    def _ask(self, ports: frozenset[int]) -> Mapping[Peer, Arrived]:
        began = thread_time()
        found = self._sockets.to(ports)
        self._took = thread_time() - began
        return found

    def _too_much(self) -> list[Peer]:
        budget = self._budget
        if not (budget.scarce or budget.waiting):
            return []
        since = monotonic() - PATIENCE_SECONDS
        staying = [(one.pending, peer) for peer, one in self._connections.items() if not one.leaving]
        over = budget.held - budget.total - (self.held - sum(pending for pending, _ in staying))
        least = min(LARGE_BYTES, budget.total // _LARGE_PART // max(1, len(staying)))
        found = []
        for pending, peer in sorted((one for one in staying if one[0] > least), reverse=True):
            if over > 0 or self._connections[peer].since < since:
                found.append(peer)
                over -= pending
        return found


def peer_of(text: str) -> Peer:
    """Of ``ipv4:127.0.0.1:50123`` or ``ipv6:[::1]:50123``."""
    _, _, place = unquote(text).partition(":")
    host, _, port = place.rpartition(":")
    return plain(host.strip("[]")), int(port) if port.isdecimal() else 0
