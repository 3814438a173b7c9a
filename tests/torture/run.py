"""Kills a node again and again under mixed load and checks that every promise it made was kept.

    python -m tests.torture.run                       # 50 cycles, a random seed that is printed
    python -m tests.torture.run --cycles 3 --seed 7
    python -m tests.torture.run --broker document     # a node behind SBP's dialect v0.1: one of the two dies, or both
    python -m tests.torture.run --broker kafka        # the harness itself against Apache Kafka

Checked at the end: every acknowledged record is at its offset with its content; none of an idempotent producer's is
doubled; order per producer and partition; committed positions never went back; nothing that a consumer was given has
changed; offsets have no holes; of Pravega's transactions all is stored of those committed, and nothing of others; a
reader group of Pravega's was given each event once, in the order of its key. Between cycles the tail of the log behind
the last durable group is torn in several ways. Last, one bit of acknowledged data is flipped in a copy: the node must
refuse to start on it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import random
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import ydb
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.kafka_broker import KafkaBroker
from benchmarks.probe import first_metadata
from tests.node_process import ANY, DocumentNode, NodeFailed, NodeProcess
from tests.torture.torture_load import (
    PATIENCE,
    AiokafkaLoad,
    ConfluentLoad,
    GroupMember,
    KafkaPythonLoad,
    Plan,
    Promises,
    Worker,
    payload,
)
from tests.torture.torture_pravega import (
    SEGMENTS,
    TOPIC,
    WHEEL,
    PravegaMember,
    TransactionLoad,
    WriterLoad,
    check_member,
    check_transactions,
    java,
)
from tests.torture.torture_pravega import prepare as prepare_pravega
from tests.torture.torture_verdict import (
    Verdict,
    check_consumers,
    check_offsets,
    check_producer,
    committed,
    read_log,
)
from tests.torture.torture_ydb import Alternating, PlainLoad, SdkLoad, YdbMember, prepare

ROOT = Path(__file__).resolve().parents[2]
JAVA = "Pravega's Java client beside the wheel; without the option where there is a JDK and Maven"
GROUP = "torture"
TOPICS = {"idempotent": 4, "plain": 3, "python": 2, "asyncio": 2}
YDB_TOPICS = {"ydb": 3}
OF_OTHERS = ("ydb", "pravega", "pravega-segmentstore", "pipeline")
"""Listeners that clients of other protocols than Kafka's need."""
_GIVE_UP_S = 20.0
YDB_GROUP, BOTH = "torture-ydb", "torture-both"
"""A consumer of YDB's, and one that is a group of Kafka's in turn."""
PLANS = (
    Plan("rdkafka-idempotent-zstd", "idempotent", 4, 1500, "zstd", True),
    Plan("rdkafka-idempotent-none", "idempotent", 4, 1500, "none", True),
    Plan("rdkafka-plain-lz4", "plain", 3, 1000, "lz4", False),
    Plan("python-plain-gzip", "python", 2, 300, "gzip", False),
    Plan("aiokafka-idempotent-snappy", "asyncio", 2, 500, "snappy", True),
)


Load = ConfluentLoad | KafkaPythonLoad | AiokafkaLoad | SdkLoad | PlainLoad | WriterLoad | TransactionLoad


@dataclass(slots=True)
class Report:
    """What happened, for people and for JSON."""

    seed: int
    cycles: int = 0
    kills: int = 0
    kills_while_starting: int = 0
    torn: dict[str, int] = field(default_factory=dict)
    restart_seconds: list[float] = field(default_factory=list)
    producers: dict[str, dict[str, int]] = field(default_factory=dict)
    readers: dict[str, dict[str, int]] = field(default_factory=dict)
    verdict: Verdict = field(default_factory=Verdict)
    flipped_bit: str = "not tried"


class Torture:
    """One run against one server that stays at its address over restarts."""

    def __init__(self, server: NodeProcess | KafkaBroker, seed: int, report: Report, java_too: bool = False) -> None:
        self.server = server
        self.java_too = java_too
        self.seed = seed
        self.random = random.Random(seed)
        self.report = report
        self.finish = threading.Event()
        self.producers: list[Load] = []
        self.pravega_members: list[PravegaMember] = []
        self.members: list[GroupMember] = []
        self.topics = dict(TOPICS)
        self.positions: dict[tuple[str, str], dict[int, int]] = {}

    def begin(self) -> None:
        """Topics, then all clients."""
        speaks_others = isinstance(self.server, NodeProcess)
        if speaks_others:
            self.topics.update(YDB_TOPICS)
        admin = AdminClient({"bootstrap.servers": self.server.bootstrap})
        for future in admin.create_topics([NewTopic(name, count, 1) for name, count in self.topics.items()]).values():
            future.result(60)
        kinds = {"rdkafka": ConfluentLoad, "python": KafkaPythonLoad, "aiokafka": AiokafkaLoad}
        for plan in PLANS:
            kind = kinds[plan.name.split("-")[0]]
            self.producers.append(kind(self.server.bootstrap, self.seed, plan, self.finish))
        for number in range(2):
            name = f"member-{number}"
            self.members.append(GroupMember(self.server.bootstrap, "idempotent", GROUP, name, self.finish))
        if speaks_others:
            self.begin_ydb()
            self.begin_pravega()
        for worker in self.workers:
            worker.start()

    def begin_ydb(self) -> None:
        """Writers of YDB's with and without a name, two with one name, and readers that come and go."""
        assert isinstance(self.server, NodeProcess)
        address = self.server.ydb
        prepare(address, {"ydb": YDB_GROUP, "plain": BOTH})
        raw, gzip = ydb.TopicCodec.RAW, ydb.TopicCodec.GZIP
        common = address, self.seed
        self.producers += [
            SdkLoad(*common, "ydb-placed-gzip", "ydb", 400, self.finish, producer="placed", codec=gzip, partition=0),
            SdkLoad(*common, "ydb-pinned-raw", "ydb", 400, self.finish, producer="pinned", codec=raw),
            SdkLoad(*common, "ydb-twin-a", "ydb", 50, self.finish, producer="twins", codec=raw, shared=True),
            SdkLoad(*common, "ydb-twin-b", "ydb", 50, self.finish, producer="twins", codec=raw, shared=True),
            PlainLoad(*common, "ydb-nameless", "ydb", 400, self.finish),
        ]
        self.members += [YdbMember(address, "ydb", YDB_GROUP, f"ydb-member-{n}", self.finish) for n in range(2)]
        bootstrap, partitions = self.server.bootstrap, TOPICS["plain"]
        self.members.append(Alternating(address, bootstrap, "plain", partitions, BOTH, "both", self.finish))

    def begin_pravega(self) -> None:
        """A writer of events, one of transactions, and readers of a group: with the wheel, and with Java's client. Both
        groups read what all have written."""
        assert isinstance(self.server, NodeProcess)
        controller = self.server.addresses["pravega"]
        prepare_pravega(controller)
        self.topics[TOPIC] = SEGMENTS
        clients = {"pravega": WHEEL}
        if self.java_too:
            clients["pravega-java"] = tuple(java())
        writers: list[WriterLoad | TransactionLoad] = []
        for name, command in clients.items():
            common = command, controller, self.seed
            writers.append(WriterLoad(*common, f"{name}-writer", 400, self.finish))
            writers.append(TransactionLoad(*common, f"{name}-transactions", 200, self.finish))
        self.producers += writers
        for name, command in clients.items():
            self.pravega_members.append(PravegaMember(command, controller, f"{name}-reader", writers, self.finish))

    @property
    def workers(self) -> Sequence[Worker]:
        """All client threads."""
        return [*self.producers, *self.members, *self.pravega_members]

    def promised_positions(self) -> dict[tuple[str, str], dict[int, int]]:
        """By group and topic: partition -> highest offset whose commit was acknowledged to any member."""
        best: dict[tuple[str, str], dict[int, int]] = {}
        for member in self.members:
            positions = best.setdefault((member.group, member.topic), {})
            for partition, offset in member.promised().items():
                positions[partition] = max(positions.get(partition, 0), offset)
        return best

    def check_positions(self, promised: dict[tuple[str, str], dict[int, int]]) -> None:
        """Committed positions are not behind what was promised before the crash, nor behind what was seen before."""
        for (group, topic), positions in promised.items():
            found = committed(self.server.bootstrap, group, topic, self.topics[topic])
            seen = self.positions.get((group, topic), {})
            for partition in range(self.topics[topic]):
                least = max(positions.get(partition, 0), seen.get(partition, 0))
                have = found.get(partition, 0)
                if have < least:
                    self.report.verdict.violations.append(
                        f"position: cycle {self.report.cycles}, {group} in {topic}[{partition}]: {have} after {least}"
                    )
            self.positions[group, topic] = found

    def kill(self) -> None:
        """SIGKILL."""
        if isinstance(self.server, NodeProcess):
            for process in self.victims():
                process.kill()
        else:
            process, self.server.process = self.server.process, None
            assert process is not None
            process.kill()
            process.wait()
        self.report.kills += 1

    def victims(self) -> list[NodeProcess]:
        """The processes that die together."""
        server = self.server
        assert isinstance(server, NodeProcess)
        if isinstance(server, DocumentNode):
            return self.random.choice(([server], [server.backend], [server, server.backend]))
        return [server]

    def restart(self) -> None:
        """Start again, sometimes killed again while starting; measures the last start to its first metadata."""
        node = self.server if isinstance(self.server, NodeProcess) else None
        while node is not None and node.process is None and self.random.random() < 0.2:
            node.launch()
            time.sleep(self.random.uniform(0.02, 0.8))
            node.kill()
            self.report.kills_while_starting += 1
        began = time.monotonic()
        self.server.start()
        self.report.restart_seconds.append(first_metadata(self.server.port, began))

    def tear(self) -> None:
        """Damage the unused space behind the last durable group, as a write cut off by a crash would."""
        server = self.server.backend if isinstance(self.server, DocumentNode) else self.server
        if not isinstance(server, NodeProcess) or server.process is not None:
            return
        from tests.torture.torture_damage import tear_tail

        what = tear_tail(server.data, self.random)
        self.report.torn[what] = self.report.torn.get(what, 0) + 1

    def cycle(self, life: tuple[float, float]) -> None:
        """One life and death of the server."""
        seconds = self.random.uniform(*life)
        time.sleep(seconds)
        for worker in self.workers:
            if worker.trouble is not None:
                raise RuntimeError(f"{worker.name} ended early") from worker.trouble
        before = sum(producer.promises.count for producer in self.producers)
        promised = self.promised_positions()
        self.kill()
        self.tear()
        self.restart()
        self.report.cycles += 1
        self.check_positions(promised)
        print(
            f"cycle {self.report.cycles}: killed after {seconds:.2f} s with {before:,} records acknowledged; "
            f"back in {self.report.restart_seconds[-1]:.2f} s",
            flush=True,
        )

    def end(self) -> None:
        """Let every client finish, then compare everything."""
        self.await_readers()
        self.finish.set()
        for worker in self.workers:
            worker.join(180)
            if worker.is_alive():
                self.report.verdict.violations.append(f"stuck: {worker.name} did not end in 180 s")
            elif worker.trouble is not None:
                self.report.verdict.violations.append(f"ended: {worker.name} with {worker.trouble!r}")
        self.check_positions(self.promised_positions())
        self.compare([producer.promises for producer in self.producers])

    def give_up(self) -> None:
        """Let clients end whose run has failed. What they say while the interpreter goes away under them would come
        behind what has failed, and hide it."""
        self.finish.set()
        deadline = time.monotonic() + _GIVE_UP_S
        for worker in self.workers:
            worker.join(max(0.0, deadline - time.monotonic()))

    def await_readers(self) -> None:
        """With the server up, everybody who reads gets something, and may commit it; whoever writes, Pravega's clients,
        which come back late, and others on a busy machine, gets an answer. Of two with one name one may be left out."""
        deadline = time.monotonic() + PATIENCE
        waiting = {member.group for member in self.members}
        while waiting and time.monotonic() < deadline:
            waiting -= {member.group for member in self.members if sum(member.promised().values())}
            time.sleep(0.1)
        slow = [load for load in self.producers if not (isinstance(load, SdkLoad) and load.shared)]
        while not all(load.promises.count for load in slow) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.report.verdict.violations += [f"stuck: nobody of {group} could commit anything" for group in waiting]

    def compare(self, promises: Sequence[Promises]) -> None:
        """Read the whole log and check it against the promises."""
        log = read_log(self.server.bootstrap, self.topics)
        for given in promises:
            check_producer(self.seed, given, log, self.report.verdict)
            self.report.producers[given.name] = {
                "sent": given.sent,
                "acknowledged": given.count,
                "refused": len(given.refused),
            }
        for member in self.members:
            read, positions = len(member.seen), sum(member.promised().values())
            self.report.readers[member.name] = {"read": read, "committed": positions}
        for load in self.producers:
            if isinstance(load, TransactionLoad):
                fates = load.transactions
                self.report.producers[load.name].update(
                    {fate: fates.count(fate) for fate in ("committed", "aborted", "asked", "open")}
                )
                check_transactions(load.name, fates, log, self.report.verdict)
        for pravega in self.pravega_members:
            self.report.readers[pravega.name] = {"read": len(pravega.events)}
            check_member(pravega, log, self.report.verdict)
        check_offsets(log, self.report.verdict)
        check_consumers(self.members, log, self.report.verdict)


def flip_bit(server: NodeProcess, seed: int, report: Report) -> None:
    """The node must refuse a data directory in which one bit of acknowledged data is wrong, and say why."""
    from tests.torture.torture_damage import flip_acknowledged_bit

    producer = Producer({"bootstrap.servers": server.start().bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0})
    for number in range(50):  # groups that no checkpoint covers, so that recovery has to read them
        producer.produce("plain", payload(seed, "last", number), partition=0)
        if producer.flush(30):
            raise TimeoutError("a record was not acknowledged in 30 s")
    server.kill()
    copy = NodeProcess(server.data.with_name("flipped"), settings=server.settings, start_seconds=30.0)
    shutil.copytree(server.data, copy.data)
    place = flip_acknowledged_bit(copy.data, random.Random(seed))
    try:
        copy.start()
    except NodeFailed as refusal:
        text = str(refusal).strip()
        report.flipped_bit = f"{place}: refused: {text.splitlines()[-1] if text else ''}"
    else:
        copy.stop()
        report.flipped_bit = f"{place}: STARTED"
        report.verdict.violations.append(f"corruption: the node started although a bit was flipped at {place}")
    shutil.rmtree(copy.data)
    server.start()  # without the flipped bit the same data is good
    server.stop()


def show(report: Report) -> None:
    """Print what a person wants to know."""
    verdict, restarts = report.verdict, sorted(report.restart_seconds)
    print(f"\nseed {report.seed}: {report.cycles} cycles, {report.kills} kills under load, ", end="")
    print(f"{report.kills_while_starting} while starting; torn tails: {report.torn}")
    for name, counts in (*report.producers.items(), *report.readers.items()):
        print(f"  {name:28} {', '.join(f'{value:,} {key}' for key, value in counts.items())}")
    if restarts:
        print(
            f"restart to first metadata: median {statistics.median(restarts):.2f} s, longest {restarts[-1]:.2f} s, "
            f"first {report.restart_seconds[0]:.2f} s, last {report.restart_seconds[-1]:.2f} s"
        )
    print(
        f"{verdict.acknowledged:,} acknowledged records checked, {verdict.stored:,} stored, "
        f"{verdict.unacknowledged_stored:,} stored without acknowledgement, "
        f"{verdict.duplicates_allowed:,} repeated by producers that are not idempotent"
    )
    print(f"flipped bit: {report.flipped_bit}")
    for violation in verdict.violations:
        print(f"VIOLATION {violation}")
    print("every promise was kept" if not verdict.violations else f"{len(verdict.violations)} violations")


def main() -> int:
    """Run; 0 when every promise was kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--broker", choices=("node", "document", "kafka"), default="node")
    parser.add_argument("--life", type=float, nargs=2, default=(0.3, 3.0), metavar=("MIN", "MAX"), help="seconds")
    parser.add_argument("--java", action=argparse.BooleanOptionalAction, default=None, help=JAVA)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the server")
    parser.add_argument("--directory", type=Path, default=None, help="kept when promises were broken")
    parser.add_argument("--json", type=Path, default=None, help="write the report there")
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(2**31)
    print(f"seed {seed}", flush=True)
    for library in ("aiokafka", "kafka", "ydb"):
        logging.getLogger(library).setLevel(logging.CRITICAL)  # a node that is down is what this is about
    report = Report(seed)
    settings = dict(item.split("=", 1) for item in args.set)
    with contextlib.ExitStack() as stack:
        directory = args.directory or ROOT / "build" / f"torture-{seed}"
        if directory.exists():
            shutil.rmtree(directory)
        server: NodeProcess | KafkaBroker
        # Small segments, so that a run crosses many of them.
        given = {"kafka.group.initial_rebalance_delay_ms": "0", "sbp.segment_bytes": "8MiB", **settings}
        if args.broker == "node":
            server = NodeProcess(directory / "data", settings=given)
        elif args.broker == "document":
            server = DocumentNode(directory / "data", settings=given, backend_settings=given)
        else:
            server = KafkaBroker(directory, settings=settings)
        if isinstance(server, NodeProcess):
            server.listen.update(dict.fromkeys(OF_OTHERS, ANY))
        stack.callback(server.stop)
        server.start()
        java_too = args.java if args.java is not None else bool(shutil.which("java") and shutil.which("mvn"))
        torture = Torture(server, seed, report, java_too)
        try:
            torture.begin()
            for _ in range(args.cycles):
                torture.cycle(tuple(args.life))
            torture.end()
        except BaseException:
            torture.give_up()
            raise
        server.stop()
        if type(server) is NodeProcess:
            flip_bit(server, seed, report)
    show(report)
    if not report.verdict.violations:
        shutil.rmtree(directory)
    if args.json is not None:
        args.json.write_text(json.dumps(asdict(report), indent=1) + "\n")
    return 1 if report.verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
