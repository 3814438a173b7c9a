"""A group has members of one protocol at a time, and every protocol's tools know of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import ydb
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.errors import CommitFailedError, InconsistentGroupProtocolError
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as PythonPartition

from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.messages import ConsumerGroupDescribeRequest, FindCoordinatorRequest, OffsetDeleteRequest
from tests.conftest import TEST_SETTINGS
from tests.kafka_front.test_session import Client as KafkaClient
from tests.kit.waiting import wait_until
from tests.node_process import ANY, NodeProcess

PATIENCE_S = 60


@pytest.fixture(scope="module", params=[1, 2], ids=["one node", "two workers"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    listen = dict.fromkeys(("kafka", "ydb", "console", "sbp-pd", "sbp-range-server"), ANY)
    settings = TEST_SETTINGS | {"node.workers": f"{request.param}", "node.worker_port_step": "0"}
    process = NodeProcess(tmp_path_factory.mktemp("members") / "data", settings=settings, listen=listen)
    try:
        yield process.start()
    finally:
        process.dispose()


@pytest.fixture(scope="module")
def driver(node: NodeProcess) -> Iterator[ydb.Driver]:
    with ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local") as driver:
        driver.wait(timeout=PATIENCE_S, fail_fast=True)
        yield driver


@pytest.fixture
def group(request: pytest.FixtureRequest, node: NodeProcess, driver: ydb.Driver) -> str:
    """A consumer of YDB's of a topic of the same name, with ten records in each of two partitions."""
    name = request.node.name.partition("[")[0].removeprefix("test_")
    driver.topic_client.create_topic(name, min_active_partitions=2, consumers=[name])
    producer = Producer({"bootstrap.servers": node.kafka})
    for number in range(20):
        producer.produce(name, str(number).encode(), partition=number % 2)
    assert not producer.flush(PATIENCE_S)
    return name


@pytest.fixture
def reader(driver: ydb.Driver, group: str) -> Iterator[ydb.TopicReader]:
    """YDB's SDK reads."""
    with driver.topic_client.reader(group, group) as reader:
        assert reader.receive_batch(timeout=PATIENCE_S).messages
        yield reader


@pytest.fixture
def member(node: NodeProcess, group: str) -> Iterator[Consumer]:
    """librdkafka reads."""
    consumer = consumer_of(node, group, {"group.protocol": "classic"})
    try:
        consumer.subscribe([group])
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
        yield consumer
    finally:
        consumer.close()


def consumer_of(node: NodeProcess, group: str, settings: dict[str, Any]) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": node.kafka,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **settings,
        }
    )


def admin_of(node: NodeProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.kafka})


def at_coordinator(node: NodeProcess, group: str, version: int, request: Any) -> Any:
    """The answer to a request that Kafka's clients for Python do not make."""

    async def ask(host: str, port: int, version: int, message: Any) -> Any:
        client = KafkaClient(*await asyncio.open_connection(host, port))
        try:
            return await client.call(version, message)
        finally:
            client.writer.close()

    host, port = node.kafka.rsplit(":", 1)
    (found,) = asyncio.run(ask(host, int(port), 4, FindCoordinatorRequest(coordinator_keys=[group]))).coordinators
    return asyncio.run(ask(found.host, found.port, version, request))


def positions(node: NodeProcess, group: str) -> dict[int, int]:
    with urllib.request.urlopen(f"{node.console}/api/groups/{group}", timeout=PATIENCE_S) as answer:
        found = json.load(answer)["positions"]
    return {one["partition"]: one["offset"] for one in found if one["offset"] is not None}


def test_kafkas_tools_show_the_members_of_ydbs_readers(node: NodeProcess, group: str, reader: ydb.TopicReader) -> None:
    admin = admin_of(node)
    listed = admin.list_consumer_groups().result(PATIENCE_S).valid
    (line,) = [one for one in listed if one.group_id == group]
    assert line.state is ConsumerGroupState.STABLE
    (described,) = [one.result(PATIENCE_S) for one in admin.describe_consumer_groups([group]).values()]
    assert described.state is ConsumerGroupState.STABLE
    (member,) = described.members
    assert member.host == "/127.0.0.1"
    read = {(one.topic, one.partition) for one in member.assignment.topic_partitions}
    assert read == {(group, 0), (group, 1)}
    python = KafkaAdminClient(bootstrap_servers=node.kafka)
    try:
        assert (group, "consumer") in [(one["group_id"], one["protocol_type"]) for one in python.list_groups()]
        found = python.describe_groups([group])[group]
    finally:
        python.close()
    assert found["group_state"] == "Stable"
    assert len(found["members"]) == 1


def test_kafkas_tools_change_nothing_under_ydbs_readers(node: NodeProcess, group: str, reader: ydb.TopicReader) -> None:
    reader.commit_with_ack(reader.receive_batch(timeout=PATIENCE_S), timeout=PATIENCE_S)
    before = positions(node, group)
    admin = admin_of(node)
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(group, 0, 0), TopicPartition(group, 1, 0)])
    (altering,) = admin.alter_consumer_group_offsets([wanted]).values()
    altered = altering.result(PATIENCE_S).topic_partitions
    assert {one.error.code() for one in altered} == {KafkaError.UNKNOWN_MEMBER_ID}
    (deleting,) = admin.delete_consumer_groups([group]).values()
    with pytest.raises(KafkaException) as refused:
        deleting.result(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    simple = consumer_of(node, group, {})
    try:
        with pytest.raises(KafkaException) as refused:
            simple.commit(offsets=[TopicPartition(group, 0, 1)], asynchronous=False)
        assert refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
        producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": group})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        with pytest.raises(KafkaException) as refused:
            producer.send_offsets_to_transaction([TopicPartition(group, 0, 1)], simple.consumer_group_metadata())
        assert refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
        producer.abort_transaction(PATIENCE_S)
    finally:
        simple.close()
    deletion = OffsetDeleteRequest(group, [OffsetDeleteRequest.OffsetDeleteRequestTopic(group, [])])
    deletion.topics[0].partitions.append(OffsetDeleteRequest.OffsetDeleteRequestPartition(0))
    assert at_coordinator(node, group, 0, deletion).error_code == ErrorCode.NON_EMPTY_GROUP
    (described,) = at_coordinator(node, group, 0, ConsumerGroupDescribeRequest([group])).groups
    assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "DescribeGroups" in described.error_message
    python = KafkaConsumer(bootstrap_servers=node.kafka, group_id=group, enable_auto_commit=False)
    try:
        place = PythonPartition(group, 0)
        python.assign([place])
        with pytest.raises(CommitFailedError):
            python.commit({place: OffsetAndMetadata(1, "", -1)})
    finally:
        python.close(autocommit=False)
    assert positions(node, group) == before


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_kafkas_members_are_refused_while_ydbs_read(
    node: NodeProcess, group: str, reader: ydb.TopicReader, protocol: str
) -> None:
    errors: list[KafkaError] = []
    consumer = consumer_of(node, group, {"group.protocol": protocol, "error_cb": errors.append})
    try:
        consumer.subscribe([group])
        message = consumer.poll(PATIENCE_S)
        errors += [] if message is None else [message.error()]
    finally:
        consumer.close()
    assert any("protocol" in str(error) for error in errors), errors
    if protocol == "classic":
        python = KafkaConsumer(group, bootstrap_servers=node.kafka, group_id=group, enable_auto_commit=False)
        try:
            with pytest.raises(InconsistentGroupProtocolError):
                python.poll(timeout_ms=PATIENCE_S * 1000)
        finally:
            python.close(autocommit=False)
    reader.commit_with_ack(reader.receive_batch(timeout=PATIENCE_S), timeout=PATIENCE_S)


def test_ydbs_readers_are_refused_while_kafkas_members_read(
    node: NodeProcess, driver: ydb.Driver, group: str, member: Consumer
) -> None:
    with (
        pytest.raises(ydb.Error, match=r"through kafka .* one protocol at a time"),
        driver.topic_client.reader(group, group) as reader,
    ):
        reader.receive_batch(timeout=PATIENCE_S)
    with pytest.raises(ydb.PreconditionFailed, match="through kafka"):
        driver.topic_client.commit_offset(group, group, 0, 5)
    with pytest.raises(ydb.PreconditionFailed, match="through kafka"):
        driver.topic_client.alter_topic(group, drop_consumers=[group])
    assert not positions(node, group)
    member.commit(asynchronous=False)
    assert positions(node, group)


def test_the_next_protocol_goes_on_where_the_last_one_was(node: NodeProcess, driver: ydb.Driver, group: str) -> None:
    consumer = consumer_of(node, group, {})
    consumer.subscribe([group])
    taken = 0
    while taken < 8:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        taken += message.error() is None
    consumer.commit(asynchronous=False)
    consumer.close()
    before = positions(node, group)
    assert sum(before.values()) == 8
    with driver.topic_client.reader(group, group) as reader:
        batch: Any = reader.receive_batch(timeout=PATIENCE_S)
        assert batch.messages[0].offset == before.get(batch.messages[0].partition_id, 0)
        reader.commit_with_ack(batch, timeout=PATIENCE_S)
    admin = admin_of(node)
    place = TopicPartition(group, 0, 0)
    (altering,) = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [place])]).values()
    assert altering.result(PATIENCE_S).topic_partitions[0].error is None
    assert positions(node, group)[0] == 0


def delete(node: NodeProcess, group: str) -> tuple[int, str]:
    """The status and the sentence of the answer."""
    request = urllib.request.Request(f"{node.console}/api/groups/{group}", method="DELETE")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)["error"]


def test_a_group_that_ydbs_readers_use_is_not_deleted(node: NodeProcess, group: str, reader: ydb.TopicReader) -> None:
    status, sentence = delete(node, group)
    assert status == 409
    assert "has a member through ydb (" in sentence
    admin = admin_of(node)
    assert group in [one.group_id for one in admin.list_consumer_groups().result(PATIENCE_S).valid]


def test_a_group_that_kafkas_members_read_is_not_deleted(node: NodeProcess, group: str, member: Consumer) -> None:
    member.commit(asynchronous=False)
    status, sentence = delete(node, group)
    assert status == 409
    assert "has a member through kafka (" in sentence
    assert positions(node, group)


def test_a_deleted_group_is_gone_for_every_protocol(node: NodeProcess, driver: ydb.Driver, group: str) -> None:
    with closing(consumer_of(node, group, {"group.protocol": "classic"})) as consumer:
        consumer.commit(offsets=[TopicPartition(group, 0, 5)], asynchronous=False)
    driver.topic_client.commit_offset(group, group, 1, 4)
    assert positions(node, group) == {0: 5, 1: 4}
    assert delete(node, group) == (200, "")
    assert delete(node, group)[0] == 404
    with closing(consumer_of(node, group, {})) as consumer:
        (found,) = consumer.committed([TopicPartition(group, 0)], timeout=PATIENCE_S)
        assert found.offset < 0
    with driver.topic_client.reader(group, group) as reader:
        assert reader.receive_batch(timeout=PATIENCE_S).messages[0].offset == 0


def consuming(node: NodeProcess, group: str, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bridges", "consume", group, "--group", group, "--node", node.console, *options]
    unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}  # a record is seen as soon as it is written, as in containers
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=unbuffered)


def test_the_command_line_reads_on_where_it_has_committed(node: NodeProcess, group: str) -> None:
    seen: list[bytes] = []
    for options in (("-n", "6"), ("-n", "5"), ()):
        told, complaint = consuming(node, group, *options).communicate(timeout=PATIENCE_S)
        assert not complaint
        seen += told.split()
        assert sum(positions(node, group).values()) == len(seen)
    assert sorted(map(int, seen)) == list(range(20))


def test_the_command_line_excludes_members_of_other_protocols(
    node: NodeProcess, driver: ydb.Driver, group: str
) -> None:
    with consuming(node, group, "--follow", "--from", "earliest") as following:
        assert following.stdout is not None
        seen = {int(following.stdout.readline()) for _ in range(20)}
        assert seen == set(range(20))
        status, sentence = delete(node, group)
        assert (status, "has a member through http (anabranch at 127.0.0.1)" in sentence) == (409, True)
        other = consuming(node, group)
        assert b"one client reads a group over HTTP" in other.communicate(timeout=PATIENCE_S)[1]
        with pytest.raises(ydb.Error, match="through http"), driver.topic_client.reader(group, group) as reader:
            reader.receive_batch(timeout=PATIENCE_S)
        producer = Producer({"bootstrap.servers": node.kafka})
        producer.produce(group, b"20")
        assert not producer.flush(PATIENCE_S)
        assert int(following.stdout.readline()) == 20
        following.send_signal(signal.SIGINT)
        assert following.wait(PATIENCE_S) == 0
    assert sum(positions(node, group).values()) == 21
    wait_until(lambda: delete(node, group)[0] == 200)


def test_the_command_line_does_not_join_members_of_other_protocols(
    node: NodeProcess, group: str, reader: ydb.TopicReader
) -> None:
    following = consuming(node, group, "--follow")
    assert b"has a member through ydb" in following.communicate(timeout=PATIENCE_S)[1]
    assert following.returncode == 1
