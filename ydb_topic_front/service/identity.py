"""Principal of a stream's client. It may change (a new token) or expire (user removed) while the stream lasts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from bridges.auth import ANONYMOUS, Principal
from bridges.auth.sessions import ENDED, Session
from bridges.net.grpc_server import Code, GrpcRefusal
from ydb_topic_front.service.core import TICKET

if TYPE_CHECKING:
    from bridges.net.grpc_server import GrpcStream
    from ydb_topic_front.service.core import YdbService

_IDENTIFIED_S = 60.0
"""Interval after which a stream's handler checks the client's token and rights again."""


class Identity:
    """Principal of one stream's client. ``refused`` is called when the user is removed or its password changes."""

    __slots__ = ("_refused", "_service", "_session", "_stream", "looked_at", "principal")

    def __init__(self, service: YdbService, stream: GrpcStream, refused: Callable[[GrpcRefusal], None]) -> None:
        self.principal: Principal = ANONYMOUS
        """Principal at the last :meth:`identify`."""
        self._service = service
        self._stream = stream
        self._refused = refused
        self._session: Session | None = None
        self.looked_at = 0.0

    @property
    def is_old(self) -> bool:
        """Return whether the last :meth:`identify` is more than a minute ago."""
        return time.monotonic() - self.looked_at > _IDENTIFIED_S

    def identify(self) -> Principal:
        """Authenticate the client again and return its principal. Raises GrpcRefusal."""
        principal = self.principal = self._service.principal(self._stream)
        self._forget()
        if self._stream.header(TICKET) and not principal.is_anonymous:  # a certificate needs no login session
            self._session = self._service.node.authenticator.sessions.begin(principal, self._ended)
        self.looked_at = time.monotonic()
        return principal

    def close(self) -> None:
        """Stop watching the user: the stream has ended."""
        self._forget()
        self._refused = lambda refusal: None

    def _forget(self) -> None:
        self._service.node.authenticator.sessions.end(self._session)
        self._session = None

    def _ended(self) -> None:
        self._refused(GrpcRefusal(Code.UNAUTHENTICATED, ENDED))
