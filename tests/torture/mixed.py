"""Three protocols write one topic, in transactions and not, and read it, while its node is killed and paused; then one
judge reads the histories of all clients (tests/history).

    python tests/torture/mixed.py                 # two minutes, a random seed that is printed
    python tests/torture/mixed.py --seconds 20 --seed 7

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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]

import msgspec  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402
from mixed_clients import (  # noqa: E402
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
    read_whole,
    source,
)
from torture_pravega import SEGMENTS, TOPIC, WHEEL, WriterLoad  # noqa: E402
from torture_pravega import prepare as prepare_pravega  # noqa: E402
from torture_ydb import prepare as prepare_ydb  # noqa: E402

from tests.history.checks import arrange, judge, told  # noqa: E402
from tests.history.history import Outcome, Poll, Send, Told, read  # noqa: E402
from tests.node_process import ANY, NodeProcess  # noqa: E402

DERIVED, MONEY_TOPIC = "derived", "accounts"
PRAVEGA = "pravega-mixed"


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
    """One run against one node that stays at its addresses."""

    def __init__(self, node: NodeProcess, directory: Path, seed: int) -> None:
        self.node = node
        self.random = random.Random(seed)
        self.report = Report(seed)
        self.finish = threading.Event()
        self.scene = Scene(node.bootstrap, node.ydb, directory / "history", seed, TOPIC, SEGMENTS, DERIVED, MONEY_TOPIC)
        self.clients: list[Client] = []

    def begin(self) -> None:
        prepare_pravega(self.node.addresses["pravega"])
        admin = AdminClient({"bootstrap.servers": self.node.bootstrap})
        topics = [NewTopic(DERIVED, SEGMENTS, 1), NewTopic(MONEY_TOPIC, 1, 1)]
        for future in admin.create_topics(topics).values():
            future.result(60)
        prepare_ydb(self.node.ydb, {TOPIC.replace(".", "/"): "ydb-reader"})
        scene, finish = self.scene, self.finish
        self.clients = [
            *(Writer(scene, f"writer-{n}", finish) for n in range(2)),
            *(Transactional(scene, f"transactor-{n}", finish) for n in range(2)),
            Transfers(scene, "transfers", finish),
            Transformer(scene, "transformer", finish),
            YdbWriter(scene, "ydb-writer", finish),
            Reader(scene, "committed-reader", finish, True),
            Reader(scene, "all-reader", finish, False),
            YdbReader(scene, "ydb-reader", finish),
            Ends(scene, "ends", finish),
        ]
        self.pravega = WriterLoad(WHEEL, self.node.addresses["pravega"], scene.seed, PRAVEGA, 200, finish)
        for worker in (*self.clients, self.pravega):
            worker.start()

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

    def quiet(self, seconds: float) -> None:
        """The node is up: every client gets something done, in this time and what it may have to wait for at first."""
        before = {client.name: client.done for client in self.clients}
        written = self.pravega.promises.count
        time.sleep(seconds)
        deadline = time.monotonic() + 30 + 2 * TRANSACTION_MS / 1000
        waiting = [one for one in self.clients if one.is_alive() and one.done == before[one.name]]
        while (waiting or self.pravega.promises.count == written) and time.monotonic() < deadline:
            time.sleep(0.1)
            waiting = [one for one in waiting if one.done == before[one.name]]
        names = [one.name for one in waiting] + [PRAVEGA] * (self.pravega.promises.count == written)
        self.report.violations += [f"no progress: {name}, with the node up" for name in names]
        for worker in (*self.clients, self.pravega):
            if worker.trouble is not None:
                raise RuntimeError(f"{worker.name} ended early") from worker.trouble

    def end(self) -> None:
        """Let everybody finish, wait until all is decided, read everything, and judge."""
        self.finish.set()
        for worker in (*self.clients, self.pravega):
            worker.join(180)
            if worker.is_alive():
                self.report.violations.append(f"stuck: {worker.name} did not end in 180 s")
            elif worker.trouble is not None:
                self.report.violations.append(f"ended: {worker.name} with {worker.trouble!r}")
        time.sleep(TRANSACTION_MS / 1000 + 2)  # by now the coordinator has ended what nobody did
        events: list[Told] = list(read(self.scene.directory.glob("*.jsonl")))
        events += self.of_pravega()
        whole: dict[str, list[tuple[str, int, str]]] = {}
        for topic, partitions in ((TOPIC, SEGMENTS), (DERIVED, SEGMENTS), (MONEY_TOPIC, 1)):
            whole[topic] = read_whole(self.scene, topic, partitions)
            events.append(all_of(topic, whole[topic]))
        self.report.events = len(events)
        self.report.calls = {client.name: client.done for client in self.clients}
        self.report.calls[PRAVEGA] = self.pravega.promises.count
        places = [
            f"{topic}/{n}" for topic, n in ((TOPIC, SEGMENTS), (DERIVED, SEGMENTS), (MONEY_TOPIC, 1)) for n in range(n)
        ]
        facts = arrange(events, wholly=places)
        self.report.transactions = Counter(
            "unknown" if end.outcome is Outcome.UNKNOWN else "committed" if end.commit else "aborted"
            for end in facts.ends.values()
        )
        found = judge(facts)
        if found:
            self.report.violations += told(found).splitlines()
        self.report.violations += check_derived(whole[TOPIC], whole[DERIVED])
        self.report.derived = len(whole[DERIVED])
        self.report.violations += check_money(balances_of(self.scene))

    def of_pravega(self) -> list[Told]:
        """What Pravega's writer was told, which is of no offset: it sends many at once, and hears of all of them."""
        acknowledged = set(self.pravega.promises.anywhere)
        return [
            Send(
                client=PRAVEGA,
                invoked=0.0,
                told=float("1e12"),  # nobody has kept when
                partition=None,
                value=f"{PRAVEGA}:{number}:",
                outcome=Outcome.DONE if number in acknowledged else Outcome.UNKNOWN,
                order=number,
            )
            for number in range(self.pravega.promises.sent)
        ]


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
        mixed = Mixed(node, directory, seed)
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
