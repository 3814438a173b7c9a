"""Interface of a server of requests: a range server, a placement driver, or a stand-in for either in tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from sbp_back.errors import ErrorCode
from sbp_back.wire.model import Request, Response, Status

Reply = Callable[[Response], None]

DEFECT = Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, "unexpected error, see the server's log")
"""The answer to a request whose handler raised an unexpected exception."""


NO_TICKETS = Status(ErrorCode.UNSUPPORTED_OPERATION, "no tickets are demanded here")
"""The answer to a ticket that no gate has taken (:mod:`sbp_back.transport.gate`)."""


class Handler(Protocol):
    """Serves requests of any carrier.

    ``handle`` is called on the event loop and must not raise; if it does, its caller answers :data:`DEFECT`. ``reply``
    is called exactly once, on the loop, before ``handle`` returns or at any later time; a
    :class:`~sbp_back.wire.model.GoAway` is never replied to. Only a :class:`~sbp_back.wire.model.DocumentRequest` may
    be replied to in several parts, all but the last with ``last`` False.
    """

    def handle(self, request: Request, reply: Reply) -> None: ...


class Session(Handler, Protocol):
    """Serves the requests of one connection."""

    def ended(self) -> None:
        """React to the end of the connection; answers to requests in flight go nowhere."""


@runtime_checkable
class HasSessions(Protocol):
    """A handler that needs to know which requests come over the same connection."""

    def session(self) -> Session:
        """Return a session for a new connection."""
