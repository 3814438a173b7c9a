"""Well-behaved clients of a node while others do everything that is allowed, and much that is not, on every listener.

    python tests/hostile/run.py                     # all kinds of hostility, 15 s each
    python tests/hostile/run.py --only bombs waits  # some of them
    python tests/hostile/run.py --scale 0.02 --seconds 2

For every kind a line: 99th percentile and longest wait of the well-behaved clients, the node's memory and CPU, beside
the calm before. The run fails when a well-behaved client was refused, lost or doubled anything, or waited for longer
than a minute; when it waited longer than in the calm by more than a quarter of a second (``--stall``) and what the bare
disk takes, which says something on a machine that does nothing else; when the node ended, logged an exception that
nobody expected, or used more memory than it may. What the bare disk takes is measured where it matters: how long 4 KiB
wait that are written and flushed beside as many bytes a second as the node wrote (``hostile_disk.py``); it counts
twice, since who comes while a group is flushed waits for that one and for his own.

Elsewhere those who are hostile have machines of their own, so here they use only what the node and the well-behaved
clients leave of the processors (``--compete``: as much as anybody). How late the clients' own process was at most,
which it asks itself a hundred times a second, is no wait for the node and allowed as well. Beside it is told how much
of the time the node's event loop was ready and had no processor. Bounded in time and number; loopback only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]

import psutil  # noqa: E402
import ydb  # noqa: E402
from confluent_kafka import Producer  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402
from hostile_clients import (  # noqa: E402
    LATENESS,
    PATIENCE_S,
    HealthAsking,
    KafkaConsuming,
    KafkaProducing,
    Lateness,
    PravegaAsking,
    PravegaReading,
    PravegaWriting,
    SbpAppending,
    Worker,
    YdbWriting,
)
from hostile_disk import floor  # noqa: E402
from hostile_frames import BOMBS, BULK, pravega_segment  # noqa: E402
from hostile_ydb import CONSUMER  # noqa: E402

from benchmarks.probe import Watch, waited_for_processor  # noqa: E402
from tests.node_process import ANY, FRONTS, NodeFailed, NodeProcess  # noqa: E402

GOOD = "well-behaved"
KINDS = (
    "kafka produce",
    "kafka end to end",
    "ydb write",
    "pravega append",
    "pravega end to end",
    "pravega call",
    "sbp append",
    "sbp fetch",
    "http",
)
LISTENERS = ("kafka", "sbp-range-server", "sbp-pd", "sbp-v0.1", "console", "ydb", "pravega", "pravega-segmentstore")
GOOD_YDB = "well-behaved-ydb"
GOOD_PRAVEGA = "well-behaved-pravega"
BULK_PARTITIONS = 50
STALL_S = 0.25
"""What anybody's longest wait may be longer than the longest one in the calm before, on a machine that does nothing
else: a step of the event loop, or a call that holds the interpreter, holds up everybody."""
DISK_RATE = 200e6
"""Bytes a second beside which the bare disk is asked once, to tell what machine this is."""
MEMORY_ALLOWED = 700 * 1024 * 1024
"""Bytes a node may grow by, whatever is done to it: its budget of 256 MiB, ten thousand connections, a heap's waste."""
UNEXPECTED = ("Traceback (most recent call last)", "request failed", "Task exception was never retrieved")


@dataclass(frozen=True, slots=True)
class Phase:
    """One kind of hostility: (attack, number of connections) that happen together."""

    name: str
    attacks: tuple[tuple[str, int], ...] = ()


PHASES = (
    Phase("calm"),
    Phase("idle", (("idle", 10_000),)),
    Phase("slow-readers", (("slow_readers", 500),)),
    Phase("drip", (("drip", 100),)),
    Phase("half-frames", (("half_frames", 300),)),
    Phase("garbage", (("garbage", 2_000),)),
    Phase("bombs", (("bombs", 200),)),
    Phase("oversized", (("oversized", 40),)),
    Phase("largest", (("largest", 100),)),
    Phase("waits", (("waits", 200),)),
    Phase("churn", (("churn", 4_000),)),
    Phase("ydb-idle", (("ydb_idle", 10_000),)),
    Phase("ydb-slow-readers", (("ydb_slow_readers", 100),)),
    Phase("ydb-bombs", (("ydb_bombs", 200),)),
    Phase("ydb-nonsense", (("ydb_nonsense", 500),)),
    Phase("ydb-half-messages", (("ydb_half_messages", 40),)),
    Phase("pravega-idle", (("pravega_idle", 1_000),)),
    Phase("pravega-half-blocks", (("pravega_half_blocks", 300),)),
    Phase("pravega-slow-readers", (("pravega_slow_readers", 500),)),
    Phase("pravega-tables", (("pravega_tables", 200),)),
    Phase("pravega-transactions", (("pravega_transactions", 500),)),
    Phase("pravega-calls", (("pravega_calls", 1_000),)),
    Phase("pravega-commands", (("pravega_commands", 1_000),)),
    Phase(
        "all-at-once",
        (
            ("idle", 4_000),
            ("slow_readers", 200),
            ("drip", 100),
            ("half_frames", 100),
            ("garbage", 500),
            ("bombs", 50),
            ("oversized", 10),
            ("waits", 50),
            ("churn", 500),
        ),
    ),
    Phase(
        "ydb-all-at-once",
        (
            ("ydb_idle", 4_000),
            ("ydb_slow_readers", 20),
            ("ydb_bombs", 50),
            ("ydb_nonsense", 200),
            ("ydb_half_messages", 10),
            ("garbage", 200),
        ),
    ),
    Phase(
        "pravega-all-at-once",
        (
            ("pravega_idle", 400),
            ("pravega_half_blocks", 50),
            ("pravega_slow_readers", 50),
            ("pravega_tables", 50),
            ("pravega_transactions", 100),
            ("pravega_calls", 200),
            ("pravega_commands", 300),
        ),
    ),
    Phase("calm-again"),
)


@dataclass(slots=True)
class Line:
    """What was measured in one phase: seconds by kind of request, bytes, CPU seconds, and what the attacks did."""

    phase: str
    seconds: float = 0.0
    p99: dict[str, float] = field(default_factory=dict)
    longest: dict[str, float] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    peak_rss: int = 0
    cpu_seconds: float = 0.0
    disk_bytes: int = 0
    disk_floor: float = 0.0
    """Longest wait for the bare disk beside as many bytes, if it was asked."""
    clients_late: float = 0.0
    """How late the process of the well-behaved clients was at most."""
    loop_waited: float = 0.0
    """Seconds that the node's event loop was ready and had no processor."""
    attacks: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Report:
    seed: int
    lines: list[Line] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


def fill(bootstrap: str, megabytes: int) -> None:
    """The topics of the run, and something to read slowly: records of 1 KB over the partitions of a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = {GOOD: 1, GOOD_YDB: 1, GOOD_PRAVEGA: 1, BULK: BULK_PARTITIONS, BOMBS: 1}
    topics = [NewTopic(name, partitions, 1) for name, partitions in wanted.items()]
    for made in admin.create_topics(topics).values():
        made.result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.num.messages": 200, "log_level": 2})
    value = random.Random(1).randbytes(1000)
    for number in range(megabytes * 1000):
        while True:
            try:
                producer.produce(BULK, value, partition=number % BULK_PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(PATIENCE_S):
        raise TimeoutError("the topic that is read slowly could not be filled")


def bulk_range(pd: tuple[str, int], megabytes: int) -> str:
    """A stream of SBP with as much in it; its first range as JSON."""
    import asyncio

    from sbp_back import Client, TcpCarrier, tcp_connector
    from sbp_back.errors import SbpError

    async def make() -> str:
        client = Client(TcpCarrier(*pd), tcp_connector())
        stream = await client.create_stream()
        writer = await client.open(stream.stream_id, epoch=1)
        answers: list[asyncio.Future[SbpError | None]] = []
        for _ in range(megabytes * 4):
            answers.append(asyncio.get_running_loop().create_future())
            writer.append(bytes(250_000), 1, 0, 0, answers[-1].set_result)
            if len(answers) % 16 == 0:
                await answers[-1]
        for error in await asyncio.gather(*answers):
            assert error is None, error
        (where,) = await client.list_ranges(stream.stream_id)
        await writer.close()
        await client.close()
        return json.dumps({"stream_id": where.stream_id, "index": where.index, "start": where.start})

    return asyncio.run(make())


class Run:
    """One node, its well-behaved clients, and the phases."""

    def __init__(self, node: NodeProcess, report: Report, args: argparse.Namespace) -> None:
        self.node = node
        self.report = report
        self.args = args
        self.base_rss = 0
        self.calm: dict[str, float] = {}
        self.targets = node.addresses
        address = {name: ("127.0.0.1", int(place.rpartition(":")[2])) for name, place in node.addresses.items()}
        fill(node.bootstrap, args.megabytes)
        with ydb.Driver(endpoint=f"grpc://{self.targets['ydb']}", database="/local") as driver:
            driver.wait(timeout=PATIENCE_S)
            driver.topic_client.alter_topic(BULK, add_consumers=[CONSUMER])
        self.bulk = bulk_range(address["sbp-pd"], args.megabytes)
        self.producing = KafkaProducing(node.bootstrap, GOOD, 100)
        self.consuming = KafkaConsuming(node.bootstrap, GOOD)
        store, good = self.targets["pravega-segmentstore"], pravega_segment(GOOD_PRAVEGA, 0)
        self.reading = PravegaReading(store, good)
        self.lateness = Lateness()
        self.lateness.start()
        self.workers: list[Worker] = [
            self.producing,
            self.consuming,
            self.reading,
            PravegaWriting(store, good, 50),
            PravegaAsking(self.targets["pravega"], GOOD_PRAVEGA, 5),
            SbpAppending(address["sbp-pd"], 50),
            YdbWriting(self.targets["ydb"], GOOD_YDB, 50),
            HealthAsking(address["console"], 5),
        ]
        for worker in self.workers:
            worker.start()
        deadline = time.monotonic() + PATIENCE_S
        while any(worker.requests < 3 for worker in self.workers):  # connected, and past what only the first ones meet
            if time.monotonic() > deadline or any(worker.trouble for worker in self.workers):
                raise NodeFailed(f"a client could not begin: {[worker.trouble for worker in self.workers]}")
            time.sleep(0.05)

    def attack(self, attacks: Sequence[tuple[str, int]]) -> subprocess.Popen[str]:
        """Begin all kinds of hostility of a phase, in processes that are a group."""
        command = [sys.executable, str(HERE / "hostile_attacks.py")]
        command += [f"{kind}={max(2, int(count * self.args.scale))}" for kind, count in attacks]
        for name in LISTENERS:
            command += ["--target", f"{name}={self.targets[name]}"]
        command += ["--seconds", str(self.args.seconds), "--seed", str(self.report.seed)]
        command += ["--bulk", self.bulk, "--partitions", str(BULK_PARTITIONS)]
        if not self.args.compete:
            command.append("--idle")
        # Not a session: the kernel may share processors out among sessions first, whatever is idle within one.
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)

    def phase(self, phase: Phase) -> None:
        """Measure one phase from the first attack to the last one's end."""
        line = Line(phase.name)
        for worker in (*self.workers, self.lateness):
            worker.lap()
        waited = waited_for_processor(self.node.pid)
        began = time.monotonic()
        with Watch(self.node.pid) as watch:
            if phase.attacks:
                line.attacks = self.carried_out(phase)
            else:
                time.sleep(self.args.seconds)
        line.seconds = time.monotonic() - began
        line.peak_rss, line.cpu_seconds = watch.usage.peak_rss, watch.usage.cpu_seconds
        line.disk_bytes = watch.usage.disk_bytes
        line.loop_waited = waited_for_processor(self.node.pid) - waited
        line.clients_late = max(self.lateness.lap()[LATENESS], default=0.0)
        for worker in self.workers:
            for kind, took in worker.lap().items():
                took.sort()
                line.p99[kind] = took[int(len(took) * 0.99)]
                line.longest[kind] = took[-1]
                line.requests[kind] = len(took)
        self.report.lines.append(line)
        self.judge(line)
        show(line)
        print(told_of_disk(line), flush=True)
        print(told_of_processors(line), flush=True)

    def carried_out(self, phase: Phase) -> dict[str, dict[str, int]]:
        """What the attacks of a phase did, when the last of them has ended."""
        process = self.attack(phase.attacks)
        over = ""
        try:
            told, _ = process.communicate(timeout=self.args.seconds + 4 * PATIENCE_S)
        except subprocess.TimeoutExpired:
            over = "did not end"
            os.killpg(process.pid, signal.SIGKILL)
            told, _ = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        done = {one.pop("kind"): one for one in map(json.loads, told.splitlines())}
        missing = [kind for kind, _ in phase.attacks if kind not in done]
        self.report.violations += [f"{phase.name}: the attack {kind} {over or 'broke'}" for kind in missing]
        if process.returncode and not missing:
            self.report.violations.append(f"{phase.name}: the attacks broke: exit {process.returncode}")
        return done

    def bound(self, line: Line, kind: str) -> float:
        """Seconds that a request may have taken: as in the calm, ``--stall``, what the bare disk takes for the group
        that is being flushed when it comes and for its own, and how late whoever asked was himself."""
        return self.calm.get(kind, 0.0) + float(self.args.stall) + 2 * line.disk_floor + line.clients_late

    def judge(self, line: Line) -> None:
        """What must hold in every phase."""
        if not self.base_rss:
            self.base_rss, self.calm = line.peak_rss, line.longest
        grown = line.peak_rss - self.base_rss
        if any(longest > self.bound(line, kind) for kind, longest in line.longest.items()):
            line.disk_floor = floor(self.node.data.parent, line.disk_bytes / line.seconds, self.args.seconds)
        if grown > MEMORY_ALLOWED:
            self.report.violations.append(f"{line.phase}: the node grew by {grown >> 20} MiB")
        for kind in KINDS:
            if kind not in line.requests:
                self.report.violations.append(f"{line.phase}: not one answer for {kind}")
            elif line.longest[kind] > PATIENCE_S:
                self.report.violations.append(f"{line.phase}: {kind} took {line.longest[kind]:.1f} s")
            elif line.longest[kind] > self.bound(line, kind):
                told = f"{_ms(line.longest[kind])} ms, {_ms(self.calm.get(kind))} ms in the calm"
                self.report.violations.append(f"{line.phase}: {kind} took {told}")
        if not psutil.pid_exists(self.node.pid):
            raise NodeFailed(f"the node ended during {line.phase}:\n{self.node.tail()}")

    def end(self) -> None:
        """Stop the clients and compare what they were told."""
        produced, consumed = self.producing, self.consuming
        produced.end()
        self.lateness.end()
        self.reading.end()  # while there is still something for it to wait for
        deadline = time.monotonic() + PATIENCE_S
        while len(consumed.read) < len(produced.acknowledged) and time.monotonic() < deadline:
            time.sleep(0.05)
        for worker in self.workers[1:]:
            worker.end()
        for worker in self.workers:
            self.report.violations += [f"{worker.name}: {trouble}" for trouble in worker.trouble[:5]]
        acknowledged = sorted((offset, number) for number, offset in produced.acknowledged.items())
        if consumed.read != acknowledged:
            self.report.violations.append(
                f"{len(acknowledged)} records were acknowledged, {len(consumed.read)} read, and they differ"
            )
        text = self.node.log.read_text(errors="replace")
        for sign in UNEXPECTED:
            if sign in text:
                at = text.index(sign)
                self.report.violations.append(
                    f"{text.count(sign)} times in the log: {text[max(0, at - 600) : at + 1500]}"
                )


def show(line: Line) -> None:
    """One line of the table."""
    waits = "".join(f"{_ms(line.p99.get(kind)):>10}{_ms(line.longest.get(kind)):>9}" for kind in KINDS)
    print(f"{line.phase:13}{waits}{line.peak_rss >> 20:9}{line.cpu_seconds / line.seconds * 100:7.0f}%", flush=True)
    for kind, done in line.attacks.items():
        told = ", ".join(f"{value:,} {key.replace('_', ' ')}" for key, value in done.items() if value)
        print(f"    {kind}: {told}", flush=True)


def told_of_disk(line: Line) -> str:
    """What the node had the disk do, and what the bare disk made of as much."""
    rate = line.disk_bytes / line.seconds / 1e6
    told = f"    the node wrote {line.disk_bytes / 1e6:,.0f} MB, {rate:.0f} MB/s"
    return told + (f"; beside as much 4 KiB, flushed, took up to {_ms(line.disk_floor)} ms" if line.disk_floor else "")


def told_of_processors(line: Line) -> str:
    """Who waited for a processor."""
    told = f"    the node's loop had no processor for {line.loop_waited / line.seconds:.0%} of the time"
    return f"{told}; the clients were late by up to {_ms(line.clients_late)} ms themselves"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f}"


def heading() -> None:
    print(f"{'ms':13}" + "".join(f"{kind:>19}" for kind in KINDS) + f"{'MiB':>9}{'CPU':>8}")
    print(" " * 13 + f"{'p99':>10}{'longest':>9}" * len(KINDS))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 when nobody who behaves suffered more than waiting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="length of each phase")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the numbers of connections")
    parser.add_argument("--megabytes", type=int, default=100, help="data to be read slowly, twice")
    parser.add_argument("--only", nargs="*", default=None, choices=[phase.name for phase in PHASES])
    parser.add_argument(
        "--stall",
        type=float,
        default=STALL_S,
        metavar="SECONDS",
        help="how much longer than in the calm anybody may wait; more where others use the machine, too",
    )
    parser.add_argument("--compete", action="store_true", help="hostile clients use processors as anybody does")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the node")
    parser.add_argument("--directory", type=Path, default=None, help="kept when something was violated")
    parser.add_argument("--json", type=Path, default=None, help="write the report there")
    args = parser.parse_args(arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    report = Report(args.seed if args.seed is not None else random.SystemRandom().randrange(2**31))
    print(f"seed {report.seed}", flush=True)
    directory = args.directory or ROOT / "build" / f"hostile-{report.seed}"
    if directory.exists():
        shutil.rmtree(directory)
    settings = dict(item.split("=", 1) for item in args.set)
    node = NodeProcess(
        directory / "data",
        settings=settings,
        listen=dict.fromkeys((*FRONTS, "sbp-v0.1", "ydb", "pravega", "pravega-segmentstore"), ANY),
    )
    chosen = PHASES if args.only is None else [phase for phase in PHASES if phase.name in {"calm", *args.only}]
    try:
        node.start()
        run = Run(node, report, args)
        waited = floor(directory, DISK_RATE, 2.0)
        print(f"the bare disk: 4 KiB, flushed, beside {DISK_RATE / 1e6:.0f} MB/s took up to {_ms(waited)} ms")
        heading()
        for phase in chosen:
            run.phase(phase)
        run.end()
    except NodeFailed as failure:
        report.violations.append(str(failure))
    finally:
        node.stop()
    for violation in report.violations:
        print(f"VIOLATION {violation}")
    print("nobody who behaves was harmed" if not report.violations else f"{len(report.violations)} violations")
    if args.json is not None:
        args.json.write_text(json.dumps(asdict(report), indent=1) + "\n")
    if not report.violations:
        shutil.rmtree(directory)
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
