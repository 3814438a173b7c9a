"""Conversion between classic groups and their snapshots."""

from __future__ import annotations

from collections.abc import Mapping

from kafka_front.service.groups.admission import rebalance_timeout, session_timeout
from kafka_front.service.groups.classic.group import Group, GroupState, Member
from kafka_front.service.groups.classic.snapshot import GroupSnapshot, MemberSnapshot
from kafka_front.settings import KafkaGroupSettings


def snapshot_of(group: Group, assignments: Mapping[str, bytes]) -> GroupSnapshot:
    """Return the snapshot to store; ``assignments`` override the members' own, since they are stored before they take
    effect."""
    return GroupSnapshot(
        group.generation,
        group.protocol_type,
        group.protocol_name,
        group.leader,
        group.since_ms,
        tuple(
            MemberSnapshot(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                tuple(member.protocols.items()),
                assignments.get(member.member_id, member.assignment),
            )
            for member in group.members.values()
        ),
    )


def restored(group_id: str, snapshot: GroupSnapshot, settings: KafkaGroupSettings) -> Group:
    """Return the group of a snapshot, with timeouts within today's settings."""
    group = Group(group_id, snapshot.since_ms)
    group.generation = snapshot.generation
    group.protocol_type = snapshot.protocol_type
    group.protocol_name = snapshot.protocol_name
    for stored in snapshot.members:
        member = Member(
            stored.member_id,
            stored.instance_id,
            stored.client_id,
            stored.client_host,
            rebalance_timeout(settings, stored.rebalance_timeout_ms),
            session_timeout(settings, stored.session_timeout_ms),
            dict(stored.protocols),
            stored.assignment,
        )
        group.add(member, snapshot.protocol_type or "")
    if group.members:
        group.leader = snapshot.leader
        group.state = GroupState.STABLE
    group.restore_subscribed()
    return group
