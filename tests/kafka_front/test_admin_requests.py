"""Admin requests over the wire, against a node and against Apache Kafka: what is asserted is what a real broker does.

The few places where a node without replicas must differ are marked by ``place.ours``.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from bridges.catalog.topics.names import RESERVED
from bridges.formats.kafka import encode
from bridges.formats.records import Record
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode as E
from tests.conftest import TEST_SETTINGS
from tests.kafka_facts import TOPIC_KEYS
from tests.kafka_front.place import Place, create, fresh, new
from tests.kit.waiting import until_asked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # the first use of Kafka's broker fetches it

NO_ID = bytes(16)
NO_OPERATIONS = -(2**31)
TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)


def codes(results: list[Any]) -> dict[str, int]:
    return {result.name: result.error_code for result in results}


# --- CreateTopics ---------------------------------------------------------------------------------------------------


async def test_a_size_beyond_a_frame_of_the_backend_is_kept_and_such_batches_refused(place: Place) -> None:
    size = str(100 << 20)
    name = await place.topic(max_message_bytes=size)
    assert (await place.configs(TOPIC, name, "max.message.bytes"))["max.message.bytes"].value == size
    asked = m.ProduceRequest
    for megabytes, taken in ((15, True), (17, not place.ours)):
        data = memoryview(bytearray(encode([Record(None, bytes(megabytes << 20))])))
        topic = asked.TopicProduceData(name=name, partition_data=[asked.PartitionProduceData(0, data)])
        response = await place.call(9, asked(None, -1, 10_000, [topic]))
        [row] = response.responses[0].partition_responses
        assert (row.error_code == E.NONE) is taken
        if not taken:
            assert (row.error_code, "16773120" in row.error_message) == (E.MESSAGE_TOO_LARGE, True)


@pytest.mark.parametrize("name", sorted(RESERVED))
async def test_topics_of_a_brokers_own_state_are_not_made_by_clients(place: Place, name: str) -> None:
    if not place.ours:
        pytest.skip("a broker has them")
    created = await place.call(7, create(new(name)))
    assert codes(created.topics) == {name: E.INVALID_REQUEST if name == METADATA else E.INVALID_TOPIC_EXCEPTION}
    if name != METADATA:
        return  # nodes make it when a client asks for it
    for automatic, code in ((True, E.INVALID_TOPIC_EXCEPTION), (False, E.UNKNOWN_TOPIC_OR_PARTITION)):
        asked = m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name=name)], automatic)
        assert codes((await place.call(9, asked)).topics) == {name: code}


@pytest.mark.parametrize("version", range(2, 8))
async def test_create_topic(place: Place, version: int) -> None:
    name = fresh()
    config = [m.CreateTopicsRequest.CreatableTopicConfig("retention.ms", "1234567")]
    response = await place.call(version, create(new(name, 3, 1, configs=config)))
    (result,) = response.topics
    assert (result.name, result.error_code, result.error_message) == (name, E.NONE, None)
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        assert result.topic_config_error_code == E.NONE
        rows = {row.name: row for row in result.configs}
        assert len(rows) > 25
        assert (rows["retention.ms"].value, rows["retention.ms"].config_source) == ("1234567", 1)
        assert (rows["cleanup.policy"].value, rows["cleanup.policy"].config_source) == ("delete", 5)
        assert not rows["cleanup.policy"].read_only
        assert not rows["cleanup.policy"].is_sensitive
    topic = await place.settled(name, 3)
    if version >= 7:
        assert result.topic_id != NO_ID
        described = await place.call(
            12, m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(result.topic_id, None)])
        )
        assert [(t.name, t.topic_id) for t in described.topics] == [(name, result.topic_id)]
    assert [p.replica_nodes for p in topic.partitions] == [[place.node_id]] * 3


async def test_create_topic_with_defaults(place: Place) -> None:
    name = fresh()
    (result,) = (await place.call(7, create(new(name)))).topics
    assert (result.error_code, result.num_partitions, result.replication_factor) == (E.NONE, 1, 1)


async def test_create_topic_refusals(place: Place) -> None:
    taken = await place.topic()
    config, assignment = m.CreateTopicsRequest.CreatableTopicConfig, m.CreateTopicsRequest.CreatableReplicaAssignment
    here = [place.node_id]
    name = fresh
    cases = [
        (new(taken, 1, 1), E.TOPIC_ALREADY_EXISTS),
        (new("", 1, 1), E.INVALID_TOPIC_EXCEPTION),
        (new("..", 1, 1), E.INVALID_TOPIC_EXCEPTION),
        (new("white space", 1, 1), E.INVALID_TOPIC_EXCEPTION),
        (new("x" * 250, 1, 1), E.INVALID_TOPIC_EXCEPTION),
        (new(taken.replace("-", ".", 1) + "_", 0, 1), E.INVALID_PARTITIONS),
        (new(name(), 0, 1), E.INVALID_PARTITIONS),
        (new(name(), -2, 1), E.INVALID_PARTITIONS),
        (new(name(), 1, 0), E.INVALID_REPLICATION_FACTOR),
        (new(name(), 1, -2), E.INVALID_REPLICATION_FACTOR),
        (new(name(), 1, 1, configs=[config("no.such.thing", "1")]), E.INVALID_CONFIG),
        (new(name(), 1, 1, configs=[config("retention.ms", "soon")]), E.INVALID_CONFIG),
        (new(name(), 1, 1, configs=[config("retention.ms", None)]), E.INVALID_CONFIG),
        (new(name(), 1, -1, assignments=[assignment(0, here)]), E.INVALID_REQUEST),
        (new(name(), -1, 1, assignments=[assignment(0, here)]), E.INVALID_REQUEST),
        (new(name(), -1, -1, assignments=[assignment(1, here)]), E.INVALID_REPLICA_ASSIGNMENT),
        (new(name(), -1, -1, assignments=[assignment(0, [77])]), E.INVALID_REPLICA_ASSIGNMENT),
        (new(name(), -1, -1, assignments=[assignment(0, [])]), E.INVALID_REPLICA_ASSIGNMENT),
        (new(name(), -1, -1, assignments=[assignment(0, here * 2)]), E.INVALID_REPLICA_ASSIGNMENT),
        (new(name(), -1, -1, assignments=[assignment(0, here), assignment(1, here)]), E.NONE),
    ]
    response = await place.call(7, create(*(topic for topic, _ in cases)))
    assert codes(response.topics) == {topic.name: code for topic, code in cases}
    for result in response.topics:
        assert (result.error_message is None) == (result.error_code == E.NONE)
        if result.error_code:
            assert (result.num_partitions, result.replication_factor, result.topic_id) == (-1, -1, NO_ID)
            assert result.configs == []


async def test_one_request_cannot_create_any_number_of_partitions(place: Place) -> None:
    response = await place.call(7, create(new(fresh(), 6_000, 1), new(fresh(), 4_001, 1), validate_only=True))
    assert {topic.error_code for topic in response.topics} == {E.POLICY_VIOLATION}
    response = await place.call(7, create(new(fresh(), 2**31 - 1, 1), validate_only=True))
    assert {topic.error_code for topic in response.topics} == {E.POLICY_VIOLATION}


async def test_create_topics_of_colliding_and_repeated_names(place: Place) -> None:
    name = fresh()
    dotted, underlined = f"{name}.x", f"{name}_x"
    assert codes((await place.call(7, create(new(dotted, 1, 1)))).topics) == {dotted: E.NONE}
    await place.settled(dotted, 1)
    assert codes((await place.call(7, create(new(underlined, 1, 1)))).topics) == {underlined: E.INVALID_TOPIC_EXCEPTION}
    twice, once = fresh(), fresh()
    response = await place.call(7, create(new(twice, 1, 1), new(once, 1, 1), new(twice, 2, 1)))
    assert codes(response.topics) == {twice: E.INVALID_REQUEST, once: E.NONE}
    assert len(response.topics) == 2


async def test_replication_factor_beyond_the_nodes(place: Place) -> None:
    (result,) = (await place.call(7, create(new(fresh(), 1, 3)))).topics
    # Tools create topics with three replicas as a matter of course; how often data is stored is the backend's business.
    assert result.error_code == (E.NONE if place.ours else E.INVALID_REPLICATION_FACTOR)


async def test_create_topic_validate_only(place: Place) -> None:
    name = fresh()
    (result,) = (await place.call(7, create(new(name, 4, 1), validate_only=True))).topics
    assert (result.error_code, result.num_partitions, result.replication_factor) == (E.NONE, 4, 1)
    await place.gone(name)
    taken = await place.topic()
    (result,) = (await place.call(7, create(new(taken, 4, 1), validate_only=True))).topics
    assert result.error_code == E.TOPIC_ALREADY_EXISTS


# --- DeleteTopics ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 7))
async def test_delete_topic_by_name(place: Place, version: int) -> None:
    name, unknown = await place.topic(), fresh()
    state = m.DeleteTopicsRequest.DeleteTopicState
    if version >= 6:
        request = m.DeleteTopicsRequest(topics=[state(name), state(unknown)], timeout_ms=30_000)
    else:
        request = m.DeleteTopicsRequest(topic_names=[name, unknown], timeout_ms=30_000)
    response = await place.call(version, request)
    assert codes(response.responses) == {name: E.NONE, unknown: E.UNKNOWN_TOPIC_OR_PARTITION}
    if version >= 6:
        assert {r.name: r.topic_id != NO_ID for r in response.responses} == {name: True, unknown: False}
    await place.gone(name)


async def test_delete_topic_by_id(place: Place) -> None:
    name = await place.topic()
    topic = (await place.call(12, m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name=name)]))).topics[0]
    state, unknown = m.DeleteTopicsRequest.DeleteTopicState, uuid.uuid4().bytes
    states = [state(None, topic.topic_id), state(None, unknown)]
    response = await place.call(6, m.DeleteTopicsRequest(topics=states, timeout_ms=30_000))
    results = {r.topic_id: (r.name, r.error_code) for r in response.responses}
    assert results == {topic.topic_id: (name, E.NONE), unknown: (None, E.UNKNOWN_TOPIC_ID)}
    await place.gone(name)


async def test_delete_topic_refusals(place: Place) -> None:
    name = await place.topic()
    topic = (await place.call(12, m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name=name)]))).topics[0]
    state = m.DeleteTopicsRequest.DeleteTopicState
    for states in (
        [state(None, NO_ID)],
        [state(name, topic.topic_id)],
        [state(name), state(name)],
        [state(name), state(None, topic.topic_id)],
    ):
        response = await place.call(6, m.DeleteTopicsRequest(topics=states, timeout_ms=30_000))
        assert {r.error_code for r in response.responses} == {E.INVALID_REQUEST}
    await place.settled(name, 1)


async def test_a_topic_made_again_is_another_one(place: Place) -> None:
    name = fresh()
    first = (await place.call(7, create(new(name, 1, 1)))).topics[0].topic_id
    await place.settled(name, 1)
    await place.call(5, m.DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000))
    await place.gone(name)
    second = (await place.call(7, create(new(name, 1, 1)))).topics[0].topic_id
    assert second not in (first, NO_ID)


# --- CreatePartitions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
async def test_create_partitions(place: Place, version: int) -> None:
    name = await place.topic(2)
    more = m.CreatePartitionsRequest.CreatePartitionsTopic
    response = await place.call(version, m.CreatePartitionsRequest([more(name, 5, None)], 30_000, True))
    assert codes(response.results) == {name: E.NONE}
    await place.settled(name, 2)
    response = await place.call(version, m.CreatePartitionsRequest([more(name, 5, None)], 30_000))
    assert codes(response.results) == {name: E.NONE}
    await place.settled(name, 5)


async def test_create_partitions_refusals(place: Place) -> None:
    more, assigned = (
        m.CreatePartitionsRequest.CreatePartitionsTopic,
        m.CreatePartitionsRequest.CreatePartitionsAssignment,
    )
    here = assigned([place.node_id])
    names = [await place.topic(3) for _ in range(7)]
    cases = [
        (more(names[0], 2, None), E.INVALID_PARTITIONS),
        (more(names[1], 3, None), E.INVALID_PARTITIONS),
        (more(names[2], 0, None), E.INVALID_PARTITIONS),
        (more(names[3], 5, [here]), E.INVALID_REPLICA_ASSIGNMENT),
        (more(names[4], 4, [assigned([77])]), E.INVALID_REPLICA_ASSIGNMENT),
        (more(names[5], 4, [here]), E.NONE),
        (more(fresh(), 4, None), E.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    response = await place.call(3, m.CreatePartitionsRequest([one for one, _ in cases], 30_000))
    assert codes(response.results) == {one.name: code for one, code in cases}
    twice = [more(names[6], 4, None), more(names[6], 5, None)]
    response = await place.call(3, m.CreatePartitionsRequest(twice, 30_000))
    assert codes(response.results) == {names[6]: E.INVALID_REQUEST}
    assert len(response.results) == 1


# --- DeleteRecords --------------------------------------------------------------------------------------------------


async def filled(place: Place, batches: int, **config: str) -> str:
    """A topic with ``batches`` batches of ten records in partition 0."""
    name = await place.topic(1, **config)
    data, partition = m.ProduceRequest.TopicProduceData, m.ProduceRequest.PartitionProduceData
    records = [Record(key=b"k", value=b"v%d" % i, headers=[], timestamp=1_700_000_000_000 + i) for i in range(10)]
    for _ in range(batches):
        batch = memoryview(bytearray(encode(records)))
        request = m.ProduceRequest(None, -1, 30_000, [data(name=name, partition_data=[partition(0, batch)])])
        response = await place.call(8, request)
        assert response.responses[0].partition_responses[0].error_code == E.NONE
    return name


def trim(name: str, *offsets: tuple[int, int]) -> m.DeleteRecordsRequest:
    partitions = [m.DeleteRecordsRequest.DeleteRecordsPartition(*pair) for pair in offsets]
    return m.DeleteRecordsRequest([m.DeleteRecordsRequest.DeleteRecordsTopic(name, partitions)], 30_000)


async def earliest(place: Place, name: str) -> int:
    partition = m.ListOffsetsRequest.ListOffsetsPartition(0, timestamp=-2)
    request = m.ListOffsetsRequest(topics=[m.ListOffsetsRequest.ListOffsetsTopic(name, [partition])])
    response = await place.call(4, request)
    return int(response.topics[0].partitions[0].offset)


@pytest.mark.parametrize("version", range(3))
async def test_delete_records(place: Place, version: int) -> None:
    name = await filled(place, 3)

    async def cut(offset: int) -> tuple[int, int]:
        response = await place.call(version, trim(name, (0, offset)))
        (result,) = response.topics[0].partitions
        return result.error_code, result.low_watermark

    assert await cut(15) == (E.NONE, 15)
    assert await earliest(place, name) == 15
    assert await cut(5) == (E.NONE, 15)
    assert await cut(31) == (E.OFFSET_OUT_OF_RANGE, -1)
    assert await cut(-2) == (E.OFFSET_OUT_OF_RANGE, -1)
    assert await cut(-1) == (E.NONE, 30)
    assert await cut(30) == (E.NONE, 30)
    assert await earliest(place, name) == 30


async def test_delete_records_of_unknown_partitions(place: Place) -> None:
    name = await filled(place, 1)
    response = await place.call(2, trim(name, (0, 3), (1, 0)))
    results = {p.partition_index: (p.error_code, p.low_watermark) for p in response.topics[0].partitions}
    assert results == {0: (E.NONE, 3), 1: (E.UNKNOWN_TOPIC_OR_PARTITION, -1)}
    response = await place.call(2, trim(fresh(), (0, 0)))
    assert response.topics[0].partitions[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION


async def test_delete_records_needs_the_delete_policy(place: Place) -> None:
    name = await filled(place, 1, cleanup_policy="compact")
    response = await place.call(2, trim(name, (0, 3)))
    assert response.topics[0].partitions[0].error_code == E.POLICY_VIOLATION


# --- DescribeConfigs ------------------------------------------------------------------------------------------------


async def test_describe_topic_configs(place: Place) -> None:
    name = await place.topic(1, retention_ms="1234", cleanup_policy="compact,delete")
    rows = await place.configs(TOPIC, name)
    assert set(TOPIC_KEYS) <= set(rows)
    expected = {
        "retention.ms": ("1234", 1, 5),
        "cleanup.policy": ("compact,delete", 1, 7),
        "compression.type": ("producer", 5, 2),
        "min.cleanable.dirty.ratio": ("0.5", 5, 6),
        "preallocate": ("false", 5, 1),
        "max.message.bytes": ("1048588", 5, 3),
        "flush.messages": (str(2**63 - 1), 5, 5),
    }
    assert {k: (rows[k].value, rows[k].config_source, rows[k].config_type) for k in expected} == expected
    synonyms = [(s.name, s.value, s.source) for s in rows["cleanup.policy"].synonyms]
    assert synonyms == [("cleanup.policy", "compact,delete", 1), ("log.cleanup.policy", "delete", 5)]
    assert all(row.documentation is None for row in rows.values())
    assert not any(row.read_only or row.is_sensitive for row in rows.values())


@pytest.mark.parametrize("version", range(1, 5))
async def test_describe_configs_versions(place: Place, version: int) -> None:
    name = await place.topic(1, retention_ms="1234")
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(TOPIC, name, ["retention.ms", "no.such.thing"])
    plain = await place.call(version, m.DescribeConfigsRequest([resource], False, False))
    ((row,),) = [result.configs for result in plain.results]
    assert (row.name, row.value, row.config_source, row.synonyms) == ("retention.ms", "1234", 1, [])
    assert (row.config_type, row.documentation) == (5 if version >= 3 else 0, None if version >= 3 else "")
    full = await place.call(version, m.DescribeConfigsRequest([resource], True, version >= 3))
    ((row,),) = [result.configs for result in full.results]
    assert row.synonyms[0].source == 1
    if version >= 3:
        assert len(row.documentation) > 20


async def test_describe_configs_keys(place: Place) -> None:
    name = await place.topic()
    assert len(await place.configs(TOPIC, name)) >= 33
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(TOPIC, name, [])
    response = await place.call(4, m.DescribeConfigsRequest([resource]))
    assert len(response.results[0].configs) >= 33


async def test_describe_broker_configs(place: Place) -> None:
    rows = await place.configs(BROKER, str(place.node_id))
    assert len(rows) > 80
    assert rows["node.id"].value == str(place.node_id)
    assert rows["node.id"].read_only
    assert rows["advertised.listeners"].value.startswith("PLAINTEXT://127.0.0.1:")
    assert (rows["num.partitions"].value, rows["num.partitions"].config_type) == ("1", 3)
    assert (rows["log.cleanup.policy"].value, rows["log.cleanup.policy"].read_only) == ("delete", False)
    assert rows["auto.create.topics.enable"].config_type == 1


async def test_describe_configs_refusals(place: Place) -> None:
    name = fresh()
    cases = [
        (TOPIC, name, E.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "white space", E.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", E.INVALID_TOPIC_EXCEPTION),
        (BROKER, "77", E.INVALID_REQUEST),
        (BROKER, "abc", E.INVALID_REQUEST),
        (BROKER, "", E.NONE),
        (LOGGER, str(place.node_id), E.NONE),
        (LOGGER, "77", E.INVALID_REQUEST),
        (99, "x", E.INVALID_REQUEST),
    ]
    for kind, resource, code in cases:
        request = m.DescribeConfigsRequest([m.DescribeConfigsRequest.DescribeConfigsResource(kind, resource, None)])
        (result,) = (await place.call(4, request)).results
        assert (result.resource_type, result.resource_name, result.error_code) == (kind, resource, code)
        assert code == E.NONE or result.configs == []


# --- AlterConfigs and IncrementalAlterConfigs -----------------------------------------------------------------------


async def alter(place: Place, kind: int, name: str, config: dict[str, str | None], **fields: Any) -> int:
    rows = [m.AlterConfigsRequest.AlterableConfig(key, value) for key, value in config.items()]
    resource = m.AlterConfigsRequest.AlterConfigsResource(kind, name, rows)
    response = await place.call(fields.pop("version", 2), m.AlterConfigsRequest([resource], **fields))
    (result,) = response.responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    assert (result.error_message is None) == (result.error_code == E.NONE)
    return int(result.error_code)


async def change(place: Place, kind: int, name: str, *operations: tuple[str, int, str | None], **fields: Any) -> int:
    rows = [m.IncrementalAlterConfigsRequest.AlterableConfig(*operation) for operation in operations]
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(kind, name, rows)
    response = await place.call(fields.pop("version", 1), m.IncrementalAlterConfigsRequest([resource], **fields))
    (result,) = response.responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    assert (result.error_message is None) == (result.error_code == E.NONE)
    return int(result.error_code)


async def becomes(place: Place, kind: int, name: str, key: str, value: str | None, source: int) -> None:
    """Return when a configuration has a value from a source."""

    async def ask() -> tuple[str | None, int] | None:
        row = (await place.configs(kind, name, key)).get(key)
        return None if row is None else (row.value, row.config_source)

    await until_asked(ask, lambda found: found == (value, source))


async def test_what_brokers_without_kerberos_keep_of_it(place: Place) -> None:
    key, broker = "sasl.kerberos.min.time.before.relogin", str(place.node_id)
    await becomes(place, BROKER, broker, key, "60000", 5)
    assert await change(place, BROKER, "", (key, SET, "50000")) == E.INVALID_REQUEST, "each broker has its own"
    assert await alter(place, BROKER, broker, {key: "58000"}) == E.NONE
    await becomes(place, BROKER, broker, key, "58000", 2)
    assert await change(place, BROKER, broker, (key, SET, "soon")) == (
        E.INVALID_CONFIG if place.ours else E.INVALID_REQUEST
    )
    assert await alter(place, BROKER, broker, {}) == E.NONE
    await becomes(place, BROKER, broker, key, "60000", 5)


@pytest.mark.parametrize("version", range(3))
async def test_alter_configs_replaces_everything(place: Place, version: int) -> None:
    name = await place.topic(1, retention_ms="1234", segment_ms="99999")
    assert await alter(place, TOPIC, name, {"segment.ms": "55555"}, version=version, validate_only=True) == E.NONE
    assert (await place.configs(TOPIC, name))["segment.ms"].value == "99999"
    assert await alter(place, TOPIC, name, {"segment.ms": "55555"}, version=version) == E.NONE
    await becomes(place, TOPIC, name, "segment.ms", "55555", 1)
    await becomes(place, TOPIC, name, "retention.ms", "604800000", 5)


async def test_alter_configs_refusals(place: Place) -> None:
    name = await place.topic(1, retention_ms="1234")
    assert await alter(place, TOPIC, name, {"retention.ms": "soon"}) == E.INVALID_CONFIG
    assert await alter(place, TOPIC, name, {"no.such.thing": "1"}) == E.INVALID_CONFIG
    assert await alter(place, TOPIC, name, {"retention.ms": None}) == E.INVALID_REQUEST
    assert await alter(place, TOPIC, fresh(), {}) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert await alter(place, BROKER, "77", {}) == E.INVALID_REQUEST
    assert await alter(place, 99, "x", {}) == E.INVALID_REQUEST
    assert (await place.configs(TOPIC, name))["retention.ms"].value == "1234"
    if place.ours:  # a broker never answers this
        resource = m.AlterConfigsRequest.AlterConfigsResource(TOPIC, name, [])
        response = await place.call(2, m.AlterConfigsRequest([resource, resource]))
        assert {r.error_code for r in response.responses} == {E.INVALID_REQUEST}


@pytest.mark.parametrize("version", range(2))
async def test_incremental_changes(place: Place, version: int) -> None:
    name = await place.topic(1, retention_ms="1234")
    key = "cleanup.policy"
    assert await change(place, TOPIC, name, ("segment.ms", SET, "55555"), version=version) == E.NONE
    await becomes(place, TOPIC, name, "segment.ms", "55555", 1)
    assert (await place.configs(TOPIC, name))["retention.ms"].value == "1234"
    assert await change(place, TOPIC, name, ("segment.ms", DELETE, None), version=version) == E.NONE
    await becomes(place, TOPIC, name, "segment.ms", "604800000", 5)
    assert await change(place, TOPIC, name, (key, APPEND, "compact"), version=version) == E.NONE
    await becomes(place, TOPIC, name, key, "delete,compact", 1)
    assert await change(place, TOPIC, name, (key, APPEND, "compact,delete"), version=version) == E.NONE
    assert await change(place, TOPIC, name, (key, SUBTRACT, "delete"), version=version) == E.NONE
    await becomes(place, TOPIC, name, key, "compact", 1)
    assert await change(place, TOPIC, name, (key, DELETE, None), version=version, validate_only=True) == E.NONE
    assert await change(place, TOPIC, name, (key, SUBTRACT, "nothing"), version=version) == E.NONE
    assert (await place.configs(TOPIC, name))[key].value == "compact"


async def test_incremental_refusals(place: Place) -> None:
    name = await place.topic(1, retention_ms="1234")
    assert await change(place, TOPIC, name, ("retention.ms", SET, "soon")) == E.INVALID_CONFIG
    assert await change(place, TOPIC, name, ("no.such.thing", SET, "1")) == E.INVALID_CONFIG
    assert await change(place, TOPIC, name, ("retention.ms", SET, None)) == E.INVALID_REQUEST
    assert await change(place, TOPIC, name, ("retention.ms", APPEND, "1")) == E.INVALID_CONFIG
    if place.ours:  # a broker takes it for a mistake of its own
        assert await change(place, TOPIC, name, ("retention.ms", 9, "1")) == E.INVALID_REQUEST
    assert await change(place, TOPIC, name, ("retention.ms", SET, "1"), ("retention.ms", DELETE, None)) == (
        E.INVALID_REQUEST
    )
    assert await change(place, TOPIC, fresh(), ("retention.ms", SET, "1")) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert await change(place, BROKER, "77", ("log.retention.ms", SET, "1")) == E.INVALID_REQUEST
    assert await change(place, BROKER, str(place.node_id), ("node.id", SET, "5")) == E.INVALID_REQUEST
    assert (await place.configs(TOPIC, name))["retention.ms"].value == "1234"


async def test_configurations_of_any_number_or_length_are_refused_as_they_are(place: Place) -> None:
    name = await place.topic(1, retention_ms="1234")
    if place.ours:  # a broker tries
        many = {f"no.such.thing.{number}": "1" for number in range(1_001)}
        assert await alter(place, TOPIC, name, dict(many)) == E.INVALID_REQUEST
        assert await change(place, TOPIC, name, *((key, SET, "1") for key in many)) == E.INVALID_REQUEST
        long = [(f"no.such.thing.{number}", SET, "x" * 30_000) for number in range(3)]
        assert await change(place, TOPIC, name, *long) == E.INVALID_REQUEST
        assert await change(place, TOPIC, name, *long[:2]) == E.INVALID_CONFIG
    assert (await place.configs(TOPIC, name))["retention.ms"].value == "1234"


async def test_broker_configs_change_what_topics_inherit(place: Place) -> None:
    name, broker = await place.topic(), str(place.node_id)
    key = "log.segment.delete.delay.ms"
    assert await change(place, BROKER, broker, (key, SET, "31415")) == E.NONE
    try:
        await becomes(place, BROKER, broker, key, "31415", 2)
        await becomes(place, TOPIC, name, "file.delete.delay.ms", "31415", 2)
    finally:
        assert await change(place, BROKER, broker, (key, DELETE, None)) == E.NONE
    await becomes(place, TOPIC, name, "file.delete.delay.ms", "60000", 5)


async def test_what_does_not_change_while_a_broker_runs_is_refused_in_kafkas_words(place: Place) -> None:
    of = m.IncrementalAlterConfigsRequest
    changes = [of.AlterableConfig(key, SET, "1") for key in ("log.dirs", "broker.rack")]
    for broker in (str(place.node_id), ""):
        (told,) = (await place.call(1, of([of.AlterConfigsResource(BROKER, broker, changes)]))).responses
        assert told.error_code == E.INVALID_REQUEST
        words, _, keys = told.error_message.partition(": ")
        assert words == "Cannot update these configs dynamically"
        assert sorted(keys[1 : keys.index("]")].split(", ")) == ["broker.rack", "log.dirs"]


async def test_throttles_of_replicas_are_taken_away_wherever_tools_look(place: Place) -> None:
    """`kafka-reassign-partitions --verify` and `--cancel` do, on every node, whether there are any."""
    broker = str(place.node_id)
    rates = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
    both = tuple((key, DELETE, None) for key in rates)
    assert await change(place, BROKER, broker, *both) == E.NONE
    assert not await place.configs(BROKER, broker, *rates)
    if place.ours:  # there is nothing to slow down
        assert await change(place, BROKER, broker, (rates[0], SET, "1000")) == E.INVALID_CONFIG


async def test_a_node_and_all_nodes_have_configurations_that_change_while_they_run(place: Place) -> None:
    broker = str(place.node_id)
    for key, changed, shared in (
        ("max.connections", "1000", "2000"),
        ("producer.id.expiration.ms", "90000000", "91000000"),
    ):
        before = (await place.configs(BROKER, broker, key))[key]
        assert not before.read_only
        assert await change(place, BROKER, "", (key, SET, shared)) == E.NONE
        await becomes(place, BROKER, "", key, shared, 3)
        await becomes(place, BROKER, broker, key, shared, 3)
        if key == "producer.id.expiration.ms" and not place.ours:
            assert await change(place, BROKER, "", (key, DELETE, None)) == E.NONE
            continue  # at a broker it is the cluster's alone
        assert await change(place, BROKER, broker, (key, SET, changed)) == E.NONE
        await becomes(place, BROKER, broker, key, changed, 2)
        synonyms = [(one.value, one.source) for one in (await place.configs(BROKER, broker, key))[key].synonyms]
        assert synonyms[:2] == [(changed, 2), (shared, 3)]
        assert await change(place, BROKER, broker, (key, SET, "many")) in (E.INVALID_CONFIG, E.INVALID_REQUEST)
        for name in (broker, ""):
            assert await change(place, BROKER, name, (key, DELETE, None)) == E.NONE
        await becomes(place, BROKER, broker, key, before.value, before.config_source)


async def test_levels_of_loggers_are_described_and_changed_until_the_end_of_the_process(place: Place) -> None:
    broker = str(place.node_id)
    levels = await place.configs(LOGGER, broker)
    assert {"root"} < set(levels)
    assert {row.config_source for row in levels.values()} == {6}
    assert not any(row.read_only for row in levels.values())
    logger = next(name for name in sorted(levels) if name != "root")
    before = levels[logger].value
    assert await change(place, LOGGER, broker, (logger, SET, "DEBUG"), validate_only=True) == E.NONE
    assert (await place.configs(LOGGER, broker, logger))[logger].value == before
    assert await change(place, LOGGER, broker, (logger, SET, "DEBUG")) == E.NONE
    assert (await place.configs(LOGGER, broker, logger))[logger].value == "DEBUG"
    assert await change(place, LOGGER, broker, (logger, DELETE, None)) == E.NONE
    assert (await place.configs(LOGGER, broker, logger))[logger].value == levels["root"].value
    assert await change(place, LOGGER, broker, (logger, SET, "LOUD")) == E.INVALID_CONFIG
    assert await change(place, LOGGER, broker, ("no.such.logger", SET, "INFO")) == E.INVALID_CONFIG
    assert await change(place, LOGGER, broker, (logger, APPEND, "INFO")) == E.INVALID_REQUEST
    assert await change(place, LOGGER, "77", (logger, SET, "INFO")) == E.INVALID_REQUEST
    assert await alter(place, LOGGER, broker, {logger: "INFO"}) == E.INVALID_REQUEST


# --- cluster --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
async def test_describe_cluster(place: Place, version: int) -> None:
    response = await place.call(version, m.DescribeClusterRequest())
    assert (response.error_code, response.controller_id) == (E.NONE, place.node_id)
    assert [(b.broker_id, b.host, b.port, b.rack) for b in response.brokers] == [
        (place.node_id, "127.0.0.1", place.client.port, None)
    ]
    assert len(response.cluster_id) == 22
    assert response.cluster_authorized_operations == NO_OPERATIONS
    asked = await place.call(version, m.DescribeClusterRequest(include_cluster_authorized_operations=True))
    assert asked.cluster_authorized_operations & (1 << 5)  # create


async def test_describe_cluster_of_controllers(place: Place) -> None:
    for endpoint, code in ((2, E.MISMATCHED_ENDPOINT_TYPE), (7, E.UNSUPPORTED_ENDPOINT_TYPE)):
        response = await place.call(1, m.DescribeClusterRequest(endpoint_type=endpoint))
        assert response.error_code == code
        assert response.error_message


@pytest.mark.parametrize("version", range(1, 5))
async def test_describe_log_dirs(place: Place, version: int) -> None:
    name = await filled(place, 2)
    topic = m.DescribeLogDirsRequest.DescribableLogDirTopic
    response = await place.call(version, m.DescribeLogDirsRequest([topic(name, [0, 7]), topic(fresh(), [0])]))
    (result,) = response.results
    assert (response.error_code, result.error_code) == (E.NONE, E.NONE)
    assert result.log_dir.startswith("/")
    sizes = {(t.name, p.partition_index): p.partition_size for t in result.topics for p in t.partitions}
    assert list(sizes) == [(name, 0)]
    assert sizes[name, 0] > 100
    if version >= 4:
        assert result.total_bytes > result.usable_bytes > 0
    everything = await place.call(version, m.DescribeLogDirsRequest(None))
    assert name in [t.name for r in everything.results for t in r.topics]


async def test_elect_leaders(place: Place) -> None:
    name = await place.topic()
    wanted = m.ElectLeadersRequest.TopicPartitions
    for version in range(3):
        for kind in (0, 1) if version else (0,):
            response = await place.call(version, m.ElectLeadersRequest(kind, [wanted(name, [0, 5])], 30_000))
            assert response.error_code == E.NONE
            ((topic),) = response.replica_election_results
            found = {p.partition_id: p.error_code for p in topic.partition_result}
            assert (topic.topic, found) == (name, {0: E.ELECTION_NOT_NEEDED, 5: E.UNKNOWN_TOPIC_OR_PARTITION})
    response = await place.call(2, m.ElectLeadersRequest(0, None, 30_000))
    assert (response.error_code, [t for t in response.replica_election_results if t.partition_result]) == (E.NONE, [])


async def test_reassignments(place: Place) -> None:
    name = await place.topic()
    response = await place.call(0, m.ListPartitionReassignmentsRequest(30_000, None))
    assert (response.error_code, response.topics) == (E.NONE, [])
    topic = m.AlterPartitionReassignmentsRequest.ReassignableTopic
    move = m.AlterPartitionReassignmentsRequest.ReassignablePartition
    for version, target, code in (
        (0, move(0, None), E.NO_REASSIGNMENT_IN_PROGRESS),
        (0, move(0, [place.node_id]), E.NONE),
        (1, move(0, [place.node_id]), E.NONE),
        (1, move(0, [77]), E.INVALID_REPLICA_ASSIGNMENT),
        (1, move(9, [place.node_id]), E.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        request = m.AlterPartitionReassignmentsRequest(30_000, topics=[topic(name, [target])])
        request.allow_replication_factor_change = version == 0
        response = await place.call(version, request)
        assert response.error_code == E.NONE
        assert response.allow_replication_factor_change is (version == 0)
        assert [p.error_code for p in response.responses[0].partitions] == [code], target


async def test_describe_topic_partitions(place: Place) -> None:
    names = sorted([await place.topic(3) for _ in range(2)])
    unknown = "zz" + fresh()
    request = m.DescribeTopicPartitionsRequest
    topics = [request.TopicRequest(name) for name in [*names, unknown]]
    response = await place.eventually(0, request(topics, 100), E.LEADER_NOT_AVAILABLE)
    assert [(t.name, t.error_code, len(t.partitions)) for t in response.topics] == [
        (names[0], E.NONE, 3),
        (names[1], E.NONE, 3),
        (unknown, E.UNKNOWN_TOPIC_OR_PARTITION, 0),
    ]
    assert response.next_cursor is None
    for partition in response.topics[0].partitions:
        assert partition.eligible_leader_replicas in ([], None) if not place.ours else [[]]
        assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (
            place.node_id,
            [place.node_id],
            [place.node_id],
        )
    seen: list[tuple[str, int]] = []
    cursor = None
    pages = 0
    while pages == 0 or cursor is not None:
        page = await place.call(0, request(topics[:2], 2, cursor))
        found = [(t.name, p.partition_index) for t in page.topics for p in t.partitions]
        assert len(found) == 2
        seen += found
        cursor = page.next_cursor and request.Cursor(page.next_cursor.topic_name, page.next_cursor.partition_index)
        pages += 1
    assert seen == [(name, index) for name in names for index in range(3)]


async def test_describe_producers(place: Place) -> None:
    name = await filled(place, 1)
    request = m.DescribeProducersRequest([m.DescribeProducersRequest.TopicRequest(name, [0, 4])])
    response = await place.call(0, request)
    found = {p.partition_index: (p.error_code, p.active_producers) for p in response.topics[0].partitions}
    assert found == {0: (E.NONE, []), 4: (E.UNKNOWN_TOPIC_OR_PARTITION, [])}


async def test_client_quotas_are_an_empty_list(place: Place) -> None:
    response = await place.call(1, m.DescribeClientQuotasRequest())
    assert (response.error_code, response.entries) == (E.NONE, [])


async def test_an_entity_with_a_quota_is_told_client_id_first(place: Place) -> None:
    of, name = m.AlterClientQuotasRequest, fresh()
    entity = [of.EntityData("user", name), of.EntityData("client-id", None)]

    def change(*, remove: bool) -> m.AlterClientQuotasRequest:
        return of([of.EntryData(entity, [of.OpData("producer_byte_rate", 1e9, remove)])])

    (altered,) = (await place.call(1, change(remove=False))).entries
    described = m.DescribeClientQuotasRequest([m.DescribeClientQuotasRequest.ComponentData("user", 0, name)])
    found = (await until_asked(lambda: place.call(1, described), lambda answer: answer.entries)).entries
    for parts in (altered.entity, found[0].entity):
        assert [(part.entity_type, part.entity_name) for part in parts] == [("client-id", None), ("user", name)]
    await place.call(1, change(remove=True))
    await until_asked(lambda: place.call(1, described), lambda answer: not answer.entries)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_features_have_the_levels_that_they_have(place: Place, version: int) -> None:
    update = m.UpdateFeaturesRequest.FeatureUpdateKey
    (level,) = [
        one.max_version_level
        for one in (await place.call(4, m.ApiVersionsRequest("test", "1"))).finalized_features
        if one.name == "share.version"
    ]
    taken = await place.call(version, m.UpdateFeaturesRequest(10_000, [update("share.version", level)]))
    assert (taken.error_code, [(one.feature, one.error_code) for one in taken.results]) == (
        E.NONE,
        [("share.version", E.NONE)] if version < 2 else [],
    )
    for name, other in (("share.version", level + 1), ("nothing.version", 1)):
        refused = await place.call(version, m.UpdateFeaturesRequest(10_000, [update(name, other)]))
        assert (refused.error_code, refused.results) == (E.INVALID_UPDATE_VERSION, [])
        assert name in refused.error_message


async def test_acls_without_an_authorizer(place: Place) -> None:
    describe = await place.call(3, m.DescribeAclsRequest(1, None, 1, None, None, 1, 1))
    assert (describe.error_code, describe.resources) == (E.SECURITY_DISABLED, [])
    assert describe.error_message
    creation = m.CreateAclsRequest.AclCreation(2, "t", 3, "User:a", "*", 3, 3)
    created = await place.call(3, m.CreateAclsRequest([creation, creation]))
    assert [r.error_code for r in created.results] == [E.SECURITY_DISABLED] * 2
    deleted = await place.call(
        3, m.DeleteAclsRequest([m.DeleteAclsRequest.DeleteAclsFilter(2, "t", 3, None, None, 1, 1)])
    )
    assert [r.error_code for r in deleted.filter_results] == [E.SECURITY_DISABLED]


# --- producer ids ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
async def test_init_producer_id(place: Place, version: int) -> None:
    ids = []
    for _ in range(3):
        request = m.InitProducerIdRequest(None, 60_000)
        response = await place.eventually(version, request, E.COORDINATOR_LOAD_IN_PROGRESS)
        assert (response.error_code, response.producer_epoch) == (E.NONE, 0)
        ids.append(response.producer_id)
    assert len(set(ids)) == 3
    assert min(ids) >= 0


async def test_init_producer_id_refusals(place: Place) -> None:
    response = await place.call(4, m.InitProducerIdRequest("", 60_000))
    assert (response.error_code, response.producer_id, response.producer_epoch) == (E.INVALID_REQUEST, -1, -1)
    response = await place.call(4, m.InitProducerIdRequest(None, 60_000, 5, -1))
    assert response.error_code == E.INVALID_REQUEST
    response = await place.call(4, m.InitProducerIdRequest(None, 60_000, -1, 5))
    assert response.error_code == E.INVALID_REQUEST


# --- what Kafka's own command-line tools ask --------------------------------------------------------------------------

METRICS, GROUP, GROUP_SOURCE = 16, 32, 8
METADATA = "__cluster_metadata"


async def test_synonyms_of_topic_keys_are_those_that_are_set(place: Place) -> None:
    """Of keys that have several names at the node, only the finest one is told, and only if it is set."""
    rows = await place.configs(TOPIC, await place.topic(segment_bytes="2000000"))
    told = {name: [(s.name, s.value, s.source) for s in row.synonyms] for name, row in rows.items()}
    for name in ("retention.ms", "segment.ms", "segment.jitter.ms", "flush.ms", "remote.storage.enable"):
        assert (name, told[name], rows[name].config_source) == (name, [], 5)
    assert told["cleanup.policy"] == [("log.cleanup.policy", "delete", 5)]
    assert told["segment.bytes"] == [("segment.bytes", "2000000", 1), ("log.segment.bytes", "1073741824", 5)]
    assert told["min.insync.replicas"] == [("min.insync.replicas", "1", 3), ("min.insync.replicas", "1", 5)]
    assert rows["min.insync.replicas"].config_source == 3


async def test_synonyms_of_node_keys_leave_out_what_has_no_value(place: Place) -> None:
    rows = await place.configs(BROKER, str(place.node_id))
    for name in ("log.retention.ms", "log.retention.minutes", "log.roll.ms", "broker.rack"):
        assert (rows[name].value, rows[name].synonyms) == (None, [])
    told = [(s.name, s.value, s.source) for s in rows["min.insync.replicas"].synonyms]
    assert told == [("min.insync.replicas", "1", 3), ("min.insync.replicas", "1", 5)]
    (row,) = (await place.configs(BROKER, "", "min.insync.replicas")).values()
    assert (row.value, row.config_source) == ("1", 3)


@pytest.mark.parametrize("version", range(1, 5))
async def test_descriptions_without_an_error_have_an_empty_message(place: Place, version: int) -> None:
    resources = [
        m.DescribeConfigsRequest.DescribeConfigsResource(kind, name, ["x"])
        for kind, name in ((TOPIC, await place.topic()), (BROKER, str(place.node_id)), (GROUP, "g"), (METRICS, "m"))
    ]
    response = await place.call(version, m.DescribeConfigsRequest(resources))
    assert [(r.error_code, r.error_message) for r in response.results] == [(E.NONE, "")] * 4


OF_GROUPS_SINCE_4_4 = {
    "consumer.assignment.interval.ms",
    "share.assignment.interval.ms",
    "streams.assignment.interval.ms",
    "streams.assignor.name",
    "streams.rack.aware.assignment.tags",
}
"""Keys of groups that a broker has since 4.4, and the node has not (docs/compatibility.md)."""


async def test_groups_and_client_metrics_have_the_configuration_that_all_have(place: Place) -> None:
    heartbeat_ms = TEST_SETTINGS["kafka.group.consumer_heartbeat_interval_ms"] if place.ours else "5000"
    rows = await place.configs(GROUP, f"nobody-{fresh()}")
    if not place.ours:
        assert set(rows) >= OF_GROUPS_SINCE_4_4
    assert {name: row.value for name, row in rows.items() if name not in OF_GROUPS_SINCE_4_4} == {
        "consumer.heartbeat.interval.ms": heartbeat_ms,
        "consumer.session.timeout.ms": "45000",
        "errors.deadletterqueue.copy.record.enable": "false",
        "errors.deadletterqueue.topic.name": "",
        "share.auto.offset.reset": "latest",
        "share.delivery.count.limit": "5",
        "share.heartbeat.interval.ms": "5000",
        "share.isolation.level": "read_uncommitted",
        "share.partition.max.record.locks": "2000",
        "share.record.lock.duration.ms": "30000",
        "share.renew.acknowledge.enable": "true",
        "share.session.timeout.ms": "45000",
        "streams.heartbeat.interval.ms": heartbeat_ms,
        "streams.initial.rebalance.delay.ms": "0" if place.ours else "3000",
        "streams.num.standby.replicas": "0",
        "streams.session.timeout.ms": "45000",
    }
    if place.ours:  # a broker of 4.4 names its own keys here
        assert all([(s.name, s.source) for s in row.synonyms] == [(name, 5)] for name, row in rows.items())
    rows = await place.configs(METRICS, "m")
    assert {name: (row.value, row.config_source, row.synonyms) for name, row in rows.items()} == {
        "interval.ms": ("300000", 5, []),
        "match": ("", 5, []),
        "metrics": ("", 5, []),
    }
    for kind in (GROUP, METRICS):
        resource = m.DescribeConfigsRequest.DescribeConfigsResource(kind, "", None)
        (result,) = (await place.call(4, m.DescribeConfigsRequest([resource]))).results
        assert (result.error_code, result.configs) == (E.INVALID_REQUEST, [])


async def test_what_a_group_is_configured_with_stays_within_bounds(place: Place) -> None:
    name = fresh()
    session, beat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    lock, reset = "share.record.lock.duration.ms", "share.auto.offset.reset"
    for key, value in (
        (session, "44999"),
        (session, "60001"),
        (session, "often"),
        (beat, "4999"),
        (beat, "15001"),
        ("streams.session.timeout.ms", "44999"),
        ("streams.num.standby.replicas", "3"),
        ("share.session.timeout.ms", "44999"),
        ("share.heartbeat.interval.ms", "15001"),
        (lock, "14999"),
        (lock, "60001"),
        ("share.delivery.count.limit", "1"),
        ("share.delivery.count.limit", "11"),
        ("share.partition.max.record.locks", "99"),
        ("share.partition.max.record.locks", "4001"),
        ("share.renew.acknowledge.enable", "perhaps"),
        ("errors.deadletterqueue.topic.name", "__internal"),
        ("errors.deadletterqueue.copy.record.enable", "perhaps"),
        (reset, "never"),
        (reset, "by_duration:1h"),
        ("no.such.thing", "1"),
    ):
        assert await change(place, GROUP, name, (key, SET, value)) == E.INVALID_CONFIG, (key, value)
    assert await change(place, GROUP, name, (session, SET, "60000"), validate_only=True) == E.NONE
    assert await change(place, GROUP, name, (session, SET, "60000"), (beat, SET, "15000")) == E.NONE
    await becomes(place, GROUP, name, session, "60000", GROUP_SOURCE)
    await becomes(place, GROUP, name, beat, "15000", GROUP_SOURCE)
    rows = await place.configs(GROUP, name)
    synonyms = [(s.name, s.value, s.source) for s in rows[beat].synonyms]
    of_broker = [] if place.ours else [("group.consumer.heartbeat.interval.ms", "5000", 5)]
    assert synonyms == [(beat, "15000", 8), *of_broker]
    assert await change(place, GROUP, name, (beat, SET, "4999")) == E.INVALID_CONFIG
    assert await change(place, GROUP, name, (session, DELETE, None), (reset, SET, "by_duration:PT1H")) == E.NONE
    await becomes(place, GROUP, name, session, "45000", 5)
    await becomes(place, GROUP, name, reset, "by_duration:PT1H", GROUP_SOURCE)
    assert await alter(place, GROUP, name, {beat: "6000"}) == E.NONE
    await becomes(place, GROUP, name, reset, "latest", 5)


async def is_listed(place: Place, name: str) -> bool:
    listed = await place.call(0, m.ListConfigResourcesRequest())
    return name in [one.resource_name for one in listed.config_resources]


async def test_subscriptions_to_client_metrics_are_kept(place: Place) -> None:
    name = fresh()
    wrong = E.INVALID_CONFIG if place.ours else E.INVALID_REQUEST
    for key, value, code in (
        ("interval.ms", "99", wrong),
        ("interval.ms", "3600001", wrong),
        ("interval.ms", "often", E.INVALID_CONFIG),
        ("match", "client_id", E.INVALID_CONFIG),
        ("match", "planet=earth", E.INVALID_CONFIG),
        ("match", "client_id=(", E.INVALID_CONFIG),
        ("no.such.thing", "1", wrong),
    ):
        assert await change(place, METRICS, name, (key, SET, value)) == code, (key, value)
    wanted = ("match", SET, "client_id=a.*"), ("metrics", SET, "org.apache.kafka."), ("interval.ms", SET, "60000")
    assert await change(place, METRICS, name, *wanted) == E.NONE
    await becomes(place, METRICS, name, "interval.ms", "60000", 7)
    if place.ours:  # a broker does not take it for a list
        assert await change(place, METRICS, name, ("match", APPEND, "client_software_name=rdkafka")) == E.NONE
        await becomes(place, METRICS, name, "match", "client_id=a.*,client_software_name=rdkafka", 7)
    rows = await place.configs(METRICS, name)
    assert [(one.name, one.value, one.source) for one in rows["metrics"].synonyms] == [
        ("metrics", "org.apache.kafka.", 7)
    ]
    await until_asked(lambda: is_listed(place, name))  # a broker lists it somewhat later
    for key in ("match", "metrics", "interval.ms"):
        assert await change(place, METRICS, name, (key, DELETE, None)) == E.NONE
    await becomes(place, METRICS, name, "interval.ms", "300000", 5)
    await until_asked(lambda: is_listed(place, name), lambda listed: not listed)


async def test_list_config_resources(place: Place) -> None:
    name, node = await place.topic(), str(place.node_id)

    async def listed(version: int, *kinds: int) -> list[tuple[int, str]]:
        response = await place.call(version, m.ListConfigResourcesRequest(list(kinds)))
        assert response.error_code == E.NONE
        return sorted((r.resource_type, r.resource_name) for r in response.config_resources)

    everything = await listed(1)
    assert {(TOPIC, name), (BROKER, node), (LOGGER, node)} <= set(everything)
    # A broker goes on telling of groups that had a configuration.
    assert {kind for kind, _ in everything} - {GROUP} == {TOPIC, BROKER, LOGGER}
    assert await listed(1, BROKER) == [(BROKER, node)]
    assert {kind for kind, _ in await listed(1, TOPIC)} == {TOPIC}
    own = fresh()
    assert await change(place, GROUP, own, ("share.isolation.level", SET, "read_committed")) == E.NONE
    await becomes(place, GROUP, own, "share.isolation.level", "read_committed", GROUP_SOURCE)
    assert (GROUP, own) in await listed(1, GROUP, METRICS)
    assert (GROUP, own) not in await listed(0)
    response = await place.call(1, m.ListConfigResourcesRequest([BROKER, 99]))
    assert (response.error_code, response.config_resources) == (E.UNSUPPORTED_VERSION, [])


@pytest.mark.parametrize("version", range(2))
async def test_nobody_has_a_quota(place: Place, version: int) -> None:
    component = m.DescribeClientQuotasRequest.ComponentData
    exact, default, every = range(3)
    cases: list[tuple[list[tuple[str, int, str | None]], E]] = [
        ([], E.NONE),
        ([("user", every, None)], E.NONE),
        ([("user", exact, "x"), ("client-id", default, None)], E.NONE),
        ([("ip", exact, "10.0.0.1")], E.NONE),
        ([("planet", every, None)], E.UNSUPPORTED_VERSION),
        ([("user", 5, None)], E.INVALID_REQUEST),
        ([("user", every, None), ("user", exact, "x")], E.INVALID_REQUEST),
        ([("ip", every, None), ("user", every, None)], E.INVALID_REQUEST),
        ([("user", exact, None)], E.INVALID_REQUEST),
        ([("user", default, "x")], E.INVALID_REQUEST),
        ([("user", every, "x")], E.INVALID_REQUEST),
    ]
    for components, code in cases:
        for strict in (False, True):
            request = m.DescribeClientQuotasRequest([component(*one) for one in components], strict)
            response = await place.call(version, request)
            assert (components, response.error_code) == (components, code)
            assert response.entries == (None if code else [])
            assert bool(response.error_message) == bool(code)


async def test_nobody_has_credentials(place: Place) -> None:
    user = m.DescribeUserScramCredentialsRequest.UserName
    for users in (None, []):
        response = await place.call(0, m.DescribeUserScramCredentialsRequest(users))
        assert (response.error_code, response.error_message, response.results) == (E.NONE, "", [])
    response = await place.call(0, m.DescribeUserScramCredentialsRequest([user("x"), user("y"), user("x")]))
    assert response.error_code == E.NONE
    assert {(r.user, r.error_code) for r in response.results} == {
        ("x", E.DUPLICATE_RESOURCE),
        ("y", E.RESOURCE_NOT_FOUND),
    }


@pytest.mark.parametrize("version", range(3))
async def test_the_quorum_is_this_node(place: Place, version: int) -> None:
    request = m.DescribeQuorumRequest

    async def ask(*topics: tuple[str, list[int]]) -> Any:
        asked = [request.TopicData(name, [request.PartitionData(p) for p in parts]) for name, parts in topics]
        response = await place.call(version, request(asked))
        assert (response.error_code, response.error_message or "") == (E.NONE, "")
        assert [t.topic_name for t in response.topics] == [name for name, _ in topics]
        return response

    response = await ask((METADATA, [0]))
    (partition,) = response.topics[0].partitions
    assert (partition.error_code, partition.leader_id, partition.observers) == (E.NONE, place.node_id, [])
    assert partition.leader_epoch >= 0
    (voter,) = partition.current_voters
    assert voter.replica_id == place.node_id
    assert voter.log_end_offset >= partition.high_watermark > 0
    assert (voter.last_caught_up_timestamp > 0) == (version >= 1)
    assert [node.node_id for node in response.nodes] == ([place.node_id] if version >= 2 else [])
    assert all(node.listeners for node in response.nodes)
    assert (await ask()).topics == []
    for others in ([("t", [0])], [(METADATA, [1])], [(METADATA, [0, 1])], [(METADATA, [0]), ("t", [0])]):
        response = await ask(*others)
        assert {p.error_code for t in response.topics for p in t.partitions} == {E.UNKNOWN_TOPIC_OR_PARTITION}
