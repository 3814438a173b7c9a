"""The demonstration: 336,776 flights of 2013 go through a node with unchanged clients and come back the same.

    python -m benchmarks.demo                    # starts a node of its own on free ports
    python -m benchmarks.demo --broker kafka     # the same against Apache Kafka
    python -m benchmarks.demo --broker HOST:PORT

Three client libraries of Kafka and YDB's SDK write to one topic, each with another codec, and read it back by
assignment and as members of groups. Every record is compared: key, value, timestamp, header, order within its key,
offsets without holes. Pravega's client reads the topic as a stream of events, which have values only, and writes a
stream that Kafka's client reads. A broker that is not ours gets the part of Kafka's clients. Exit code 1 on any
difference.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonTopicPartition
from rich.console import Console
from rich.table import Table

from benchmarks.demo_fronts import CONSUMER, read_pravega, read_ydb, write_pravega, write_ydb
from benchmarks.demo_lake import archive_flights, audit_flights, spark_engine
from benchmarks.demo_spark import count_flights
from benchmarks.flights import PARTITIONS, PATIENCE, DemoFailed, Flight, Seen, read_flights
from benchmarks.kafka_broker import KafkaBroker
from spark_pipeline.spark.session import JavaMissing, require_java
from tests.node_process import ANY, FRONTS, SELDOM, NodeProcess


@dataclass(slots=True)
class Step:
    """One line of the table that is printed at the end."""

    name: str
    records: int
    seconds: float
    checks: list[str] = field(default_factory=list)


# --- writing ---------------------------------------------------------------------------------------------------------


def write_confluent(bootstrap: str, topic: str, flights: Sequence[Flight]) -> None:
    """confluent-kafka: idempotent, zstd. Raises DemoFailed on any refused record."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "zstd",
            "partitioner": "murmur2_random",  # what the other clients use: a key keeps its partition
            "linger.ms": 5,
            "queue.buffering.max.messages": 500_000,
        }
    )
    errors: list[str] = []

    def delivered(error: object, _: Message) -> None:
        if error is not None:
            errors.append(str(error))

    for flight in flights:
        while True:
            try:
                producer.produce(
                    topic,
                    flight.value,
                    flight.key,
                    timestamp=flight.timestamp,
                    headers=[("carrier", flight.carrier)],
                    on_delivery=delivered,
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(PATIENCE)
    if left or errors:
        raise DemoFailed(f"confluent-kafka: {left} records unanswered, {len(errors)} refused: {errors[:3]}")


def write_kafka_python(bootstrap: str, topic: str, flights: Sequence[Flight]) -> None:
    """kafka-python: acks=all, lz4. Raises the library's error on any refused record."""
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, acks="all", compression_type="lz4", linger_ms=5, batch_size=65536
    )
    try:
        answers = [
            producer.send(
                topic,
                flight.value,
                flight.key,
                timestamp_ms=flight.timestamp,
                headers=[("carrier", flight.carrier)],
            )
            for flight in flights
        ]
        producer.flush(PATIENCE)
        for answer in answers:
            answer.get(PATIENCE)
    finally:
        producer.close()


async def write_aiokafka(bootstrap: str, topic: str, flights: Sequence[Flight]) -> None:
    """aiokafka: idempotent, gzip. Raises the library's error on any refused record."""
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=True,
        compression_type="gzip",
        linger_ms=5,
        max_batch_size=65536,
    )
    await producer.start()
    try:
        answers = []
        for flight in flights:
            answers.append(
                await producer.send(
                    topic,
                    flight.value,
                    flight.key,
                    timestamp_ms=flight.timestamp,
                    headers=[("carrier", flight.carrier)],
                )
            )
        await asyncio.wait_for(asyncio.gather(*answers), PATIENCE)
    finally:
        await producer.stop()


# --- reading ---------------------------------------------------------------------------------------------------------


def _seen(message: Message) -> Seen:
    error = message.error()
    if error is not None:
        raise KafkaException(error)
    headers: Any = message.headers() or [("", b"")]
    value, key, partition, offset = message.value(), message.key(), message.partition(), message.offset()
    assert isinstance(value, bytes)
    assert isinstance(key, bytes)
    assert partition is not None
    assert offset is not None
    return Seen(partition, offset, key, value, message.timestamp()[1], headers[0][1])


def _until(enough: Callable[[], bool], grown: Callable[[], int]) -> Iterator[None]:
    """Yield until ``enough``; raise DemoFailed when ``grown`` has not changed for PATIENCE seconds."""
    last, since = grown(), time.monotonic()
    while not enough():
        yield
        if grown() != last:
            last, since = grown(), time.monotonic()
        elif time.monotonic() - since > PATIENCE:
            raise DemoFailed(f"no record came for {PATIENCE} s after {last}")


def read_values(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """confluent-kafka, all partitions assigned by hand: values, in the order of each partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"unused-{uuid.uuid4()}", "enable.auto.commit": False}
    )
    found: list[bytes] = []
    try:
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
        for _ in _until(lambda: len(found) >= count, lambda: len(found)):
            for message in consumer.consume(10_000, 0.5):
                value = message.value()
                if message.error() is not None or not isinstance(value, bytes):
                    raise DemoFailed(f"confluent-kafka read {message.error() or value!r}")
                found.append(value)
    finally:
        consumer.close()
    return found


def read_assigned(bootstrap: str, topic: str, count: int) -> list[Seen]:
    """confluent-kafka, all partitions assigned by hand, from the beginning."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"unused-{uuid.uuid4()}", "enable.auto.commit": False}
    )
    seen: list[Seen] = []
    try:
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
        for _ in _until(lambda: len(seen) >= count, lambda: len(seen)):
            seen.extend(_seen(message) for message in consumer.consume(10_000, 0.5))
    finally:
        consumer.close()
    return seen


def read_group(bootstrap: str, topic: str, count: int, members: int) -> tuple[list[Seen], list[int], int]:
    """A confluent-kafka group; what it read, how many records each member read, and the sum of committed offsets.

    The members join while records flow, so that the group rebalances in between; each commits what it has read before
    it gives partitions away, so nothing is read twice. After a third of the records all wait for the last member.
    """
    group = f"demo-{uuid.uuid4()}"
    seen: list[Seen] = []
    shares = [0] * members
    holders: set[int] = set()  # members with an assignment
    lock = threading.Lock()
    finished = threading.Event()
    errors: list[BaseException] = []

    def member(number: int) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 10_000,
                "partition.assignment.strategy": "range",
            }
        )

        def granted(_: Consumer, partitions: list[TopicPartition]) -> None:
            if partitions:
                holders.add(number)

        def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
            held = [position for position in consumer.position(partitions) if position.offset >= 0]
            if held:
                consumer.commit(offsets=held, asynchronous=False)

        try:
            consumer.subscribe([topic], on_assign=granted, on_revoke=revoked)
            paused = False
            while not finished.is_set():
                got = [_seen(message) for message in consumer.consume(2_000, 0.2)]
                with lock:
                    seen.extend(got)
                    shares[number] += len(got)
                waiting = len(seen) > count // 3 and len(holders) < members
                if waiting:
                    consumer.pause(consumer.assignment())
                elif paused:
                    consumer.resume(consumer.assignment())
                paused = waiting
        except BaseException as error:
            errors.append(error)
            finished.set()
            raise
        finally:
            consumer.close()

    threads = [threading.Thread(target=member, args=(number,), name=f"member-{number}") for number in range(members)]
    for thread in threads:
        thread.start()
    try:
        for _ in _until(lambda: len(seen) >= count or finished.is_set(), lambda: len(seen)):
            finished.wait(0.05)
    finally:
        finished.set()
        for thread in threads:
            thread.join()
    if errors:
        raise DemoFailed(f"a member of the group ended with {errors[0]!r}")
    return seen, shares, committed_sum(bootstrap, topic, group)


def committed_sum(bootstrap: str, topic: str, group: str) -> int:
    """Sum of the group's committed offsets over all partitions."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        positions = consumer.committed([TopicPartition(topic, index) for index in range(PARTITIONS)], 30)
        return sum(max(0, position.offset) for position in positions)
    finally:
        consumer.close()


async def read_group_aiokafka(bootstrap: str, topic: str, count: int, members: int) -> list[Seen]:
    """An aiokafka group whose members are all there before the first record is read."""
    group = f"demo-{uuid.uuid4()}"
    seen: list[Seen] = []
    assigned: dict[int, int] = {}
    complete = asyncio.Event()

    class Assigned(ConsumerRebalanceListener):  # type: ignore[misc]
        """Tells when the members hold all partitions between them."""

        def __init__(self, number: int) -> None:
            self.number = number

        async def on_partitions_revoked(self, revoked: Iterable[object]) -> None:
            assigned.pop(self.number, None)

        async def on_partitions_assigned(self, got: Iterable[object]) -> None:
            assigned[self.number] = len(list(got))
            if len(assigned) == members and sum(assigned.values()) == PARTITIONS and all(assigned.values()):
                complete.set()

    consumers = [
        AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
        )
        for _ in range(members)
    ]
    try:
        for number, consumer in enumerate(consumers):
            await consumer.start()
            consumer.subscribe([topic], listener=Assigned(number))
        await asyncio.wait_for(complete.wait(), PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while len(seen) < count:
            if time.monotonic() > deadline:
                raise DemoFailed(f"aiokafka read {len(seen)} of {count} records in {PATIENCE} s")
            for consumer in consumers:
                for messages in (await consumer.getmany(timeout_ms=50)).values():
                    seen += [
                        Seen(m.partition, m.offset, m.key, m.value, m.timestamp, m.headers[0][1]) for m in messages
                    ]
    finally:
        for consumer in consumers:
            await consumer.stop()
    return seen


def read_kafka_python(bootstrap: str, topic: str, partition: int, count: int) -> list[Seen]:
    """kafka-python, one partition assigned by hand."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest")
    place = PythonTopicPartition(topic, partition)
    seen: list[Seen] = []
    try:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        for _ in _until(lambda: len(seen) >= count, lambda: len(seen)):
            for messages in consumer.poll(timeout_ms=500, max_records=5_000).values():
                seen.extend(Seen(m.partition, m.offset, m.key, m.value, m.timestamp, m.headers[0][1]) for m in messages)
    finally:
        consumer.close()
    return seen


# --- checks ----------------------------------------------------------------------------------------------------------


def digest(records: Iterable[tuple[bytes, bytes, int, bytes]]) -> str:
    """SHA-256 over key, value, timestamp and header of records in the order given."""
    total = hashlib.sha256()
    for key, value, timestamp, carrier in records:
        total.update(b"%d %d %d %d " % (len(key), len(value), timestamp, len(carrier)) + key + value + carrier)
    return total.hexdigest()


def compare(flights: Sequence[Flight], seen: Sequence[Seen]) -> list[str]:
    """Compare what was read with what was sent; the names of the checks made. Raises DemoFailed at a difference."""
    if len(seen) != len(flights):
        raise DemoFailed(f"{len(flights)} records were sent and {len(seen)} read")
    expected = {flight.number: flight for flight in flights}
    numbered = sorted(((int(json.loads(record.value)["n"]), record) for record in seen), key=lambda pair: pair[0])
    for number, record in numbered:
        flight = expected.pop(number, None)
        if flight is None:
            raise DemoFailed(f"record {number} was read twice or never sent")
        sent = (flight.key, flight.value, flight.timestamp, flight.carrier)
        if sent != (record.key, record.value, record.timestamp, record.carrier):
            raise DemoFailed(f"record {number} was sent as {flight} and read as {record}")
    ordered_sent = ((f.key, f.value, f.timestamp, f.carrier) for f in sorted(flights, key=lambda f: f.number))
    ordered_seen = ((r.key, r.value, r.timestamp, r.carrier) for _, r in numbered)
    if digest(ordered_sent) != digest(ordered_seen):
        raise DemoFailed("the digests of what was sent and read differ")
    homes: dict[bytes, tuple[int, int]] = {}
    for number, record in numbered:
        partition, offset = homes.get(record.key, (record.partition, -1))
        if partition != record.partition or offset >= record.offset:
            raise DemoFailed(f"records of key {record.key!r} are out of order at record {number}")
        homes[record.key] = (record.partition, record.offset)
    offsets: dict[int, list[int]] = {}
    for record in seen:
        offsets.setdefault(record.partition, []).append(record.offset)
    for partition, found in offsets.items():
        if sorted(found) != list(range(min(found), min(found) + len(found))):
            raise DemoFailed(f"the offsets of partition {partition} have holes or doubles")
    return ["content", "order per key", "offsets without holes"]


def compare_events(flights: Sequence[Flight], events: Iterable[bytes], ordered: bool) -> list[str]:
    """Compare values alone; ``ordered``: within each key too. The names of the checks made. Raises DemoFailed."""
    found = list(events)
    if sorted(found) != sorted(flight.value for flight in flights):
        raise DemoFailed(f"{len(flights)} events were sent, and the {len(found)} that were read are others")
    if not ordered:
        return ["content"]
    keys = {flight.value: flight.key for flight in flights}
    last: dict[bytes, int] = {}
    for value in found:
        number = int(json.loads(value)["n"])
        if last.get(keys[value], -1) >= number:
            raise DemoFailed(f"events of key {keys[value]!r} are out of order at record {number}")
        last[keys[value]] = number
    return ["content", "order per key"]


def check_times(bootstrap: str, topic: str, seen: Sequence[Seen], moment: int) -> None:
    """Look a time up in every partition and compare with the first record of that time or later, in offset order."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"unused-{uuid.uuid4()}"})
    try:
        asked = [TopicPartition(topic, index, moment) for index in range(PARTITIONS)]
        found = {answer.partition: answer.offset for answer in consumer.offsets_for_times(asked, 30)}
    finally:
        consumer.close()
    for index in range(PARTITIONS):
        later = [record.offset for record in seen if record.partition == index and record.timestamp >= moment]
        if later and found[index] != min(later):
            raise DemoFailed(f"time {moment} in partition {index}: offset {found[index]}, expected {min(later)}")


def run(bootstrap: str, flights: Sequence[Flight], console: Console, fronts: Mapping[str, str]) -> list[Step]:
    """All steps against one broker; ``fronts``: addresses by listener, if it speaks more than Kafka's protocol.

    Raises DemoFailed, or a client's own error.
    """
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    steps: list[Step] = []

    @contextlib.contextmanager
    def step(name: str, records: int) -> Iterator[Step]:
        with console.status(name):
            began = time.monotonic()
            entry = Step(name, records, 0.0)
            yield entry
            entry.seconds = entry.seconds or time.monotonic() - began
        steps.append(entry)

    total = len(flights)
    first, second = total * 6 // 10, total * 8 // 10
    with step("write: confluent-kafka, idempotent, zstd", first):
        write_confluent(bootstrap, topic, flights[:first])
    with step("write: aiokafka, idempotent, gzip", second - first):
        asyncio.run(write_aiokafka(bootstrap, topic, flights[first:second]))
    third = total * 9 // 10 if "ydb" in fronts else total
    with step("write: kafka-python, lz4", third - second):
        write_kafka_python(bootstrap, topic, flights[second:third])
    if third < total:
        with step("write: YDB's SDK, gzip", total - third):
            write_ydb(fronts["ydb"], topic, flights[third:])

    began = time.monotonic()
    with step("read: confluent-kafka, assigned", total) as entry:
        seen = read_assigned(bootstrap, topic, total)
        entry.seconds = time.monotonic() - began
        entry.checks = compare(flights, seen)
    with step("look up a time in every partition", PARTITIONS) as entry:
        check_times(bootstrap, topic, seen, flights[total // 2].timestamp)
        entry.checks = ["first record of that time"]
    began = time.monotonic()
    with step("read: group of 3, confluent-kafka", total) as entry:
        found, shares, committed = read_group(bootstrap, topic, total, 3)
        entry.seconds = time.monotonic() - began
        entry.checks = compare(flights, found)
        if committed != total:
            raise DemoFailed(f"the group has committed {committed} of {total} records")
        entry.checks.append(f"committed; shares {', '.join(f'{share:,}' for share in shares)}")
    began = time.monotonic()
    with step("read: group of 2, aiokafka", total) as entry:
        found = asyncio.run(read_group_aiokafka(bootstrap, topic, total, 2))
        entry.seconds = time.monotonic() - began
        entry.checks = compare(flights, found)
    part = [record for record in seen if record.partition == 0]
    began = time.monotonic()
    with step("read: kafka-python, partition 0", len(part)) as entry:
        alone = read_kafka_python(bootstrap, topic, 0, len(part))
        entry.seconds = time.monotonic() - began
        if sorted(alone, key=lambda r: r.offset) != sorted(part, key=lambda r: r.offset):
            raise DemoFailed("kafka-python and confluent-kafka read partition 0 differently")
        entry.checks = ["same as confluent-kafka"]
    if "ydb" in fronts:
        with step("read: YDB's SDK, a consumer", total) as entry:
            found = read_ydb(fronts["ydb"], topic, total)
            entry.checks = compare(flights, found)
            committed = committed_sum(bootstrap, topic, CONSUMER)
            if committed != total:
                raise DemoFailed(f"YDB's reader has committed {committed} of {total} records of Kafka's group")
            entry.checks.append("committed for Kafka's group too")
    if "pravega" in fronts:
        with step("read: Pravega's client, a reader group", total) as entry:
            entry.checks = compare_events(flights, read_pravega(fronts["pravega"], topic, total), ordered=False)
        stream, part_of_it = f"{topic}-events", flights[second:]
        with step("write: Pravega's client, routing keys", len(part_of_it)):
            write_pravega(fronts["pravega"], stream, part_of_it)
        with step("read: confluent-kafka, Pravega's stream", len(part_of_it)) as entry:
            events = read_values(bootstrap, stream, len(part_of_it))
            entry.checks = compare_events(part_of_it, events, ordered=True)
    if "pipeline" in fronts:
        try:
            require_java()
        except JavaMissing as error:
            console.print(f"[yellow]Without Spark's step:[/] {error}")
        else:
            with step("count: Spark, from the range servers", total) as entry:
                entry.checks = count_flights(fronts["pipeline"], topic, flights)
            with tempfile.TemporaryDirectory() as directory, spark_engine() as engine:
                place = f"{directory}/lake"
                with step("archive: Spark, to a Delta table", total) as entry:
                    entry.checks = archive_flights(engine, fronts["pipeline"], topic, total, place)
                with step("audit: Spark, the table and the log", total) as entry:
                    entry.checks = audit_flights(engine, fronts["pipeline"], total, place)
    return steps


def show(steps: Sequence[Step], console: Console) -> None:
    """Print the table."""
    table = Table(title="Flights of 2013 from New York, through unchanged clients")
    for heading, align in (("step", "left"), ("records", "right"), ("seconds", "right"), ("records/s", "right")):
        table.add_column(heading, justify="right" if align == "right" else "left")
    table.add_column("checked")
    for step in steps:
        rate = f"{step.records / step.seconds:,.0f}" if step.seconds and step.records > 100 else ""
        table.add_row(step.name, f"{step.records:,}", f"{step.seconds:.1f}", rate, ", ".join(step.checks))
    console.print(table)


def main() -> int:
    """Run the demonstration; 0 when everything came back as it was sent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="node", help="node (default), kafka, or HOST:PORT of a running one")
    parser.add_argument("--limit", type=int, default=None, help="only so many flights")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the started broker"
    )
    args = parser.parse_args()
    console = Console()
    fronts: Mapping[str, str] = {}
    settings = dict(item.split("=", 1) for item in args.set)
    flights = read_flights(args.limit)
    console.print(f"{len(flights):,} flights, {sum(len(f.value) for f in flights) / 1e6:.1f} MB of values")
    with tempfile.TemporaryDirectory(prefix="anabranch-demo-") as scratch, contextlib.ExitStack() as stack:
        if args.broker == "node":
            settings = {"kafka.group.initial_rebalance_delay_ms": "0", **settings}
            listen = dict.fromkeys((*FRONTS, *SELDOM), ANY)
            node = stack.enter_context(NodeProcess(Path(scratch) / "data", settings=settings, listen=listen))
            bootstrap, fronts = node.bootstrap, node.addresses
        elif args.broker == "kafka":
            bootstrap = stack.enter_context(KafkaBroker(Path(scratch), settings=settings)).bootstrap
        else:
            bootstrap = args.broker
        try:
            steps = run(bootstrap, flights, console, fronts)
        except DemoFailed as error:
            console.print(f"[bold red]DIFFERENCE:[/] {error}")
            return 1
    show(steps, console)
    console.print("[green]Everything came back as it was sent.[/]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
