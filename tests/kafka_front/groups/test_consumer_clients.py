"""Members of KIP-848's groups, as librdkafka plays them, on a running node: restarts, kinds that change, patterns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from confluent_kafka import ConsumerGroupState as State
from confluent_kafka import ConsumerGroupType as Kind
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, NewPartitions, NewTopic

from tests.conftest import NodeFactory
from tests.kafka_front.groups.test_group_clients import (
    ALL,
    PARTITIONS,
    Reader,
    make_topic,
    produce,
    shared,
    unique,
    until,
)
from tests.node_process import NodeProcess

pytestmark = pytest.mark.slow

QUICK = {"kafka.group.consumer_heartbeat_interval_ms": "300", "kafka.group.initial_rebalance_delay_ms": "0"}


@pytest.fixture(scope="module")
def quick_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    factory = NodeFactory(tmp_path_factory.mktemp("quick"))
    try:
        yield factory(settings=QUICK)
    finally:
        factory.dispose()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class ConsumerReader(Reader):
    """A member that speaks the new protocol."""

    def __init__(self, node: NodeProcess, group: str, *topics: str, **settings: object) -> None:
        fixed = {"group_protocol": "consumer", "session_timeout_ms": None, "heartbeat_interval_ms": None}
        super().__init__(node, group, *topics, **{**fixed, **settings})


def described(node: NodeProcess, group: str) -> ConsumerGroupDescription:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    return admin.describe_consumer_groups([group])[group].result(30)


def is_classic_again(node: NodeProcess, group: str) -> bool:
    now = described(node, group)
    return (now.type, now.state, len(now.members)) == (Kind.CLASSIC, State.STABLE, 2)


def is_stable(node: NodeProcess, group: str) -> bool:
    return described(node, group).state == State.STABLE


def kind(node: NodeProcess, group: str) -> Kind:
    return described(node, group).type


def test_members_and_positions_survive_a_kill_of_the_node(
    node_factory: Callable[..., NodeProcess], stack: ExitStack
) -> None:
    node = node_factory(settings=QUICK)
    topic, group = make_topic(node), unique("group")
    one, two = (stack.enter_context(closing(ConsumerReader(node, group, topic))) for _ in range(2))
    until(lambda: shared(one, two), one, two)
    produce(node, topic, range(100))
    until(lambda: len(one.values) + len(two.values) == 100, one, two)
    one.commit()
    two.commit()
    before = {member.member_id for member in described(node, group).members}
    rebalances = (len(one.assigned), len(one.revoked), len(two.assigned), len(two.revoked))
    node.kill()
    node.start()
    produce(node, topic, range(100, 200))
    until(lambda: len(one.values) + len(two.values) >= 200, one, two)
    assert sorted(one.values + two.values) == list(range(200))
    assert (len(one.assigned), len(one.revoked), len(two.assigned), len(two.revoked)) == rebalances
    after = described(node, group)
    assert after.state == State.STABLE
    assert {member.member_id for member in after.members} == before
    one.commit()
    two.commit()


def test_a_static_member_restarts_without_a_rebalance(quick_node: NodeProcess, stack: ExitStack) -> None:
    topic, group = make_topic(quick_node), unique("group")
    one, two = (
        stack.enter_context(closing(ConsumerReader(quick_node, group, topic, group_instance_id=f"member{n}")))
        for n in range(2)
    )
    until(lambda: shared(one, two), one, two)
    before = (len(one.assigned), len(one.revoked), one.partitions, two.partitions)
    old = {member.group_instance_id: member.member_id for member in described(quick_node, group).members}
    two.close()
    back = stack.enter_context(closing(ConsumerReader(quick_node, group, topic, group_instance_id="member1")))
    until(lambda: bool(back.partitions), one, back)
    new = {member.group_instance_id: member.member_id for member in described(quick_node, group).members}
    assert (len(one.assigned), len(one.revoked), one.partitions, back.partitions) == before
    assert new["member0"] == old["member0"]
    assert new["member1"] != old["member1"]


def test_a_new_topic_that_matches_and_new_partitions_are_read(quick_node: NodeProcess, stack: ExitStack) -> None:
    prefix, group = unique("fleet"), unique("group")
    admin = AdminClient({"bootstrap.servers": quick_node.kafka})
    admin.create_topics([NewTopic(f"{prefix}.a", PARTITIONS, 1)])[f"{prefix}.a"].result(30)
    one, two = (stack.enter_context(closing(ConsumerReader(quick_node, group, f"^{prefix}[.].*"))) for _ in range(2))
    until(lambda: shared(one, two), one, two)
    admin.create_topics([NewTopic(f"{prefix}.b", 2, 1)])[f"{prefix}.b"].result(30)
    until(lambda: len(one.consumer.assignment()) + len(two.consumer.assignment()) == PARTITIONS + 2, one, two)
    admin.create_partitions([NewPartitions(f"{prefix}.b", 6)])[f"{prefix}.b"].result(30)
    until(lambda: len(one.consumer.assignment()) == len(two.consumer.assignment()) == PARTITIONS // 2 + 3, one, two)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_changes_its_kind_while_members_run(quick_node: NodeProcess, stack: ExitStack, strategy: str) -> None:
    topic, group = make_topic(quick_node), unique("group")
    classic = {"partition_assignment_strategy": strategy}
    one = stack.enter_context(closing(Reader(quick_node, group, topic, **classic)))
    # In a second generation librdkafka's sticky assignor sends data along with the assignments.
    until(lambda: one.partitions == ALL, one)
    two = stack.enter_context(closing(Reader(quick_node, group, topic, **classic)))
    read_next(quick_node, group, topic, 0, one, two)
    assert kind(quick_node, group) == Kind.CLASSIC
    three = stack.enter_context(closing(ConsumerReader(quick_node, group, topic)))
    read_next(quick_node, group, topic, 100, one, two, three)
    assert kind(quick_node, group) == Kind.CONSUMER
    assert len(described(quick_node, group).members) == 3
    two.close()
    four = stack.enter_context(closing(ConsumerReader(quick_node, group, topic)))
    read_next(quick_node, group, topic, 200, one, three, four)
    # The way back: members of the classic protocol again, until they are the only ones.
    five = stack.enter_context(closing(Reader(quick_node, group, topic, **classic)))
    read_next(quick_node, group, topic, 300, one, three, four, five)
    three.close()
    assert kind(quick_node, group) == Kind.CONSUMER
    four.close()
    until(lambda: shared(one, five) and is_classic_again(quick_node, group), one, five)
    read_next(quick_node, group, topic, 400, one, five)


def read_next(node: NodeProcess, group: str, topic: str, begin: int, *readers: Reader) -> None:
    """All members share the partitions, and read the next hundred records: none that was committed again.

    They may share them while some are still to join once more, as members with eager strategies do for each step of the
    others. Those then read again what they have not committed, with any broker.
    """
    seen = [len(reader.values) for reader in readers]
    until(lambda: shared(*readers) and is_stable(node, group) and shared(*readers), *readers)
    produce(node, topic, range(begin, begin + 100))
    expected = set(range(begin, begin + 100))

    def fresh() -> set[int]:
        return {value for reader, before in zip(readers, seen, strict=True) for value in reader.values[before:]}

    until(lambda: expected <= fresh() and shared(*readers), *readers)
    assert fresh() == expected
    for reader in readers:
        reader.commit()
