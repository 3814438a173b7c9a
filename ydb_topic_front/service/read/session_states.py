"""Memory of the state that read sessions keep between two messages of their clients, counted and bounded.

A client can hold partition sessions and uncommitted ranges for as long as it likes, unlike requests and answers. So
they may take only a part of the node's memory budget; otherwise no other client could be served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch_kit.memory.budget import Kind
from ydb_topic_front.wire.statuses import Status, YdbError

if TYPE_CHECKING:
    from anabranch_kit.memory.budget import MemoryBudget

READING_BYTES = 1500
"""Memory for one partition session with its entries in tables."""
RANGE_BYTES = 100
"""Memory for one committed range that waits for a hole before it."""
_PART = 4
"""All sessions together may hold this fraction of the budget: 1/4."""


class SessionStates:
    """Bytes held by all read sessions, counted in the node's ``budget``."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._account = budget.account(lambda: None)
        self._limit = budget.total // _PART

    def change(self, size: int) -> None:
        """Count ``size`` bytes more, or less if negative. Never waits for room; callers check :meth:`refusal`
        afterwards."""
        if size > 0:
            self._account.take(Kind.REQUESTS, size)
        elif size:
            self._account.give(Kind.REQUESTS, -size)

    def refusal(self) -> YdbError | None:
        """Return the error for the session that has just grown if the limit is exceeded, else None."""
        if self._account.held <= self._limit:
            return None
        return YdbError(
            Status.OVERLOADED,
            "read sessions hold their part of limits.connections_memory_bytes: close some, or retry later",
        )
