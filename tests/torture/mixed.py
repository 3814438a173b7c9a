"""Three protocols write one topic, in transactions and not, and read it, while its node is killed and paused; then one
judge reads the histories of all clients (tests/history).

    python -m tests.torture.mixed                 # two minutes, a random seed that is printed
    python -m tests.torture.mixed --seconds 20 --seed 7

Beside what every log must keep (lost, duplicate, reordered, divergent, aborted and dirty reads, torn transactions, lost
positions ...) it is checked that a consume-transform-produce loop has derived each record of the topic once, that
transfers between accounts kept their sum, and that there was progress in every stretch of time in which the node was
up, also while another client was paused in the middle of a transaction.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

import msgspec
from confluent_kafka.admin import AdminClient, NewTopic

from tests.history.checks import FEW, arrange, judge, told
from tests.history.history import Outcome, Poll, Told, read
from tests.node_process import ANY, NodeProcess
from tests.torture.mixed_clients import (
    ACCOUNTS,
    MONEY,
    TRANSACTION_MS,
    Client,
    Ends,
    Reader,
    Scene,
    Transactional,
    Transfers,
    Transformer,
    Writer,
    YdbReader,
    YdbWriter,
    balances_of,
    history_of_reader,
    history_of_writer,
    read_whole,
    source,
)
from tests.torture.torture_load import Place, Worker
from tests.torture.torture_pravega import (
    SEGMENTS,
    TOPIC,
    WHEEL,
    PravegaMember,
    TransactionLoad,
    WriterLoad,
    check_transactions,
)
from tests.torture.torture_pravega import prepare as prepare_pravega
from tests.torture.torture_verdict import Verdict
from tests.torture.torture_ydb import prepare as prepare_ydb

DERIVED, MONEY_TOPIC = "derived", "accounts"
PRAVEGA = "pravega-mixed"
_PATIENCE_S = 30 + 2 * TRANSACTION_MS / 1000


@dataclass(slots=True)
class Report:
    """What happened, and every broken promise in words."""

    seed: int
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    calls: dict[str, int] = field(default_factory=dict)
    transactions: Counter[str] = field(default_factory=Counter)
    derived: int = 0
    violations: list[str] = field(default_factory=list)


class Mixed:
    """Clients of all protocols at one topic, and the judge of what they were told. ``controller``: Pravega's."""

    def __init__(self, scene: Scene, controller: str) -> None:
        self.scene, self.controller = scene, controller
        self.random = random.Random(scene.seed)
        self.report = Report(scene.seed)
        self.finish, self.over = threading.Event(), threading.Event()
        """Writers end with the first; readers, when they have read everything, with the second."""
        self.writers: list[Client | WriterLoad | TransactionLoad] = []
        self.readers: list[Client | PravegaMember] = []

    @property
    def workers(self) -> list[Client | WriterLoad | TransactionLoad | PravegaMember]:
        return [*self.writers, *self.readers]

    def begin(self) -> None:
        prepare_pravega(self.controller)
        admin = AdminClient({"bootstrap.servers": self.scene.bootstrap})
        topics = [NewTopic(DERIVED, SEGMENTS, 1), NewTopic(MONEY_TOPIC, 1, 1)]
        for future in admin.create_topics(topics).values():
            future.result(60)
        prepare_ydb(self.scene.ydb, {TOPIC.replace(".", "/"): "ydb-reader"})
        self.make_clients()
        for worker in self.workers:
            worker.start()

    def make_clients(self) -> None:
        scene, finish, over = self.scene, self.finish, self.over
        self.writers = [
            *(Writer(scene, f"writer-{n}", finish) for n in range(2)),
            *(Transactional(scene, f"transactor-{n}", finish) for n in range(2)),
            Transfers(scene, "transfers", finish),
            Transformer(scene, "transformer", finish),
            YdbWriter(scene, "ydb-writer", finish),
            Ends(scene, "ends", finish),
            WriterLoad(WHEEL, self.controller, scene.seed, PRAVEGA, scene.rate, finish),
        ]
        self.readers = [
            Reader(scene, "committed-reader", over, True),
            Reader(scene, "all-reader", over, False),
            YdbReader(scene, "ydb-reader", over),
        ]

    def quiet(self, seconds: float) -> None:
        """The node is up: every client gets something done, in this time and what it may have to wait for at first."""
        before = {worker.name: worker.done for worker in self.workers}
        began = time.monotonic()
        waiting, late = self.workers, list[Worker]()
        while (waiting or time.monotonic() < began + seconds) and not late:
            self.look()
            time.sleep(0.1)
            waiting = [one for one in waiting if one.done == before[one.name]]
            waited = time.monotonic() - began - seconds
            late = [one for one in waiting if waited > self.patience(one)]
        self.report.violations += [f"no progress: {one.name}, with the node up" for one in late]

    def patience(self, worker: Worker) -> float:
        """Seconds that a client may have to wait until it gets on."""
        return _PATIENCE_S

    def look(self) -> None:
        """Raises RuntimeError when somebody has ended before the end."""
        for worker in self.workers:
            if worker.trouble is not None:
                raise RuntimeError(f"{worker.name} ended early") from worker.trouble

    def end(self) -> None:
        """Let everybody finish, wait until all is decided, read everything, and judge."""
        self.finish.set()
        self.join(self.writers)
        time.sleep(TRANSACTION_MS / 1000 + 2)  # by now the coordinator has ended what nobody did
        topics = ((TOPIC, SEGMENTS), (DERIVED, SEGMENTS), (MONEY_TOPIC, 1))
        whole = {topic: read_whole(self.scene, topic, partitions) for topic, partitions in topics}
        self.await_readers(whole[TOPIC])
        self.over.set()
        self.join(self.readers)
        events = self.told(whole[TOPIC])
        events += [all_of(topic, records) for topic, records in whole.items()]
        self.report.events = len(events)
        self.report.calls = {worker.name: worker.done for worker in self.workers}
        places = [f"{topic}/{n}" for topic, partitions in topics for n in range(partitions)]
        facts = arrange(events, wholly=places)
        self.report.transactions = Counter(
            "unknown" if end.outcome is Outcome.UNKNOWN else "committed" if end.commit else "aborted"
            for end in facts.ends.values()
        )
        found = judge(facts)
        if found:
            self.report.violations += told(found).splitlines()
        self.report.violations += check_given(events, whole[TOPIC])
        self.report.violations += self.check_pravega(whole[TOPIC])
        self.report.violations += check_derived(whole[TOPIC], whole[DERIVED])
        self.report.derived = len(whole[DERIVED])
        self.report.violations += check_money(balances_of(self.scene))

    def check_pravega(self, records: Sequence[tuple[str, int, str]]) -> list[str]:
        """Transactions of Pravega's are there wholly, or not at all, whoever knows how they ended."""
        log: dict[Place, dict[int, bytes]] = {(TOPIC, number): {} for number in range(SEGMENTS)}
        for partition, offset, value in records:
            log[TOPIC, int(partition.rpartition("/")[2])][offset] = value.encode()
        verdict = Verdict()
        for worker in self.writers:
            if isinstance(worker, TransactionLoad):
                check_transactions(worker.name, worker.transactions, log, verdict)
        return verdict.violations

    def join(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            worker.join(180)
            if worker.is_alive():
                self.report.violations.append(f"stuck: {worker.name} did not end in 180 s")
            elif worker.trouble is not None:
                self.report.violations.append(f"ended: {worker.name} with {worker.trouble!r}")

    def await_readers(self, records: Sequence[tuple[str, int, str]]) -> None:
        """Each group, and who reads by himself, comes to the end of everybody's topic."""
        last = {partition: offset for partition, offset, _ in records}
        deadline = time.monotonic() + 120
        while (behind := self.behind(len(records), last)) and time.monotonic() < deadline:
            time.sleep(0.2)
        self.report.violations += [f"behind: {name} has not come to the end: {dict(last)}" for name in behind]

    def behind(self, count: int, last: Mapping[str, int]) -> set[str]:
        """Groups that have not read so many records, up to the ``last`` offset of each partition."""
        reached: dict[str, dict[str, int]] = {}
        found = set()
        for reader in self.readers:
            if isinstance(reader, PravegaMember):
                found |= {reader.name} if len(reader.events) < count else set()
                continue
            group = reached.setdefault(group_of(reader.name), {})
            for partition in last:
                group[partition] = max(group.get(partition, -1), reader.reached.get(partition, -1))
        return found | {name for name, group in reached.items() if any(group[one] < end for one, end in last.items())}

    def told(self, records: Sequence[tuple[str, int, str]]) -> list[Told]:
        """What all clients were told. ``records``: what everybody's topic has, for Pravega's, who hear of no places."""
        events: list[Told] = list(read(self.scene.directory.glob("*.jsonl")))
        places = {value.rpartition(":")[0]: (partition, offset, value) for partition, offset, value in records}
        for worker in self.workers:
            if isinstance(worker, WriterLoad | TransactionLoad):
                events += history_of_writer(worker, places)
            elif isinstance(worker, PravegaMember):
                events.append(history_of_reader(worker, places))
        return events


class Faulty(Mixed):
    """One run against one node that stays at its addresses, and is killed and paused."""

    def __init__(self, node: NodeProcess, directory: Path, seed: int) -> None:
        scene = Scene(node.bootstrap, node.ydb, directory / "history", seed, TOPIC, SEGMENTS, DERIVED, MONEY_TOPIC)
        super().__init__(scene, node.addresses["pravega"])
        self.node = node

    def run(self, seconds: float) -> None:
        """Faults, one after the other, with time between in which everybody has to get on."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.quiet(self.random.uniform(2, 5))
            fault = self.random.choice((self.kill, self.kill, self.pause))
            self.report.faults[fault.__name__] += 1
            fault()
        self.quiet(5)

    def kill(self) -> None:
        self.node.kill()
        self.node.start()

    def pause(self) -> None:
        """Everything stands still for longer than clients wait for some answers."""
        os.kill(self.node.pid, signal.SIGSTOP)
        time.sleep(self.random.uniform(5, 12))
        os.kill(self.node.pid, signal.SIGCONT)


def all_of(topic: str, records: Sequence[tuple[str, int, str]]) -> Poll:
    """What is left at the end."""
    now = time.monotonic()
    return Poll(
        client=f"all of {topic}",
        invoked=now,
        told=now,
        protocol="kafka",
        session="1",
        records=list(records),
        whole=True,
    )


def group_of(client: str) -> str:
    """Members are named after their group: ``group.number``."""
    return client.partition(".")[0]


def check_given(events: Sequence[Told], topic: Sequence[tuple[str, int, str]]) -> list[str]:
    """Each group was given every record."""
    given: dict[str, set[tuple[str, int]]] = {}
    for event in events:
        if isinstance(event, Poll) and not event.whole:
            seen = given.setdefault(group_of(event.client), set())
            seen.update((partition, offset) for partition, offset, _ in event.records)
    found = []
    for group, seen in given.items():
        missed = [record for record in topic if record[:2] not in seen]
        if missed:
            found.append(f"not delivered: {group} was never given {len(missed)} records, as {missed[:FEW]}")
    return found


def check_derived(topic: Sequence[tuple[str, int, str]], derived: Sequence[tuple[str, int, str]]) -> list[str]:
    """Each record up to where the loop came has been derived once, in its order."""
    found: list[str] = []
    times = Counter(value.split(":", 2)[2] for _, _, value in derived)
    found += [f"derived twice: {value}" for value, number in times.items() if number > 1][:5]
    for number in range(SEGMENTS):
        have = [value.split(":", 2)[2] for partition, _, value in derived if partition == f"{DERIVED}/{number}"]
        want = [source(value.encode()) for partition, _, value in topic if partition == f"{TOPIC}/{number}"]
        if have != want[: len(have)]:
            place = next((n for n, pair in enumerate(zip(have, want, strict=False)) if pair[0] != pair[1]), len(want))
            found.append(
                f"derived: {DERIVED}/{number} is not the beginning of {TOPIC}/{number}: they differ at {place}"
            )
    return found


def check_money(balances: dict[int, int]) -> list[str]:
    """Transfers keep the sum."""
    total = sum(balances.values())
    if balances and total != ACCOUNTS * MONEY:
        return [f"transfers: {ACCOUNTS} accounts had {ACCOUNTS * MONEY}, now {total}: {balances}"]
    return []


def show(report: Report) -> None:
    faults = ", ".join(f"{number} x {fault}" for fault, number in sorted(report.faults.items()))
    print(f"\n{report.events:,} events judged; faults: {faults}")
    for name, calls in sorted(report.calls.items()):
        print(f"  {name:<20} {calls:>9,} calls answered")
    fates = ", ".join(f"{number:,} {fate}" for fate, number in sorted(report.transactions.items()))
    print(f"  transactions: {fates}; {report.derived:,} records derived")
    for violation in report.violations:
        print(f"VIOLATION {violation}")
    print("every promise was kept" if not report.violations else f"{len(report.violations)} lines of violations")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--directory", type=Path, help="kept; without it a temporary one is removed if all was kept")
    parser.add_argument("--json", type=Path, help="where the report goes")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if args.seed is None else args.seed
    directory = args.directory or Path(mkdtemp(prefix="anabranch-mixed-"))
    print(f"seed {seed}, in {directory}", flush=True)
    listen = dict.fromkeys(("kafka", "ydb", "pravega", "pravega-segmentstore"), ANY)
    settings = dict(one.split("=", 1) for one in args.sets)
    with NodeProcess(directory / "data", settings=settings, listen=listen) as node:
        mixed = Faulty(node, directory, seed)
        mixed.begin()
        try:
            mixed.run(args.seconds)
        finally:
            mixed.end()
        show(mixed.report)
    if args.json is not None:
        args.json.write_bytes(msgspec.json.encode(mixed.report))
    if not mixed.report.violations and args.directory is None:
        shutil.rmtree(directory)
    return 1 if mixed.report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
