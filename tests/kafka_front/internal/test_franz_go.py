"""franz-go reads ``__consumer_offsets`` with the decoders that kminion uses."""

from __future__ import annotations

from contextlib import closing

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.registry import REMOTES
from tests.kit.waiting import wait_until
from tests.node_process import NodeProcess

pytestmark = [pytest.mark.go, pytest.mark.timeout(600)]  # the first use of a driver builds it

GROUP, TOPIC = "seen.by.go", "seen.by.go.t"


def test_positions_and_members_of_a_group_are_read(shared_node: NodeProcess) -> None:
    admin = AdminClient({"bootstrap.servers": shared_node.kafka})
    admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(60)
    consumer = Consumer({"bootstrap.servers": shared_node.kafka, "group.id": GROUP})
    consumer.subscribe([TOPIC])
    wait_until(consumer.assignment, meanwhile=lambda: consumer.poll(0.1))
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 3), TopicPartition(TOPIC, 1, 4)], asynchronous=False)
    with closing(next(one for one in REMOTES if one.name == "franz-go").program.start()) as driver:
        found = driver.call({"op": "offsets_topic", "bootstrap": shared_node.kafka, "group": GROUP, "total": 2})
    assert found == {"positions": {f"{TOPIC}-0": 3, f"{TOPIC}-1": 4}, "members": [consumer.memberid()]}
    consumer.close()
