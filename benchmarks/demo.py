"""The demonstration: 336,776 flights of 2013 go through a node with unchanged clients and come back the same.

    python -m benchmarks.demo                    # starts a node of its own on free ports
    python -m benchmarks.demo --broker kafka     # the same against Apache Kafka
    python -m benchmarks.demo --broker HOST:PORT

First one topic: a third written through each protocol, all of it read through each, and by Spark, printed as a matrix
with rates. Then, in detail: three client libraries of Kafka and YDB's SDK write to one topic, each with another codec,
and read it back by assignment and as members of groups. One transaction of YDB's SDK copies a part to another topic,
and Kafka's client reads what was committed, as read_committed. Every record is compared: key, value, timestamp, header,
order within its key, offsets without holes. Pravega's client reads the topic as a stream of events, which have values
only, and writes a stream that Kafka's client reads. A broker that is not ours gets the part of Kafka's clients. Exit
code 1 on any difference. ``--keep`` leaves the node running to be looked at, until Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks.demo_fronts import (
    CONSUMER,
    COPIER,
    copy_ydb,
    read_pravega,
    read_ydb,
    seen_of,
    write_pravega,
    write_ydb,
)
from benchmarks.demo_kafka import (
    committed_sum,
    read_assigned,
    read_group,
    read_group_aiokafka,
    read_kafka_python,
    read_values,
    write_aiokafka,
    write_confluent,
    write_kafka_python,
)
from benchmarks.demo_lake import archive_flights, audit_flights, spark_engine
from benchmarks.demo_matrix import run_matrix, show_matrix
from benchmarks.demo_spark import count_flights
from benchmarks.flights import PARTITIONS, DemoFailed, Flight, Seen, number_of, read_flights
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
    numbered = sorted(((number_of(record.value), record) for record in seen), key=lambda pair: pair[0])
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
        number = number_of(value)
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
            found = read_ydb(fronts["ydb"], topic, total, seen_of)
            entry.checks = compare(flights, found)
            committed = committed_sum(bootstrap, topic, CONSUMER)
            if committed != total:
                raise DemoFailed(f"YDB's reader has committed {committed} of {total} records of Kafka's group")
            entry.checks.append("committed for Kafka's group too")
        target, count = f"{topic}-copy", min(total, 5000)
        with step("copy: YDB's SDK, one transaction", count):
            copied = copy_ydb(fronts["ydb"], topic, target, count)
        with step("read: confluent-kafka, read_committed", count) as entry:
            if sorted(read_values(bootstrap, target, count)) != sorted(copied):
                raise DemoFailed("Kafka's reader got something else than YDB's transaction has committed")
            if committed_sum(bootstrap, topic, COPIER) != count:
                raise DemoFailed("the transaction has not moved its consumer by what it read")
            entry.checks = ["the transaction whole", "positions committed with it", "nothing rolled back"]
    if "pravega" in fronts:
        with step("read: Pravega's client, a reader group", total) as entry:
            entry.checks = compare_events(flights, read_pravega(fronts["pravega"], topic, total), ordered=False)
        stream, part_of_it = f"{topic}-events", flights[second:]
        with step("write: Pravega's client, routing keys", len(part_of_it)):
            write_pravega(fronts["pravega"], stream, part_of_it)
        with step("read: confluent-kafka, Pravega's stream", len(part_of_it)) as entry:
            events = read_values(bootstrap, stream, len(part_of_it))
            entry.checks = compare_events(part_of_it, events, ordered=True)
    if "pipeline" in fronts and _has_java(console):
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


def _has_java(console: Console) -> bool:
    try:
        require_java()
    except JavaMissing as error:
        console.print(f"[yellow]Without Spark:[/] {error}")
        return False
    return True


def main() -> int:
    """Run the demonstration; 0 when everything came back as it was sent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="node", help="node (default), kafka, or HOST:PORT of a running one")
    parser.add_argument("--limit", type=int, default=None, help="only so many flights")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the started broker"
    )
    parser.add_argument("--keep", action="store_true", help="leave the node running at the end, until Ctrl-C")
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
            if fronts:
                topic = "flights-of-three"
                show_matrix(run_matrix(bootstrap, fronts, flights, topic, console, spark=_has_java(console)), console)
            show(run(bootstrap, flights, console, fronts), console)
        except DemoFailed as error:
            console.print(f"[bold red]DIFFERENCE:[/] {error}")
            return 1
        console.print("[green]Everything came back as it was sent.[/]")
        if fronts:
            console.print(f"The console: http://{fronts['console']}" + ("" if args.keep else " (with --keep it stays)"))
        if args.keep:
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
