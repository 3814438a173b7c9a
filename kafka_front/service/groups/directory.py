"""The directory of a node's groups by name, whatever their kind.

A name belongs to one group at a time. Each kind has a table of its own, since nearly every look-up is for one kind. A
group that changes its kind moves to the other table in one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from anabranch_kit.run.turns import Many
from kafka_front.service.groups.classic.group import Group
from kafka_front.service.groups.consumer.group import ConsumerGroup

if TYPE_CHECKING:
    from kafka_front.service.groups.share.group import ShareGroup


class Directory:
    """Groups by name: ``classic`` (JoinGroup), ``consumer`` (KIP-848) and ``share`` (KIP-932). A share group never
    changes its kind."""

    __slots__ = ("classic", "consumer", "share")

    def __init__(self) -> None:
        self.classic: Many[str, Group] = Many()
        self.consumer: Many[str, ConsumerGroup] = Many()
        self.share: Many[str, ShareGroup] = Many()

    def __len__(self) -> int:
        return len(self.classic) + len(self.consumer) + len(self.share)

    def __contains__(self, group_id: str) -> bool:
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
