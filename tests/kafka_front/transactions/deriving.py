"""Consume-transform-produce by Java's client, whose positions are part of its transactions, while the node is killed.

    python -m tests.kafka_front.transactions.deriving --lives 100 --protocol consumer

Writers fill a topic; two members of a group write a record for each of its records to another topic, and commit where
they are in the same transaction. The node is killed again and again, at a random time after something was committed. At
the end everything is derived exactly once, in its order, and the judge of histories (tests/history) has to be content
with what all of them have seen. librdkafka cannot be used so: see docs/compatibility.md on send_offsets_to_transaction.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.client_remote import REMOTES
from tests.drivers import Driver
from tests.history.checks import arrange, judge, told
from tests.history.history import Commit, Committed, End, Outcome, Poll, Recorder, Send, read
from tests.node_process import NodeProcess

SOURCE, DERIVED, GROUP = "source", "derived", "derivers"
PARTITIONS = 3
MEMBERS = 2
PROGRAM = next(one.program for one in REMOTES if one.name == "java-new")
PATIENCE = 120.0
"""Seconds in which something is committed while the node is up, and all is derived at the end."""
_OUTCOMES = {"committed": Outcome.DONE, "aborted": Outcome.NOT_DONE, "unknown": Outcome.UNKNOWN}
AWAY_EVERY = 4
"""Of so many kills one is followed by a time in which the node is down for longer than clients wait for an answer, so
that they give up what they were doing: otherwise they only ask again."""
AWAY_S = 12.0
_WAITING = 500
"""Records of a writer that are on their way at most."""

Records = list[tuple[str, int, str]]
"""(topic/partition, offset, value), in order."""


class Writer(threading.Thread):
    """Fills the source."""

    def __init__(self, bootstrap: str, name: str, directory: Path) -> None:
        super().__init__(name=name, daemon=True)
        self.over = threading.Event()
        self.error: BaseException | None = None
        self._history = Recorder(directory / f"{name}.jsonl", name)
        self._random = random.Random(name)
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        self._producer = Producer({**settings, "reconnect.backoff.max.ms": 200, "message.timeout.ms": 300_000})

    def run(self) -> None:
        try:
            number = 0
            while not self.over.is_set():
                if len(self._producer) < _WAITING:
                    self._write(number)
                    number += 1
                self._producer.poll(0.002)
            left = self._producer.flush(PATIENCE)
            if left:
                raise RuntimeError(f"{left} records were never answered")
        except BaseException as error:  # noqa: BLE001 - whoever runs this tells of it
            self.error = error
        finally:
            self._history.close()

    def _write(self, number: int) -> None:
        place, value, invoked = self._random.randrange(PARTITIONS), f"{self.name}:{number}", self._history.now()

        def answered(error: KafkaError | None, message: Message) -> None:
            self._history.keep(
                Send(
                    client=self.name,
                    invoked=invoked,
                    told=self._history.now(),
                    partition=f"{SOURCE}/{place}",
                    value=value,
                    outcome=Outcome.UNKNOWN if error is not None else Outcome.DONE,
                    order=number,
                    offset=None if error is not None else message.offset(),
                )
            )

        self._producer.produce(SOURCE, value, partition=place, on_delivery=answered)


class Member(threading.Thread):
    """Derives, in a Java process of its own, and keeps the history of what it was told."""

    def __init__(self, bootstrap: str, name: str, protocol: str, directory: Path) -> None:
        super().__init__(name=name, daemon=True)
        self.over = threading.Event()
        self.error: BaseException | None = None
        self.outcomes: Counter[str] = Counter()
        self.troubles: Counter[str] = Counter()
        self.derived = 0
        """Records in transactions that were committed."""
        self._command = {
            "op": "derive",
            "bootstrap": bootstrap,
            "settings": {},
            "name": name,
            "group": GROUP,
            "protocol": protocol,
            "topic": SOURCE,
            "derived": DERIVED,
        }
        self._history = Recorder(directory / f"{name}.jsonl", name)
        self._session = 0
        self._turn = 0
        self._order = 0

    def run(self) -> None:
        driver: Driver | None = None
        try:
            driver = PROGRAM.start()
            while not self.over.is_set():
                invoked = self._history.now()
                self._keep(driver.call(self._command), invoked)
        except BaseException as error:  # noqa: BLE001 - whoever runs this tells of it
            self.error = error
        finally:
            if driver is not None:
                driver.close()
            self._history.close()

    def _keep(self, answer: dict[str, Any], invoked: float) -> None:
        """One step, as events."""
        now = self._history.now()
        if "trouble" in answer:
            self.troubles[answer["trouble"].split(":", 1)[0]] += 1
        for partition, offset in answer.get("committed", ()):
            self._history.keep(
                Committed(
                    client=self.name,
                    invoked=invoked,
                    told=now,
                    group=GROUP,
                    partition=f"{SOURCE}/{partition}",
                    offset=None if offset < 0 else offset,
                )
            )
        if "outcome" not in answer:
            return
        outcome = _OUTCOMES[answer["outcome"]]
        self.outcomes[answer["outcome"]] += 1
        self._turn += 1
        transaction = f"{self.name}/{self._turn}"
        # It may have been given a partition anew, or have gone back: what one poll gives is in order in itself.
        records = [(f"{SOURCE}/{partition}", offset, value) for partition, offset, value in answer["read"]]
        self._history.keep(
            Poll(
                client=self.name,
                invoked=invoked,
                told=now,
                protocol="kafka",
                session=str(self._turn),
                records=records,
            )
        )
        for partition, value, offset in answer["sent"]:
            self._order += 1
            self._history.keep(
                Send(
                    client=self.name,
                    invoked=invoked,
                    told=now,
                    partition=f"{DERIVED}/{partition}",
                    value=value,
                    # What was committed was written; of the rest it is enough to know what became of the whole.
                    outcome=Outcome.DONE if offset is not None or outcome is Outcome.DONE else Outcome.UNKNOWN,
                    order=self._order,
                    offset=offset,
                    transaction=transaction,
                )
            )
        commit = outcome is not Outcome.NOT_DONE
        self._history.keep(
            End(
                client=self.name,
                invoked=invoked,
                told=now,
                transaction=transaction,
                commit=commit,
                outcome=outcome if commit else Outcome.DONE,
            )
        )
        for partition, offset in answer["positions"]:
            self._history.keep(
                Commit(
                    client=self.name,
                    invoked=invoked,
                    told=now,
                    group=GROUP,
                    partition=f"{SOURCE}/{partition}",
                    offset=offset,
                    outcome=outcome,
                )
            )
        if outcome is Outcome.DONE:
            self.derived += len(records)


@dataclass(slots=True)
class Report:
    """What happened, and every broken promise in words."""

    kills: int = 0
    events: int = 0
    derived: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


def run(directory: Path, lives: int, protocol: str, seed: int) -> Report:
    """Have a node killed ``lives`` times under two members of a group, and judge what came of it."""
    chance, report = random.Random(seed), Report()
    history = directory / "history"
    with NodeProcess(directory / "data") as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
        for made in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (SOURCE, DERIVED)]).values():
            made.result(60)
        writers = [Writer(node.bootstrap, f"writer{number}", history) for number in range(2)]
        members = [Member(node.bootstrap, f"member{number}", protocol, history) for number in range(MEMBERS)]
        for one in (*writers, *members):
            one.start()
        for _ in range(lives):
            _until(members, _derived(members) + 1)
            time.sleep(chance.uniform(0.0, 1.5))  # at no moment in particular
            node.kill()
            report.kills += 1
            if report.kills % AWAY_EVERY == 0:
                time.sleep(AWAY_S)
            node.start()
        _until(members, _derived(members) + 1)
        _end(writers)
        source = read_whole(node.bootstrap, SOURCE)
        _until_all(node.bootstrap, members, len(source))
        _end(members)
        whole = {SOURCE: source, DERIVED: read_whole(node.bootstrap, DERIVED)}
    for member in members:
        report.outcomes += member.outcomes
        report.troubles += member.troubles
    events = [*read(history.glob("*.jsonl")), *(_all_of(topic, records) for topic, records in whole.items())]
    report.events, report.derived = len(events), len(whole[DERIVED])
    found = judge(arrange(events, wholly=[f"{topic}/{number}" for topic in whole for number in range(PARTITIONS)]))
    report.violations += told(found).splitlines() + compared(source, whole[DERIVED])
    return report


def _derived(members: Iterable[Member]) -> int:
    return sum(one.derived for one in members)


def _until(members: Iterable[Member], count: int) -> None:
    """Return when so many records were derived. Raises RuntimeError when that does not happen."""
    members = list(members)
    deadline = time.monotonic() + PATIENCE
    while _derived(members) < count:
        broken = next((one.error for one in members if one.error is not None), None)
        if broken is not None or time.monotonic() > deadline:
            troubles = [one.troubles for one in members]
            raise RuntimeError(f"{_derived(members)} of {count} were derived: {troubles}") from broken
        time.sleep(0.01)


def _until_all(bootstrap: str, members: Iterable[Member], count: int) -> None:
    """Return when the group has come to the end of the source: what a member was not told of may be committed, too."""
    members = list(members)
    deadline = time.monotonic() + PATIENCE
    groups = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0})
    places = [TopicPartition(SOURCE, number) for number in range(PARTITIONS)]
    try:
        while sum(max(0, one.offset) for one in groups.committed(places, 30)) < count:
            if any(one.error for one in members) or time.monotonic() > deadline:
                raise RuntimeError(f"not all of {count} records were derived: {[one.troubles for one in members]}")
            time.sleep(0.05)
    finally:
        groups.close()


def _end(threads: Iterable[Writer | Member]) -> None:
    threads = list(threads)
    for one in threads:
        one.over.set()
    for one in threads:
        one.join(2 * PATIENCE)
        if one.error is not None or one.is_alive():
            raise RuntimeError(f"{one.name} did not end well") from one.error


def read_whole(bootstrap: str, topic: str) -> Records:
    """All that readers of committed data get, from the beginning to the end, when nothing is under way any more."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "whole",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    found: Records = []
    left = set(range(PARTITIONS))
    consumer.assign([TopicPartition(topic, number, 0) for number in left])
    try:
        while left:
            message = consumer.poll(PATIENCE)
            if message is None:
                raise RuntimeError(f"nothing more of {topic}")
            error = message.error()
            if error is None:
                value, offset = message.value(), message.offset()
                assert isinstance(value, bytes)
                assert offset is not None
                found.append((f"{topic}/{message.partition()}", offset, value.decode()))
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition() or 0)
            else:
                raise KafkaException(error)
    finally:
        consumer.close()
    return found


def _all_of(topic: str, records: Records) -> Poll:
    now = time.monotonic()
    return Poll(
        client=f"all of {topic}",
        invoked=now,
        told=now,
        protocol="kafka",
        session="1",
        records=records,
        whole=True,
    )


def compared(source: Records, derived: Records) -> list[str]:
    """Each record of the source has one in the other topic, at its place of the order, and nothing else is there."""
    found: list[str] = []
    for number in range(PARTITIONS):
        want = [value for place, _, value in source if place == f"{SOURCE}/{number}"]
        have = [value.split(":", 2)[2] for place, _, value in derived if place == f"{DERIVED}/{number}"]
        if have == want:
            continue
        twice = [value for value, count in Counter(have).items() if count > 1]
        missing = sorted(set(want) - set(have))
        found.append(
            f"{DERIVED}/{number} has {len(have)} records, {SOURCE}/{number} {len(want)}: "
            f"twice {twice[:3]}, missing {missing[:3]}, or in another order"
        )
    return found


def main() -> int:
    """Run; exit code 1 when a promise was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.kafka_front.transactions.deriving",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--lives", type=int, default=50, help="how often the node is killed")
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic", help="of the group")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--directory", type=Path, help="kept; without it a temporary one is removed if all was kept")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if args.seed is None else args.seed
    directory = args.directory or Path(tempfile.mkdtemp(prefix="anabranch-deriving-"))
    print(f"seed {seed}, in {directory}", flush=True)
    report = run(directory, args.lives, args.protocol, seed)
    print(f"{report.kills} kills, {report.events:,} events judged, {report.derived:,} records derived")
    print(f"transactions: {dict(report.outcomes)}; what clients were told: {dict(report.troubles)}")
    for violation in report.violations:
        print(f"VIOLATION {violation}")
    print("every promise was kept" if not report.violations else f"{len(report.violations)} lines of violations")
    if not report.violations and args.directory is None:
        shutil.rmtree(directory)
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
