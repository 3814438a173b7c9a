"""Consumer groups as people look at them: what a front tells the console and the command line about its groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True, frozen=True)
class GroupMemberView:
    """A member and the (topic, partition) pairs it reads; ``partitions`` is None if its assignment is opaque to us."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    partitions: tuple[tuple[str, int], ...] | None


@dataclass(slots=True, frozen=True)
class GroupPositionView:
    """Where a group stands in one partition.

    ``committed`` is None where nothing is committed, ``end`` (the high watermark) where the partition cannot be
    opened now, ``member_id`` where nobody is assigned.
    """

    topic: str
    partition: int
    committed: int | None
    end: int | None
    member_id: str | None
    metadata: str = ""

    @property
    def lag(self) -> int | None:
        """Records after the committed position, if both ends are known."""
        if self.committed is None or self.end is None:
            return None
        return max(self.end - self.committed, 0)


@dataclass(slots=True, frozen=True)
class GroupSummary:
    """One line of a list of groups; ``kind`` is the protocol's name for the sort of group."""

    group_id: str
    kind: str
    state: str
    protocol_type: str
    members: int


@dataclass(slots=True, frozen=True)
class GroupView:
    """Everything about one group."""

    summary: GroupSummary
    generation: int
    protocol: str
    leader: str | None
    members: tuple[GroupMemberView, ...]
    positions: tuple[GroupPositionView, ...]

    @property
    def lag(self) -> int:
        """Sum of the known lags."""
        return sum(position.lag or 0 for position in self.positions)


class GroupDirectory(Protocol):
    """What a front with consumer groups offers to whoever shows them."""

    def summaries(self) -> list[GroupSummary]:
        """All groups, by name."""
        ...

    async def view(self, group_id: str) -> GroupView | None:
        """One group with its lag; opens partitions nobody has used yet. None if there is no such group."""
        ...
