"""The tickets that a client shows to servers that demand them (:mod:`sbp_back.transport.gate`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from sbp_back.wire.model import OK


class Tickets(Protocol):
    """What is shown on each connection: all there is at its beginning, and what is new before the next request."""

    @property
    def version(self) -> int:
        """Rises when there is a new one."""

    def since(self, version: int) -> Sequence[str]:
        """Those that came behind ``version``; all, behind 0."""

    def answered(self, server: str, code: int) -> None:
        """What ``server``, a "host:port", has said of one."""


class OwnTickets:
    """Of a process that has the key: one of all rights for each connection, made by ``make``. ``demanded`` tells
    whether all servers that were met know tickets, and want them; False while none was."""

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
    """Of a reader: those that it was given, each for one thing and for some seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._given: dict[int, tuple[int, float, float, str]] = {}  # version, half of its time, its end, the ticket
        self.version = 0

    def give(self, of: int, ticket: str, seconds: float) -> None:
        """From now on it is shown; in place of what was given for the same."""
        now = self._clock()
        self._given = {key: one for key, one in self._given.items() if one[2] > now}
        self.version += 1
        self._given[of] = (self.version, now + seconds / 2, now + seconds, ticket)

    def is_due(self, of: int) -> bool:
        """Whether there should be another one for this: there is none, or half of its time is over."""
        found = self._given.get(of)
        return found is None or found[1] <= self._clock()

    def since(self, version: int) -> Sequence[str]:
        now = self._clock()
        return [ticket for number, _, end, ticket in self._given.values() if number > version and end > now]

    def answered(self, server: str, code: int) -> None:
        """What follows is told by what is refused."""
