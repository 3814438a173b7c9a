"""What clients have sent of gRPC messages that are not whole yet: gRPC does not tell, but the kernel does.

Whoever waits for the next message of a stream has gRPC receive it, up to its largest size, and hears of it when it is
whole. So what the kernel has received on a connection, less what came out of it as messages, is counted in the memory
budget: every second or more often, from the sockets themselves, in a thread. What HTTP/2 adds is taken for somewhat
more than it is, so that long-lived connections do not seem to hold what they do not.

Nobody can be kept from sending the rest of a message. So while memory is short, a connection that holds much of one and
has completed none for a while is closed, and while more is held than there may be, that which holds most.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
from contextlib import suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING
from urllib.parse import unquote

import structlog

from bridges.net.budget import Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from bridges.barrier import Barrier
    from bridges.net.budget import MemoryBudget

Peer = tuple[str, int]
"""A client's address and port."""

LOOK_SECONDS = 1.0
HURRY_SECONDS = 0.1
"""The same while much is held: what comes in this time may come too much."""
_MUCH = 8
PATIENCE_SECONDS = 10.0
"""While memory is short, a message of which much is there has to be whole after this time."""
LARGE_BYTES = 256 * 1024
"""What a connection may hold of messages, however short memory is."""
MESSAGE_BYTES = 96
"""At most, what HTTP/2 and gRPC add to a small message, and to the answer that the client acknowledges."""
CALL_BYTES = 512
"""The same of a call, besides its headers."""
PING_BYTES = 8
"""What a connection that does nothing receives from one look to the next: a ping now and then."""
_PER_BYTE = 200
"""One byte in so many is a frame's, or TLS's."""
_RECEIVED_AT = 128
_RECEIVED = struct.Struct("=Q")
"""``tcpi_bytes_received`` of the kernel's ``tcp_info``."""
_LEAST_INFO = _RECEIVED_AT + _RECEIVED.size
_IN_A_ROW = 200

log = structlog.get_logger(__name__)


class Connection:
    """One client's connection: ``pending`` bytes of it are no message yet, as far as is known."""

    __slots__ = ("_ahead", "_marked", "_memory", "_seen", "pending", "since", "unseen")

    def __init__(self, memory: ReceivedMemory) -> None:
        self._memory = memory
        self.pending = 0
        self.since = monotonic()
        """When the last message was whole."""
        self.unseen = 0
        """How often it was looked for in vain."""
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

    def received(self, total: int) -> None:
        """The kernel has received so many bytes since the connection began."""
        new, self._seen = total - self._seen, total
        later = self._ahead - self._marked  # of messages that may have come after the kernel was asked
        missing = new - self._ahead - PING_BYTES
        self._ahead = max(0, min(-missing, later))
        if missing > 0:
            self.hold(missing)


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

    @property
    def held(self) -> int:
        """Bytes."""
        return self._account.held

    def count(self, change: int) -> None:
        """Bytes of a connection."""
        if change > 0:
            self._account.take(Kind.REQUESTS, change)
        elif change:
            self._account.give(Kind.REQUESTS, -change)

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
            much = self.held > self._budget.total // _MUCH
            await asyncio.sleep(HURRY_SECONDS if much else LOOK_SECONDS)
            try:
                await self.look(ports)
            except Exception as error:  # noqa: BLE001 - logged and counted; it is looked again
                self._barrier.caught("looking at sockets", error)

    async def look(self, ports: Collection[int]) -> None:
        """Count what there is now, and close what may not stay. Raises OSError."""
        connections = self._connections
        for connection in connections.values():
            connection.mark()
        found = await asyncio.to_thread(self._sockets.to, frozenset(ports))
        for peer, (total, _) in found.items():
            connection = self._at(peer)
            connection.unseen = 0
            connection.received(total)
        for peer in [peer for peer in connections if peer not in found]:
            connection = connections[peer]
            connection.unseen += 1
            if connection.unseen > 1:  # it may have been made since the kernel was asked
                connection.hold(-connection.pending)
                del connections[peer]
        for peer in self._too_much():
            if peer in found and close(found[peer][1], peer):
                self.cut += 1
                log.warning("connection closed: it keeps a part of a message", peer="{}:{}".format(*peer))

    def _too_much(self) -> list[Peer]:
        budget = self._budget
        if not (budget.scarce or budget.waiting):
            return []
        over = budget.held - budget.total
        since = monotonic() - PATIENCE_SECONDS
        large = [(one.pending, peer) for peer, one in self._connections.items() if one.pending > LARGE_BYTES]
        found = []
        for pending, peer in sorted(large, reverse=True):
            if over > 0 or self._connections[peer].since < since:
                found.append(peer)
                over -= pending
        return found


def peer_of(text: str) -> Peer:
    """Of ``ipv4:127.0.0.1:50123`` or ``ipv6:[::1]:50123``."""
    _, _, place = unquote(text).partition(":")
    host, _, port = place.rpartition(":")
    return _plain(host.strip("[]")), int(port) if port.isdecimal() else 0


def _plain(host: str) -> str:
    return host.removeprefix("::ffff:")


class Sockets:
    """The sockets of this process. Used by one thread at a time."""

    def __init__(self) -> None:
        # By descriptor: what it was for when it was last looked at, and whether that was a connection to be told of.
        self._known: dict[int, tuple[int, bool]] = {}

    def to(self, ports: frozenset[int]) -> Mapping[Peer, tuple[int, int]]:
        """Of each connection to one of the process's ``ports``: bytes received, and its descriptor. Raises OSError."""
        known, self._known = self._known, {}
        found: dict[Peer, tuple[int, int]] = {}
        for place, name in enumerate(os.listdir("/proc/self/fd"), 1):
            if not place % _IN_A_ROW:
                sleep(0)  # others have waited for the interpreter
            number = int(name)
            try:
                status = os.fstat(number)
                before = known.get(number)
                if before is not None and before == (status.st_ino, False):
                    self._known[number] = before
                    continue
                told = _told(number, ports) if stat.S_ISSOCK(status.st_mode) else None
            except OSError:
                continue  # closed meanwhile, or it listens
            self._known[number] = status.st_ino, told is not None
            if told is not None:
                found[told[0]] = told[1], number
        return found


def _told(number: int, ports: frozenset[int]) -> tuple[Peer, int] | None:
    """Whose connection a descriptor is, and the bytes received on it; None for others. Raises OSError."""
    # A descriptor of its own: whose the number is may change at any moment.
    with socket.socket(fileno=os.dup(number)) as one:
        if one.type != socket.SOCK_STREAM or one.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        if one.getsockname()[1] not in ports:
            return None
        host, port = one.getpeername()[:2]
        info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    return ((_plain(host), port), _RECEIVED.unpack_from(info, _RECEIVED_AT)[0]) if len(info) >= _LEAST_INFO else None


def close(number: int, peer: Peer) -> bool:
    """End the connection of a descriptor, if it is still that of ``peer``: gRPC finds that the client has gone."""
    with suppress(OSError), socket.socket(fileno=os.dup(number)) as one:
        host, port = one.getpeername()[:2]
        if (_plain(host), port) == peer:
            one.shutdown(socket.SHUT_RDWR)
            return True
    return False
