"""One message of many megabytes: written and read by the SDK, read by Kafka's clients, known after kill -9."""

from __future__ import annotations

import random

import pytest
import ydb
import ydb.aio
from confluent_kafka import Consumer, TopicPartition

from tests.conftest import NodeFactory
from tests.ydb_topic_front.conftest import LISTEN
from tests.ydb_topic_front.raw import RawClient, RawStream
from tests.ydb_topic_front.records import values_of
from ydb_topic_front.session.write_request import MAX_MESSAGE_BYTES
from ydb_topic_front.wire.statuses import Status

PATIENCE = 60
LARGE = random.Random(1).randbytes(48_000_000)
TOPIC = "large"


async def test_a_message_of_48_megabytes_survives_kill_9_and_is_read_in_both_protocols(
    node_factory: NodeFactory,
) -> None:
    node = node_factory(listen=LISTEN)
    bodies = [b"before", LARGE, b"after"]
    async with ydb.aio.Driver(endpoint=f"grpc://{node.ydb}", database="/local") as driver:
        await driver.wait(timeout=PATIENCE, fail_fast=True)
        await driver.topic_client.create_topic(TOPIC, min_active_partitions=1, consumers=["c"])
        writer = driver.topic_client.writer(TOPIC, producer_id="p", auto_seqno=False, codec=ydb.TopicCodec.RAW)
        async with writer:
            for number, body in enumerate(bodies, 1):
                result = await writer.write_with_ack(ydb.TopicWriterMessage(body, seqno=number))
                assert isinstance(result, ydb.TopicWriteResult.Written)
                assert result.offset == number - 1
    node.kill()
    node.start()
    with RawClient(node.ydb) as raw:  # the SDK itself would not send it again
        again = session(raw)
        again.send(write_request={"messages": [{"seq_no": 2, "data": LARGE}], "codec": 1})
        assert again.receive().write_response.acks[0].skipped.reason == 1
        again.half_close()
        assert again.rest() == []
    async with ydb.aio.Driver(endpoint=f"grpc://{node.ydb}", database="/local") as driver:
        await driver.wait(timeout=PATIENCE, fail_fast=True)
        async with driver.topic_client.reader(TOPIC, "c") as reader:
            found = [await reader.receive_message() for _ in bodies]
    assert [message.data for message in found] == bodies
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "c"})  # with the limits that clients have
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    for body in bodies:
        message = consumer.poll(PATIENCE)
        assert message is not None
        assert message.error() is None
        assert message.value() == body
    consumer.close()


def test_a_request_cut_apart_by_kill_9_is_known_as_far_as_it_came(node_factory: NodeFactory) -> None:
    """A request of several batches is acknowledged as one, and may be stored in part when the node dies."""
    node = node_factory(listen=LISTEN)
    numbers = range(1, 41)
    messages = [{"seq_no": number, "data": b"%04d" % number * 125_000} for number in numbers]  # 20 MB
    with RawClient(node.ydb) as raw:
        raw.result("CreateTopic", path=TOPIC)
    known = 0
    for _ in range(2):
        with RawClient(node.ydb) as raw, RawClient(node.ydb) as watch:
            stream = session(raw)
            stream.send(write_request={"messages": messages, "codec": 1})
            while known < len(numbers) and end_of(watch) <= known:
                pass
            node.kill()
        node.start()
        with RawClient(node.ydb) as raw:
            stream = raw.stream("StreamWrite")
            stream.send(init_request={"path": TOPIC, "producer_id": "p"})
            last = stream.receive().init_response.last_seq_no
            assert known <= last == end_of(raw)
            known = last
            stream.cancel()
    with RawClient(node.ydb) as raw:
        stream = session(raw)
        stream.send(write_request={"messages": messages, "codec": 1})
        acks = stream.receive().write_response.acks
        assert [ack.seq_no for ack in acks] == list(numbers)
        assert [ack.HasField("skipped") for ack in acks] == [number <= known for number in numbers]
        assert [ack.written.offset for ack in acks[known:]] == list(range(known, len(numbers)))
        stream.half_close()
        assert stream.rest() == []
    values = values_of(node.kafka, TOPIC, 0, len(numbers))
    assert [value and value[:4] for value in values] == [b"%04d" % number for number in numbers]


def end_of(raw: RawClient) -> int:
    found = raw.result("DescribePartition", path=TOPIC, partition_id=0, include_stats=True)
    return int(found.partition.partition_stats.partition_offsets.end)


def session(raw: RawClient) -> RawStream:
    stream = raw.stream("StreamWrite")
    stream.send(init_request={"path": TOPIC, "producer_id": "p"})
    assert stream.receive().status == Status.SUCCESS
    return stream


def written(stream: RawStream, seq_no: int, size: int) -> None:
    stream.send(write_request={"messages": [{"seq_no": seq_no, "data": bytes(size)}], "codec": 1})


@pytest.mark.parametrize(
    ("segment_bytes", "size", "words"),
    [
        ("256MiB", MAX_MESSAGE_BYTES, f"more than the {MAX_MESSAGE_BYTES} that readers take"),
        ("32MiB", 40_000_000, "what fits sbp.segment_bytes"),
    ],
)
def test_one_that_is_too_large_is_refused_in_band_and_hides_nothing(
    node_factory: NodeFactory, segment_bytes: str, size: int, words: str
) -> None:
    node = node_factory(listen=LISTEN, settings={"sbp.segment_bytes": segment_bytes})
    with RawClient(node.ydb) as raw:
        raw.result("CreateTopic", path=TOPIC)
        stream = session(raw)
        written(stream, 1, 10)
        written(stream, 2, size)
        written(stream, 3, 10)
        first, last = stream.rest()
        assert [ack.written.offset for ack in first.write_response.acks] == [0]
        assert last.status == Status.BAD_REQUEST
        assert words in last.issues[0].message
        again = session(raw)
        written(again, 3, 10)
        assert [ack.written.offset for ack in again.receive().write_response.acks] == [1]
        again.half_close()
        assert again.rest() == []
