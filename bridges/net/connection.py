"""A front's connection: a client with a principal and quotas, whose responses leave in the order of their requests."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from anabranch_kit.net import connection as net
from anabranch_kit.net.connection import QUEUED_BYTES, address_of
from anabranch_kit.net.framing import Framing
from anabranch_kit.net.line_framing import LineFraming
from anabranch_kit.net.outbox import CHUNK, Buffer
from bridges.auth import ANONYMOUS, Principal, read_certificate
from bridges.clients import Description
from bridges.net.quotas import Limiter, Throttle

if TYPE_CHECKING:
    from bridges.net.server import Server

#: Bytes of a response that are read ahead while other connections read large responses.
_CROWDED_AHEAD = 64 * 1024
#: The part of the budget below which the budget alone bounds what is read ahead; _WHOLE stands for no bound.
_PLENTIFUL = 1 / 4
_WHOLE = 1 << 62
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


class Connection(net.Connection):
    """A client's connection. Its listener, addresses and :attr:`account` (the memory it holds) are public, and so is
    :attr:`client`, which counts what it writes and reads.

    A subclass decides in :meth:`_may_start` and :meth:`_start` how frames are handled. A request that it starts gets a
    slot at the end of ``_slots`` and is answered through :meth:`_fill`.
    """

    server: Server

    def __init__(
        self, server: Server, listener: str, advertised: tuple[str, int] | None, framing: Framing | LineFraming
    ) -> None:
        super().__init__(server, framing)
        self.listener = listener
        self.id = 0
        self.local: tuple[str, int] = ("", 0)
        #: The host and port that the protocol advertises to clients of this listener.
        self.advertised: tuple[str, int] = advertised or ("", 0)
        #: The client id, if the client has sent one; quotas may depend on it.
        self.client_id: str | None = None
        #: Name and version of the client's software, if the client has sent them.
        self.software = ""
        #: The client's principal, from its certificate or from a later login.
        self.principal: Principal = ANONYMOUS
        self._advertised = advertised
        self._slots: deque[Any] = deque()
        # Its place in the queues of quotas, once it has one.
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

    # --- the end ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.local = address_of(transport.get_extra_info("sockname"))
        self.advertised = self._advertised or self.local
        self.principal = read_certificate(transport).at(self.peer[0])
        self.client = self.server.clients.enter(self.server.name, self.listener, self.peer, self.describe, self.close)

    def describe(self) -> Description:
        """Return what is known of the client."""
        user = "" if self.principal.is_anonymous else self.principal.name
        return Description(self.client_id or "", self.software, user)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.server.clients.leave(self.client)
        if self._throttle is not None:
            self._throttle.leave()
        callbacks, self._on_close = self._on_close, set()
        for callback in callbacks:
            self.server.barrier.call("end of a connection", callback)

    def _abandon(self) -> int:
        released = 0
        for slot in self._slots:
            if not self._outlives(slot):
                released += slot._size
                slot._size = 0
        self._slots.clear()
        return released

    def on_close(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called when the connection ends; at once if it has ended. It must not raise."""
        if self._closing and self.transport is None:
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

    def _tell_closed(self, reason: str, fields: dict[str, object]) -> None:
        super()._tell_closed(reason, {**fields, "listener": self.listener})

    def drain(self) -> None:
        """Start no more requests, and close as soon as the requests in progress are answered."""
        self._draining = True
        self._release(self._forget_waiting())
        if self.reading:
            self._pause()
        if self.idle:
            self.shut()

    def look_after(self, now: float) -> None:
        limits = self.server.limits
        if self.receiving_since < now - limits.receive_seconds:
            self.close("a request was not complete in time")
        elif self.stalled_since < now - limits.idle_seconds:
            self.abort()
        elif self.last_active < now - limits.idle_seconds and self.idle:
            self.shut()

    @property
    def unread_socket(self) -> int:
        """The socket's descriptor while reading is paused, otherwise -1."""
        if self.reading or self._closing or self.transport is None:
            return -1
        return int(self.transport.get_extra_info("socket").fileno())

    def eof_received(self) -> bool:
        keeps = super().eof_received()
        if keeps:
            self.hung_up()
        return keeps

    def hung_up(self) -> None:
        """Called when the client has closed its side while bytes are unread, or requests wait. May be called more than
        once."""

    @property
    def idle(self) -> bool:
        return not self._slots and not self._waiting and not self._output

    # --- requests and responses ------------------------------------------------------------------------------------

    def _may_begin(self, frame: bytes | bytearray | None) -> bool:
        if self._slots and not self._may_start(frame):
            return False
        return frame is None or not self.server.quotas.in_force or self._admits(frame)

    def _begin(self, frame: bytes | bytearray, arrived: float) -> None:
        quota = self.server.quotas.request
        if not quota.in_force:
            self._start(frame, arrived)
            return
        began = perf_counter()
        self._start(frame, arrived)
        self.charge(quota, (perf_counter() - began) * 1e6)

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

    @property
    def read_ahead(self) -> int:
        """The bytes of a response that may be read before it is sent.

        Few while other connections wait for their turn to read, or while much memory is held.
        """
        if self.server.turn.has_readers:
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
            if self.reading and not self._framer.receiving:
                self._pause()

    def _unmuted(self) -> None:
        self._muted = False
        if not self._closing:
            self._work()  # at once, so that its use of the quota counts before the next client of the queue continues

    def shed(self, since: float) -> None:
        """Give back memory of a response that the client has not read from since ``since`` (monotonic clock).

        A throttled client that holds a large request is disconnected and must come again.
        """
        if self._muted and self._waiting_bytes > QUEUED_BYTES and self._muted_since < since - _MUTED_PATIENCE_S:
            self._tell_closed("a quota would hold up a large request for long, while memory is short", {})
            self.abort()
            return
        if self.stalled_since < since and self._outbox is not None:
            self._outbox.shed()
