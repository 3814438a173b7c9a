"""Our source and sink beside Spark's connector for Kafka: `python -m benchmarks.spark [--quick]`, `make bench-spark`.

The same records in a node of ours and in Apache Kafka on the same machine, read by both (and by our source from Apache
Kafka), copied by a stream from topic to topic, and read as they come, in micro-batches; and topics carried from Apache
Kafka into the node in bulk, beside the loop of a consumer and a producer that one writes by hand. Contenders take turns
within each round. Each session has its own PySpark (benchmarks/spark_queries.py); with each time the CPU of the session
and of the server is told, which says more than the time where others use the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from benchmarks.bulk_copy import loop, migrate
from benchmarks.kafka_broker import KafkaBroker
from benchmarks.probe import machine, measured_on, on_machine
from benchmarks.spark_load import BATCH_BYTES, KEY_BYTES, cpu, create, fill, trickle
from benchmarks.spark_queries import CONNECTOR, OURS, Queries
from tests.node_process import ANY, FRONTS, NodeProcess

ROOT = Path(__file__).resolve().parent.parent
PARTITIONS = 4
SIZES = {100: 4_000_000, 1000: 1_000_000}
"""Bytes of values -> records of a topic."""
COPY_COLUMNS = ["key", "value", "timestamp"]
VALUE_ONLY = "value binary"


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement; ``rows`` in ``seconds``, and the CPU seconds of the session (or the copier) and the server."""

    what: str
    size: int
    contender: str
    rows: int
    seconds: float
    client_cpu: float
    server_cpu: float

    @property
    def place(self) -> tuple[str, int]:
        return self.what, self.size


@dataclass(slots=True)
class Contender:
    """A session that reads and writes at a server; ``pids`` are the server's."""

    name: str
    queries: Queries
    source: Mapping[str, str]
    sink: Mapping[str, str] | None
    bootstrap: str
    pids: tuple[int, ...]

    def reading(self, topic: str, **options: str) -> dict[str, str]:
        return {**self.source, "subscribe": topic, **options}


@dataclass(slots=True)
class Bench:
    """All contenders, and what was measured."""

    contenders: list[Contender]
    directory: Path
    scale: float
    runs: list[Run] = field(default_factory=list)
    beats: dict[str, dict[str, float]] = field(default_factory=dict)
    made: int = 0

    def measured(self, what: str, size: int, one: Contender, work: Callable[[], Mapping[str, float]]) -> None:
        client, server = cpu(one.queries.pid), cpu(*one.pids)
        told = work()
        used = cpu(one.queries.pid) - client, cpu(*one.pids) - server
        self.add(Run(what, size, one.name, int(told["rows"]), told["seconds"], *used))

    def add(self, run: Run) -> None:
        self.runs.append(run)
        speed = f"{run.rows / run.seconds / 1000:10,.0f} krows/s {run.rows * run.size / run.seconds / 1e6:8,.0f} MB/s"
        used = f"CPU {run.client_cpu / run.rows * 1e6:6.2f} + {run.server_cpu / run.rows * 1e6:5.2f} us a row"
        print(f"{speed}  {used}  {run.contender}: {run.what}, {run.size} B", flush=True)

    def turns(self, rounds: int) -> Iterator[Contender]:
        for number in range(rounds):
            yield from self.contenders if number % 2 == 0 else reversed(self.contenders)

    def new(self, name: str) -> str:
        self.made += 1
        return f"{name}-{self.made}"

    # --- what is measured -------------------------------------------------------------------------------------------

    def reads(self, topic: str, size: int, rounds: int) -> None:
        """Rows counted, cold and warm, and values read, all columns at hand and the values alone."""
        for one in self.contenders:
            self._read(one, "count, cold", "count", topic, size)
        for one in self.turns(rounds):
            self._read(one, "count, warm", "count", topic, size)
            self._read(one, "values, warm", "values", topic, size)
            if one.queries.kind == OURS:
                self._read(one, "values by schema, warm", "values", topic, size, VALUE_ONLY)

    def _read(self, one: Contender, what: str, query: str, topic: str, size: int, schema: str | None = None) -> None:
        options = one.reading(topic)
        self.measured(what, size, one, partial(one.queries.ask, query, options=options, schema=schema))

    def copies(self, topic: str, size: int, rounds: int) -> None:
        """All of a topic copied by a stream, into a new one each time. The first round is to warm up."""
        for number, one in enumerate(self.turns(rounds + 1)):
            if one.sink is None:
                continue
            target = self.new("copy")
            create(one.bootstrap, target, PARTITIONS)
            given = {
                "options": one.reading(topic, startingOffsets="earliest"),
                "sink": {**one.sink, "topic": target},
                "checkpoint": str(self.directory / target),
                "exprs": COPY_COLUMNS if one.queries.kind == OURS else COPY_COLUMNS[:2],
            }
            what = "stream copy, cold" if number < len(self.contenders) else "stream copy"
            self.measured(what, size, one, partial(one.queries.ask, "copy", **given))

    def micro_batches(self, number: int) -> None:
        """The time of a micro-batch while a record comes to each partition every 10 ms."""
        for one in self.contenders:
            topic, target = self.new("beats"), self.new("beaten")
            create(one.bootstrap, topic, PARTITIONS)
            create(one.bootstrap, target, PARTITIONS)
            for what, sink in (("dropped", None), ("to the sink", one.sink)):
                if what != "dropped" and sink is None:
                    continue
                with trickle(one.bootstrap, topic, PARTITIONS):
                    told = one.queries.ask(
                        "beats",
                        options=one.reading(topic),
                        sink=None if sink is None else {**sink, "topic": target},
                        checkpoint=str(self.directory / self.new("beats-checkpoint")),
                        number=number,
                        warm=20,
                    )
                medians = {name: statistics.median(ms) for name, ms in told["ms"].items()}
                medians["p90"] = statistics.quantiles(told["ms"]["triggerExecution"], n=10)[-1]
                self.beats[f"{one.name}, {what}"] = medians
                print(
                    f"{medians['triggerExecution']:10,.0f} ms a micro-batch  {one.name}, {what}: {medians}", flush=True
                )


def tables(bench: Bench, names: list[str]) -> str:
    """Medians of everything."""
    heads = ["", "bytes", *(f"{name}, krows/s" for name in names), *(f"{name}, CPU us a row" for name in names)]
    lines = [_line(heads), "|" + "---|" * len(heads)]
    for place in dict.fromkeys(run.place for run in bench.runs):
        found = {name: [run for run in bench.runs if (run.place, run.contender) == (place, name)] for name in names}
        speeds = [_median([run.rows / run.seconds / 1000 for run in found[name]], "{:,.0f}") for name in names]
        used = [
            " + ".join(
                _median([getattr(run, which) / run.rows * 1e6 for run in found[name]], "{:.2f}")
                for which in ("client_cpu", "server_cpu")
            )
            if found[name]
            else ""
            for name in names
        ]
        lines.append(_line([place[0], str(place[1]), *speeds, *used]))
    lines += ["", "CPU is of the session and of the server.", ""]
    if bench.beats:
        parts = ["triggerExecution", "p90", "latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets"]
        lines += [_line(["micro-batch, ms", *parts]), "|" + "---|" * (len(parts) + 1)]
        for name, medians in bench.beats.items():
            lines.append(_line([name, *(f"{medians[part]:.0f}" if part in medians else "" for part in parts)]))
    return "\n".join(lines)


def _median(values: list[float], form: str) -> str:
    return form.format(statistics.median(values)) if values else ""


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    """Run; writes JSON and Markdown, prints the Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load, one round: only whether it works")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of every measurement (default 3, quick: 1)")
    parser.add_argument("--only", default="reads,copies,beats,bulk", help="of reads, copies, beats, bulk")
    parser.add_argument("--sizes", default="100,1000", help="of 100, 1000")
    parser.add_argument("--contenders", default="", help="their names, with ; between: default all")
    parser.add_argument("--durability", choices=("fsync", "os"), default="fsync", help="what the node's writes survive")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "bench-spark", help="directory on the disk")
    parser.add_argument("--output", type=Path, default=None, help="directory of the results")
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    output = args.output or (ROOT / "build" / "bench-spark-results" if args.quick else ROOT / "benchmarks" / "results")
    output.mkdir(parents=True, exist_ok=True)
    scale, rounds = (0.1, 1) if args.quick else (1.0, 3)
    rounds = args.rounds or rounds
    parts = args.only.split(",")
    sizes = [int(size) for size in args.sizes.split(",")]
    about = machine(args.data)
    facts = {"durability": args.durability, "began": time.strftime("%F %T")}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=args.data)))
        listen = dict.fromkeys((*FRONTS, "pipeline"), ANY)
        settings = {"sbp.durability": args.durability}
        node = stack.enter_context(NodeProcess(scratch / "node" / "data", settings=settings, listen=listen))
        broker = stack.enter_context(KafkaBroker(scratch / "kafka"))
        topics = {size: f"records-{size}" for size in sizes}
        for size, topic in topics.items():
            for bootstrap in (node.kafka, broker.bootstrap):
                create(bootstrap, topic, PARTITIONS)
                fill(bootstrap, topic, PARTITIONS, size, int(SIZES[size] * scale))
        print(f"{', '.join(topics.values())} written to both", flush=True)
        bench = Bench(_contenders(stack, node, broker, scratch, args.contenders), scratch, scale)
        if "reads" in parts:
            for size, topic in topics.items():
                bench.reads(topic, size, rounds)
        if "copies" in parts:
            for size, topic in topics.items():
                bench.copies(topic, size, rounds)
        if "beats" in parts:
            bench.micro_batches(40 if args.quick else 150)
        for one in bench.contenders:
            one.queries.stop()
        if "bulk" in parts:
            bulk(bench, sizes, node, broker, scratch, rounds)
    names = list(dict.fromkeys(run.contender for run in bench.runs))
    about = measured_on(about)
    text = (
        f"{on_machine(about)}\n\n"
        f"Medians of {rounds}; {PARTITIONS} partitions, keys of {KEY_BYTES} bytes, batches of up to "
        f"{BATCH_BYTES} bytes, local[2]; the node's durability is {args.durability}.\n\n{tables(bench, names)}\n"
    )
    stem = output / f"{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}-spark"
    content = {"machine": about, **facts, "runs": [asdict(run) for run in bench.runs], "beats": bench.beats}
    stem.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)
    print(f"\n{text}\nwritten: {stem}.json and .md")
    return 0


def _contenders(
    stack: ExitStack, node: NodeProcess, broker: KafkaBroker, scratch: Path, wanted: str
) -> list[Contender]:
    endpoint = f"anabranch://{node.addresses['pipeline']}"
    made = []
    for name, kind, source, sink, bootstrap, pid in (
        ("ours", OURS, {"endpoint": endpoint}, {"endpoint": endpoint}, node.kafka, node.pid),
        ("connector", CONNECTOR, _servers(node.kafka), _servers(node.kafka), node.kafka, node.pid),
        ("connector at Kafka", CONNECTOR, *2 * (_servers(broker.bootstrap),), broker.bootstrap, broker.pid),
        (
            "ours at Kafka",
            OURS,
            {"protocol": "kafka", **_servers(broker.bootstrap)},
            None,
            broker.bootstrap,
            broker.pid,
        ),
    ):
        if wanted and name not in wanted.split(";"):
            continue
        queries = stack.enter_context(Queries(kind, scratch / name.replace(" ", "-"), settings=_MEMORY))
        made.append(Contender(name, queries, source, sink, bootstrap, (pid,)))
    return made


_MEMORY = {"spark.driver.memory": "2g"}


def _servers(bootstrap: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": bootstrap}


def bulk(bench: Bench, sizes: list[int], node: NodeProcess, broker: KafkaBroker, scratch: Path, rounds: int) -> None:
    """Topics from Apache Kafka into the node: a migration, and a loop of consumer and producer."""
    pids = node.pid, broker.pid
    target = f"anabranch://{node.addresses['pipeline']}"
    for size in sizes:
        topic, count = f"bulk-{size}", int(SIZES[size] * bench.scale)
        create(broker.bootstrap, topic, PARTITIONS)
        fill(broker.bootstrap, topic, PARTITIONS, size, count)
        for _ in range(rounds):
            runs = [migrate(f"kafka://{broker.bootstrap}", target, topic, scratch, pids)]
            for name, to in (("loop to the node", node.kafka), ("loop to Kafka", broker.bootstrap)):
                runs.append(loop(name, broker.bootstrap, to, topic, PARTITIONS, count, pids))
            for run in runs:
                bench.add(Run("bulk copy", size, run.name, count, run.seconds, run.client_cpu, run.server_cpu))


if __name__ == "__main__":
    sys.exit(main())
