"""One topic, three protocols: YDB's, Pravega's and Kafka's clients read what the others wrote, at the same places."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
import ydb
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pravega_client import StreamManager

from kafka_front.wire import messages as kafka
from pravega_front.names import TRANSACTION
from pravega_front.wire import commands as wire
from pravega_front.wire.controller import TxnState, TxnStatus
from tests.conftest import TEST_SETTINGS
from tests.kafka_front.test_session import Client as KafkaClient
from tests.kit.wheel import read_events
from tests.node_process import ANY, NodeProcess
from tests.pravega_front.controller_client import ControllerClient, stream
from tests.pravega_front.raw_client import RawClient as Segments
from tests.pravega_front.raw_client import event
from tests.test_what_clients_send import BROKEN, Sent, batch_of, laid
from tests.ydb_topic_front.raw import RawClient as RawYdb
from tests.ydb_topic_front.reading import Session, write
from tests.ydb_topic_front.service.test_transactions import Client as QueryClient
from tests.ydb_topic_front.service.test_transactions import Writer as TransactionalWriter
from ydb_topic_front.wire.statuses import Status

PATIENCE = 90
LISTENERS = dict.fromkeys(("kafka", "ydb", "pravega", "pravega-segmentstore", "console"), ANY)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    listen = {**LISTENERS, "sbp-pd": "off", "sbp-range-server": "off"}
    process = NodeProcess(tmp_path_factory.mktemp("three") / "data", settings=TEST_SETTINGS, listen=listen)
    try:
        yield process.start()
    finally:
        process.dispose()


@pytest.fixture
def raw(node: NodeProcess) -> Iterator[RawYdb]:
    with RawYdb(node.ydb) as client:
        yield client


@pytest.fixture
def segments(node: NodeProcess) -> Iterator[Segments]:
    with Segments(node.addresses["pravega-segmentstore"]) as client:
        yield client


@pytest.fixture
def controller(node: NodeProcess) -> Iterator[ControllerClient]:
    client = ControllerClient(node.addresses["pravega"])
    client.createScope(scope="default")  # or it is there already
    try:
        yield client
    finally:
        client.close()


def segment(name: str, number: int = 0) -> str:
    return f"default/{name}/{number}.#epoch.0"


def set_up(client: Segments, name: str) -> bytes:
    writer = uuid4().bytes
    client.ask(wire.SetupAppend(1, writer, name, ""), wire.AppendSetup)
    return writer


def appended(client: Segments, name: str, *events: bytes) -> tuple[bytes, int]:
    """(writer id, length of the segment) of events appended at once."""
    writer = set_up(client, name)
    data = b"".join(map(event, events))
    done = client.ask(wire.AppendBlockEnd(writer, len(data), data, len(events), len(events), 1), wire.DataAppended)
    return writer, done.current_segment_write_offset


def end_of(client: Segments, name: str) -> int:
    return client.ask(wire.GetStreamSegmentInfo(1, name, ""), wire.StreamSegmentInfo).write_offset


def bytes_from(client: Segments, name: str, position: int) -> bytes:
    """All of a segment behind a position."""
    found = b""
    end = end_of(client, name)
    while position + len(found) < end:
        found += client.ask(wire.ReadSegment(name, position + len(found), 1 << 20, "", 1), wire.SegmentRead).data
    return found


def messages(raw: RawYdb, path: str, count: int, start: int = 0) -> list[tuple[Any, Any]]:
    """(message, its batch) of partition 0, read without a consumer from an offset on."""
    session = Session(raw, consumer="", topics_read_settings=[{"path": path, "partition_ids": [0]}])
    session.started(read_offset=start)
    found: list[tuple[Any, Any]] = []
    while len(found) < count:
        for data in session.receive("read_response").partition_data:
            found += [(one, batch) for batch in data.batches for one in batch.message_data]
    session.end()
    return found


def items(message: Any) -> list[tuple[str, bytes]]:
    return [(one.key, one.value) for one in message.metadata_items]


def consumed(node: NodeProcess, topic: str, count: int) -> list[tuple[int, bytes]]:
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "direct", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[tuple[int, bytes]] = []
        while len(found) < count:
            message = consumer.poll(PATIENCE)
            assert message is not None
            assert message.error() is None, message.error()
            found.append((message.offset(), message.value()))
        return found
    finally:
        consumer.close()


def page(node: NodeProcess, path: str) -> Any:
    with urllib.request.urlopen(f"{node.console}{path}", timeout=PATIENCE) as answer:
        return json.load(answer)


def test_what_each_wrote_is_read_by_all_at_the_same_offsets(node: NodeProcess) -> None:
    write_and_read_with_each(node, "flights")


def write_and_read_with_each(node: NodeProcess, name: str) -> None:
    """Write to a new topic with a client of each protocol in turn, and read all of it with each."""
    with ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local") as driver:
        driver.wait(timeout=PATIENCE, fail_fast=True)
        driver.topic_client.create_topic(name, consumers=["readers"])
        streams = StreamManager(f"tcp://{node.addresses['pravega']}")
        pravega = streams.create_writer("default", name)
        kafka = Producer({"bootstrap.servers": node.kafka})
        expected: list[bytes] = []
        with driver.topic_client.writer(name, producer_id="p", codec=ydb.TopicCodec.GZIP) as writer:
            for number in range(10):
                writer.write_with_ack(f"ydb {number}", timeout=PATIENCE)
                pravega.write_event(f"pravega {number}", routing_key="key")
                pravega.flush()
                kafka.produce(name, b"kafka %d" % number, b"key", partition=0)
                assert kafka.flush(PATIENCE) == 0
                expected += [b"%s %d" % (who, number) for who in (b"ydb", b"pravega", b"kafka")]
        with driver.topic_client.reader(name, "readers") as reader:
            found: list[tuple[int, bytes]] = []
            while len(found) < len(expected):
                batch = reader.receive_batch(timeout=PATIENCE)
                found += [(one.offset, one.data) for one in batch.messages]
                reader.commit_with_ack(batch, timeout=PATIENCE)
    assert found == list(enumerate(expected))
    assert consumed(node, name, len(expected)) == found
    group = streams.create_reader_group("readers", "default", name)
    assert asyncio.run(read_events(group.create_reader("one"), len(expected))) == expected

    (shown,) = [one for one in page(node, "/api/topics")["topics"] if one["name"] == name]
    assert shown["records"] == len(expected)
    for front in ("kafka", "ydb", "pravega"):
        assert shown["traffic"][front]["records_in"] == 10, front
        assert shown["traffic"][front]["bytes_out"] > 0, front
    with urllib.request.urlopen(f"{node.console}/metrics", timeout=PATIENCE) as answer:
        lines = answer.read().decode().splitlines()
    for front in ("kafka", "ydb", "pravega"):
        assert any(f'front="{front}"' in line and f'topic="{name}"' in line for line in lines), front
    command = [sys.executable, "-m", "bridges", "tail", name, "--from", "earliest", "--limit", "30", "--json"]
    tail = subprocess.run([*command, "--node", node.console], capture_output=True, text=True, timeout=60, check=False)
    assert [json.loads(line)["value"].encode() for line in tail.stdout.splitlines()] == expected, tail.stderr


def test_a_transaction_of_ydb_is_read_by_all_when_it_is_committed(node: NodeProcess, raw: RawYdb) -> None:
    streams = StreamManager(f"tcp://{node.addresses['pravega']}", False, False)
    streams.create_scope("default")
    names = [f"ydbtx-{number}-{uuid4().hex[:8]}" for number in range(2)]
    client = QueryClient(raw)
    tx = client.begin()
    for name in names:
        raw.result("CreateTopic", path=f"/local/{name}", consumers=[{"name": "c"}])
        writer = TransactionalWriter(raw, f"/local/{name}", producer_id="p")
        writer.stage(tx, 1, 2)
        write(raw, f"/local/{name}", b"before")
        # An open transaction holds up no reader.
        assert consumed(node, name, 1) == [(0, b"before")]
    assert client.commit(tx).status == Status.SUCCESS
    for name in names:
        expected = [b"before", b"1", b"2"]
        assert [value for _, value in consumed(node, name, 3)] == expected
        reader = Session(raw, f"/local/{name}", consumer="c")
        reader.started()
        assert [message.data for message in reader.read(3)] == expected
        group = streams.create_reader_group(f"readers-{name}", "default", name)
        assert asyncio.run(read_events(group.create_reader("one"), 3)) == expected
    client.stream.cancel()


def test_every_field_of_an_event_on_its_way_to_ydb(
    raw: RawYdb, segments: Segments, controller: ControllerClient
) -> None:
    name = "from-pravega"
    assert controller.createStream(streamInfo=stream("default", name), scalingPolicy={"minNumSegments": 1}).status == 0
    before = time.time()
    writer, _ = appended(segments, segment(name), b"one", b"", b"three")
    anonymous = set_up(segments, segment(name))
    segments.ask(wire.AppendBlockEnd(anonymous, 5, b"bytes", 1, 1, 1), wire.DataAppended)
    found = messages(raw, name, 4)
    assert [(one.offset, one.data) for one, _ in found] == [(0, b"one"), (1, b""), (2, b"three"), (3, b"bytes")]
    # No key, no headers; an event of no bytes is no tombstone; what is no event says so.
    assert [items(one) for one, _ in found] == [[], [], [], [("anabranch.codec", b"pravega.bytes")]]
    assert [one.seq_no for one, _ in found[:3]] == [1, 2, 3], "the events' numbers"
    for message, batch in found:
        assert before - 1 <= message.created_at.seconds <= time.time()
        assert batch.codec == 1
    assert [batch.producer_id for _, batch in found[:3]] == [f"pravega:{UUID(bytes=writer)}"] * 3


def test_every_field_of_a_message_on_its_way_to_pravega(raw: RawYdb, segments: Segments) -> None:
    name = "from-ydb"
    damaged = gzip.compress(b"damaged")[:-6]
    raw.result("CreateTopic", path=name)
    item = [{"key": "__key", "value": b"key"}, {"key": "header", "value": b"h"}]
    write(raw, name, b"plain", metadata_items=item)
    write(raw, name, b"", metadata_items=[{"key": "anabranch.tombstone", "value": b""}])
    write(raw, name, gzip.compress(b"packed"), damaged, codec=2)
    write(raw, name, b"?!", codec=10_007)
    values = [b"plain", b"", b"packed", damaged, b"?!"]
    assert bytes_from(segments, segment(name), 0) == b"".join(map(event, values))


def test_positions_in_bytes_stay_over_truncation_and_restart(
    node: NodeProcess, raw: RawYdb, segments: Segments
) -> None:
    name = "positions"
    raw.result("CreateTopic", path=name)
    at = [0]
    for number in range(5):
        write(raw, name, b"ydb %d" % number)
        at.append(end_of(segments, segment(name)))
        _, end = appended(segments, segment(name), b"pravega %d" % number)
        at.append(end)
    values = [b"%s %d" % (who, number) for number in range(5) for who in (b"ydb", b"pravega")]
    lengths = [len(event(one)) for one in values]
    assert at == [sum(lengths[:number]) for number in range(11)]
    segments.ask(wire.TruncateSegment(1, segment(name), at[3], ""), wire.SegmentTruncated)
    node.restart(kill=True)
    write(raw, name, b"later")
    values.append(b"later")
    with Segments(node.addresses["pravega-segmentstore"]) as again:
        info = again.ask(wire.GetStreamSegmentInfo(1, segment(name), ""), wire.StreamSegmentInfo)
        assert (info.start_offset, info.write_offset) == (at[3], at[10] + len(event(b"later")))
        for number in (3, 4, 7, 10):
            assert bytes_from(again, segment(name), at[number]) == b"".join(map(event, values[number:]))
        again.ask(wire.ReadSegment(segment(name), 0, 10, "", 1), wire.SegmentIsTruncated)
    found = messages(raw, name, 8, start=3)
    assert [(one.offset, one.data) for one, _ in found] == list(enumerate(values))[3:]


def test_a_split_by_ydb_leaves_pravegas_transactions_open(
    raw: RawYdb, segments: Segments, controller: ControllerClient
) -> None:
    name = "split"
    info = stream("default", name)
    assert controller.createStream(streamInfo=info, scalingPolicy={"minNumSegments": 1}).status == 0
    txn = controller.createTransaction(streamInfo=info, lease=30_000).txnId
    appended(segments, f"{segment(name)}{TRANSACTION}{txn.highBits:016x}{txn.lowBits:016x}", b"accepted")
    wanted = {"set_min_active_partitions": 2, "alter_auto_partitioning_settings": {"set_strategy": 2}}
    raw.result("AlterTopic", path=name, alter_partitioning_settings=wanted)
    assert controller.checkTransactionState(streamInfo=info, txnId=txn).status == TxnState.OPEN
    assert controller.commitTransaction(streamInfo=info, txnId=txn).status == TxnStatus.SUCCESS
    while controller.checkTransactionState(streamInfo=info, txnId=txn).status == TxnState.COMMITTING:
        pass
    assert controller.checkTransactionState(streamInfo=info, txnId=txn).status == TxnState.COMMITTED
    # The segment once more, behind the split, and its parts once more behind that (docs/pravega.md, "Promises").
    assert bytes_from(segments, "default/split/3.#epoch.2", 0) == event(b"accepted")
    ranges = controller.getCurrentSegments(scope="default", stream=name).segmentRanges
    assert [one.segmentId.segmentId & 0xFFFFFFFF for one in ranges] == [4, 5]


def by_kafka(node: NodeProcess, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})  # its futures end with it
    admin.delete_topics([name])[name].result(PATIENCE)


def by_ydb(node: NodeProcess, name: str) -> None:
    with RawYdb(node.ydb) as client:
        client.result("DropTopic", path=name)


def by_pravega(node: NodeProcess, name: str) -> None:
    client = ControllerClient(node.addresses["pravega"])
    try:
        for call in (client.sealStream, client.deleteStream):
            assert call(scope="default", stream=name).status == 0
    finally:
        client.close()


@pytest.mark.parametrize("delete", [by_kafka, by_ydb, by_pravega])
def test_whoever_uses_a_topic_is_told_that_it_was_deleted(
    node: NodeProcess,
    raw: RawYdb,
    segments: Segments,
    controller: ControllerClient,
    delete: Callable[[NodeProcess, str], None],
) -> None:
    name = f"deleted-{delete.__name__}".replace("_", "-")
    info = stream("default", name)
    assert controller.createStream(streamInfo=info, scalingPolicy={"minNumSegments": 1}).status == 0
    writer, end = appended(segments, segment(name), b"before")
    txn = controller.createTransaction(streamInfo=info, lease=30_000).txnId
    session = Session(raw, consumer="", topics_read_settings=[{"path": name, "partition_ids": [0]}])
    session.started()
    writing = raw.stream("StreamWrite")
    writing.send(init_request={"path": name})
    assert writing.receive().status == Status.SUCCESS
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "direct", "enable.auto.commit": False})
    consumer.assign([TopicPartition(name, 0, 0)])
    first = consumer.poll(PATIENCE)
    assert first is not None
    assert first.value() == b"before"
    with Segments(node.addresses["pravega-segmentstore"]) as parked:
        parked.send(wire.ReadSegment(segment(name), end, 100, "", 5))
        end_of(parked, segment(name))  # the read has been taken
        delete(node, name)

        told = parked.receive(wire.Command)
        assert isinstance(told, wire.NoSuchSegment | wire.SegmentIsSealed | wire.SegmentRead)
        parked.ask(wire.ReadSegment(segment(name), end, 100, "", 6), wire.NoSuchSegment)
    late = wire.AppendBlockEnd(writer, 12, event(b"late"), 1, 2, 2)
    segments.ask(late, wire.NoSuchSegment)
    ended = controller.commitTransaction(streamInfo=info, txnId=txn)
    assert ended.status == TxnStatus.TRANSACTION_NOT_FOUND
    assert session.refusal()[0] == Status.SCHEME_ERROR
    assert [one.status for one in writing.rest()] == [Status.SCHEME_ERROR]
    # It says nothing when an assigned partition goes, but knows it when it asks.
    metadata = consumer.list_topics(name, PATIENCE).topics[name]
    assert metadata.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    consumer.close()
    # Another of the name has nothing of it, and nothing of the transaction either.
    assert controller.createStream(streamInfo=info, scalingPolicy={"minNumSegments": 1}).status == 0
    assert controller.checkTransactionState(streamInfo=info, txnId=txn).status == TxnState.UNKNOWN
    assert end_of(segments, segment(name, 1)) == 0
    write(raw, name, b"anew")
    assert [one.data for one, _ in messages(raw, name, 1)] == [b"anew"]


def test_a_hanging_kafka_transaction_holds_up_readers_of_every_protocol_until_its_time_is_over(
    node: NodeProcess, raw: RawYdb, segments: Segments
) -> None:
    name, timeout_ms = "hanging", 6_000
    raw.result("CreateTopic", path=name, consumers=[{"name": "sdk"}])
    write(raw, name, b"before")
    transactional = {"transactional.id": "orders", "transaction.timeout.ms": timeout_ms}
    hanging = Producer({"bootstrap.servers": node.kafka, **transactional})
    hanging.init_transactions(PATIENCE)
    hanging.begin_transaction()
    hanging.produce(name, b"never", partition=0)
    assert hanging.flush(PATIENCE) == 0
    began = time.monotonic()
    write(raw, name, b"ydb")
    appended(segments, segment(name), b"pravega")

    session = Session(raw, consumer="", topics_read_settings=[{"path": name, "partition_ids": [0]}])
    number = session.started(read_offset=0).partition_session.partition_session_id
    (before,) = session.read(1)
    at = end_of(segments, segment(name))
    assert (before.data, bytes_from(segments, segment(name), 0)) == (b"before", event(b"before"))
    with (
        ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local") as driver,
        driver.topic_client.reader(name, "sdk") as reader,
        Segments(node.addresses["pravega-segmentstore"]) as parked,
    ):
        found = [one.data for one in reader.receive_batch(timeout=PATIENCE).messages]
        assert found == [b"before"]
        parked.send(wire.ReadSegment(segment(name), at, 1000, "", 1))
        session.stream.send(partition_session_status_request={"partition_session_id": number})
        told = session.receive("partition_session_status_response")
        held = page(node, f"/api/topics/{name}/partitions/0/transactions")
        assert time.monotonic() - began < timeout_ms / 1000, (
            "this machine is too slow: nothing of this was seen in time"
        )
        assert (held["last_stable_offset"], held["end_offset"]) == (1, 4)
        assert [one["transaction"]["transactional_id"] for one in held["transactions"]] == ["orders"]
        assert session.nothing_but(), told
        # Nobody ends it but its time.
        later = session.read(2)
        assert time.monotonic() - began > timeout_ms / 1000 - 1
        assert [(one.offset, one.data) for one in later] == [(2, b"ydb"), (3, b"pravega")]
        while len(found) < 3:
            found += [one.data for one in reader.receive_batch(timeout=PATIENCE).messages]
        assert found == [b"before", b"ydb", b"pravega"]
        answer = parked.receive(wire.SegmentRead)
        assert event(b"ydb").startswith(bytes(answer.data[:8]))
        assert bytes_from(segments, segment(name), at) == event(b"ydb") + event(b"pravega")
    assert page(node, f"/api/topics/{name}/partitions/0/transactions")["transactions"] == []
    with pytest.raises(KafkaException) as fenced:
        hanging.commit_transaction(PATIENCE)
    assert fenced.value.args[0].code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    with urllib.request.urlopen(f"{node.console}/metrics", timeout=PATIENCE) as metrics:
        assert 'anabranch_transactions_timed_out_total{front="kafka"} 1.0' in metrics.read().decode()


async def produce(node: NodeProcess, topic: str, *batches: bytes) -> None:
    """Store batches as a Kafka client sends them, whatever its library makes of records."""
    host, _, port = node.kafka.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    client = KafkaClient(reader, writer)
    for batch in batches:
        data = kafka.ProduceRequest.PartitionProduceData(index=0, records=batch)
        named = kafka.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
        answer = await client.call(9, kafka.ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[named]))
        assert answer.responses[0].partition_responses[0].error_code == 0
    writer.close()


def test_a_record_that_nobody_can_read_stops_readers_at_its_offset_and_not_before(
    node: NodeProcess, raw: RawYdb, segments: Segments
) -> None:
    name = "broken"
    raw.result("CreateTopic", path=name)
    sent = [Sent(b"zero"), Sent(b"one"), Sent(b"two", headers=((b"caf\xe9", b"x"),)), Sent(b"four")]
    broken = [laid(sent[1], 0), laid(sent[2], 1), BROKEN, laid(sent[3], 3)]
    batches = (batch_of([laid(sent[0], 0)]), batch_of(broken), batch_of([laid(Sent(b"five"), 0)]))
    asyncio.run(produce(node, name, *(bytes(one.payload) for one in batches)))

    session = Session(raw, consumer="", topics_read_settings=[{"path": name, "partition_ids": [0]}])
    session.started()
    read = session.read(3)
    assert [(one.offset, one.data) for one in read] == [(0, b"zero"), (1, b"one"), (2, b"two")]
    assert items(read[2]) == [("caf\N{REPLACEMENT CHARACTER}", b"x"), ("anabranch.lossy", b"0")]
    status, reason = session.refusal()
    assert status == Status.GENERIC_ERROR
    assert "at offset 3" in reason

    good = b"".join(map(event, (b"zero", b"one", b"two")))
    end = end_of(segments, segment(name))
    assert end == len(good) + 8 + len(event(b"five")), "what is wrong has a place"
    found = b""
    while len(found) < len(good):
        found += segments.ask(wire.ReadSegment(segment(name), len(found), 1 << 20, "", 1), wire.SegmentRead).data
    assert found == good
    began = time.monotonic()
    for _ in range(4):
        with Segments(node.addresses["pravega-segmentstore"]) as again:
            again.send(wire.ReadSegment(segment(name), len(good), 1 << 20, "", 1))
            assert again.ends()
    assert time.monotonic() - began > 0.35, "who comes back at once is let go later each time"

    command = [sys.executable, "-m", "bridges", "topic", "skip", name, "3", "--yes", "--node", node.console]
    subprocess.run(command, check=True, timeout=60, capture_output=True)
    assert [(one.offset, one.data) for one, _ in messages(raw, name, 1, start=3)] == [(5, b"five")]
    with Segments(node.addresses["pravega-segmentstore"]) as again:
        told = again.ask(wire.ReadSegment(segment(name), len(good), 1 << 20, "", 1), wire.SegmentIsTruncated)
        assert bytes_from(again, segment(name), told.start_offset) == event(b"five")


def test_writers_are_told_that_a_topic_was_ended_and_come_no_more(raw: RawYdb, controller: ControllerClient) -> None:
    name = "ended"
    info = stream("default", name)
    assert controller.createStream(streamInfo=info, scalingPolicy={"minNumSegments": 1}).status == 0
    writing = raw.stream("StreamWrite")
    writing.send(init_request={"path": name, "producer_id": "p"})
    writing.receive()
    assert controller.sealStream(scope="default", stream=name).status == 0
    writing.send(write_request={"messages": [{"seq_no": 1, "data": b"late"}], "codec": 1})
    ends = [writing.rest()[-1]]
    for more in ({"producer_id": "p"}, {"producer_id": "new"}, {}, {"partition_id": 0}):
        later = raw.stream("StreamWrite")
        later.send(init_request={"path": name, **more})
        ends.append(later.rest()[-1])
    assert {end.status for end in ends} == {Status.PRECONDITION_FAILED}
    assert all("was ended" in end.issues[0].message for end in ends), ends
