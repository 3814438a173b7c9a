"""Our source and sink beside Spark's connector for Kafka: `python -m benchmarks.spark [--quick]`, `make bench-spark`.

The same records in a node of ours and in Apache Kafka on the same machine, read by both (and by our source from Apache
Kafka), copied by a stream from topic to topic, and read as they come, in micro-batches; and topics carried from Apache
Kafka into the node in bulk, beside MirrorMaker 2 and the loop of a consumer and a producer that one writes by hand.
Contenders take turns within each round. Each session has its own PySpark (benchmarks/spark_queries.py); with each time
the CPU of the session and of the server is told, which says more than the time where others use the machine.

It takes about as long as ``--minutes`` says: each part has a share of that, and begins no round behind it, but has one
in any case. What fails is told in the results, which are written after each measurement, and costs no others.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from benchmarks import mirror_maker
from benchmarks.bulk_copy import Copied, loop, migrate, mirror
from benchmarks.kafka_broker import KafkaBroker
from benchmarks.probe import Machine
from benchmarks.spark_connector import install_jars, install_python
from benchmarks.spark_load import BATCH_BYTES, KEY_BYTES, cpu, create, delete, fill, trickle
from benchmarks.spark_queries import CONNECTOR, OURS, Queries
from benchmarks.spark_results import BULK, Results, Run
from tests.node_process import ANY, FRONTS, NodeProcess

ROOT = Path(__file__).resolve().parent.parent
PARTITIONS = 4
SIZES = {100: 4_000_000, 1000: 1_000_000}
"""Bytes of values -> records of a topic."""
COPY_COLUMNS = ["key", "value", "timestamp"]
VALUE_ONLY = "value binary"
SHARES = {"reads": 7.0, "copies": 6.0, "beats": 4.0, "bulk": 5.0}
"""How the time is divided between the parts, those that are asked for."""
_QUERY_S = 240.0
_WARM, _BEATS = 20, 100
"""Micro-batches that are not told, and that are."""
_MEMORY = {"spark.driver.memory": "2g"}


@dataclass(frozen=True, slots=True)
class Side:
    """A server. What is carried from one to the other has another name than what is there: ``prefix``."""

    bootstrap: str
    pid: int
    prefix: str

    def topic(self, size: int) -> str:
        return f"{self.prefix}-{size}"


@dataclass(slots=True)
class Contender:
    """A session that reads and writes at a server."""

    name: str
    queries: Queries
    source: Mapping[str, str]
    sink: Mapping[str, str] | None
    side: Side

    def reading(self, topic: str, **options: str) -> dict[str, str]:
        return {**self.source, "subscribe": topic, **options}

    def records(self, size: int, **options: str) -> dict[str, str]:
        """Options that read all records of a size."""
        return self.reading(self.side.topic(size), **options)


@dataclass(slots=True)
class Bench:
    """All contenders, and what was measured; ``until`` is when a part begins no further round (monotonic clock)."""

    contenders: list[Contender]
    directory: Path
    results: Results
    rounds: int
    until: float = 0.0
    made: int = 0

    def measured(self, what: str, size: int, one: Contender, work: Callable[[], Mapping[str, float]]) -> None:
        os.sync()  # what others have written is not for this one to wait for
        client, server = cpu(one.queries.pid), cpu(one.side.pid)
        told = work()
        used = cpu(one.queries.pid) - client, cpu(one.side.pid) - server
        self.results.add(Run(what, size, one.name, int(told["rows"]), told["seconds"], *used))

    def numbers(self) -> Iterator[int]:
        """The rounds' numbers, as long as there is time: one in any case."""
        for number in range(self.rounds):
            if number and time.monotonic() > self.until:
                return
            yield number

    def turns(self) -> Iterator[Contender]:
        """The contenders in each round, in turns the other way round."""
        for number in self.numbers():
            yield from self.contenders if number % 2 == 0 else reversed(self.contenders)

    def new(self, name: str) -> str:
        self.made += 1
        return f"{name}-{self.made}"

    # --- what is measured -------------------------------------------------------------------------------------------

    def reads(self, size: int) -> None:
        """Rows counted, cold and warm, and values read, all columns at hand and the values alone."""
        for one in self.contenders:
            self._read(one, "count, cold", "count", size)
        for one in self.turns():
            self._read(one, "count, warm", "count", size)
            self._read(one, "values, warm", "values", size)
            if one.queries.kind == OURS:
                self._read(one, "values by schema, warm", "values", size, VALUE_ONLY)

    def _read(self, one: Contender, what: str, query: str, size: int, schema: str | None = None) -> None:
        with self.results.kept(f"{one.name}, {what}, {size} B"):
            options = one.records(size)
            self.measured(what, size, one, partial(one.queries.ask, query, options=options, schema=schema))

    def copies(self, size: int) -> None:
        """All of a topic copied by a stream, into a new one each time, first to warm up."""
        for one in self.contenders:
            self._copy(one, "stream copy, cold", size)
        for one in self.turns():
            self._copy(one, "stream copy", size)

    def _copy(self, one: Contender, what: str, size: int) -> None:
        if one.sink is None:
            return
        with self.results.kept(f"{one.name}, {what}, {size} B"):
            target = self.new("copy")
            create(one.side.bootstrap, target, PARTITIONS)
            given = {
                "options": one.records(size, startingOffsets="earliest"),
                "sink": {**one.sink, "topic": target},
                "checkpoint": str(self.directory / target),
                "exprs": COPY_COLUMNS if one.queries.kind == OURS else COPY_COLUMNS[:2],
            }
            self.measured(what, size, one, partial(one.queries.ask, "copy", **given))
            delete(one.side.bootstrap, target)

    def micro_batches(self, number: int) -> None:
        """The time of a micro-batch while a record comes to each partition every 10 ms."""
        for one in self.contenders:
            for what, sink in (("dropped", None), ("to the sink", one.sink)):
                if what != "dropped" and sink is None:
                    continue
                with self.results.kept(f"{one.name}, micro-batches {what}"):
                    self._beats(one, what, sink, number)

    def _beats(self, one: Contender, what: str, sink: Mapping[str, str] | None, number: int) -> None:
        topic, target = self.new("beats"), self.new("beaten")
        create(one.side.bootstrap, topic, PARTITIONS)
        create(one.side.bootstrap, target, PARTITIONS)
        with trickle(one.side.bootstrap, topic, PARTITIONS):
            told = one.queries.ask(
                "beats",
                options=one.reading(topic),
                sink=None if sink is None else {**sink, "topic": target},
                checkpoint=str(self.directory / self.new("beats-checkpoint")),
                number=number,
                warm=_WARM,
            )
        self.results.add_beats(f"{one.name}, {what}", told["ms"])

    def bulk(self, node: Side, broker: Side, pipeline: str, size: int, count: int) -> None:
        """A topic from Apache Kafka into the node: a migration, MirrorMaker 2, a loop; these two also within Kafka."""
        pids = node.pid, broker.pid
        topic = broker.topic(size)
        places = (("to the node", node.bootstrap), ("to Kafka", broker.bootstrap))
        for number in self.numbers():
            source, target = f"kafka://{broker.bootstrap}", f"anabranch://{pipeline}"
            work: list[tuple[str, Callable[[], Copied]]] = [
                ("migrate", partial(migrate, source, target, topic, self.directory, pids))
            ]
            for place, to in places:
                work.append((f"loop {place}", partial(loop, broker.bootstrap, to, topic, PARTITIONS, count, pids)))
            if not number:  # it takes its time to start
                for place, to in places:
                    directory = self.directory / self.new("mirror")
                    given = (directory, broker.bootstrap, to, topic, PARTITIONS, count, pids)
                    work.append((f"MirrorMaker 2 {place}", partial(mirror, *given)))
            for name, one in work:
                with self.results.kept(f"{BULK}, {name}, {size} B"):
                    os.sync()
                    run = one()
                    self.results.add(Run(BULK, size, name, count, run.seconds, run.client_cpu, run.server_cpu))


@dataclass(slots=True)
class Shares:
    """What is left of the time for each part. ``end`` on the monotonic clock."""

    end: float
    parts: Sequence[str]

    def until(self, part: str, left: int) -> float:
        """Until when the first of ``left`` pieces of a part goes on: what others have not taken is for all."""
        there = sum(SHARES[one] for one in self.parts[self.parts.index(part) :])
        now = time.monotonic()
        return now + max(0.0, self.end - now) * SHARES[part] / there / left


def main() -> int:
    """Run; writes JSON and Markdown, prints the Markdown. Exit code 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load, one round: only whether it works")
    parser.add_argument("--rounds", type=int, default=0, help="most rounds of a measurement (default 3, quick: 1)")
    parser.add_argument("--minutes", type=float, default=22.0, help="that the parts may take together, about")
    parser.add_argument("--only", default=",".join(SHARES), help=f"of {', '.join(SHARES)}")
    parser.add_argument("--sizes", default="1000,100", help="of 100, 1000")
    parser.add_argument("--contenders", default="", help="their names, with ; between: default all")
    parser.add_argument("--durability", choices=("fsync", "os"), default="fsync", help="what the node's writes survive")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "bench-spark", help="directory on the disk")
    parser.add_argument("--output", type=Path, default=None, help="directory of the results")
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    output = args.output or (ROOT / "build" / "bench-spark-results" if args.quick else ROOT / "benchmarks" / "results")
    output.mkdir(parents=True, exist_ok=True)
    rounds = args.rounds or (1 if args.quick else 3)
    parts = [part for part in SHARES if part in args.only.split(",")]
    counts = {int(size): int(SIZES[int(size)] * (0.1 if args.quick else 1.0)) for size in args.sizes.split(",")}
    facts = {"durability": args.durability, "began": time.strftime("%F %T")}
    words = (
        f"Medians of up to {rounds} (micro-batches: of {_BEATS}; MirrorMaker: one); {PARTITIONS} "
        f"partitions, keys of {KEY_BYTES} bytes, batches of up to {BATCH_BYTES} bytes, local[2]; the node's durability "
        f"is {args.durability}, Apache Kafka leaves flushing to the system."
    )
    stem = output / f"{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}-spark"
    results = Results(stem, Machine.at(args.data), facts, words)
    _fetch(results, parts)
    began = time.monotonic()
    shares = Shares(began + 60 * args.minutes, parts)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=args.data)))
        listen = dict.fromkeys((*FRONTS, "pipeline"), ANY)
        settings = {"sbp.durability": args.durability}
        process = stack.enter_context(NodeProcess(scratch / "node" / "data", settings=settings, listen=listen))
        node = Side(process.kafka, process.pid, "records")
        at_kafka = stack.enter_context(KafkaBroker(scratch / "kafka"))
        broker = Side(at_kafka.bootstrap, at_kafka.pid, "kept")
        for size, count in counts.items():
            for side in (node, broker):
                create(side.bootstrap, side.topic(size), PARTITIONS)
                fill(side.bootstrap, side.topic(size), PARTITIONS, size, count)
        print(f"{time.strftime('%T')} records of {args.sizes} bytes written to both", flush=True)
        bench = Bench([], scratch, results, rounds)
        pipeline = process.addresses["pipeline"]
        if parts != ["bulk"]:
            bench.contenders = _contenders(stack, results, scratch, args.contenders, node, broker, pipeline)
        for part, measure in (("reads", bench.reads), ("copies", bench.copies)):
            for number, size in enumerate(counts if part in parts else ()):
                bench.until = shares.until(part, len(counts) - number)
                measure(size)
        if "beats" in parts:
            bench.micro_batches(30 if args.quick else _BEATS)
        for one in bench.contenders:
            one.queries.stop()
        for number, (size, count) in enumerate(counts.items() if "bulk" in parts else ()):
            bench.until = shares.until("bulk", len(counts) - number)
            bench.bulk(node, broker, pipeline, size, count)
        results.write()
    print(f"\n{results.text()}\nwritten: {stem}.json and .md, after {(time.monotonic() - began) / 60:.1f} minutes")
    return 1 if results.failures else 0


def _fetch(results: Results, parts: list[str]) -> None:
    """What comes from registries, before the time counts."""
    if set(parts) - {"bulk"}:
        with results.kept("Spark's connector is fetched"):
            install_python()
            install_jars()
    if "bulk" in parts:
        with results.kept("MirrorMaker is fetched"):
            mirror_maker.install_jars()


def _contenders(
    stack: ExitStack, results: Results, scratch: Path, wanted: str, node: Side, broker: Side, pipeline: str
) -> list[Contender]:
    """Those that could be started."""
    ours = {"endpoint": f"anabranch://{pipeline}"}
    to_node, to_broker = ({"kafka.bootstrap.servers": side.bootstrap} for side in (node, broker))
    made = []
    for name, kind, source, sink, side in (
        ("ours", OURS, ours, ours, node),
        ("connector", CONNECTOR, to_node, to_node, node),
        ("connector at Kafka", CONNECTOR, to_broker, to_broker, broker),
        ("ours at Kafka", OURS, {"protocol": "kafka", **to_broker}, None, broker),
    ):
        if wanted and name not in wanted.split(";"):
            continue
        with results.kept(f"{name}, its session"):
            given = Queries(kind, scratch / name.replace(" ", "-"), settings=_MEMORY, seconds=_QUERY_S)
            made.append(Contender(name, stack.enter_context(given), source, sink, side))
    return made


if __name__ == "__main__":
    sys.exit(main())
