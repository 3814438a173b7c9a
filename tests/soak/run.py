"""Clients of all protocols at work on one topic, for an hour or a minute, without any fault: nothing may happen.

    python -m tests.soak.run                                     # an hour, on one node
    python -m tests.soak.run --minutes 5 --deployment cluster    # three nodes over PostgreSQL and object storage
    python -m tests.soak.run --deployment workers --rate 50      # two workers; records a second of each writer

Writers and readers of Kafka, YDB and Pravega, transactions of Kafka and of Pravega, groups whose members come and go, a
stream of Spark's (where there is Java), the console. All the time every process has to answer /healthz within two
seconds, and every client has to get on; at the end the judge of histories (tests/history) looks at what all were told:
nothing lost, doubled, out of order, shown before it was committed or after it was aborted, and the same records at the
same offsets through every protocol. The memory of each process must not grow. What is wrong is told with the name of
the client or process that it happened to; exit code 1.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

import msgspec

from tests.node_process import NodeProcess
from tests.soak.deployments import DEPLOYMENTS, addresses, pids
from tests.soak.soak_clients import ConsoleReader, Health, Member, Memory, SparkReader, YdbConsumer
from tests.torture.mixed import DERIVED, MONEY_TOPIC, Mixed, check_given, show
from tests.torture.mixed_clients import Scene
from tests.torture.run import JAVA
from tests.torture.torture_load import Worker
from tests.torture.torture_pravega import SEGMENTS, TOPIC, WHEEL, PravegaMember, TransactionLoad, WriterLoad, java
from tests.torture.torture_ydb import prepare as prepare_ydb

__all__ = ["check_given", "grown", "main"]

GROUPS = ("classic", "consumer")
"""Protocols of Kafka's groups; the group of each has two members."""
YDB_CONSUMER = "ydb-consumer"
SPARK_START_S = 180.0
"""How long Spark may take from its start to its first batch: on a busy machine its JVM alone takes half a minute."""
LOOK_S = 10.0
"""In each such time every client has to get something done."""
MEMORY_MOST = 1 << 30
MEMORY_GROWTH = 32 << 20
"""Bytes that a process may grow by in the last half of a run, beside a twentieth of what it has: caches are full by
then (deployments.py), and what is known of all that is stored grows with it."""
MEMORY_LEAST_S = 600.0
"""Growth in a run that is shorter says nothing."""


class Frozen(Exception):
    """A process does not answer any more."""


class Soak(Mixed):
    """One run against nodes that nothing happens to."""

    def __init__(
        self, nodes: Sequence[NodeProcess], directory: Path, seed: int, rate: float, *, spark: bool, java: bool
    ) -> None:
        every = {name: addresses(nodes, name) for name in ("kafka", "ydb", "pravega", "console", "pipeline")}
        first = {name: next(iter(found.values())) for name, found in every.items()}
        self.directory, self.spark, self.java = directory, spark, java
        self.consoles = every["console"]
        self.spark_endpoint = f"anabranch://{first['pipeline']}"
        bootstrap = ",".join(every["kafka"].values())
        scene = Scene(bootstrap, first["ydb"], directory / "history", seed, TOPIC, SEGMENTS, DERIVED, MONEY_TOPIC, rate)
        super().__init__(scene, first["pravega"])
        processes = pids(nodes)
        self.health = [Health(name, console, processes[name], self.over) for name, console in self.consoles.items()]
        self.memory = Memory(processes, self.over)

    def begin(self) -> None:
        for watcher in (*self.health, self.memory):
            watcher.start()
        super().begin()
        until = time.monotonic() + SPARK_START_S
        while any(isinstance(one, SparkReader) and not one.done for one in self.readers) and time.monotonic() < until:
            self.look()
            time.sleep(0.1)

    def make_clients(self) -> None:
        super().make_clients()
        scene, over = self.scene, self.over
        prepare_ydb(scene.ydb, {TOPIC.replace(".", "/"): YDB_CONSUMER})
        transactions = TransactionLoad(
            WHEEL, self.controller, scene.seed, "pravega-transactor", scene.rate, self.finish
        )
        self.writers.append(transactions)
        self.readers += [Member(scene, f"{kind}-group.{n}", over, kind) for kind in GROUPS for n in range(2)]
        self.readers += [YdbConsumer(scene, YDB_CONSUMER, over)]
        self.readers += [ConsoleReader(scene, "console", over, list(self.consoles.values()))]
        self.readers += [PravegaMember(WHEEL, self.controller, "pravega-reader", (), over)]
        if self.java:
            command = java()
            writer = WriterLoad(command, self.controller, scene.seed, "pravega-java", scene.rate, self.finish)
            self.writers.append(writer)
            self.readers.append(PravegaMember(command, self.controller, "pravega-java-reader", (), over))
        if self.spark:
            self.readers.append(SparkReader(scene, "spark", over, self.spark_endpoint, self.directory))

    def run(self, seconds: float) -> None:
        """Raises Frozen when a process does not answer any more."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.report.violations:
            self.quiet(min(LOOK_S, end - time.monotonic()))

    def patience(self, worker: Worker) -> float:
        # On a busy machine a batch may take as long as the start.
        return SPARK_START_S if isinstance(worker, SparkReader) else super().patience(worker)

    def look(self) -> None:
        for one in self.health:
            late, one.late = one.late, []
            self.report.violations += late
            if one.is_silent:
                raise Frozen(one.node)
        super().look()

    def end(self) -> None:
        super().end()
        for one in self.health:
            self.report.violations += one.late
        self.report.violations += grown(self.memory.samples)


def grown(samples: dict[str, list[tuple[float, int]]]) -> list[str]:
    """Processes whose memory is not flat, or more than any may have."""
    found = []
    for name, line in samples.items():
        if not line:
            continue  # the run ended before the first look
        most = max(size for _, size in line)
        if most > MEMORY_MOST:
            found.append(f"memory: {name} had {most >> 20} MiB, of the {MEMORY_MOST >> 20} it may have")
        if line[-1][0] - line[0][0] >= MEMORY_LEAST_S:
            sizes, eighth = [size for _, size in line], len(line) // 8
            half = int(statistics.median(sizes[4 * eighth : 5 * eighth]))
            last = int(statistics.median(sizes[-eighth:]))
            if last - half > MEMORY_GROWTH + half // 20:
                found.append(f"memory: {name} grew from {half >> 20} to {last >> 20} MiB in the last half")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--deployment", choices=DEPLOYMENTS, default="one")
    parser.add_argument("--rate", type=float, default=10.0, help="records a second of each writer")
    parser.add_argument("--seed", type=int, default=None)
    has_java = shutil.which("java") is not None
    parser.add_argument("--spark", action=argparse.BooleanOptionalAction, default=has_java)
    has_maven = has_java and shutil.which("mvn") is not None
    parser.add_argument("--java", action=argparse.BooleanOptionalAction, default=has_maven, help=JAVA)
    parser.add_argument("--directory", type=Path, help="kept; without it a temporary one is removed if all is well")
    parser.add_argument("--json", type=Path, help="where the report goes")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if args.seed is None else args.seed
    directory = args.directory or Path(mkdtemp(prefix="anabranch-soak-"))
    directory.mkdir(exist_ok=True)
    print(f"seed {seed}, in {directory}", flush=True)
    with DEPLOYMENTS[args.deployment](directory) as nodes:
        soak = Soak(nodes, directory, seed, args.rate, spark=args.spark, java=args.java)
        try:
            soak.begin()
            soak.run(args.minutes * 60)
            soak.end()
        except (Frozen, RuntimeError) as error:
            # With one that does not answer nobody comes to an end.
            soak.finish.set()
            soak.over.set()
            soak.report.violations.append(f"not judged: {error!r}, {error.__cause__!r}")
    show(soak.report)
    for one in soak.health:
        print(f"  {one.node}: {one.done:,} times well, the longest answer {one.longest:.2f} s")
    for name, line in soak.memory.samples.items():
        if not line:
            continue
        parts = [line[len(line) * part // 8 - (part == 8)][1] >> 20 for part in range(9)]
        print(f"  {name}: {' '.join(map(str, parts))} MiB")
    if args.json is not None:
        args.json.write_bytes(msgspec.json.encode(soak.report))
    if not soak.report.violations and args.directory is None:
        shutil.rmtree(directory)
    return 1 if soak.report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
