"""Consumer groups of real client libraries on a running node. Two-member sharing for every client: tests/clients."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import ConsumerGroupState as State
from confluent_kafka.admin import AdminClient, NewTopic

from tests.node_process import NodeProcess

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 60.0
PARTITIONS = 4
ALL = frozenset(range(PARTITIONS))


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def make_topic(node: NodeProcess) -> str:
    topic = unique("topic")
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    return topic


def produce(node: NodeProcess, topic: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": node.kafka})
    for value in values:
        producer.produce(topic, str(value), partition=value % PARTITIONS)
    assert producer.flush(PATIENCE_SECONDS) == 0


class Reader:
    """A librdkafka consumer that notes every rebalance and every record."""

    def __init__(self, node: NodeProcess, group: str, topic: str, **settings: object) -> None:
        self.assigned: list[frozenset[int]] = []
        self.revoked: list[frozenset[int]] = []
        self.values: list[int] = []
        self.consumer = Consumer(
            {
                name.replace("_", "."): value
                for name, value in {
                    "bootstrap_servers": node.kafka,
                    "group_id": group,
                    "auto_offset_reset": "earliest",
                    "enable_auto_commit": False,
                    "session_timeout_ms": 45_000,
                    "heartbeat_interval_ms": 200,
                    "reconnect_backoff_max_ms": 500,
                    **settings,
                }.items()
                if value is not None
            }
        )
        self.consumer.subscribe([topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke)

    def _assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned.append(frozenset(p.partition for p in partitions))

    def _revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.revoked.append(frozenset(p.partition for p in partitions))

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(p.partition for p in self.consumer.assignment())

    def poll(self) -> None:
        message = self.consumer.poll(0.05)
        if message is None:
            return
        error = message.error()
        assert error is None or error.code() != KafkaError._FATAL, error
        if error is None:
            self.values.append(int(message.value()))

    def commit(self) -> None:
        self.consumer.commit(asynchronous=False)

    def close(self) -> None:
        self.consumer.close()


def until(done: Callable[[], bool], *readers: Reader) -> None:
    """Poll the readers until something is true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert time.monotonic() < deadline, [(r.partitions, r.assigned, r.revoked, len(r.values)) for r in readers]
        for reader in readers:
            reader.poll()


def shared(*readers: Reader) -> bool:
    """Whether the readers have all partitions among them, each at least one and none twice."""
    parts = [reader.partitions for reader in readers]
    return all(parts) and frozenset().union(*parts) == ALL and sum(map(len, parts)) == PARTITIONS


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_records_are_split_among_members_and_handed_on_when_one_leaves(
    shared_node: NodeProcess, stack: ExitStack
) -> None:
    topic, group = make_topic(shared_node), unique("group")
    produce(shared_node, topic, range(100))
    one, two = (stack.enter_context(closing(Reader(shared_node, group, topic))) for _ in range(2))
    until(lambda: shared(one, two), one, two)
    until(lambda: set(one.values) | set(two.values) == set(range(100)), one, two)
    one.commit()
    two.commit()
    one.close()
    produce(shared_node, topic, range(100, 200))
    seen = len(two.values)
    until(lambda: two.partitions == ALL and set(range(100, 200)) <= set(two.values[seen:]), two)
    assert min(two.values[seen:]) >= 100  # what was committed is not read again


def test_cooperative_members_keep_what_they_need_not_give_away(shared_node: NodeProcess, stack: ExitStack) -> None:
    topic, group = make_topic(shared_node), unique("group")
    strategy = {"partition_assignment_strategy": "cooperative-sticky"}
    one = stack.enter_context(closing(Reader(shared_node, group, topic, **strategy)))
    until(lambda: one.partitions == ALL, one)
    two = stack.enter_context(closing(Reader(shared_node, group, topic, **strategy)))
    until(lambda: shared(one, two), one, two)
    given_away = frozenset().union(*one.revoked)
    assert len(given_away) == PARTITIONS // 2
    assert two.partitions == given_away
    assert one.partitions == ALL - given_away


def test_a_static_member_restarts_without_a_rebalance(shared_node: NodeProcess, stack: ExitStack) -> None:
    topic, group = make_topic(shared_node), unique("group")
    one, two = (
        stack.enter_context(closing(Reader(shared_node, group, topic, group_instance_id=f"member{n}")))
        for n in range(2)
    )
    until(lambda: shared(one, two), one, two)
    before = (len(one.assigned), len(one.revoked), one.partitions, two.partitions)
    old_ids = member_ids(shared_node, group)
    two.close()
    back = stack.enter_context(closing(Reader(shared_node, group, topic, group_instance_id="member1")))
    until(lambda: bool(back.partitions), one, back)
    new_ids = member_ids(shared_node, group)
    assert (len(one.assigned), len(one.revoked), one.partitions, back.partitions) == before
    assert new_ids["member0"] == old_ids["member0"]
    assert new_ids["member1"] != old_ids["member1"]


def member_ids(node: NodeProcess, group: str) -> dict[str, str]:
    """Member id by instance id."""
    admin = AdminClient({"bootstrap.servers": node.kafka})
    described = admin.describe_consumer_groups([group])[group].result(30)
    assert described.state == State.STABLE
    return {member.group_instance_id or "": member.member_id for member in described.members}


def test_members_and_positions_survive_a_kill_of_the_node(
    node_factory: Callable[..., NodeProcess], stack: ExitStack
) -> None:
    node = node_factory()
    topic, group = make_topic(node), unique("group")
    produce(node, topic, range(40))
    one, two = (stack.enter_context(closing(Reader(node, group, topic))) for _ in range(2))
    until(lambda: shared(one, two), one, two)
    until(lambda: set(one.values) | set(two.values) == set(range(40)), one, two)
    one.commit()
    two.commit()
    rebalances = [(len(r.assigned), len(r.revoked), r.partitions) for r in (one, two)]
    seen = (len(one.values), len(two.values))  # before it was shared and committed, some was read twice
    node.restart(kill=True)
    produce(node, topic, range(40, 80))
    until(lambda: set(range(40, 80)) <= set(one.values) | set(two.values), one, two)
    assert [(len(r.assigned), len(r.revoked), r.partitions) for r in (one, two)] == rebalances
    assert sorted(one.values[seen[0] :] + two.values[seen[1] :]) == list(range(40, 80))
    one.commit()
    two.commit()
    one.close()
    two.close()
    node.restart(kill=True)
    fresh = stack.enter_context(closing(Reader(node, group, topic)))
    produce(node, topic, range(80, 84))
    until(lambda: len(fresh.values) == 4, fresh)
    assert sorted(fresh.values) == list(range(80, 84))


def test_a_group_emptied_before_a_kill_is_empty_after_it(node_factory: Callable[..., NodeProcess]) -> None:
    node = node_factory()
    topic, group = make_topic(node), unique("group")
    reader = Reader(node, group, topic)
    until(lambda: reader.partitions == ALL, reader)
    reader.close()
    admin = AdminClient({"bootstrap.servers": node.kafka})
    deadline = time.monotonic() + PATIENCE_SECONDS
    while admin.describe_consumer_groups([group])[group].result(30).members:
        assert time.monotonic() < deadline
    node.restart(kill=True)
    admin = AdminClient({"bootstrap.servers": node.kafka})
    described = admin.describe_consumer_groups([group])[group].result(30)
    assert (described.state, list(described.members)) == (State.EMPTY, [])


def test_positions_with_metadata_in_three_libraries(shared_node: NodeProcess) -> None:
    topic, group = make_topic(shared_node), unique("group")
    produce(shared_node, topic, range(40))
    settings = {"bootstrap.servers": shared_node.kafka, "group.id": group, "enable.auto.commit": False}
    others = {"bootstrap_servers": shared_node.kafka, "group_id": group, "enable_auto_commit": False}
    where = TopicPartition(topic, 0, 5, "von confluent")
    with closing(Consumer(settings)) as consumer:
        consumer.commit(offsets=[where], asynchronous=False)
        [found] = consumer.committed([TopicPartition(topic, 0)], 30)
    assert (found.offset, found.metadata) == (5, "von confluent")
    place = kafka.TopicPartition(topic, 0)
    with closing(kafka.KafkaConsumer(**others)) as reader:
        reader.assign([place])
        held = reader.committed(place, metadata=True)
        # confluent-kafka counts the end of its C string as part of the metadata; a broker keeps what it is given.
        assert (held.offset, held.metadata.rstrip("\0")) == (5, "von confluent")
        reader.commit({place: kafka.OffsetAndMetadata(6, "from kafka-python", -1)})

    async def with_aiokafka() -> None:
        consumer = aiokafka.AIOKafkaConsumer(**others)
        await consumer.start()
        try:
            here = aiokafka.TopicPartition(topic, 0)
            consumer.assign([here])
            assert await consumer.committed(here) == 6
            await consumer.commit({here: (7, "from aiokafka")})
        finally:
            await consumer.stop()

    asyncio.run(with_aiokafka())
    with closing(Consumer(settings)) as consumer:
        found, nothing = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], 30)
    # It also reads metadata as a C string, so beyond what has no end of its own.
    assert found.offset == 7
    assert found.metadata.startswith("from aiokafka")
    assert nothing.offset == -1001


def test_offsets_of_an_empty_group_can_be_set_and_consumers_follow(shared_node: NodeProcess, stack: ExitStack) -> None:
    topic, group = make_topic(shared_node), unique("group")
    produce(shared_node, topic, range(40))
    reader = Reader(shared_node, group, topic)
    until(lambda: len(reader.values) == 40, reader)
    reader.commit()
    admin = AdminClient({"bootstrap.servers": shared_node.kafka})
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, p, 8) for p in range(PARTITIONS)])
    with pytest.raises(KafkaException, match="UNKNOWN_MEMBER_ID"):
        alter(admin, wanted)
    reader.close()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while admin.describe_consumer_groups([group])[group].result(30).members:
        assert time.monotonic() < deadline
    alter(admin, wanted)
    again = stack.enter_context(closing(Reader(shared_node, group, topic)))
    until(lambda: len(again.values) == 8, again)
    assert sorted(again.values) == list(range(32, 40))


def alter(admin: AdminClient, wanted: ConsumerGroupTopicPartitions) -> None:
    result = admin.alter_consumer_group_offsets([wanted])[wanted.group_id].result(30)
    for partition in result.topic_partitions:
        if partition.error is not None:
            raise KafkaException(partition.error)


def test_groups_are_listed_described_and_deleted(shared_node: NodeProcess) -> None:
    topic, group = make_topic(shared_node), unique("group")
    admin = AdminClient({"bootstrap.servers": shared_node.kafka})
    reader = Reader(shared_node, group, topic, client_id="describer")
    until(lambda: reader.partitions == ALL, reader)
    listed = admin.list_consumer_groups(states={State.STABLE}).result(30).valid
    assert group in {item.group_id for item in listed}
    described = admin.describe_consumer_groups([group])[group].result(30)
    [member] = described.members
    assert (member.client_id, member.host) == ("describer", "/127.0.0.1")
    assert {p.partition for p in member.assignment.topic_partitions} == ALL
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([group])[group].result(30)
    reader.close()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while admin.describe_consumer_groups([group])[group].result(30).members:
        assert time.monotonic() < deadline
    admin.delete_consumer_groups([group])[group].result(30)
    assert group not in {item.group_id for item in admin.list_consumer_groups().result(30).valid}


async def test_aiokafka_members_share_and_survive_a_kill_of_the_node(node_factory: Callable[..., NodeProcess]) -> None:
    node = await asyncio.to_thread(node_factory)
    topic, group = await asyncio.to_thread(make_topic, node), unique("group")
    settings: dict[str, Any] = {
        "bootstrap_servers": node.kafka,
        "group_id": group,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "session_timeout_ms": 45_000,
        "heartbeat_interval_ms": 200,
        "metadata_max_age_ms": 1_000,
    }
    consumers = [aiokafka.AIOKafkaConsumer(topic, **settings) for _ in range(2)]
    values: list[int] = []
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            for consumer in consumers:
                await consumer.start()
            await asyncio.to_thread(produce, node, topic, range(40))
            while len(set(values)) < 40 or not all(consumer.assignment() for consumer in consumers):
                values += await drain(consumers)
            for consumer in consumers:
                await consumer.commit()
            held = [consumer.assignment() for consumer in consumers]
            await asyncio.to_thread(node.restart, kill=True)
            await asyncio.to_thread(produce, node, topic, range(40, 80))
            seen = len(values)
            while not set(range(40, 80)) <= set(values[seen:]):
                values += await drain(consumers)
            assert sorted(values[seen:]) == list(range(40, 80))
            assert [consumer.assignment() for consumer in consumers] == held
    finally:
        for consumer in consumers:
            await consumer.stop()


async def drain(consumers: list[aiokafka.AIOKafkaConsumer]) -> list[int]:
    """What has come in by now, waiting a little for something."""
    values = []
    for consumer in consumers:
        for records in (await consumer.getmany(timeout_ms=100)).values():
            values += [int(record.value or b"") for record in records]
    return values
