"""Kafka's clients and YDB's at the same topic: what one wrote the other reads, from positions that are the same."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
import ydb
import ydb.aio
import zstandard
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.bridges.formats.ydb_messages import lzop
from tests.kit.waiting import wait_until
from tests.node_process import NodeProcess
from tests.ydb_topic_front.raw import RawClient
from ydb_topic_front.wire.statuses import Status

PATIENCE = 90
BOMB = gzip.compress(gzip.compress(bytes(200 << 20)))
"""Some hundred bytes that decode to what decodes to 200 MiB."""


@pytest.fixture
def path(raw: RawClient, topic: str) -> str:
    """A topic of one partition and the consumer ``c``, made by YDB's client."""
    raw.result("CreateTopic", path=topic, consumers=[{"name": "c"}])
    return topic


@pytest.fixture
async def driver(ydb_node: NodeProcess) -> AsyncIterator[ydb.aio.Driver]:
    async with ydb.aio.Driver(endpoint=f"grpc://{ydb_node.ydb}", database="/local") as driver:
        await driver.wait(timeout=PATIENCE, fail_fast=True)
        yield driver


@pytest.fixture
def consumer(ydb_node: NodeProcess) -> Iterator[Consumer]:
    found = Consumer(
        {
            "bootstrap.servers": ydb_node.kafka,
            "group.id": "c",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 200 << 20,
            "receive.message.max.bytes": 300 << 20,
        }
    )
    yield found
    found.close()


def write(raw: RawClient, path: str, codec: int, *messages: dict[str, Any], **init: Any) -> None:
    stream = raw.stream("StreamWrite")
    stream.send(init_request={"path": path, **init})
    assert stream.receive().status == Status.SUCCESS
    numbered = [{"seq_no": number, **message} for number, message in enumerate(messages, 1)]
    stream.send(write_request={"messages": numbered, "codec": codec})
    response = stream.receive()
    assert response.status == Status.SUCCESS, response
    stream.half_close()
    assert stream.rest() == []


def fetched(consumer: Consumer, topic: str, count: int, offset: int = 0) -> list[Message]:
    consumer.assign([TopicPartition(topic, 0, offset)])
    found: list[Message] = []
    while len(found) < count:
        message = consumer.poll(PATIENCE)
        assert message is not None
        assert message.error() is None, message.error()
        found.append(message)
    return found


def produced(node: NodeProcess, topic: str, *records: dict[str, Any], **settings: Any) -> None:
    producer = Producer({"bootstrap.servers": node.kafka, "linger.ms": 20, **settings})
    for record in records:
        producer.produce(topic, partition=0, **record)
    assert producer.flush(PATIENCE) == 0


def item(key: str, value: bytes) -> dict[str, Any]:
    return {"key": key, "value": value}


def test_every_field_of_a_message_on_its_way_to_kafka(raw: RawClient, path: str, consumer: Consumer) -> None:
    write(
        raw,
        path,
        1,
        {
            "data": b"body",
            "created_at": {"seconds": 1_700_000_000, "nanos": 123_456_789},
            "metadata_items": [item("h", b"1"), item("__key", b"key"), item("h", b"2"), item("", b"")],
        },
        {"data": b"", "metadata_items": [item("__key", b"")]},
        {"data": b"", "metadata_items": [item("__key", b"gone"), item("anabranch.tombstone", b"")]},
        {"data": b"not", "metadata_items": [item("anabranch.tombstone", b"")]},
        producer_id="writer",
    )
    body, empty, tombstone, plain = fetched(consumer, path, 4)
    assert (body.key(), body.value(), body.headers()) == (b"key", b"body", [("h", b"1"), ("h", b"2"), ("", b"")])
    assert body.timestamp() == (1, 1_700_000_000_123)
    assert (empty.key(), empty.value(), empty.headers()) == (b"", b"", None)
    assert (tombstone.key(), tombstone.value(), tombstone.headers()) == (b"gone", None, None)
    assert (plain.key(), plain.value(), plain.headers()) == (None, b"not", [("anabranch.tombstone", b"")])
    assert [message.offset() for message in (body, empty, tombstone, plain)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("codec", "encode"),
    [(2, partial(gzip.compress, mtime=0)), (3, lzop), (4, zstandard.compress)],
    ids=["gzip", "lzop", "zstd"],
)
def test_bodies_of_every_codec_are_decoded(
    raw: RawClient, path: str, consumer: Consumer, codec: int, encode: Any
) -> None:
    bodies = [b"x", b"some text " * 10_000, b""]
    part = encode(b"whole")[:-6]  # once: gzip puts the time into it
    write(raw, path, codec, *({"data": encode(body)} for body in bodies), {"data": part}, {"data": b"?"})
    *good, torn, garbage = fetched(consumer, path, 5)
    assert [(message.value(), message.headers()) for message in good] == [(body, None) for body in bodies]
    name = {2: b"gzip", 3: b"lzop", 4: b"zstd"}[codec]
    for message, value in ((torn, part), (garbage, b"?")):
        assert (message.value(), message.headers()) == (value, [("anabranch.codec", name)])


def test_custom_codecs_and_bombs_are_passed_on_as_they_are(raw: RawClient, path: str, consumer: Consumer) -> None:
    write(raw, path, 10_007, {"data": b"?!", "metadata_items": [item("a", b"b")]})
    write(raw, path, 2, {"data": gzip.decompress(BOMB)}, {"data": gzip.compress(b"behind it")})
    custom, bomb, behind = fetched(consumer, path, 3)
    assert (custom.value(), custom.headers()) == (b"?!", [("a", b"b"), ("anabranch.codec", b"custom-10007")])
    assert (bomb.value(), bomb.headers()) == (gzip.decompress(BOMB), [("anabranch.codec", b"gzip")])
    assert (behind.value(), behind.headers()) == (b"behind it", None)


def read(raw: RawClient, path: str, count: int, start: int = 0) -> list[tuple[Any, Any]]:
    """(message, its batch) of a partition, read without a consumer."""
    stream = raw.stream("StreamRead")
    stream.send(init_request={"topics_read_settings": [{"path": path, "partition_ids": [0]}]})
    stream.send(read_request={"bytes_size": 100 << 20})
    found: list[tuple[Any, Any]] = []
    while len(found) < count:
        message = stream.receive()
        assert message.status == Status.SUCCESS, message
        match message.WhichOneof("server_message"):
            case "start_partition_session_request":
                number = message.start_partition_session_request.partition_session.partition_session_id
                stream.send(start_partition_session_response={"partition_session_id": number, "read_offset": start})
            case "read_response":
                for data in message.read_response.partition_data:
                    found += [(one, batch) for batch in data.batches for one in batch.message_data]
    stream.cancel()
    return found


def items(message: Any) -> list[tuple[str, bytes]]:
    return [(one.key, one.value) for one in message.metadata_items]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_field_of_a_record_on_its_way_to_ydb(
    ydb_node: NodeProcess, raw: RawClient, path: str, compression: str
) -> None:
    produced(
        ydb_node,
        path,
        {"key": b"key", "value": b"body", "headers": [("h", b"1"), ("h", None)], "timestamp": 1_700_000_000_123},
        {"key": b"", "value": b""},
        {"key": b"gone", "value": None},
        {"value": b"x" * 1000},
        **{"compression.type": compression},
    )
    (body, batch), (empty, _), (tombstone, _), (plain, _) = read(raw, path, 4)
    told = [("__key", b"key"), ("h", b"1"), ("h", b""), ("anabranch.null", b"1")]
    assert (body.data, items(body), body.seq_no) == (b"body", told, 1)
    assert (body.created_at.seconds, body.created_at.nanos) == (1_700_000_000, 123_000_000)
    assert (empty.data, items(empty), empty.uncompressed_size) == (b"", [("__key", b"")], 0)
    assert (tombstone.data, items(tombstone)) == (b"", [("__key", b"gone"), ("anabranch.tombstone", b"")])
    assert (plain.data, items(plain), plain.uncompressed_size) == (b"x" * 1000, [], 1000)
    assert [one.offset for one in (body, empty, tombstone, plain)] == [0, 1, 2, 3]
    assert (batch.codec, batch.producer_id, body.message_group_id) == (1, "", "")
    assert batch.written_at.seconds > 1_700_000_000


def test_who_produced_is_told(ydb_node: NodeProcess, raw: RawClient, path: str) -> None:
    produced(ydb_node, path, {"value": b"a"}, {"value": b"b"}, **{"enable.idempotence": True})
    (first, batch), (second, _) = read(raw, path, 2)
    kind, _, number = batch.producer_id.partition(":")
    assert (kind, number.isdigit()) == ("kafka", True)
    assert first.message_group_id == batch.producer_id
    assert (first.seq_no, second.seq_no) == (0, 1)


async def test_kafka_goes_on_where_ydb_has_committed_and_the_other_way_round(
    ydb_node: NodeProcess, raw: RawClient, driver: ydb.aio.Driver, path: str, consumer: Consumer
) -> None:
    write(raw, path, 1, *({"data": b"%d" % number} for number in range(10)))
    async with driver.topic_client.reader(path, "c") as reader:
        for _ in range(4):
            message = await asyncio.wait_for(reader.receive_message(), PATIENCE)
            await reader.commit_with_ack(message)
        # At once, while the reader goes on.
        place = TopicPartition(path, 0)
        assert [one.offset for one in await asyncio.to_thread(consumer.committed, [place], PATIENCE)] == [4]
    assert await asyncio.to_thread(group_reads, consumer, path, 3) == [b"4", b"5", b"6"]
    described = await driver.topic_client.describe_consumer(path, "c", include_stats=True)
    assert described.partitions[0].partition_consumer_stats.committed_offset == 7
    async with driver.topic_client.reader(path, "c") as reader:
        message = await asyncio.wait_for(reader.receive_message(), PATIENCE)
        assert (message.offset, message.data) == (7, b"7")


def group_reads(consumer: Consumer, topic: str, count: int) -> list[bytes]:
    """As a member of the group, each record committed."""
    consumer.subscribe([topic])
    found: list[bytes] = []
    while len(found) < count:
        message = consumer.poll(PATIENCE)
        assert message is not None
        error = message.error()
        if error is not None and error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
            continue  # the node has not heard yet that YDB's reader has gone
        assert error is None, error
        found.append(message.value())
        consumer.commit(message, asynchronous=False)
    consumer.close()  # which waits until it has left the group
    return found


async def test_kafka_moves_a_position_when_no_reader_of_ydb_s_is_there(
    ydb_node: NodeProcess, raw: RawClient, driver: ydb.aio.Driver, path: str, consumer: Consumer
) -> None:
    write(raw, path, 1, *({"data": b"%d" % number} for number in range(10)))
    moved = [TopicPartition(path, 0, 8)]
    async with driver.topic_client.reader(path, "c") as reader:
        first = await asyncio.wait_for(reader.receive_message(), PATIENCE)
        with pytest.raises(KafkaException, match="Unknown member"):
            await asyncio.to_thread(consumer.commit, offsets=moved, asynchronous=False)
        await asyncio.wait_for(reader.commit_with_ack(first), PATIENCE)
        assert [one.offset for one in await asyncio.to_thread(consumer.committed, moved, PATIENCE)] == [1]
    admin = AdminClient({"bootstrap.servers": ydb_node.kafka})

    def is_free() -> bool:
        return not admin.describe_consumer_groups(["c"])["c"].result(PATIENCE).members

    await asyncio.to_thread(wait_until, is_free, "the reader leaves")
    await asyncio.to_thread(consumer.commit, offsets=moved, asynchronous=False)
    async with driver.topic_client.reader(path, "c") as reader:
        message = await asyncio.wait_for(reader.receive_message(), PATIENCE)
        assert (message.offset, message.data) == (8, b"8")
        await asyncio.wait_for(reader.commit_with_ack(message), PATIENCE)
    described = await driver.topic_client.describe_consumer(path, "c", include_stats=True)
    assert described.partitions[0].partition_consumer_stats.committed_offset == 9


def test_a_topic_of_kafka_is_read_when_it_has_the_consumer(ydb_node: NodeProcess, raw: RawClient, topic: str) -> None:
    name = f"{topic}.dir.part"
    admin = AdminClient({"bootstrap.servers": ydb_node.kafka})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(PATIENCE)
    produced(ydb_node, name, {"value": b"from Kafka"})
    path = f"/local/{topic}/dir/part"
    raw.result("AlterTopic", path=path, add_consumers=[{"name": "c"}])
    assert [one.data for one, _ in read(raw, path, 1)] == [b"from Kafka"]


def test_a_fetch_over_batches_of_both_keeps_its_connection(
    ydb_node: NodeProcess, raw: RawClient, path: str, consumer: Consumer
) -> None:
    """How long an answer is, is told before it is read; what another protocol wrote is as long as it is translated."""
    producer = Producer({"bootstrap.servers": ydb_node.kafka, "linger.ms": 0, "batch.num.messages": 1})
    for turn in range(3):
        for number in range(20):
            producer.produce(path, b"kafka %d" % number * 9000, partition=0)
        assert producer.flush(PATIENCE) == 0
        write(raw, path, 1, *({"data": b"ydb %d" % number} for number in range(20)), producer_id=f"p{turn}")
    assert [message.offset() for message in fetched(consumer, path, 120)] == list(range(120))
    assert "what a response promised" not in ydb_node.tail()


def test_what_a_topic_demands_holds_for_ydb_s_writers(
    raw: RawClient, ydb_node: NodeProcess, consumer: Consumer
) -> None:
    """Made by Kafka's admin; a writer whose message is refused finds nothing of what it sent behind it."""
    admin = AdminClient({"bootstrap.servers": ydb_node.kafka})
    config = {"cleanup.policy": "compact", "max.message.bytes": "2000", "message.timestamp.type": "LogAppendTime"}
    admin.create_topics([NewTopic("demanding", 1, 1, config=config)])["demanding"].result(PATIENCE)
    created = {"seconds": 1577836800}
    key = [{"key": "__key", "value": b"k"}]
    good = {"data": b"x", "metadata_items": key, "created_at": created}
    for wrong in ({"data": b"x", "created_at": created}, {**good, "data": bytes(50_000)}):
        stream = raw.stream("StreamWrite")
        stream.send(init_request={"path": "demanding", "producer_id": "p"})
        assert stream.receive().init_response.last_seq_no == 0
        for number, message in enumerate((wrong, good, good), 1):
            stream.send(write_request={"messages": [{"seq_no": number, **message}], "codec": 1})
        response = stream.receive()
        assert response.status == Status.BAD_REQUEST, response
        stream.half_close()
    write(raw, "demanding", 1, good, good)
    for message in fetched(consumer, "demanding", 2):
        assert (message.key(), message.value()) == (b"k", b"x")
        assert message.timestamp()[1] > 1_700_000_000_000, "the time of the append"
    assert consumer.get_watermark_offsets(TopicPartition("demanding", 0), timeout=PATIENCE) == (0, 2)


def test_kafka_s_defaults_keep_nothing_of_ydb_s_writers_away(raw: RawClient, path: str, consumer: Consumer) -> None:
    ahead = {"seconds": 4102444800}
    write(raw, path, 1, {"data": bytes(3_000_000), "created_at": ahead})
    (message,) = fetched(consumer, path, 1)
    assert len(message.value() or b"") == 3_000_000
    assert message.timestamp()[1] == 4102444800_000
