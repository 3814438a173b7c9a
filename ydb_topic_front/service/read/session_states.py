"""What reading sessions remember between two messages of their clients, counted and bounded.

Partitions of a session and the holes in what it commits are held for as long as the client likes, unlike requests and
answers, so they may not have all of the node's memory budget: nobody else could be read any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch_kit.memory.budget import Kind
from ydb_topic_front.wire.statuses import Status, YdbError

if TYPE_CHECKING:
    from anabranch_kit.memory.budget import MemoryBudget

READING_BYTES = 1500
"""A partition of a session: what is known of it, and where it stands in tables."""
RANGE_BYTES = 100
"""A range of offsets that is committed and has a hole before it."""
_PART = 4
"""All sessions together may hold one part in so many of the budget."""


class SessionStates:
    """The bytes of all sessions, as part of a node's ``budget``."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._account = budget.account(lambda: None)
        self._limit = budget.total // _PART

    @property
    def held(self) -> int:
        """Bytes of all sessions."""
        return self._account.held

    def change(self, size: int) -> None:
        """Count ``size`` bytes more, or less. There is no room to be waited for: see :meth:`refuse`."""
        if size > 0:
            self._account.take(Kind.REQUESTS, size)
        elif size:
            self._account.give(Kind.REQUESTS, -size)

    def refusal(self) -> YdbError | None:
        """Why whoever has just held more may not go on; None if it may."""
        if self._account.held <= self._limit:
            return None
        return YdbError(Status.OVERLOADED, "the node remembers as much of readers as it may; try again later")
