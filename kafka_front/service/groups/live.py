"""The groups that Kafka clients joined, for people: state, members, and assignments."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from bridges.catalog.views.groups import GroupMemberView, GroupSummary, GroupView, SharedPlace
from bridges.errors import GroupHeld, LogUnavailable
from kafka_front.service.groups.classic.embedded import EmbeddedFormatError, assigned_partitions
from kafka_front.service.groups.classic.group import Group, Member
from kafka_front.service.groups.consumer.group import ConsumerGroup, ConsumerMember
from kafka_front.service.groups.share.group import ShareGroup, ShareMember
from kafka_front.service.groups.streams.group import Role, StreamsGroup
from kafka_front.service.groups.view import summary_of
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.service.groups.group_service import GroupService

_MAX_SHOWN_BYTES = 1024 * 1024
"""Bytes above which an assignment is not decoded: a member may send anything, and people wait for the answer."""


class LiveGroups:
    """The groups that Kafka clients joined; see :class:`bridges.catalog.views.groups.GroupDirectory`."""

    def __init__(self, service: GroupService) -> None:
        self.space = service.progress.space
        self.knows = service.owned.owns
        self._service = service
        self._groups = service.directory
        self._topics = service.runtime.topics

    def _find(self, group_id: str) -> Group | ConsumerGroup | ShareGroup | None:
        group = self._groups.get(group_id) or self._groups.share.get(group_id)
        return None if group is None or not _is_joined(group) else group

    def __contains__(self, group_id: object) -> bool:
        return group_id in self._groups

    def summaries(self) -> Iterator[GroupSummary]:
        for group_id in self._groups:
            if (group := self._find(group_id)) is not None:
                yield summary_of(group_id, group)

    def summary(self, group_id: str) -> GroupSummary | None:
        group = self._find(group_id)
        return None if group is None else summary_of(group_id, group)

    def sharing(self) -> Collection[str]:
        return self._groups.share.keys()

    async def shared(self, group_id: str) -> Sequence[SharedPlace]:
        return await self._service.shared_places(group_id)

    async def forget(self, group_id: str) -> None:
        if group_id not in self._groups.share and self._service.find(group_id) is None:
            return
        try:
            await self._service.forget(group_id)
        except KafkaError as refused:
            if refused.code != ErrorCode.NON_EMPTY_GROUP:
                raise LogUnavailable(str(refused)) from refused
            raise GroupHeld(str(refused)) from refused

    def view(self, group_id: str) -> GroupView | None:
        group = self._find(group_id)
        if group is None:
            return None
        if not isinstance(group, Group):
            members = tuple(self._member_view(group, member) for member in group.members.values())
            letters = self._service.dead_letter_topic(group_id) if isinstance(group, ShareGroup) else ""
            return GroupView(summary_of(group_id, group), group.epoch, group.assignor, None, members, letters)
        return GroupView(
            summary_of(group_id, group),
            group.generation,
            group.protocol_name or "",
            group.leader,
            tuple(_member_view(group, member) for member in group.members.values()),
        )

    def _member_view(self, group: ConsumerGroup | ShareGroup, member: ConsumerMember | ShareMember) -> GroupMemberView:
        if isinstance(group, StreamsGroup):
            named = group.named_partitions(member.assigned, Role.ACTIVE)
        else:
            named = [(name, numbers) for _, name, numbers in self._topics.name_partitions(member.assigned)]
        partitions = tuple(sorted((name, number) for name, numbers in named for number in numbers))
        instance_id = None if isinstance(member, ShareMember) else member.instance_id
        return GroupMemberView(member.member_id, instance_id, member.client_id, member.client_host, partitions)


def _is_joined(group: Group | ConsumerGroup | ShareGroup) -> bool:
    """Return False for a group that the coordinator created only for committed positions, perhaps another front's."""
    if not isinstance(group, Group):
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
