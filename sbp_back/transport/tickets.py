"""The tickets that a client shows to servers that demand them (:mod:`sbp_back.transport.gate`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from sbp_back.wire.model import OK


class Tickets(Protocol):
    """Source of the tickets shown on each connection: all of them at its beginning, and new ones before the next
    request.
    """

    @property
    def version(self) -> int:
        """Return a number that rises with each new ticket."""

    def since(self, version: int) -> Sequence[str]:
        """Return the tickets that are newer than ``version``; all for 0."""

    def answered(self, server: str, code: int) -> None:
        """Note the ``code`` with which ``server``, a "host:port", answered a ticket."""


class OwnTickets:
    """Tickets of a process that has the key: one with all rights for each connection, made by ``make``. ``demanded``:
    whether all servers that were met demand tickets; False while none was met.
    """

    version = 1

    def __init__(self, make: Callable[[], str]) -> None:
        self._make = make
        self._met: dict[str, bool] = {}

    @property
    def demanded(self) -> bool:
        return bool(self._met) and all(self._met.values())

    def since(self, version: int) -> Sequence[str]:
        return [self._make()] if version < self.version else ()

    def answered(self, server: str, code: int) -> None:
        self._met[server] = code == OK


class GivenTickets:
    """Tickets that a reader was given, each for one stream and for some seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._given: dict[int, tuple[int, float, float, str]] = {}  # version, half of its time, its end, the ticket
        self.version = 0

    def give(self, of: int, ticket: str, seconds: float) -> None:
        """Show ``ticket`` from now on; it replaces the earlier one for the same stream."""
        now = self._clock()
        self._given = {key: one for key, one in self._given.items() if one[2] > now}
        self.version += 1
        self._given[of] = (self.version, now + seconds / 2, now + seconds, ticket)

    def is_due(self, of: int) -> bool:
        """Return whether a new ticket is needed: there is none for this stream, or half of its time is over."""
        found = self._given.get(of)
        return found is None or found[1] <= self._clock()

    def since(self, version: int) -> Sequence[str]:
        now = self._clock()
        return [ticket for number, _, end, ticket in self._given.values() if number > version and end > now]

    def answered(self, server: str, code: int) -> None:
        """Do nothing: the refusal of a later request tells of a refused ticket."""
