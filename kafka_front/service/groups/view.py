"""Groups for people: state, members, and who reads what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bridges.catalog.group_view import GroupMemberView, GroupSummary, GroupView

from .embedded import EmbeddedFormatError, assigned_partitions
from .group import Group, GroupState, Member

KIND = "classic"

_MAX_SHOWN_BYTES = 1024 * 1024
"""A longer assignment is not looked into: a member may send anything, and people wait for the answer."""


def summary_of(group_id: str, group: Group | None) -> GroupSummary:
    """One line about a group; None stands for one that only has committed positions."""
    if group is None:
        return GroupSummary(group_id, KIND, GroupState.EMPTY.value, "", 0)
    return GroupSummary(group_id, KIND, group.state.value, group.protocol_type or "", len(group.members))


class LiveGroups:
    """The groups that Kafka clients joined; see :class:`bridges.catalog.group_view.GroupDirectory`."""

    def __init__(self, groups: Mapping[str, Group], space: str) -> None:
        self.space = space
        self._groups = groups

    def summaries(self) -> Iterator[GroupSummary]:
        for group_id in [*self._groups]:
            group = self._groups.get(group_id)
            if group is not None and _is_joined(group):
                yield summary_of(group_id, group)

    def view(self, group_id: str) -> GroupView | None:
        group = self._groups.get(group_id)
        if group is None or not _is_joined(group):
            return None
        return GroupView(
            summary_of(group_id, group),
            group.generation,
            group.protocol_name or "",
            group.leader,
            tuple(_member_view(group, member) for member in group.members.values()),
        )


def _is_joined(group: Group) -> bool:
    """False for a group that the coordinator only made up around committed positions, perhaps another front's."""
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
