"""A client's connection, independent of the protocol: frames in, responses out in the order of their requests.

A protocol adds a subclass of :class:`Connection`, which says which requests may overlap and what a frame means. This
module has the rest: receiving into a shared buffer, counting all memory that a connection holds, pausing, and sending
as fast as the peer reads.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, cast

import structlog

from anabranch_kit.memory.budget import Kind
from anabranch_kit.net.framing import FrameError, Framing
from anabranch_kit.net.line_framing import LineFraming
from anabranch_kit.net.outbox import CHUNK, Buffer, Outbox
from anabranch_kit.net.tls_memory import bound_tls_memory
from anabranch_kit.net.turn import LITTLE, RECEIVED_AT_ONCE
from anabranch_kit.net.untie import socket_transport, untie
from anabranch_kit.run.turns import LEAST_SECONDS, TURN_SECONDS
from bridges.auth import ANONYMOUS, Principal
from bridges.auth.certified import certified
from bridges.net.quotas import Limiter, Throttle

if TYPE_CHECKING:
    from bridges.net.server import Server

log = structlog.get_logger(__name__)

#: Later than any time: no frame is being received.
_NOT_RECEIVING = float("inf")
#: Memory that frames may take that wait behind an earlier request.
_QUEUED_BYTES = 64 * 1024
#: Memory of a waiting frame besides its bytes (measured): for a few bytes it is ten times as much as these.
_FRAME_BYTES = 100
#: Bytes of a response that are read ahead while other connections read large responses.
_CROWDED_AHEAD = 64 * 1024
#: The part of the budget below which the budget alone bounds what is read ahead; _WHOLE stands for no bound.
_PLENTIFUL = 1 / 4
_WHOLE = 1 << 62
#: Bytes received at once while memory is short: all connections may receive so much in one turn of the event loop.
_CAUTIOUS_BYTES = 16 * 1024
#: Seconds for which a throttled client may hold a large request while memory is short.
_MUTED_PATIENCE_S = 5.0


class Slot:
    """The place of one request's response in the order of its connection.

    ``arrived`` is the monotonic time in seconds when the request's last byte arrived.
    """

    __slots__ = ("_done", "_output", "_request", "_retained", "_sent", "_size", "arrived")

    def __init__(self, size: int, arrived: float) -> None:
        self.arrived = arrived
        # Bytes of the request that the budget counts.
        self._size = size
        # The parts of the request that are kept until its response leaves.
        self._request: Any = None
        self._output: list[Buffer] | None = None
        self._sent = 0
        self._done = False
        self._retained = False


class Connection(asyncio.BufferedProtocol):
    """A client's connection. Its listener, addresses and :attr:`account` (the memory it holds) are public.

    A subclass decides in :meth:`_may_start` and :meth:`_start` how frames are handled. A request that it starts gets a
    slot at the end of ``_slots`` and is answered through :meth:`_fill`.
    """

    def __init__(
        self, server: Server, listener: str, advertised: tuple[str, int] | None, framing: Framing | LineFraming
    ) -> None:
        self.server = server
        self.listener = listener
        self.id = 0
        self.peer: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] = ("", 0)
        #: The host and port that the protocol advertises to clients of this listener.
        self.advertised: tuple[str, int] = advertised or ("", 0)
        #: The client id, if the client has sent one; quotas may depend on it.
        self.client_id: str | None = None
        #: The client's principal, from its certificate or from a later login.
        self.principal: Principal = ANONYMOUS
        self.last_active = 0.0
        self.in_flight = 0
        self.receiving_since = _NOT_RECEIVING
        self._advertised = advertised
        self._loop = server.loop
        self._budget = server.budget
        self.account = server.budget.account(self._on_room)
        self._transport: asyncio.Transport | None = None
        self._socket: Any = None
        self._outbox: Outbox | None = None
        self._framer = framing.framer(server.receive_buffer, self._reserve)
        self._stashed = 0
        self._tls_bytes = 0
        self._waiting: deque[tuple[bytes | bytearray, float]] = deque()
        self._waiting_bytes = 0
        # What the budget counts for waiting frames besides their bytes.
        self._waiting_held = 0
        self._slots: deque[Any] = deque()
        self._output: list[Buffer] = []
        self._output_bytes = 0
        self._busy = False
        self._scheduled = False
        self._reading = True
        self._write_paused = False
        # Waiting frames are started in a later turn of the event loop, by a call of ``_work``.
        self._resting = False
        self._closing = False
        self._draining = False
        # Whether the connection is throttled, and its place in the queues of quotas, once it has one.
        self._muted = False
        self._muted_since = 0.0
        self._throttle: Throttle | None = None
        self._on_close: set[Callable[[], None]] = set()

    # --- the protocol ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _may_start(self, frame: bytes | bytearray | None) -> bool:
        """Return whether a request may start while others of the connection are in progress.

        None stands for a large request that has not been read: it is received only when it could start.
        """

    @abstractmethod
    def _start(self, frame: bytes | bytearray, arrived: float) -> None:
        """Handle one request."""

    def _admits(self, frame: bytes | bytearray) -> bool:
        """Return whether quotas let a request start now; if not, the connection waits. Called only while a quota is
        set.
        """
        return self._passes(self.server.quotas.request)

    def _outlives(self, slot: Any) -> bool:
        """Return whether a request's bytes stay in memory after the end of the connection, until :meth:`_fill`."""
        return False

    def _begun_bytes(self) -> int:
        """Return the bytes held of a request whose frames have arrived in part: it should be completed."""
        return 0

    # --- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._socket = socket_transport(transport)
        self.peer = _address(transport.get_extra_info("peername"))
        self.local = _address(transport.get_extra_info("sockname"))
        self.advertised = self._advertised or self.local
        self.last_active = monotonic()
        # With TLS, a limit of zero would count an empty buffer as too full.
        tls = transport.get_extra_info("sslcontext") is not None
        self.principal = (certified(transport) if tls else ANONYMOUS).at(self.peer[0])
        if tls:
            self._tls_bytes = bound_tls_memory(transport)
            self._budget.attach(self._tls_bytes)
        self._transport.set_write_buffer_limits(high=1 if tls else 0, low=0)
        self._outbox = Outbox(
            self._transport, self.server.turns, self.account, self._check_unsent, self._cannot_send, tls=tls
        )
        if not self.server.admit(self):
            self._closing = True
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        framer, turns = self._framer, self.server.turns
        space = framer.space()
        if self._budget.scarce and not framer.receiving:
            return space[:_CAUTIOUS_BYTES]
        return turns.receive(space) if turns.is_over or len(space) > RECEIVED_AT_ONCE else space

    def buffer_updated(self, nbytes: int) -> None:
        if nbytes > LITTLE:
            self.server.turns.spend(nbytes)
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
            if self._reading and self._must_pause():
                self._pause()
            return
        self.receiving_since = now if framer.partial else _NOT_RECEIVING
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
        if self._reading and self._must_pause():
            self._pause()

    def _count_stash(self) -> None:
        """Count the bytes of an incomplete small frame: there may be many connections."""
        stashed = self._framer.stashed
        if stashed > self._stashed:
            self.account.take(Kind.REQUESTS, stashed - self._stashed)
        elif stashed < self._stashed:
            self.account.give(Kind.REQUESTS, self._stashed - stashed)
        self._stashed = stashed

    def _reserve(self, size: int) -> bool:
        """Return whether a large frame may be received: not while an earlier frame keeps it from being started."""
        if self._waiting or self._muted or (self._slots and not self._may_start(None)):
            return False
        begun = self._begun_bytes()
        if not self.account.admit(Kind.REQUESTS, size + begun, self._stashed + begun):
            return False
        self._stashed = 0
        return True

    def eof_received(self) -> bool:
        """Close our side as well: a client that stops sending has no use for later answers."""
        return False

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
        if self._write_paused:
            if unsent <= most // 2:
                self._write_paused = False
                self._schedule()
                self.maybe_resume()
        elif unsent > most:
            self._write_paused = True
            if self._reading:
                self._pause()

    def _cannot_send(self, reason: str) -> None:
        """Abort because the rest of a response cannot be read: the client must not take the next response for it."""
        self._tell_closed(reason, {})
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._transport = None
        untie(self._socket)
        if self._outbox is not None:
            self._outbox.drop()
        self._outbox = None
        self._reading = False
        if self._throttle is not None:
            self._throttle.leave()
        framer = self._framer
        self.account.give(Kind.REQUESTS, framer.reserved + self._stashed)
        framer.close()
        self._stashed = 0
        released = self._forget_waiting()
        for slot in self._slots:
            if not self._outlives(slot):
                released += slot._size
                slot._size = 0
        self._slots.clear()
        self._output.clear()
        self._release(released)
        self.account.close()
        if self._tls_bytes:
            self._budget.attach(-self._tls_bytes)
        self.server.forget(self)
        callbacks, self._on_close = self._on_close, set()
        for callback in callbacks:
            self.server.barrier.call("end of a connection", callback)

    # --- for handlers ----------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._closing

    def on_close(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called when the connection ends; at once if it has ended. It must not raise."""
        if self._closing and self._transport is None:
            callback()
        else:
            self._on_close.add(callback)

    def forget_on_close(self, callback: Callable[[], None]) -> None:
        """Undo :meth:`on_close`."""
        self._on_close.discard(callback)

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Cancel the running task when the connection ends while inside: only this client waits for the task's
        result.
        """
        task = asyncio.current_task()
        assert task is not None, "run by a task"

        def cancel() -> None:
            task.cancel()

        self.on_close(cancel)
        try:
            yield
        finally:
            self.forget_on_close(cancel)

    def close(self, reason: str, **told: object) -> None:
        """Close after sending the responses that are ready, and drop the rest. Logs ``reason``, and ``told`` as
        fields.
        """
        if self._closing:
            return
        self._closing = True
        self._tell_closed(reason, told)
        self._close_transport()

    def _tell_closed(self, reason: str, told: dict[str, object]) -> None:
        log.warning("connection closed", reason=reason, **told, peer="{}:{}".format(*self.peer), listener=self.listener)

    def drain(self) -> None:
        """Start no more requests, and close as soon as the requests in progress are answered."""
        self._draining = True
        self._release(self._forget_waiting())
        if self._reading:
            self._pause()
        if self.idle:
            self.shut()

    def shut(self) -> None:
        """Close without a warning, for shutdown or an idle connection."""
        if self._closing:
            return
        self._closing = True
        self._close_transport()

    def abort(self) -> None:
        """Close now and drop unsent bytes."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def unread_socket(self) -> int:
        """The socket's descriptor while reading is paused, otherwise -1."""
        if self._reading or self._closing or self._transport is None:
            return -1
        return int(self._transport.get_extra_info("socket").fileno())

    def hung_up(self) -> None:
        """Called when the client has closed its side while earlier bytes are unread. May be called more than once."""

    @property
    def idle(self) -> bool:
        """Return whether no request is in progress."""
        return not self._slots and not self._waiting and not self._output

    # --- requests and responses ------------------------------------------------------------------------------------

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
        waiting, slots, quotas = self._waiting, self._slots, self.server.quotas
        until = 0.0
        while waiting and not self._closing:
            if self._output_bytes > self.server.limits.write_buffer_bytes:
                self._flush()  # unsent bytes must count before more requests start
            if self._write_paused or self._resting or self._muted:
                break
            frame, arrived = waiting[0]
            if slots and not self._may_start(frame):
                break
            if quotas.in_force and not self._admits(frame):
                break
            waiting.popleft()
            self._waiting_bytes -= len(frame)
            if quotas.request.in_force:
                began = perf_counter()
                self._start(frame, arrived)
                self.charge(quotas.request, (perf_counter() - began) * 1e6)
            else:
                self._start(frame, arrived)
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
        if self._draining and self.idle:
            self.shut()
        elif not self._reading:
            self.maybe_resume()

    def _count_waiting(self) -> None:
        held, self._waiting_held = self._waiting_held, len(self._waiting) * _FRAME_BYTES
        self.account.count(Kind.REQUESTS, self._waiting_held - held)

    def _fill(self, slot: Slot, output: list[Buffer], sent: int) -> None:
        """Set the response to a request: ``sent`` bytes in ``output``; empty for no response. Call once per slot."""
        size = 0
        if not slot._retained:
            size, slot._size = slot._size, 0
        if self._closing:
            self._release(size)
            return
        slot._output = output
        slot._sent = sent
        slots = self._slots
        if slots[0] is slot:
            while slots and slots[0]._output is not None:
                done = slots.popleft()
                if done._output:
                    self._output += done._output
                    self._output_bytes += done._sent
                done._request = None
            if not self._busy:
                if slots or self._waiting or self._draining:
                    self._schedule()
                else:
                    self._flush()  # no other response can join it in this turn
        self._release(size)

    def _flush(self) -> None:
        """Send all output, or as much as the socket takes."""
        output, outbox = self._output, self._outbox
        if not output or outbox is None:
            return
        self._output = []
        self._output_bytes = 0
        if not outbox.send(output) or self._write_paused:
            self._check_unsent()

    def _close_transport(self) -> None:
        """Close once all answers so far have been sent."""
        self._flush()
        if self._outbox is not None and self._transport is not None:
            self._outbox.finish(self._transport.close)

    # --- back-pressure ---------------------------------------------------------------------------------------------

    def _must_pause(self) -> bool:
        framer = self._framer
        if framer.receiving:
            return False  # its memory is reserved, so it should complete soon
        return (
            framer.blocked
            or self._write_paused
            or self.in_flight > self.server.limits.connection_bytes
            or self._waiting_bytes + self._waiting_held > _QUEUED_BYTES
            or self._muted
            or self.account.crowded
        )

    def _pause(self) -> None:
        if self._transport is not None and not self._closing:
            self._reading = False
            self._transport.pause_reading()
            if self.in_flight or self._framer.blocked or self._muted:
                self.receiving_since = _NOT_RECEIVING  # the node, not the client, delays the frame
            if not self._draining:
                self.maybe_resume()  # or wait for room

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
            if not self._reading:
                self.maybe_resume()

    def _on_room(self) -> None:
        """Continue because the budget has room: sending goes before reading."""
        if self._outbox is not None and self._outbox.starved:
            self._outbox.go_on()
        if not self._reading:
            self.maybe_resume()

    @property
    def read_ahead(self) -> int:
        """The bytes of a response that may be read before it is sent.

        Few while other connections wait for their turn to read, or while much memory is held.
        """
        if self.server.turns.busy:
            return _CROWDED_AHEAD
        return CHUNK if self.account.level >= _PLENTIFUL else _WHOLE

    # --- quotas ----------------------------------------------------------------------------------------------------

    def charge(self, limiter: Limiter, amount: float) -> None:
        """Charge the client's quota. If it is exhausted, pause reading and starting until it has refilled (KIP-219)."""
        bucket = limiter.bucket(self.principal.name, self.client_id)
        if bucket is not None and not self._closing:
            self._place.charge(bucket, amount)
            self._look_whether_muted()

    @property
    def throttled_seconds(self) -> float:
        """The seconds for which the client should send no request."""
        return self._throttle.seconds if self._muted and self._throttle is not None else 0.0

    def _passes(self, limiter: Limiter) -> bool:
        if not limiter.in_force:
            return True
        bucket = limiter.bucket(self.principal.name, self.client_id)
        if bucket is None or self._place.passes(bucket):
            return True
        self._look_whether_muted()
        return False

    @property
    def _place(self) -> Throttle:
        if self._throttle is None:
            self._throttle = Throttle(self._unmuted)
        return self._throttle

    def _look_whether_muted(self) -> None:
        if not self._muted and self._place.waits:
            self._muted = True
            self._muted_since = monotonic()
            if self._reading and not self._framer.receiving:
                self._pause()

    def _unmuted(self) -> None:
        self._muted = False
        if not self._closing:
            self._work()  # at once, so that its use of the quota counts before the next client of the queue continues

    def shed(self, since: float) -> None:
        """Give back memory of a response that the client has not read from since ``since`` (monotonic clock).

        A throttled client that holds a large request is disconnected and must come again.
        """
        if self._muted and self._waiting_bytes > _QUEUED_BYTES and self._muted_since < since - _MUTED_PATIENCE_S:
            self._tell_closed("a quota would hold up a large request for long, while memory is short", {})
            self.abort()
            return
        if self.stalled_since < since and self._outbox is not None:
            self._outbox.shed()

    @property
    def stalled_since(self) -> float:
        """The time since which the client does not read its responses (monotonic clock), infinite if it does."""
        if self._outbox is None or self._outbox.blocked_since is None:
            return _NOT_RECEIVING
        return self._outbox.blocked_since

    def maybe_resume(self) -> None:
        """Read again if nothing prevents it; if memory is short, wait for the budget."""
        if self._reading or self._closing or self._draining or self._transport is None:
            return
        if (
            self._write_paused
            or self._muted
            or self.in_flight > self.server.limits.connection_bytes // 2
            or self._waiting_bytes + self._waiting_held > _QUEUED_BYTES // 2
        ):
            return
        framer = self._framer
        if self._outbox is not None and self._outbox.starved:
            return
        if framer.blocked:
            framer.retry()
            if framer.blocked:
                if not self._waiting and not self._slots:
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
        self._reading = True
        self._transport.resume_reading()


def _address(name: Any) -> tuple[str, int]:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) >= 2 else (str(name), 0)
