"""Memory of gRPC messages that have arrived in part. gRPC does not report it, so it is computed from the kernel's
counts.

When a stream waits for its next message, gRPC receives up to the largest message, and reports it when it is complete.
So the bytes that the kernel has received on a connection, less the messages that came out of it, count in the memory
budget. The sockets are read every second, soon after the process has grown, and twenty times a second while much is
held: a client on the same machine sends a gigabyte in that time. The overhead of HTTP/2 is overestimated, so that
long-lived connections do not seem to hold bytes that they do not.

A client cannot be kept from sending the rest of a message. So while memory is short, a connection that holds much of a
message and has completed none for a while is closed; and while more is held than the budget allows, the connection that
holds most. gRPC's memory for them lies all over the heap, and returns to the system only on request.
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
"""Interval at which the process's size is checked; the sockets are read at once if it has grown. What arrives in this
time on a machine with two cores fits into the budget.
"""
HURRY_SECONDS = 0.05
"""Interval at which the sockets are read while much is held: more than the budget may arrive in a longer one."""
_MUCH = 8
"""Much is held above this fraction (1/n) of the budget."""
_GROWN = 16
"""The process has grown if it is larger by this fraction (1/n) of the budget."""
_PAUSE = 20
"""Reading the sockets takes at most this fraction (1/n) of a core's time."""
_SHORT_SECONDS = 0.002
"""If reading the sockets takes no longer, as with a few hundred descriptors, it is done on the event loop."""
GIVE_BACK_BYTES = 32 * 1024 * 1024
"""When connections with this many bytes of messages have ended, the heap's free memory is returned to the system."""
GIVE_BACK_SECONDS = 0.2
"""Shortest interval between two returns of free memory."""
GIVE_BACK_FIRST_SECONDS = 10.0
"""After this time memory is also returned when much is held: free memory of other work may be in the heap."""
PATIENCE_SECONDS = 10.0
"""While memory is short, a large message must be complete after this time."""
LARGE_BYTES = 256 * 1024
"""Bytes of messages that a connection may always hold, while those of all connections fit into a quarter of the
budget.
"""
_LARGE_PART = 4
MESSAGE_BYTES = 96
"""Most bytes that HTTP/2 and gRPC add to a small message, and to the answer that the client acknowledges."""
CALL_BYTES = 512
"""Most bytes that HTTP/2 and gRPC add to a call, besides its headers."""
PING_BYTES = 8
"""Bytes per second that an idle connection receives: a ping now and then."""
PINGS_BYTES = 60 * PING_BYTES
"""Most bytes of pings that may arrive at once."""
_PER_BYTE = 200
"""One byte in this many is overhead of frames or TLS."""
log = structlog.get_logger(__name__)


class Connection:
    """A client's connection. ``pending`` estimates its bytes that are not yet a complete message."""

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
        """Time of the last complete message."""
        self.unseen = 0
        """In how many reads of the sockets it was missing."""
        self.leaving = False
        """The node has closed it, but gRPC has not released it yet."""
        self._cookie = b""
        self._looked = self.since
        self._pings = 0.0  # bytes of pings that may have arrived
        self._seen = 0  # the kernel's count at the last read
        self._ahead = 0  # bytes of messages beyond the kernel's last count
        self._marked = 0

    def took(self, size: int) -> None:
        """Count a message of ``size`` bytes that gRPC has delivered."""
        size += MESSAGE_BYTES + size // _PER_BYTE
        settled = min(self.pending, size)
        if settled:
            self.hold(-settled)
        self._ahead += size - settled
        self.since = monotonic()

    def note_sent(self) -> None:
        """Count the bytes with which the client acknowledges a message."""
        self._ahead += MESSAGE_BYTES

    def note_call(self, headers: int) -> None:
        """Count the start of a call with this many bytes of headers."""
        self._ahead += headers + CALL_BYTES

    def hold(self, change: int) -> None:
        """Change ``pending`` by ``change`` bytes."""
        self.pending += change
        self._memory.count(change)

    def mark(self) -> None:
        """Remember the count of messages just before the kernel is asked."""
        self._marked = self._ahead

    def is_of(self, cookie: bytes) -> None:
        """Set the socket's cookie. Another cookie than before means a new connection from the same address."""
        if cookie != self._cookie and self._cookie:
            self.hold(-self.pending)
            self._seen = 0
            self.leaving = False
        self._cookie = cookie

    def received(self, total: int) -> None:
        """Take the kernel's count of bytes received since the connection began."""
        new, self._seen = total - self._seen, total
        later = self._ahead - self._marked  # of messages that may have arrived after the kernel was asked
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
    """The memory of incomplete messages of a gRPC server. :meth:`watch` follows the sockets of its ports."""

    def __init__(self, budget: MemoryBudget, barrier: Barrier) -> None:
        self._budget = budget
        self._barrier = barrier
        self._account = budget.account(lambda: None)
        self._connections: dict[Peer, Connection] = {}
        self._sockets = Sockets()
        self.cut = 0
        """Number of connections that were closed for the memory they held."""
        self._looked = monotonic()
        self._took = 0.0  # seconds of a core's time that the last read took
        self._size = 0  # of the process, at the last read
        self._gone = 0  # bytes of messages that ended connections had left
        self._gave_back = -GIVE_BACK_FIRST_SECONDS  # monotonic time

    @property
    def held_bytes(self) -> int:
        """The bytes of incomplete messages of all connections."""
        return self._account.held

    def count(self, change: int) -> None:
        """Add the change in bytes of a connection."""
        self._account.count(Kind.REQUESTS, change)

    def find_connection(self, peer: str) -> Connection:
        """Return the connection of a client, given its address as gRPC writes it (``ipv4:127.0.0.1:50123``)."""
        return self._at(peer_of(peer))

    def _at(self, peer: Peer) -> Connection:
        found = self._connections.get(peer)
        if found is None:
            found = self._connections[peer] = Connection(self)
        return found

    async def watch(self, ports: Collection[int]) -> None:
        """Read the sockets again and again; never returns."""
        while True:
            await asyncio.sleep(HURRY_SECONDS if self._much else GLANCE_SECONDS)
            try:
                if self._is_due():
                    await self.measure(ports)
                if self._leaves_much():
                    self._gone = 0
                    await asyncio.to_thread(give_back)
                    self._gave_back = monotonic()
            except Exception as error:  # noqa: BLE001 - logged and counted; it is looked again
                self._barrier.caught("looking at sockets", error)

    def _is_due(self) -> bool:
        """Return whether it is time to read the sockets. Raises OSError."""
        since = monotonic() - self._looked
        if since < _PAUSE * self._took:
            return False
        return since >= LOOK_SECONDS or self._much or resident() - self._size > self._budget.total // _GROWN

    def _leaves_much(self) -> bool:
        """Return whether it is time to return free memory to the system."""
        ago = monotonic() - self._gave_back
        if self._gone >= GIVE_BACK_BYTES:
            return ago > GIVE_BACK_SECONDS
        return self._much and ago > GIVE_BACK_FIRST_SECONDS

    @property
    def _much(self) -> bool:
        return self.held_bytes > self._budget.total // _MUCH

    async def measure(self, ports: Collection[int]) -> None:
        """Count what connections hold now, and close those that hold too much. Raises OSError."""
        connections = self._connections
        self._looked = monotonic()
        self._size = resident()
        for connection in connections.values():
            connection.mark()
        ask = partial(self.ask_kernel, frozenset(ports))
        # A thread waits up to a quarter of a second for the interpreter's lock while others compute: much arrives
        # meanwhile.
        found = ask() if self._took < _SHORT_SECONDS else await asyncio.to_thread(ask)
        for peer, arrived in found.items():
            connection = self._at(peer)
            connection.unseen = 0
            connection.is_of(arrived.cookie)
            connection.received(arrived.received)
        for peer in [peer for peer in connections if peer not in found]:
            connection = connections[peer]
            connection.unseen += 1
            if connection.unseen > 1:  # it may have been opened since the kernel was asked
                self._gone += connection.pending
                connection.hold(-connection.pending)
                del connections[peer]
        for peer in self._too_much():
            if peer in found and close(found[peer].number, peer):
                self._connections[peer].leaving = True
                self.cut += 1
                log.warning("connection closed: it keeps a part of a message", peer="{}:{}".format(*peer))

    def ask_kernel(self, ports: frozenset[int]) -> Mapping[Peer, Arrived]:
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
        over = budget.held - budget.total - (self.held_bytes - sum(pending for pending, _ in staying))
        least = min(LARGE_BYTES, budget.total // _LARGE_PART // max(1, len(staying)))
        found = []
        for pending, peer in sorted((one for one in staying if one[0] > least), reverse=True):
            if over > 0 or self._connections[peer].since < since:
                found.append(peer)
                over -= pending
        return found


def peer_of(text: str) -> Peer:
    """Parse an address such as ``ipv4:127.0.0.1:50123`` or ``ipv6:[::1]:50123``."""
    _, _, place = unquote(text).partition(":")
    host, _, port = place.rpartition(":")
    return plain(host.strip("[]")), int(port) if port.isdecimal() else 0
