"""Tickets for the backend's listeners: short-lived tokens that say what their bearer may do there.

Range servers and placement driver know no users (:mod:`sbp_back.transport.gate`). Who may read a topic is asked of a
node, which signs a ticket for the topic's streams with the keys of its tokens; whoever has the same file of keys can
tell that it is good, and make one of all rights for himself. So the keys are what makes a process one of the backend's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from bridges.auth import Principal
from bridges.auth.private_file import stamp
from bridges.auth.tokens import KeysError, TokenError, TokenKeys, load_keys
from sbp_back.errors import ErrorCode, SbpError
from sbp_back.transport.gate import Grant

MOST_STREAMS = 100
"""That one ticket is for: it must stay short enough to be looked at."""
_AUDIENCE = "sbp"
_STREAMS, _EVERYTHING = "streams", "everything"
_PROCESS = Principal("Process", "anabranch")
_NEVER = 2**62

_log = structlog.get_logger(__name__)


class TicketOffice:
    """Makes tickets that last for ``seconds``, and reads them. ``keys`` gives the keys as they are now, ``clock`` the
    seconds since 1970."""

    def __init__(self, keys: Callable[[], TokenKeys], seconds: int, clock: Callable[[], float] = time.time) -> None:
        self._keys = keys
        self.seconds = seconds
        self._clock = clock

    def for_reader(self, principal: Principal, streams: Collection[int]) -> str:
        """For somebody who may read ``streams``, at most :data:`MOST_STREAMS`."""
        assert len(streams) <= MOST_STREAMS
        return self._sign(principal, {_STREAMS: sorted(streams)})

    def for_process(self) -> str:
        """For a process of the backend, or a node: it may do everything."""
        return self._sign(_PROCESS, {_EVERYTHING: True})

    def _sign(self, principal: Principal, claims: dict[str, object]) -> str:
        return self._keys().sign(principal, _AUDIENCE, int(self._clock()), self.seconds, claims, None)

    def check(self, ticket: str) -> Grant:
        """See :data:`sbp_back.transport.gate.Check`."""
        try:
            found = self._keys().read(ticket, _AUDIENCE, int(self._clock()))
        except TokenError as error:
            raise SbpError(ErrorCode.UNAUTHORIZED, str(error).replace("token", "ticket")) from None
        if found.claims.get(_EVERYTHING) is True:
            return Grant(found.expires)
        return Grant(found.expires, frozenset(found.claims.get(_STREAMS, ())))


class KeysOfOthers:
    """Keys in a file that nodes make and change, as a process reads them that only uses them."""

    def __init__(self, path: Path) -> None:
        """Reads it. Blocks. Raises KeysError."""
        self._path = path
        self._stamp: object = None
        self.keys = self._read()

    def refresh(self) -> None:
        """Read it again if it has changed; what is wrong is logged, and what was known stays. Blocks."""
        try:
            if stamp(self._path) != self._stamp:
                self.keys = self._read()
        except (KeysError, OSError) as error:
            _log.error("the keys of tickets stay what they were", reason=str(error))

    def _read(self) -> TokenKeys:
        try:
            self._stamp = stamp(self._path)  # before the file: a change after it is found the next time
        except OSError as error:
            raise KeysError(f"{self._path}: {error.strerror or error}") from None
        return load_keys(self._path, 0, _NEVER, 0, make=False)
