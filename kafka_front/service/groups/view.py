"""Views of groups for people: state, members, and assignments."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bridges.catalog.views.groups import GroupMemberView, GroupSummary, GroupView
from kafka_front.service.groups.classic.embedded import PROTOCOL_TYPE, EmbeddedFormatError, assigned_partitions
from kafka_front.service.groups.classic.group import Group, GroupState, Member
from kafka_front.service.groups.consumer.group import ConsumerGroup, ConsumerMember
from kafka_front.service.groups.directory import Directory
from kafka_front.service.groups.share.group import ShareGroup

CLASSIC = "classic"
CONSUMER = "consumer"
SHARE = "share"

_MAX_SHOWN_BYTES = 1024 * 1024
"""Bytes above which an assignment is not decoded: a member may send anything, and people wait for the answer."""


def is_empty(group: Group | ConsumerGroup) -> bool:
    """Return whether a group has no members, also none that are about to join."""
    if isinstance(group, ConsumerGroup):
        return not group.members
    return group.state is GroupState.EMPTY and not group.pending


def summary_of(group_id: str, group: Group | ConsumerGroup | ShareGroup | None) -> GroupSummary:
    """Return one line about a group; None stands for a group that only has committed positions."""
    if group is None:
        return GroupSummary(group_id, CLASSIC, GroupState.EMPTY.value, "", 0)
    if isinstance(group, ShareGroup):
        return GroupSummary(group_id, SHARE, group.state.value, SHARE, len(group.members))
    if isinstance(group, ConsumerGroup):
        return GroupSummary(group_id, CONSUMER, group.state.value, PROTOCOL_TYPE, len(group.members))
    return GroupSummary(group_id, CLASSIC, group.state.value, group.protocol_type or "", len(group.members))


class LiveGroups:
    """The groups that Kafka clients joined; see :class:`bridges.catalog.views.groups.GroupDirectory`."""

    def __init__(
        self, groups: Directory, space: str, name_of: Callable[[bytes], str | None], knows: Callable[[str], bool]
    ) -> None:
        self.space = space
        self.knows = knows
        self._groups = groups
        self._name_of = name_of

    def summaries(self) -> Iterator[GroupSummary]:
        for group_id in self._groups:
            group = self._groups.get(group_id)
            if group is not None and _is_joined(group):
                yield summary_of(group_id, group)

    def summary(self, group_id: str) -> GroupSummary | None:
        group = self._groups.get(group_id)
        return None if group is None or not _is_joined(group) else summary_of(group_id, group)

    def view(self, group_id: str) -> GroupView | None:
        group = self._groups.get(group_id)
        if group is None or not _is_joined(group):
            return None
        if isinstance(group, ConsumerGroup):
            members = tuple(self._member_view(member) for member in group.members.values())
            return GroupView(summary_of(group_id, group), group.epoch, group.assignor, None, members)
        return GroupView(
            summary_of(group_id, group),
            group.generation,
            group.protocol_name or "",
            group.leader,
            tuple(_member_view(group, member) for member in group.members.values()),
        )

    def _member_view(self, member: ConsumerMember) -> GroupMemberView:
        partitions = tuple(
            sorted(
                (name, number)
                for topic_id, numbers in member.assigned.items()
                if (name := self._name_of(topic_id)) is not None
                for number in numbers
            )
        )
        return GroupMemberView(member.member_id, member.instance_id, member.client_id, member.client_host, partitions)


def _is_joined(group: Group | ConsumerGroup) -> bool:
    """Return False for a group that the coordinator created only for committed positions, perhaps another front's."""
    if isinstance(group, ConsumerGroup):
        return True
    return group.protocol_type is not None or bool(group.pending)


def _member_view(group: Group, member: Member) -> GroupMemberView:
    partitions: tuple[tuple[str, int], ...] | None = None
    if group.uses_consumer_protocol and len(member.assignment) <= _MAX_SHOWN_BYTES:
        try:
            assigned = assigned_partitions(member.assignment)
        except EmbeddedFormatError:
            assigned = None
        if assigned is not None:
            partitions = tuple(sorted((topic, index) for topic, indexes in assigned.items() for index in indexes))
    return GroupMemberView(member.member_id, member.instance_id, member.client_id, member.client_host, partitions)
