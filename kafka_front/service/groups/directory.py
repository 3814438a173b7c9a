"""The groups of a node by name: one directory, whatever kind a group is of.

A name belongs to one group at a time. The two kinds are kept apart in it, since nearly everything that looks a group up
wants one kind; what changes a group's kind takes it out of one half and puts it into the other in one step.
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
    """Groups by name: ``classic`` (JoinGroup), ``consumer`` (KIP-848) and ``share`` (KIP-932), which are no group of
    the other two kinds ever."""

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
        """The group of consumers of that name, of whichever kind of those."""
        return self.classic.get(group_id) or self.consumer.get(group_id)

    def become_consumer(self, group: ConsumerGroup) -> None:
        """Put a group of the new kind in; a classic one of its name goes."""
        self.classic.pop(group.group_id, None)
        self.consumer[group.group_id] = group

    def become_classic(self, group: Group) -> None:
        """Put a classic group in; one of the new kind and of its name goes."""
        self.consumer.pop(group.group_id, None)
        self.classic[group.group_id] = group
