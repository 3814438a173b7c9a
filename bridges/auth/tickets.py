"""Tickets for the backend's listeners: short-lived tokens that say what their bearer may do there.

Range servers and placement driver know no users (:mod:`sbp_back.transport.gate`). A node decides who may read a topic,
and signs a ticket for the topic's streams with its token keys. Every process that has the file of keys can check a
ticket, and can make one with all rights for itself. So the keys are what makes a process part of the backend.
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
"""Most streams per ticket: a ticket must stay short enough to be read."""
_AUDIENCE = "sbp"
_STREAMS, _EVERYTHING = "streams", "everything"
_PROCESS = Principal("Process", "anabranch")
_NEVER = 2**62

_log = structlog.get_logger(__name__)


class TicketOffice:
    """Issues tickets that last for ``seconds``, and checks them.

    ``keys`` returns the present keys, ``clock`` the seconds since 1970.
    """

    def __init__(self, keys: Callable[[], TokenKeys], seconds: int, clock: Callable[[], float] = time.time) -> None:
        self._keys = keys
        self.seconds = seconds
        self._clock = clock

    def for_reader(self, principal: Principal, streams: Collection[int]) -> str:
        """Issue a ticket for a principal that may read ``streams``, at most :data:`MOST_STREAMS`."""
        assert len(streams) <= MOST_STREAMS
        return self._sign(principal, {_STREAMS: sorted(streams)})

    def for_process(self) -> str:
        """Issue a ticket with all rights, for a process of the backend or a node."""
        return self._sign(_PROCESS, {_EVERYTHING: True})

    def _sign(self, principal: Principal, claims: dict[str, object]) -> str:
        return self._keys().sign(principal, _AUDIENCE, int(self._clock()), self.seconds, claims, None)

    def check(self, ticket: str) -> Grant:
        """Check a ticket, as :data:`sbp_back.transport.gate.Check` requires."""
        try:
            found = self._keys().read(ticket, _AUDIENCE, int(self._clock()))
        except TokenError as error:
            raise SbpError(ErrorCode.UNAUTHORIZED, str(error).replace("token", "ticket")) from None
        if found.claims.get(_EVERYTHING) is True:
            return Grant(found.expires)
        return Grant(found.expires, frozenset(found.claims.get(_STREAMS, ())))


class KeysOfOthers:
    """The file of keys as read by a process other than a node. Nodes create and change it."""

    def __init__(self, path: Path) -> None:
        """Read the file. Blocks. Raises KeysError."""
        self._path = path
        self._stamp: object = None
        self.keys = self._read()

    def refresh(self) -> None:
        """Read the file again if it has changed; an error is logged, and the known keys stay in force. Blocks."""
        try:
            if stamp(self._path) != self._stamp:
                self.keys = self._read()
        except (KeysError, OSError) as error:
            _log.error("could not read the keys of tickets; the former ones stay valid", reason=str(error))

    def _read(self) -> TokenKeys:
        try:
            # taken before the file is read, so that a change after it is noticed the next time
            self._stamp = stamp(self._path)
        except OSError as error:
            raise KeysError(f"{self._path}: {error.strerror or error}") from None
        return load_keys(self._path, 0, _NEVER, 0, make=False)
