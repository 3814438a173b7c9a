"""Groups for people: state, who reads what, and how far behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bridges.errors import LogError
from bridges.group_view import GroupMemberView, GroupPositionView, GroupSummary, GroupView
from bridges.partition_log import PartitionLog
from bridges.progress import Committed, Place

from .embedded import EmbeddedFormatError, assigned_partitions
from .group import Group, GroupState, Member

KIND = "classic"


def summary_of(group_id: str, group: Group | None) -> GroupSummary:
    """One line about a group; None stands for one that only has committed positions."""
    if group is None:
        return GroupSummary(group_id, KIND, GroupState.EMPTY.value, "", 0)
    return GroupSummary(group_id, KIND, group.state.value, group.protocol_type or "", len(group.members))


async def make_view(
    group: Group, positions: Mapping[Place, Committed], logs: Callable[[str, int], PartitionLog | None]
) -> GroupView:
    """All about a group, with the ends of the partitions it reads or has read."""
    members = tuple(_member_view(group, member) for member in group.members.values())
    readers = {place: member.member_id for member in members for place in member.partitions or ()}
    committed = dict(positions)
    rows = []
    for topic, partition in sorted({*committed, *readers}):
        position = committed.get((topic, partition))
        rows.append(
            GroupPositionView(
                topic,
                partition,
                None if position is None else position.offset,
                await _end_of(logs(topic, partition)),
                readers.get((topic, partition)),
                "" if position is None else position.metadata,
            )
        )
    return GroupView(
        summary_of(group.group_id, group),
        group.generation,
        group.protocol_name or "",
        group.leader,
        members,
        tuple(rows),
    )


def _member_view(group: Group, member: Member) -> GroupMemberView:
    partitions: tuple[tuple[str, int], ...] | None = None
    if group.uses_consumer_protocol:
        try:
            assigned = assigned_partitions(member.assignment)
        except EmbeddedFormatError:
            assigned = None
        if assigned is not None:
            partitions = tuple(sorted((topic, index) for topic, indexes in assigned.items() for index in indexes))
    return GroupMemberView(member.member_id, member.instance_id, member.client_id, member.client_host, partitions)


async def _end_of(log: PartitionLog | None) -> int | None:
    if log is None:
        return None
    try:
        await log.ready()
    except LogError:
        return None  # shown as unknown; the partition's own page says why
    return log.high_watermark
