"""Deadlines of groups and their members, which both coordinators work off in the same way."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from anabranch_kit.run.deadlines import DeadlineQueue

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier

K = TypeVar("K", bound=Enum)

_AFTER_DEFECT_MS = 1_000
"""When a deadline comes again whose step has raised."""


class GroupTimers(DeadlineQueue[tuple[K, str, str]]):
    """Deadlines by kind, group and member, in milliseconds."""

    __slots__ = ()

    def work_off(self, now_ms: int, step: Callable[[int, K, str, str], None], barrier: Barrier) -> int:
        """Call ``step`` for all that was due at ``now_ms`` or before; returns how many deadlines that were.

        They are no more than there were at the beginning: what a step sets lies after ``now_ms``.
        """
        steps = 0
        for _ in range(len(self)):
            key = self.pop_due(now_ms)
            if key is None:
                break
            steps += 1
            if not barrier.call("deadline of a group", step, now_ms, *key, group=key[1]):
                self.set(key, now_ms, _AFTER_DEFECT_MS)
        return steps
