"""Lines about groups for people."""

from __future__ import annotations

from bridges.catalog.views.groups import GroupSummary
from kafka_front.service.groups.classic.embedded import PROTOCOL_TYPE
from kafka_front.service.groups.classic.group import Group, GroupState
from kafka_front.service.groups.consumer.group import ConsumerGroup
from kafka_front.service.groups.share.group import ShareGroup
from kafka_front.service.groups.streams.group import StreamsGroup

CLASSIC = "classic"
CONSUMER = "consumer"
STREAMS = "streams"
SHARE = "share"


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
        kind, protocol = (STREAMS, STREAMS) if isinstance(group, StreamsGroup) else (CONSUMER, PROTOCOL_TYPE)
        return GroupSummary(group_id, kind, group.state.value, protocol, len(group.members))
    return GroupSummary(group_id, CLASSIC, group.state.value, group.protocol_type or "", len(group.members))
