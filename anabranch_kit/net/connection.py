"""A client's connection, independent of the protocol: frames in, answers out, bounded memory and bounded turns.

A subclass says which requests may start and what a frame means. This module has the rest, for fronts and for SBP:
receiving into a shared buffer, counting all memory that a connection holds, pausing, starting frames for a bounded time
in each turn of the event loop, and sending as fast as the peer reads. Answers of one turn leave in one write.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from time import monotonic
from typing import Any, cast

import structlog

from anabranch_kit.memory.budget import Account, Kind
from anabranch_kit.net.framing import FrameError, Framing
from anabranch_kit.net.line_framing import LineFraming
from anabranch_kit.net.outbox import Buffer, Outbox, Source
from anabranch_kit.net.server import Server
from anabranch_kit.net.tls_memory import bound_tls_memory
from anabranch_kit.net.turn import LITTLE, RECEIVED_AT_ONCE
from anabranch_kit.net.untie import socket_transport, untie
from anabranch_kit.run.turns import LEAST_SECONDS, TURN_SECONDS

log = structlog.get_logger(__name__)

Frame = bytes | bytearray

#: Later than any time: no frame is being received.
NOT_RECEIVING = float("inf")
#: Memory that frames may take that wait behind an earlier request.
QUEUED_BYTES = 64 * 1024
#: Memory of a waiting frame besides its bytes (measured): for a few bytes it is ten times as much as these.
_FRAME_BYTES = 100
#: Bytes received at once while memory is short: all connections may receive so much in one turn of the event loop.
_CAUTIOUS_BYTES = 4 * 1024


class Connection(asyncio.BufferedProtocol):
    """A client's connection. Its addresses and :attr:`account` (the memory it holds) are public.

    A subclass decides in :meth:`_may_begin` and :meth:`_begin` how frames are handled. The bytes of a frame count in
    ``in_flight`` until the subclass gives them to :meth:`_release`.
    """

    def __init__(self, server: Server[Any], framing: Framing | LineFraming) -> None:
        self.server = server
        self.peer: tuple[str, int] = ("", 0)
        self.last_active = 0.0
        self.in_flight = 0
        self.receiving_since = NOT_RECEIVING
        self._loop = server.loop
        self._budget = server.budget
        self.account = server.budget.account(self._on_room)
        #: Where unsent answers count.
        self._sending: Account = self.account
        self.transport: asyncio.Transport | None = None
        self._socket: Any = None
        self._outbox: Outbox | None = None
        self._framer = framing.framer(server.receive_buffer, self._reserve)
        self._stashed = 0
        self._tls_bytes = 0
        self._waiting: deque[tuple[Frame, float]] = deque()
        self._waiting_bytes = 0
        # What the budget counts for waiting frames besides their bytes.
        self._waiting_held = 0
        self._output: list[Buffer | Source] = []
        self._output_bytes = 0
        self._busy = False
        self._scheduled = False
        #: False while nothing is read from the client, since it has too much in flight or memory is short.
        self.reading = True
        #: The client does not take its answers as fast as they are sent.
        self.write_paused = False
        # Waiting frames are started in a later turn of the event loop, by :meth:`_rested`.
        self._resting = False
        # Nothing is read from the client, and none of its requests starts: a quota of it is exhausted.
        self._muted = False
        # The client has closed its side, and requests that it sent before have still to be started.
        self.half_closed = False
        self._closing = False
        self._draining = False

    # --- the protocol ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _may_begin(self, frame: Frame | None) -> bool:
        """Return whether a request may start now.

        None stands for a large request that has not been read: it is received only when it could start.
        """

    @abstractmethod
    def _begin(self, frame: Frame, arrived: float) -> None:
        """Start one request. ``arrived`` is the monotonic time in seconds when its last byte arrived."""

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Return whether no request is in progress, and no answer waits to be sent."""

    @abstractmethod
    def look_after(self, now: float) -> None:
        """Close the connection if it is idle or stalled; ``now`` is the monotonic time in seconds."""

    @abstractmethod
    def _abandon(self) -> int:
        """Give up the requests in progress because the connection has ended; return the bytes that they release."""

    def _begun_bytes(self) -> int:
        """Return the bytes held of a request whose frames have arrived in part: it should be completed."""
        return 0

    # --- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._socket = socket_transport(transport)
        self.peer = address_of(transport.get_extra_info("peername"))
        self.last_active = monotonic()
        tls = transport.get_extra_info("sslcontext") is not None
        if tls:
            self._tls_bytes = bound_tls_memory(transport)
            self._budget.attach(self._tls_bytes)
        # With TLS, a limit of zero would count an empty buffer as too full.
        self.transport.set_write_buffer_limits(high=1 if tls else 0, low=0)
        self._outbox = Outbox(
            self.transport, self.server.turn, self._sending, self._check_unsent, self._cannot_send, tls=tls
        )
        if not self.server.admit(self):
            self._closing = True
            self.transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        framer, turn = self._framer, self.server.turn
        space = framer.space()
        if self._budget.scarce and not framer.receiving:
            return space[:_CAUTIOUS_BYTES]
        return turn.receive(space) if turn.is_over or len(space) > RECEIVED_AT_ONCE else space

    def buffer_updated(self, nbytes: int) -> None:
        if nbytes > LITTLE:
            self.server.turn.spend(nbytes)
        if self._closing or self._draining:
            return
        self.last_active = now = monotonic()
        self.server.touched(self)
        framer = self._framer
        try:
            frames = framer.received(nbytes)
        except FrameError as error:
            self.close(f"{error}")
            return
        if self._stashed or framer.stashed:
            self._count_stash()
        if not frames:
            self.receiving_since = min(self.receiving_since, now)
            if self.reading and self._must_pause():
                self._pause()
            return
        self.receiving_since = now if framer.partial else NOT_RECEIVING
        size = 0
        for frame in frames:
            size += len(frame)
            self._waiting.append((frame, now))
        self.in_flight += size
        self._waiting_bytes += size
        if framer.reserved and not framer.receiving:
            size -= framer.reserved  # the reservation becomes the frame's memory
            framer.reserved = 0
        if size >= 0:
            self.account.take(Kind.REQUESTS, size)
        else:
            self.account.give(Kind.REQUESTS, -size)  # a line is seldom as long as its reservation
        self._work()
        if framer.blocked and not self._closing:
            framer.retry()
            self._count_stash()
        if self.reading and self._must_pause():
            self._pause()

    def _count_stash(self) -> None:
        """Count the bytes of an incomplete small frame: there may be many connections."""
        stashed = self._framer.stashed
        self.account.count(Kind.REQUESTS, stashed - self._stashed)
        self._stashed = stashed

    def _reserve(self, size: int) -> bool:
        """Return whether a large frame may be received: not while an earlier frame keeps it from being started."""
        if self._waiting or self._muted or not self._may_begin(None):
            return False
        begun = self._begun_bytes()
        if not self.account.admit(Kind.REQUESTS, size + begun, self._stashed + begun):
            return False
        self._stashed = 0
        return True

    def eof_received(self) -> bool:
        """Close our side as well, once the requests that have arrived are started: the client has no use for later
        answers, but some requests have none, such as a Kafka producer's with acks=0. asyncio keeps no connection with
        TLS half open."""
        self.half_closed = bool(self._waiting) and not self._closing and not self._tls_bytes
        return self.half_closed

    def pause_writing(self) -> None:
        if self._outbox is not None:
            self._outbox.block()

    def resume_writing(self) -> None:
        if self._outbox is not None:
            self._outbox.unblock()
            self._check_unsent()

    def _check_unsent(self) -> None:
        """Pause requests while too many bytes are unsent; while memory is scarce, while any byte is unsent."""
        if self._outbox is None:
            return
        unsent = self._outbox.unsent
        most = 0 if self._budget.scarce else self.server.limits.write_buffer_bytes
        if self.write_paused:
            if unsent <= most // 2:
                self.write_paused = False
                self._schedule()
                self.maybe_resume()
        elif unsent > most:
            self.write_paused = True
            if self.reading:
                self._pause()

    def _cannot_send(self, reason: str) -> None:
        """Abort because the rest of an answer cannot be read: the client must not take the next answer for it."""
        self._tell_closed(reason, {})
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self.transport = None
        untie(self._socket)
        if self._outbox is not None:
            self._outbox.drop()
        self._outbox = None
        self.reading = False
        self.server.turn.forget(self)
        framer = self._framer
        self.account.give(Kind.REQUESTS, framer.reserved + self._stashed)
        framer.close()
        self._stashed = 0
        self._output.clear()
        self._output_bytes = 0
        self._release(self._forget_waiting() + self._abandon())
        self.account.close()
        if self._tls_bytes:
            self._budget.attach(-self._tls_bytes)
        self.server.forget(self)

    # --- the end ---------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._closing

    def close(self, reason: str, **fields: object) -> None:
        """Close after sending the answers that are ready, and drop the rest. Logs ``reason`` and ``fields``."""
        if self._closing:
            return
        self._tell_closed(reason, fields)
        self.shut()

    def _tell_closed(self, reason: str, fields: dict[str, object]) -> None:
        log.warning("connection closed", reason=reason, **fields, peer="{}:{}".format(*self.peer))

    def shut(self) -> None:
        """Close without a warning, after sending the answers that are ready."""
        if self._closing:
            return
        self._closing = True
        self._flush()
        if self._outbox is not None and self.transport is not None:
            self._outbox.finish(self.transport.close)

    def abort(self) -> None:
        """Close now and drop unsent bytes."""
        self._closing = True
        if self.transport is not None:
            self.transport.abort()

    # --- requests and answers --------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Continue at the end of the event loop's cycle, so that the answers of one cycle leave in one write."""
        if not self._scheduled and not self._closing:
            self._scheduled = True
            self.server.cycle.answer(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if not self._closing:
            self._work()

    def _work(self) -> None:
        """Start the requests that may start, then write the answers that are ready."""
        self._busy = True
        waiting = self._waiting
        until = 0.0
        while waiting and not self._closing:
            if self._output_bytes > self.server.limits.write_buffer_bytes:
                self._flush()  # unsent bytes must count before more requests start
            if self.write_paused or self._resting or self._muted or not self._may_begin(waiting[0][0]):
                break
            frame, arrived = waiting.popleft()
            self._waiting_bytes -= len(frame)
            self._begin(frame, arrived)
            # the cost of a frame besides its bytes differs by a factor of 1000, so a turn is bounded in time
            if waiting:
                now = monotonic()
                until = until or max(now + LEAST_SECONDS, self.server.cycle.began + TURN_SECONDS)
                if now >= until:
                    self._schedule()
                    break
        self._busy = False
        if waiting or self._waiting_held:
            self._count_waiting()
        if self._output:
            self._flush()
        if self.half_closed and not waiting:
            self.shut()
        elif not self.reading:
            self.maybe_resume()

    def _rest(self) -> None:
        """Start waiting frames in this connection's next turn."""
        self._resting = True
        self.server.turn.wait(self, self._rested)

    def _rested(self) -> None:
        self._resting = False
        if not self._closing:
            self._work()

    def _count_waiting(self) -> None:
        held, self._waiting_held = self._waiting_held, len(self._waiting) * _FRAME_BYTES
        self.account.count(Kind.REQUESTS, self._waiting_held - held)

    def _flush(self) -> None:
        """Send all output, or as much as the socket takes."""
        output, outbox = self._output, self._outbox
        if not output or outbox is None:
            return
        self._output = []
        self._output_bytes = 0
        if not outbox.send(output) or self.write_paused:
            self._check_unsent()

    # --- back-pressure ---------------------------------------------------------------------------------------------

    def _must_pause(self) -> bool:
        framer = self._framer
        if framer.receiving:
            return False  # its memory is reserved, so it should complete soon
        return (
            framer.blocked
            or self.write_paused
            or self.in_flight > self.server.limits.connection_bytes
            or self._waiting_bytes + self._waiting_held > QUEUED_BYTES
            or self._muted
            or self.account.crowded
        )

    def _pause(self) -> None:
        if self.transport is not None and not self._closing:
            self.reading = False
            self.transport.pause_reading()
            if self.in_flight or self._framer.blocked or self._muted:
                self.receiving_since = NOT_RECEIVING  # the node, not the client, delays the frame
            if not self._draining:
                self.maybe_resume()  # or wait for room

    def maybe_resume(self) -> None:
        """Read again if nothing prevents it; if memory is short, wait for the budget. A connection that drains is
        closed instead when it is idle.
        """
        if self.reading or self._closing or self.transport is None:
            return
        if self._draining:
            if self.idle:
                self.shut()
            return
        if (
            self.write_paused
            or self._muted
            or self.in_flight > self.server.limits.connection_bytes // 2
            or self._waiting_bytes + self._waiting_held > QUEUED_BYTES // 2
        ):
            return
        framer = self._framer
        if self._outbox is not None and self._outbox.starved:
            return
        if framer.blocked:
            framer.retry()
            if framer.blocked:
                if not self._waiting and self._may_begin(None):
                    begun = self._begun_bytes()
                    self.account.wait(framer.blocked_by + begun, self._stashed + begun)
                return
            self._count_stash()
        elif self.account.crowded:
            self.account.wait()
            return
        self.account.stop_waiting()
        if framer.partial:
            self.receiving_since = min(self.receiving_since, monotonic())
        self.reading = True
        self.transport.resume_reading()

    def _forget_waiting(self) -> int:
        """Drop the frames that were not started, and return their size in bytes."""
        size, self._waiting_bytes = self._waiting_bytes, 0
        self._waiting.clear()
        self._count_waiting()
        return size

    def _release(self, size: int) -> None:
        if size:
            self.in_flight -= size
            self.account.give(Kind.REQUESTS, size)
            if not self.reading:
                self.maybe_resume()

    def _on_room(self) -> None:
        """Continue because the budget has room: sending goes before reading."""
        if self._outbox is not None and self._outbox.starved:
            self._outbox.go_on()
        if not self.reading:
            self.maybe_resume()

    @property
    def stalled_since(self) -> float:
        """The time since which the client does not read its answers (monotonic clock), infinite if it does."""
        if self._outbox is None or self._outbox.blocked_since is None:
            return NOT_RECEIVING
        return self._outbox.blocked_since


def address_of(name: Any) -> tuple[str, int]:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) >= 2 else (str(name), 0)
