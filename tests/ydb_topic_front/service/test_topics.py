"""Topics are made, changed, described and deleted: by YDB's SDK, and by what SDKs do not send."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ydb
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from tests.conftest import TEST_SETTINGS
from tests.node_process import NodeProcess
from tests.ydb_topic_front.conftest import LISTEN
from tests.ydb_topic_front.raw import RawClient
from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.methods import METHODS
from ydb_topic_front.wire.statuses import Status

HOURS = datetime.timedelta(hours=1)


@pytest.fixture(scope="module")
def driver(ydb_node: NodeProcess) -> Iterator[ydb.Driver]:
    with ydb.Driver(endpoint=f"grpc://{ydb_node.ydb}", database="/local") as driver:
        driver.wait(timeout=30, fail_fast=True)
        yield driver


@pytest.fixture
def kafka(ydb_node: NodeProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": ydb_node.kafka})


def described(raw: RawClient, path: str, **fields: Any) -> Any:
    return raw.result("DescribeTopic", path=path, **fields)


def test_a_topic_of_the_sdk_with_everything_it_can_say(driver: ydb.Driver, kafka: AdminClient, topic: str) -> None:
    path = f"/local/dir/{topic}"
    driver.topic_client.create_topic(
        path,
        min_active_partitions=3,
        max_active_partitions=9,
        retention_period=2 * HOURS,
        retention_storage_mb=5,
        supported_codecs=[ydb.TopicCodec.RAW, ydb.TopicCodec.GZIP, 10_001],
        partition_write_speed_bytes_per_second=1000,
        partition_write_burst_bytes=2000,
        attributes={"colour": "blue"},
        consumers=[
            "plain",
            ydb.TopicConsumer("rich", important=True, supported_codecs=[ydb.TopicCodec.RAW], attributes={"k": "v"}),
        ],
        metering_mode=ydb.TopicMeteringMode.REQUEST_UNITS,
    )
    found = driver.topic_client.describe_topic(path, include_stats=True)
    assert found.self.name == topic
    assert found.self.type == ydb.SchemeEntryType.TOPIC
    assert [one.partition_id for one in found.partitions if one.active] == [0, 1, 2]
    assert (found.min_active_partitions, found.max_active_partitions) == (3, 9)
    assert found.retention_period == 2 * HOURS
    assert found.retention_storage_mb == 5
    assert found.supported_codecs == [ydb.TopicCodec.RAW, ydb.TopicCodec.GZIP, 10_001]
    assert (found.partition_write_speed_bytes_per_second, found.partition_write_burst_bytes) == (1000, 2000)
    assert found.attributes == {"colour": "blue"}
    assert found.metering_mode == ydb.TopicMeteringMode.REQUEST_UNITS
    assert found.auto_partitioning_settings.strategy == ydb.TopicAutoPartitioningStrategy.DISABLED
    assert [one.name for one in found.consumers] == ["plain", "rich"]
    assert (found.consumers[1].important, found.consumers[1].attributes) == (True, {"k": "v"})
    stats = found.partitions[0].partition_stats
    assert (stats.partition_start, stats.partition_end) == (0, 0)
    # The same topic for Kafka's clients, with the retention as its configuration.
    name = f"dir.{topic}"
    assert len(kafka.list_topics(name, timeout=30).topics[name].partitions) == 3
    (future,) = kafka.describe_configs([ConfigResource("topic", name)]).values()
    config = {key: entry.value for key, entry in future.result(30).items()}
    assert (config["retention.ms"], config["retention.bytes"]) == ("7200000", str(5 * 1024 * 1024))


def test_making_a_topic_again_changes_nothing_and_is_no_error(raw: RawClient, topic: str) -> None:
    assert raw.call("CreateTopic", path=topic, consumers=[{"name": "c"}]).status == Status.SUCCESS
    assert raw.call("CreateTopic", path=f"/local/{topic}", consumers=[{"name": "d"}]).status == Status.SUCCESS
    assert [one.name for one in described(raw, topic).consumers] == ["c"]


def test_many_clients_make_one_topic_at_once(raw: RawClient, topic: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(raw.call, "CreateTopic", path=topic, consumers=[{"name": "c"}]) for _ in range(16)]
        assert {one.result().status for one in answers} == {Status.SUCCESS}
    assert [one.name for one in described(raw, topic).consumers] == ["c"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/local", Status.SCHEME_ERROR),
        ("", Status.BAD_REQUEST),
        ("/elsewhere/t", Status.SCHEME_ERROR),
        ("a b", Status.SCHEME_ERROR),
        ("x" * 250, Status.SCHEME_ERROR),
    ],
)
def test_paths_at_which_there_can_be_no_topic(raw: RawClient, path: str, status: Status) -> None:
    operation = raw.call("CreateTopic", path=path)
    assert operation.status == status
    assert operation.issues[0].message
    assert operation.issues[0].severity == 1


def test_one_name_is_one_topic_in_every_protocol(raw: RawClient, kafka: AdminClient, topic: str) -> None:
    (future,) = kafka.create_topics([NewTopic(f"{topic}.x", 2)]).values()
    future.result(30)
    assert len(described(raw, f"{topic}/x").partitions) == 2
    # There it is called otherwise, so a path with the same canonical name is refused, and the message says why.
    refused = raw.call("CreateTopic", path=f"{topic}.x")
    assert refused.status == Status.ALREADY_EXISTS
    assert f"{topic}/x" in refused.issues[0].message
    # A name that another protocol could not tell apart is kept as the client gave it.
    raw.result("CreateTopic", path=f"{topic}-2/v1.0")
    assert f"{topic}-2.v1.0" in kafka.list_topics(timeout=30).topics
    assert described(raw, f"{topic}-2/v1.0").self.name == "v1.0"
    assert raw.call("DescribeTopic", path=f"{topic}-2/v1/0").status == Status.SCHEME_ERROR


def test_a_topic_is_altered(driver: ydb.Driver, raw: RawClient, topic: str) -> None:
    client = driver.topic_client
    client.create_topic(topic, consumers=["a", "b"], supported_codecs=[ydb.TopicCodec.RAW])
    client.alter_topic(
        topic,
        set_min_active_partitions=4,
        add_consumers=["c"],
        drop_consumers=["a"],
        alter_consumers=[ydb.TopicAlterConsumer("b", set_important=True)],
        alter_attributes={"x": "y"},
        set_retention_period=3 * HOURS,
        set_supported_codecs=[ydb.TopicCodec.GZIP],
    )
    found = client.describe_topic(topic)
    assert [one.partition_id for one in found.partitions if one.active] == [0, 1, 2, 3]
    assert [(one.name, one.important) for one in found.consumers] == [("b", True), ("c", False)]
    assert found.attributes == {"x": "y"}
    assert found.retention_period == 3 * HOURS
    assert found.supported_codecs == [ydb.TopicCodec.GZIP]
    before = described(raw, topic)
    for fields, status in (
        ({"drop_consumers": ["a"]}, Status.NOT_FOUND),
        ({"add_consumers": [{"name": "b"}]}, Status.ALREADY_EXISTS),
        ({"alter_partitioning_settings": {"set_min_active_partitions": 2}}, Status.BAD_REQUEST),
        ({"set_retention_period": {"seconds": -1}}, Status.BAD_REQUEST),
        ({"set_content_based_deduplication": True}, Status.UNSUPPORTED),
    ):
        assert raw.call("AlterTopic", path=topic, **fields).status == status, fields
    assert described(raw, topic) == before
    assert raw.call("AlterTopic", path=f"{topic}-none").status == Status.SCHEME_ERROR


def test_changes_at_once_all_count(raw: RawClient, topic: str) -> None:
    raw.result("CreateTopic", path=topic)
    names = [f"c{number}" for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(raw.call, "AlterTopic", path=topic, add_consumers=[{"name": name}]) for name in names]
        assert {one.result().status for one in answers} == {Status.SUCCESS}
    assert sorted(one.name for one in described(raw, topic).consumers) == sorted(names)


def test_partitions_of_an_auto_partitioned_topic_split(raw: RawClient, topic: str) -> None:
    raw.result(
        "CreateTopic",
        path=topic,
        partitioning_settings={
            "min_active_partitions": 2,
            "max_active_partitions": 10,
            "auto_partitioning_settings": {"strategy": 2, "partition_write_speed": {"up_utilization_percent": 80}},
        },
    )
    first = described(raw, topic)
    assert [(one.key_range.from_bound, one.key_range.to_bound) for one in first.partitions] == [
        (b"", b"\x80" + bytes(15)),
        (b"\x80" + bytes(15), b""),
    ]
    auto = first.partitioning_settings.auto_partitioning_settings
    assert (auto.strategy, auto.partition_write_speed.up_utilization_percent) == (2, 80)
    raw.result("AlterTopic", path=topic, alter_partitioning_settings={"set_min_active_partitions": 3})
    after = described(raw, topic, include_location=True, include_stats=True).partitions
    assert [one.active for one in after] == [False, True, True, True]
    assert list(after[0].child_partition_ids) == [2, 3]
    assert [list(one.parent_partition_ids) for one in after[2:]] == [[0], [0]]
    assert [one.key_range.from_bound for one in after[2:]] == [b"", b"\x40" + bytes(15)]
    assert [one.key_range.to_bound for one in after[2:]] == [b"\x40" + bytes(15), b"\x80" + bytes(15)]
    assert all(one.partition_location.generation >= 1 and one.partition_location.node_id >= 1 for one in after)
    # The number is reached, so nothing more happens; and auto-partitioning stays.
    raw.result("AlterTopic", path=topic, alter_partitioning_settings={"set_min_active_partitions": 3})
    assert len(described(raw, topic).partitions) == 4
    disable = {"alter_auto_partitioning_settings": {"set_strategy": 1}}
    assert raw.call("AlterTopic", path=topic, alter_partitioning_settings=disable).status == Status.BAD_REQUEST


def test_auto_partitioning_begins_later(raw: RawClient, topic: str) -> None:
    raw.result("CreateTopic", path=topic, partitioning_settings={"min_active_partitions": 2})
    assert not any(one.HasField("key_range") for one in described(raw, topic).partitions)
    enable = {"set_min_active_partitions": 4, "alter_auto_partitioning_settings": {"set_strategy": 3}}
    raw.result("AlterTopic", path=topic, alter_partitioning_settings=enable)
    found = described(raw, topic)
    assert [one.active for one in found.partitions] == [False, False, True, True, True, True]
    assert [list(one.child_partition_ids) for one in found.partitions[:2]] == [[2, 3], [4, 5]]
    assert found.partitioning_settings.min_active_partitions == 4


def test_one_partition_and_where_it_is(raw: RawClient, topic: str) -> None:
    raw.result("CreateTopic", path=topic, partitioning_settings={"min_active_partitions": 2})
    (endpoint,) = raw.result("ListEndpoints", database="/local").endpoints
    found = raw.result("DescribePartition", path=topic, partition_id=1, include_location=True, include_stats=True)
    assert found.partition.partition_id == 1
    assert found.partition.active
    assert found.partition.partition_location.node_id == endpoint.node_id
    assert found.partition.partition_location.generation >= 1
    assert found.partition.partition_stats.HasField("partition_offsets")
    assert raw.call("DescribePartition", path=topic, partition_id=2).status == Status.BAD_REQUEST
    assert raw.call("DescribePartition", path=topic, partition_id=-1).status == Status.BAD_REQUEST


def test_a_consumer_is_described(driver: ydb.Driver, raw: RawClient, topic: str) -> None:
    client = driver.topic_client
    client.create_topic(topic, min_active_partitions=2, consumers=["c"])
    found = client.describe_consumer(topic, "c", include_stats=True)
    assert found.self.name == f"{topic}/c"
    assert [one.partition_id for one in found.partitions] == [0, 1]
    assert found.partitions[0].partition_consumer_stats.committed_offset == 0
    assert raw.call("DescribeConsumer", path=topic, consumer="d").status == Status.SCHEME_ERROR


def test_a_dropped_topic_is_gone_with_all_it_had(driver: ydb.Driver, raw: RawClient, topic: str) -> None:
    client = driver.topic_client
    client.create_topic(topic, consumers=["c"], supported_codecs=[ydb.TopicCodec.RAW])
    client.drop_topic(topic)
    with pytest.raises(ydb.SchemeError):
        client.drop_topic(topic)
    with pytest.raises(ydb.SchemeError):
        client.describe_topic(topic)
    client.create_topic(topic)
    found = client.describe_topic(topic)
    assert (found.consumers, found.supported_codecs) == ([], [])


def test_partitions_and_retention_that_kafka_changes_are_told(raw: RawClient, kafka: AdminClient, topic: str) -> None:
    raw.result("CreateTopic", path=topic, consumers=[{"name": "c"}])
    (future,) = kafka.create_partitions([NewPartitions(topic, 3)]).values()
    future.result(30)
    found = described(raw, topic)
    assert (len(found.partitions), found.partitioning_settings.min_active_partitions) == (3, 3)
    assert [one.name for one in found.consumers] == ["c"]
    (future,) = kafka.delete_topics([topic]).values()
    future.result(30)
    assert raw.call("DescribeTopic", path=topic).status == Status.SCHEME_ERROR


@pytest.mark.parametrize("kind", ["CreateTopic", "AlterTopic", "DescribeTopic"])
def test_bytes_that_are_no_request(raw: RawClient, kind: str) -> None:
    method = METHODS[kind]
    answer = messages[method.response].FromString(raw.bytes(method.path, b"\x12\xff\xff"))
    assert answer.operation.status == Status.BAD_REQUEST


def test_everything_survives_the_death_of_the_node(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data", settings=TEST_SETTINGS, listen=LISTEN)
    try:
        with RawClient(node.start().ydb) as raw:
            raw.result("CreateTopic", path="a/b.c", consumers=[{"name": "c"}], supported_codecs={"codecs": [1]})
            raw.result("AlterTopic", path="a/b.c", add_consumers=[{"name": "d"}], alter_attributes={"x": "y"})
            raw.result("CreateTopic", path="gone", consumers=[{"name": "c"}])
            raw.result("DropTopic", path="gone")
            before = described(raw, "a/b.c")
        node.restart(kill=True)
        with RawClient(node.ydb) as raw:
            assert described(raw, "a/b.c") == before
            assert [one.name for one in before.consumers] == ["c", "d"]
            assert raw.call("DescribeTopic", path="gone").status == Status.SCHEME_ERROR
            raw.result("CreateTopic", path="gone")
            assert not described(raw, "gone").consumers
    finally:
        node.dispose()
