"""The directory of a node's groups by name, whatever their kind.

A name belongs to one group at a time. Each kind has a table of its own, since nearly every look-up is for one kind. A
group that changes its kind moves to the other table in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from anabranch_kit.run.turns import Many
from kafka_front.service.groups.classic.group import Group
from kafka_front.service.groups.consumer.group import ConsumerGroup

if TYPE_CHECKING:
    from kafka_front.service.groups.share.group import ShareGroup

T = TypeVar("T")


class _Table(Many[str, T]):
    __slots__ = ("_came", "_went")

    def __init__(self, came: Callable[[str], None], went: Callable[[str], None]) -> None:
        super().__init__()
        self._came = came
        self._went = went

    def __setitem__(self, group_id: str, group: T) -> None:
        super().__setitem__(group_id, group)
        self._came(group_id)

    def __delitem__(self, group_id: str) -> None:
        super().__delitem__(group_id)
        self._went(group_id)


class Directory:
    """Groups by name: ``classic`` (JoinGroup), ``consumer`` (KIP-848) and ``share`` (KIP-932). A share group never
    changes its kind."""

    __slots__ = ("classic", "consumer", "share")

    def __init__(
        self, came: Callable[[str], None] = lambda group_id: None, went: Callable[[str], None] = lambda group_id: None
    ) -> None:
        """``came`` and ``went`` are called with each name that enters or leaves the directory."""
        self.classic: Many[str, Group] = _Table(came, went)
        self.consumer: Many[str, ConsumerGroup] = _Table(came, went)
        self.share: Many[str, ShareGroup] = _Table(came, went)

    def __len__(self) -> int:
        return len(self.classic) + len(self.consumer) + len(self.share)

    def __contains__(self, group_id: object) -> bool:
        return group_id in self.classic or group_id in self.consumer or group_id in self.share

    def __iter__(self) -> Iterator[str]:
        yield from self.classic
        yield from self.consumer
        yield from self.share

    def get(self, group_id: str) -> Group | ConsumerGroup | None:
        """Return the consumer group of that name, classic or of KIP-848; None if there is none."""
        return self.classic.get(group_id) or self.consumer.get(group_id)

    def become_consumer(self, group: ConsumerGroup) -> None:
        """Add a group of KIP-848, in place of a classic one of its name."""
        self.classic.pop(group.group_id, None)
        self.consumer[group.group_id] = group

    def become_classic(self, group: Group) -> None:
        """Add a classic group, in place of one of KIP-848 of its name."""
        self.consumer.pop(group.group_id, None)
        self.classic[group.group_id] = group
