"""The change of a group's kind while its members run (KIP-848, ``kafka.group.consumer_migration_policy``).

A classic consumer group becomes one of KIP-848 when the first member of the new protocol joins, and a classic one again
when the last of them has left. Members lose nothing: they keep their ids, their partitions, and the number of their
generation as their epoch.
"""

from __future__ import annotations

from kafka_front.service.groups.classic.embedded import (
    PROTOCOL_TYPE,
    EmbeddedFormatError,
    assigned_partitions,
    encode_assignment,
    has_user_data,
    owned_partitions,
    subscribed_topics,
    subscription_version,
)
from kafka_front.service.groups.classic.group import Group, GroupState, Member
from kafka_front.service.groups.consumer.group import NOTHING, ClassicPart, ConsumerGroup, ConsumerMember, Partitions
from kafka_front.service.groups.topic_index import TopicIndex

_WITHOUT_DATA = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
"""Assignors of every client library, whose members need their partitions alone. Yet the sticky ones of librdkafka and
sarama send their state along with assignments, so Apache Kafka refuses to convert their groups."""


def upgraded(group: Group, topics: TopicIndex) -> ConsumerGroup:
    """Return the KIP-848 group that a classic one becomes. Raises ValueError, with a sentence for people, if it
    cannot."""
    if not group.uses_consumer_protocol:
        raise ValueError("its members are no consumers")
    upgrade = ConsumerGroup(group.group_id, group.since_ms, group.generation, group.generation)
    said = {}
    for member in group.members.values():
        name = group.protocol_name if group.protocol_name in member.protocols else next(iter(member.protocols))
        assert name is not None
        said[member.member_id] = member.protocols[name]
        try:
            reads = subscribed_topics(member.protocols[name])
            assigned = _by_id(assigned_partitions(member.assignment), topics, upgrade)
            is_custom = name not in _WITHOUT_DATA and has_user_data(member.assignment)
        except EmbeddedFormatError as error:
            raise ValueError(f"what a member says of itself cannot be read: {error}") from error
        if is_custom:
            # Kafka Streams, for example: members would get partitions without the user data that they need to process
            # them. A broker's words, which programs compare.
            raise ValueError(
                "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
                "assignor before re-attempting the upgrade"
            )
        upgrade.add(
            ConsumerMember(
                member.member_id,
                member.instance_id,
                None,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                topics=reads,
                classic=ClassicPart(member.session_timeout_ms, tuple(member.protocols.items())),
                epoch=group.generation,
                previous_epoch=group.generation,
                assigned=assigned,
            )
        )
    if group.state is not GroupState.STABLE:
        _keep_owned(upgrade, said, topics)
    for upgraded_member in upgrade.members.values():
        upgraded_member.target = upgraded_member.assigned
    return upgrade


def _keep_owned(upgrade: ConsumerGroup, said: dict[str, bytes], topics: TopicIndex) -> None:
    """Give members the partitions that they owned by their JoinGroup: an interrupted rebalance has dropped the
    assignments."""
    for member in upgrade.members.values():
        try:
            owned = _by_id(owned_partitions(said[member.member_id]), topics, upgrade)
        except EmbeddedFormatError:
            continue
        if not member.assigned:
            upgrade.hold(member, member.state, member.epoch, owned, NOTHING)


def _by_id(assigned: dict[str, list[int]], topics: TopicIndex, group: ConsumerGroup) -> Partitions:
    """Return partitions by topic id, without those that do not exist or that another member has: a leader may assign
    anything."""
    found: dict[bytes, frozenset[int]] = {}
    for name, numbers in assigned.items():
        topic = topics.find(name)
        if topic is not None:
            topic_id, count = topic
            free = (n for n in numbers if 0 <= n < count and group.holder(topic_id, n) is None)
            if some := frozenset(free):
                found[topic_id] = some
    return found


def downgraded(group: ConsumerGroup, now_ms: int, generation: int, names: dict[bytes, str]) -> Group:
    """Return the classic group that a KIP-848 group becomes when all its members speak the classic protocol."""
    downgrade = Group(group.group_id, now_ms)
    for member in group.members.values():
        classic = member.classic
        assert classic is not None
        downgrade.add(
            Member(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                classic.session_timeout_ms,
                dict(classic.protocols),
                assignment_of(member, names),
            ),
            PROTOCOL_TYPE,
        )
    downgrade.generation = generation
    downgrade.protocol_name = downgrade.choose_protocol()
    downgrade.state = GroupState.STABLE
    downgrade.restore_subscribed()
    return downgrade


def assignment_of(member: ConsumerMember, names: dict[bytes, str]) -> bytes:
    """Return a member's assignment for the classic protocol, in the version of its own subscription."""
    assert member.classic is not None
    version = subscription_version(member.classic.protocols[0][1])
    named = {names[topic]: sorted(numbers) for topic, numbers in member.assigned.items() if topic in names}
    return encode_assignment(version, named)
