"""A share group over three nodes, with Java's KafkaShareConsumer: whoever owns a partition serves it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.load import PATIENCE
from tests.kafka_front.share.test_java import PROGRAM, of
from tests.node_process import NodeProcess

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]
PARTITIONS = 6


def write(bootstrap: str, first: int, count: int) -> list[str]:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    values = [f"v{number}" for number in range(first, first + count)]
    for number, value in enumerate(values):
        producer.produce("t", value, partition=number % PARTITIONS)
    assert producer.flush(PATIENCE) == 0
    return values


def test_a_group_reads_from_all_owners_and_goes_on_when_one_is_killed(nodes: list[NodeProcess]) -> None:
    bootstrap = ",".join(node.kafka for node in nodes)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("t", PARTITIONS)])["t"].result(PATIENCE)
    driver = PROGRAM.start()
    try:

        def call(op: str, **arguments: Any) -> Any:
            return driver.call({"op": op, "bootstrap": bootstrap, "group": "g", "topic": "t", **arguments})

        # Where the group begins in a partition is asked of its configuration at that partition's owner.
        assert call("configure", name="share.auto.offset.reset", value="earliest") == "earliest"
        wanted = write(bootstrap, 0, 60)
        call("open", member="m", records=500)
        seen = of("got", call("read", member="m", count=60, kind="ACCEPT", patience_ms=60_000))
        assert sorted(seen) == sorted(wanted), json.dumps(sorted(set(wanted) - set(seen)))
        nodes[1].kill()
        wanted = write(bootstrap, 60, 60)
        seen = of("got", call("read", member="m", count=60, kind="ACCEPT", patience_ms=60_000))
        # What was acknowledged just before the kill may be delivered again; nothing else is, and nothing is left out.
        assert set(wanted) <= set(seen)
        call("close", member="m")
    finally:
        driver.close()


def test_rejected_records_get_dead_letters_whoever_owns_them_and_the_topic(nodes: list[NodeProcess]) -> None:
    bootstrap = ",".join(node.kafka for node in nodes)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    letters = NewTopic("dlq.t", 1, config={"errors.deadletterqueue.group.enable": "true"})
    for made in admin.create_topics([NewTopic("t", PARTITIONS), letters]).values():
        made.result(PATIENCE)
    driver = PROGRAM.start()
    try:

        def call(op: str, **arguments: Any) -> Any:
            return driver.call({"op": op, "bootstrap": bootstrap, "group": "g", "topic": "t", **arguments})

        call("configure", name="errors.deadletterqueue.topic.name", value="dlq.t")
        call("configure", name="errors.deadletterqueue.copy.record.enable", value="true")
        call("configure", name="share.auto.offset.reset", value="earliest")
        wanted = write(bootstrap, 0, 60)
        call("open", member="m", records=500)
        assert len(of("got", call("read", member="m", count=60, kind="REJECT", patience_ms=60_000))) == 60
        call("close", member="m")
    finally:
        driver.close()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "by-hand"})
    consumer.assign([TopicPartition("dlq.t", 0, 0)])
    got: list[str] = []
    while len(got) < len(wanted):
        message = consumer.poll(PATIENCE)
        assert message is not None, sorted(set(wanted) - set(got))
        if message.error() is None:
            got.append(message.value().decode())
    consumer.close()
    assert sorted(got) == sorted(wanted)
