"""A node by itself with data of three protocols, and what their clients find before and behind its upgrade."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ydb
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.record.default_records import DefaultRecordBatchBuilder

from pravega_front.names import TRANSACTION
from pravega_front.wire import commands as wire
from pravega_front.wire.controller import ScaleProgress, TxnState, TxnStatus
from tests.clients.raw import exactly
from tests.node_process import ANY, NodeProcess
from tests.pravega_front.controller_client import ControllerClient, scale, stream
from tests.pravega_front.raw_client import RawClient

PATIENCE = 60
ALONE = {**dict.fromkeys(("kafka", "console", "ydb", "pravega", "pravega-segmentstore"), ANY)}
IN_CLUSTER = {**ALONE, **dict.fromkeys(("sbp-pd", "sbp-range-server", "cluster"), ANY)}
SCOPE = "default"
RECORDS = 400
LONG = {"transaction.timeout.ms": 600_000}

Found = dict[str, list[tuple[Any, ...]]]


def settings_of(database: str, objects: str, node: int = 1) -> dict[str, str]:
    """Of a node of the cluster."""
    stored = {"sbp.durability": "object", "sbp.objects": objects, "sbp.object_linger_ms": "10"}
    return stored | {"cluster.database": database, "node.id": f"{node}", "sbp.object_log": f"{node}"}


def command(data: Path, settings: Mapping[str, str], *more: str) -> list[str]:
    """The upgrade's command line."""
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    return [sys.executable, "-m", "bridges", "upgrade-to-cluster", "--data", str(data), *sets, *more]


def upgraded(data: Path, settings: Mapping[str, str], *more: str) -> subprocess.CompletedProcess[str]:
    """The upgrade, run to its end."""
    return subprocess.run(command(data, settings, *more), capture_output=True, text=True, timeout=300, check=False)


def report(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What one that has succeeded says."""
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# --- Kafka ------------------------------------------------------------------------------------------------------------


class RawKafka:
    """Idempotent producing, request by request, at the leader of a partition."""

    def __init__(self, node: NodeProcess, topic: str) -> None:
        self.topic = topic
        known = AdminClient({"bootstrap.servers": node.kafka}).list_topics(topic, timeout=PATIENCE)
        leader = known.brokers[known.topics[topic].partitions[0].leader]
        self._connection = socket.create_connection((leader.host, leader.port), timeout=PATIENCE)

    def _ask(self, api: int, version: int, body: bytes) -> bytes:
        request = struct.pack(">hhih3s", api, version, 1, 3, b"raw") + body
        self._connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", exactly(self._connection, 4))
        return exactly(self._connection, size)[4:]

    def new_producer(self) -> int:
        _, error, number, _ = struct.unpack(">ihqh", self._ask(22, 0, struct.pack(">hi", -1, 60_000)))
        assert error == 0
        return int(number)

    def produce(self, producer: int, sequence: int) -> tuple[int, int]:
        """(error, first offset) of one record."""
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=0,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            batch_size=1 << 16,
        )
        builder.append(0, timestamp=1, key=None, value=b"once %d" % sequence, headers=[])
        records = bytes(builder.build())
        name = self.topic.encode()
        body = struct.pack(f">hhiih{len(name)}siii", -1, -1, 30_000, 1, len(name), name, 1, 0, len(records)) + records
        answer = self._ask(0, 3, body)
        error, offset = struct.unpack_from(">hq", answer, 4 + 2 + len(name) + 4 + 4)
        return int(error), int(offset)

    def close(self) -> None:
        self._connection.close()


def all_records(node: NodeProcess) -> Found:
    """All that readers of committed records find, by partition."""
    servers = {"bootstrap.servers": node.kafka, "enable.auto.commit": False, "isolation.level": "read_committed"}
    consumer = Consumer({**servers, "group.id": "looking", "enable.partition.eof": True, "fetch.wait.max.ms": 20})
    found: Found = {}
    try:
        topics = consumer.list_topics(timeout=PATIENCE).topics
        places = [(name, n) for name, told in topics.items() for n in told.partitions if not name.startswith("_")]
        for name, number in sorted(places):
            low = _begin(consumer, TopicPartition(name, number))
            consumer.assign([TopicPartition(name, number, low)])
            rows = found.setdefault(f"{name}/{number}", [("begins", low)])
            while True:
                message = consumer.poll(PATIENCE)
                assert message is not None, f"{name}/{number}"
                if message.error() is not None:
                    break  # its end
                rows.append((message.offset(), message.key(), message.value(), message.headers(), message.timestamp()))
    finally:
        consumer.close()
    return found


def _begin(consumer: Consumer, place: TopicPartition) -> int:
    """Where a partition begins, which may just be moving to another node."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            low, _ = consumer.get_watermark_offsets(place, PATIENCE)
            return int(low)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > deadline:
                raise
            consumer.list_topics(place.topic, timeout=PATIENCE)


def position(node: NodeProcess, group: str, topic: str, partition: int) -> int:
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, partition)], timeout=PATIENCE)
        return int(found.offset)
    finally:
        consumer.close()


def orders(node: NodeProcess, name: str, count: int, size: int = 100) -> None:
    producer = Producer({"bootstrap.servers": node.kafka, "linger.ms": 1})
    for number in range(count):
        value = b"%s %d " % (name.encode(), number) + b"." * size
        producer.produce("orders", value, key=b"%d" % number, partition=number % 3, headers={"n": b"%d" % number})
        if number % 50 == 0:
            producer.flush(PATIENCE)
    assert producer.flush(PATIENCE) == 0


# --- all of it --------------------------------------------------------------------------------------------------------


class Alone:
    """A node by itself, which is filled, and ended."""

    def __init__(self, data: Path, settings: Mapping[str, str]) -> None:
        self.node = NodeProcess(data, settings=settings, listen={**ALONE, "sbp-pd": "off", "sbp-range-server": "off"})
        self.producer = -1
        self.once = -1
        self.txn: Any = None
        self.read = 0
        """Flights that YDB's consumer has committed."""

    def fill(self) -> None:
        """Topics of all protocols, trimmed, split, scaled and restarted meanwhile; transactions, one of them open."""
        node = self.node.start()
        admin = AdminClient({"bootstrap.servers": node.kafka})
        for future in admin.create_topics([NewTopic("orders", 3, 1), NewTopic("money", 1, 1)]).values():
            future.result(PATIENCE)
        orders(node, "first", RECORDS)
        for future in admin.delete_records(
            [TopicPartition("orders", 0, 77), TopicPartition("orders", 1, 130)]
        ).values():
            future.result(PATIENCE)
        consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "readers"})
        consumer.commit(offsets=[TopicPartition("orders", 2, 41)], asynchronous=False)
        consumer.close()
        transactional = Producer({"bootstrap.servers": node.kafka, "transactional.id": "mover", **LONG})
        transactional.init_transactions(PATIENCE)
        for number in range(4):
            transactional.begin_transaction()
            transactional.produce("money", b"move %d" % number, partition=0)
            (transactional.abort_transaction if number % 2 else transactional.commit_transaction)(PATIENCE)
        self._streams(node)
        node.restart()  # so each partition has another range
        orders(node, "second", RECORDS, 2000)
        with ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local") as driver:
            driver.wait(timeout=PATIENCE, fail_fast=True)
            driver.topic_client.create_topic("flights", consumers=["readers"])
            self.write_flights(driver, *range(1, 21))
            with driver.topic_client.reader("flights", "readers") as reader:
                batch = reader.receive_batch(timeout=PATIENCE)
                assert batch is not None
                reader.commit_with_ack(batch)
                self.read = len(batch.messages)
        self._hanging(node)
        raw = RawKafka(node, "money")
        self.producer = raw.new_producer()
        assert raw.produce(self.producer, 0)[0] == 0
        error, self.once = raw.produce(self.producer, 1)
        assert error == 0
        raw.close()

    def _streams(self, node: NodeProcess) -> None:
        calls = ControllerClient(node.addresses["pravega"])
        info = stream(SCOPE, "events")
        calls.createScope(scope=SCOPE)
        assert calls.createStream(streamInfo=info, scalingPolicy={"minNumSegments": 1}).status == 0
        write_event(node, "events", 0, b"before the scale")
        scale(calls, SCOPE, "events", [0], [[0.0, 0.5], [0.5, 1.0]])
        while calls.checkScale(streamInfo=info, epoch=0).status == ScaleProgress.IN_PROGRESS:
            pass
        self.txn = calls.createTransaction(streamInfo=info, lease=600_000).txnId
        for number in (1, 2):
            name = f"{SCOPE}/events/{number}.#epoch.1{TRANSACTION}{self.txn.highBits:016x}{self.txn.lowBits:016x}"
            write_segment(node, name, b"in the transaction")
        calls.close()

    def _hanging(self, node: NodeProcess) -> None:
        """A transaction that is open when the node ends: its client is killed."""
        program = (
            "import os, signal, sys; from confluent_kafka import Producer\n"
            "p = Producer({'bootstrap.servers': sys.argv[1], 'transactional.id': 'hanging', "
            "'transaction.timeout.ms': 600000})\n"
            "p.init_transactions(60); p.begin_transaction(); p.produce('money', b'never', partition=0)\n"
            "assert p.flush(60) == 0; os.kill(os.getpid(), signal.SIGKILL)"
        )
        done = subprocess.run([sys.executable, "-c", program, node.kafka], timeout=PATIENCE, check=False)
        assert done.returncode == -9

    @staticmethod
    def write_flights(driver: ydb.Driver, *numbers: int) -> None:
        with driver.topic_client.writer("flights", producer_id="tower", auto_seqno=False) as writer:
            for number in numbers:
                writer.write_with_ack(ydb.TopicWriterMessage(b"flight %d" % number, seqno=number), timeout=PATIENCE)


def write_segment(node: NodeProcess, name: str, *events: bytes) -> None:
    with RawClient(node.addresses["pravega-segmentstore"]) as client:
        writer = os.urandom(16)
        client.ask(wire.SetupAppend(1, writer, name, ""), wire.AppendSetup)
        data = b"".join(struct.pack(">ii", 0, len(one)) + one for one in events)
        client.ask(wire.AppendBlockEnd(writer, len(data), data, len(events), len(events), 1), wire.DataAppended)


def write_event(node: NodeProcess, name: str, number: int, data: bytes) -> None:
    write_segment(node, f"{SCOPE}/{name}/{number}.#epoch.0", data)


def await_commit(calls: ControllerClient, txn: Any) -> None:
    """A transaction of the stream that was open all the time."""
    info = stream(SCOPE, "events")
    assert calls.checkTransactionState(streamInfo=info, txnId=txn).status == TxnState.OPEN
    assert calls.commitTransaction(streamInfo=info, txnId=txn).status == TxnStatus.SUCCESS
    while (state := calls.checkTransactionState(streamInfo=info, txnId=txn).status) == TxnState.COMMITTING:
        pass
    assert state == TxnState.COMMITTED
