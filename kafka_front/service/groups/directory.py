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
    from kafka_front.service.groups.streams.group import StreamsGroup

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
    """Groups by name: ``classic`` (JoinGroup), ``consumer`` (KIP-848), ``streams`` (KIP-1071) and ``share``
    (KIP-932). A share group never changes its kind."""

    __slots__ = ("classic", "consumer", "share", "streams")

    def __init__(
        self, came: Callable[[str], None] = lambda group_id: None, went: Callable[[str], None] = lambda group_id: None
    ) -> None:
        """``came`` and ``went`` are called with each name that enters or leaves the directory."""
        self.classic: Many[str, Group] = _Table(came, went)
        self.consumer: Many[str, ConsumerGroup] = _Table(came, went)
        self.streams: Many[str, StreamsGroup] = _Table(came, went)
        self.share: Many[str, ShareGroup] = _Table(came, went)

    def __len__(self) -> int:
        return len(self.classic) + len(self.consumer) + len(self.streams) + len(self.share)

    def __contains__(self, group_id: object) -> bool:
        return (
            group_id in self.classic or group_id in self.share or group_id in self.consumer or group_id in self.streams
        )

    def __iter__(self) -> Iterator[str]:
        yield from self.classic
        yield from self.consumer
        yield from self.streams
        yield from self.share

    def get(self, group_id: str) -> Group | ConsumerGroup | None:
        """Return the group of that name whose members commit positions: any but a share group; None if there is
        none."""
        return self.classic.get(group_id) or self.heartbeating(group_id)

    def heartbeating(self, group_id: str) -> ConsumerGroup | None:
        """Return the consumer group of KIP-848 or the streams group of that name; None if there is neither."""
        return self.consumer.get(group_id) or self.streams.get(group_id)

    def new_kind(self, group_id: str) -> str | None:
        """Return the kind of a group that is not classic, as in the types of ListGroups; None if there is none."""
        kinds = {"consumer": group_id in self.consumer, "streams": group_id in self.streams}
        kinds["share"] = group_id in self.share
        return next((kind for kind, is_there in kinds.items() if is_there), None)

    def become_classic(self, group: Group) -> None:
        """Add a classic group, in place of one of KIP-848 of its name."""
        self.consumer.pop(group.group_id, None)
        self.classic[group.group_id] = group
