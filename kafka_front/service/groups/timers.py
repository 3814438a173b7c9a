"""Deadlines of groups and their members, used by both coordinators."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from anabranch_kit.run.deadlines import DeadlineQueue

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier

K = TypeVar("K", bound=Enum)

_AFTER_DEFECT_MS = 1_000
"""Delay before a deadline is repeated after its step has raised."""


class GroupTimers(DeadlineQueue[tuple[K, str, str]]):
    """Deadlines by kind, group and member, in milliseconds."""

    __slots__ = ()

    def work_off(self, now_ms: int, step: Callable[[int, K, str, str], None], barrier: Barrier) -> int:
        """Call ``step`` for each deadline at ``now_ms`` or before; return their number.

        They are at most as many as there were before the call: a step sets deadlines after ``now_ms`` only.
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
