"""Kafka's own formatters and coordinators read the internal topics."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.java_server import SHORT_LIVED_JAVA
from benchmarks.kafka_broker import install_jars
from kafka_front.service.internal.shares import share_name
from kafka_front.service.internal.topic_copy import partition_of
from kafka_front.wire import messages as m
from tests.ecosystem.tools.run import Shell
from tests.kafka_front.groups.wire_client import WireClient
from tests.kit.waiting import wait_until
from tests.node_process import NodeProcess

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(600)]

FORMATTERS = "org.apache.kafka.tools.consumer"
OFFSETS, TRANSACTIONS, SHARES = "__consumer_offsets", "__transaction_state", "__share_group_state"
RECORDS = Path(__file__).with_name("Records.java")
GROUP = "formatted"
TOPIC = "formatted.t"


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with closing(Shell()) as shell:
        yield shell


@pytest.fixture(scope="module")
def node(shared_nodes: Any) -> NodeProcess:
    node: NodeProcess = shared_nodes("embedded")
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(60)
    return node


def printed(shell: Shell, node: NodeProcess, topic: str, formatter: str, name: str) -> list[dict[str, Any]]:
    """What Kafka's console consumer prints of the partition of a name."""
    arguments = ["--bootstrap-server", node.kafka, "--topic", topic, "--partition", str(partition_of(name, 50))]
    arguments += ["--formatter", f"{FORMATTERS}.{formatter}", "--from-beginning", "--timeout-ms", "3000"]
    _, out, errors = shell.call("org.apache.kafka.tools.consumer.ConsoleConsumer", arguments)
    assert "Exception" not in errors.replace("TimeoutException", "")
    rows, rest = [], out[out.find("{") :] if "{" in out else ""
    while rest.startswith("{"):  # some formatters print no line ends
        row, end = json.JSONDecoder().raw_decode(rest)
        rows.append(row)
        rest = rest[end:].lstrip()
    return rows


def joined(node: NodeProcess, group: str, protocol: str) -> Consumer:
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": group, "group.protocol": protocol})
    consumer.subscribe([TOPIC])
    wait_until(consumer.assignment, meanwhile=lambda: consumer.poll(0.1))
    return consumer


def test_positions_and_a_classic_group_are_printed(shell: Shell, node: NodeProcess) -> None:
    consumer = joined(node, GROUP, "classic")
    consumer.commit(offsets=[TopicPartition(TOPIC, 1, 7)], asynchronous=False)

    def positions() -> list[dict[str, Any]]:
        return printed(shell, node, OFFSETS, "OffsetsMessageFormatter", GROUP)

    wait_until(positions)
    [row] = [one for one in positions() if one["key"]["data"]["group"] == GROUP]
    assert row["key"] == {"type": 1, "data": {"group": GROUP, "topic": TOPIC, "partition": 1}}
    assert (row["value"]["version"], row["value"]["data"]["offset"]) == (3, 7)
    rows = printed(shell, node, OFFSETS, "GroupMetadataMessageFormatter", GROUP)
    [value] = [one["value"]["data"] for one in rows if one["key"]["data"]["group"] == GROUP][-1:]
    assert (value["protocolType"], value["protocol"]) == ("consumer", "range")
    [member] = value["members"]
    assert member["memberId"] == value["leader"] == consumer.memberid()
    assert member["subscription"]
    consumer.close()


def test_a_broker_reads_the_records_of_a_group_of_the_new_protocol(node: NodeProcess) -> None:
    """KIP-848: with a coordinator's own code."""
    group = "formatted.new"
    AdminClient({"bootstrap.servers": node.kafka}).list_topics(OFFSETS, 60)
    consumer = joined(node, group, "consumer")
    settings = {"bootstrap.servers": node.kafka, "group.id": "reader", "enable.partition.eof": True}
    reader = Consumer({**settings, "enable.auto.commit": False})
    reader.assign([TopicPartition(OFFSETS, partition_of(group, 50), 0)])
    found: dict[bytes, bytes] = {}

    def kinds() -> set[int]:
        message = reader.poll(60)
        assert message is not None
        if message.error() is None and message.value() is not None:
            found[message.key()] = message.value()
        else:
            assert message.error() is None or message.error().code() == KafkaError._PARTITION_EOF
        return {key[1] for key in found}

    wait_until(lambda: kinds() >= {3, 5, 6, 7, 8})
    lines = "".join(f"{key.hex()} {value.hex()}\n" for key, value in found.items())
    java = ["java", *SHORT_LIVED_JAVA, "-cp", f"{install_jars()}/*", str(RECORDS)]
    run = subprocess.run(java, input=lines, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    [member] = [line for line in run.stdout.splitlines() if line.startswith("ConsumerGroupMemberMetadataKey")]
    assert consumer.memberid() in member
    assert f"subscribedTopicNames=[{TOPIC}]" in member
    consumer.close()
    reader.close()


def test_a_transaction_is_printed(shell: Shell, node: NodeProcess) -> None:
    name = "formatted.tx"
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": name})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(TOPIC, b"x", partition=1)
    producer.flush(60)

    def states() -> list[dict[str, Any]]:
        rows = printed(shell, node, TRANSACTIONS, "TransactionLogMessageFormatter", name)
        return [one["value"]["data"] for one in rows if one["key"]["data"]["transactionalId"] == name]

    wait_until(states)
    [state] = states()[-1:]
    assert state["transactionStatus"] == "Ongoing"
    assert state["transactionPartitions"] == [{"topic": TOPIC, "partitionIds": [1]}]
    producer.commit_transaction(60)
    wait_until(lambda: states()[-1]["transactionStatus"] == "CompleteCommit")


async def test_the_state_of_a_share_group_is_printed(shell: Shell, node: NodeProcess) -> None:
    host, port = node.kafka.split(":")
    asked = m.AlterShareGroupOffsetsRequest
    partition = asked.AlterShareGroupOffsetsRequestPartition(partition_index=1, start_offset=0)
    topics = [asked.AlterShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=[partition])]
    async with WireClient(host, int(port)) as client:
        answer = await client.call(0, asked(group_id="formatted.share", topics=topics))
        assert answer.responses[0].partitions[0].error_code == 0
        [topic] = (
            await client.call(12, m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name=TOPIC)]))
        ).topics
    name = share_name("formatted.share", topic.topic_id, 1)

    def rows() -> list[dict[str, Any]]:
        return printed(shell, node, SHARES, "group.share.ShareGroupStateMessageFormatter", name)

    wait_until(rows)
    [row] = rows()
    assert (row["key"]["data"]["groupId"], row["key"]["data"]["partition"]) == ("formatted.share", 1)
    assert (row["value"]["data"]["startOffset"], row["value"]["data"]["stateBatches"]) == (0, [])
