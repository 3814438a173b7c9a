"""Gate of a listener that demands tickets: the tickets that a connection has shown decide what its requests may do.

A ticket is a text that the client got from a holder of the key. It says until when its bearer may do everything, or
which streams it may read; a :data:`Check` reads it. A connection without a ticket gets only its PING answered. A reader
may fetch data of its streams, and the facts needed to find it, until the tickets end. A bearer of all rights keeps them
for as long as its connection lasts, as with a certificate.

Only requests through a listener pass a gate: the node calls its own range server and placement driver within the
process. docs/sbp.md, "Tickets".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from msgspec import Struct

from sbp_back.errors import ErrorCode, SbpError
from sbp_back.transport.handler import Handler, HasSessions, Reply, Session
from sbp_back.wire import model as m

logger = logging.getLogger(__name__)

MOST_STREAMS = 20_000
"""Most streams that one connection may read at the same time; the streams of the earliest tickets are forgotten."""
_WANTED = "this listener wants a ticket (SHOW_TICKET): a node gives them to who may read, see docs/sbp.md"


class Grant(Struct, frozen=True):
    """Content of a good ticket: until when (s since 1970) its bearer may read ``streams``, or do everything where these
    are None.
    """

    expires: float
    streams: frozenset[int] | None = None


Check = Callable[[str], Grant]
"""Reads a ticket. Raises SbpError 1401 for an invalid one."""


class Gate:
    """Passes to ``handler`` the requests that tickets allow. ``clock`` gives seconds since 1970."""

    def __init__(self, handler: Handler, check: Check, clock: Callable[[], float] = time.time) -> None:
        self._handler = handler
        self._check = check
        self._clock = clock

    def session(self) -> Session:
        """Return a session for a connection, which has shown no ticket yet."""
        return _Watched(self._handler, self._check, self._clock)

    def handle(self, request: m.Request, reply: Reply) -> None:
        """Serve a request that came over no connection, and so without a ticket."""
        self.session().handle(request, reply)


class _Watched:
    """The session of one connection."""

    __slots__ = ("_check", "_clock", "_everything", "_handler", "_refusal", "_session", "_streams", "_until")

    def __init__(self, handler: Handler, check: Check, clock: Callable[[], float]) -> None:
        self._session = handler.session() if isinstance(handler, HasSessions) else None
        self._handler = handler if self._session is None else self._session
        self._check = check
        self._clock = clock
        self._everything = False
        self._streams: dict[int, float] = {}  # until when each may be read
        self._until = 0.0  # the last of these ends
        self._refusal = _WANTED

    def handle(self, request: m.Request, reply: Reply) -> None:
        if type(request) is m.ShowTicketRequest:
            reply(m.ShowTicketResponse(self._show(request.ticket)))
        elif self._everything or type(request) in (m.GoAway, m.PingRequest):
            self._handler.handle(request, reply)
        else:
            refusal = self._refused(request)
            if refusal is None:
                self._handler.handle(request, reply)
            else:
                reply(m.SystemErrorResponse(refusal))

    def ended(self) -> None:
        if self._session is not None:
            self._session.ended()

    def _show(self, ticket: str) -> m.Status:
        now = self._clock()
        try:
            grant = self._check(ticket)
            if grant.expires <= now:
                raise SbpError(ErrorCode.UNAUTHORIZED, "the ticket has expired")
        except SbpError as error:
            logger.warning("a ticket is refused: %s", error.message)
            self._refusal = error.message
            return m.Status(error.code, error.message)
        if grant.streams is None:
            self._everything = True
            self._streams.clear()
            return m.Status()
        self._streams = {stream: end for stream, end in self._streams.items() if end > now}
        for stream in grant.streams:
            # The streams of the latest tickets stand last; a longer right from an earlier ticket stays.
            self._streams[stream] = max(self._streams.pop(stream, 0.0), grant.expires)
        for stream in list(self._streams)[:-MOST_STREAMS]:
            del self._streams[stream]
        self._until = max(self._until, grant.expires)
        return m.Status()

    def _refused(self, request: m.Request) -> m.Status | None:
        """Return why a reader's request is not served; None if it is."""
        now = self._clock()
        if self._until <= now:
            message = "the ticket has expired: show another one" if self._until else self._refusal
            return m.Status(ErrorCode.UNAUTHORIZED, message)
        match request:
            case m.FetchRequest():
                refusal = self._unread(request.range.stream_id, now)
                if refusal is None:
                    # A waiting fetch is answered when the ticket ends, with what there is by then.
                    left_ms = int((self._streams[request.range.stream_id] - now) * 1000)
                    request.max_wait_ms = min(request.max_wait_ms, left_ms)
                return refusal
            case m.ListRangeRequest() | m.DescribeStreamRequest():
                return self._unread(request.stream_id, now)
            case m.DescribePdRequest():
                return None
            case m.HeartbeatRequest() if request.range_server is None and request.role != m.ClientRole.RANGE_SERVER:
                return None
        return m.Status(ErrorCode.FORBIDDEN, f"the ticket is for reading, not for {type(request).__name__}")

    def _unread(self, stream_id: int, now: float) -> m.Status | None:
        """Return why a stream may not be read; None if it may be."""
        until = self._streams.get(stream_id)
        if until is None:
            return m.Status(ErrorCode.FORBIDDEN, f"the ticket is not for stream {stream_id}")
        if until <= now:
            message = f"the ticket for stream {stream_id} has expired: show another one"
            return m.Status(ErrorCode.UNAUTHORIZED, message)
        return None
