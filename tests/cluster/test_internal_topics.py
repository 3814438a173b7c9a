"""``__consumer_offsets`` over three nodes: groups, and partitions of the topic, are of any node, and one is killed."""

from __future__ import annotations

import struct

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.load import PATIENCE
from tests.kit.waiting import wait_until
from tests.node_process import NodeProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
TOPIC = "__consumer_offsets"


def commit(bootstrap: str, group: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    consumer.close()


def test_a_reader_sees_the_last_position_of_every_group_when_a_node_is_killed(nodes: list[NodeProcess]) -> None:
    bootstrap = ",".join(node.kafka for node in nodes)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("t", 1)])["t"].result(PATIENCE)
    wait_until(lambda: admin.list_topics(TOPIC, PATIENCE).topics[TOPIC].error is None)
    groups = [f"g{number}" for number in range(24)]
    # a reader that commits would be in what it reads
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    reader.assign([TopicPartition(TOPIC, number, 0) for number in range(50)])
    ends: dict[int, int] = {}
    state: dict[str, int | None] = {}

    def read() -> None:
        message = reader.poll(0.1)
        if message is None or message.error() is not None:
            return
        partition, offset, key, value = message.partition(), message.offset(), message.key(), message.value()
        assert partition is not None
        assert offset is not None
        assert isinstance(key, bytes)
        assert offset > ends.get(partition, -1)
        ends[partition] = offset
        if key[:2] == b"\0\1":
            group = key[4 : 4 + key[3]].decode()
            state[group] = None if value is None else struct.unpack_from(">hq", value)[1]

    for group in groups:
        commit(bootstrap, group, 1)
    wait_until(lambda: state == dict.fromkeys(groups, 1), lambda: state, meanwhile=read, pause=0)
    gone, left = groups[:8], groups[8:]
    for future in admin.delete_consumer_groups(gone, request_timeout=PATIENCE).values():
        future.result(PATIENCE)
    for group in left:
        commit(bootstrap, group, 2)
    nodes[1].kill()
    wanted: dict[str, int | None] = {**dict.fromkeys(gone), **dict.fromkeys(left, 2)}
    wait_until(lambda: state == wanted, lambda: state, meanwhile=read, pause=0)
    for group in left:
        commit(bootstrap, group, 3)
    wait_until(lambda: set(state.values()) == {None, 3}, lambda: state, meanwhile=read, pause=0)
    reader.close()
