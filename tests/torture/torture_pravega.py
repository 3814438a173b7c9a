"""Clients of Pravega's that keep working through crashes, each a process of its own, and what they were told."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests import drivers
from tests.pravega_front.controller_client import ControllerClient, stream
from tests.torture.torture_load import PATIENCE, Place, Promises, Worker, parse
from tests.torture.torture_pravega_client import SCOPE, STREAM, key_of
from tests.torture.torture_verdict import Verdict, few

WHEEL = (sys.executable, "-m", "tests.torture.torture_pravega_client")
"""The command of a client that uses the wheel; :func:`java` gives that of one that uses Java's client."""
POM = Path(__file__).resolve().parents[1] / "pravega_front" / "java" / "pom.xml"
TOPIC = f"{SCOPE}.{STREAM}"
SEGMENTS = 3


def prepare(controller: str) -> None:
    """The scope and the stream that all clients share."""
    calls = ControllerClient(controller)
    calls.createScope(scope=SCOPE)
    policy = {"minNumSegments": SEGMENTS}
    made = calls.createStream(streamInfo=stream(SCOPE, STREAM), scalingPolicy=policy)
    calls.close()
    if made.status:
        raise RuntimeError(f"the stream was not made: {made.status}")


def java() -> Sequence[str]:
    """The command of a client that uses Java's, built if need be."""
    return drivers.java("pravega-java", POM, "anabranch.tests.PravegaTorture").command()


class Client(Worker):
    """A thread that listens to a client, which ``command`` starts; ``told`` takes each of its lines."""

    kind = ""

    def __init__(
        self, command: Sequence[str], controller: str, seed: int, name: str, rate: float, finish: threading.Event
    ) -> None:
        super().__init__(name, finish)
        self.command = command
        self.controller, self.seed, self.rate = controller, seed, rate
        self.done = 0
        """Lines that it has told."""

    def work(self) -> None:
        """Run the client until the end, and until it has finished what it began."""
        command = [*self.command, self.kind, "--controller", self.controller, "--seed", str(self.seed)]
        command += ["--name", self.name, "--rate", str(self.rate)]
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
            assert process.stdin is not None
            assert process.stdout is not None
            ending = threading.Thread(target=self._end, args=(process,), daemon=True)
            ending.start()
            try:
                for line in process.stdout:
                    self.told(line.split())
                    self.done += 1
                code = process.wait()
                if not self.finish.is_set() or (code and not self.may_be_killed()):
                    errors.seek(0)
                    raise RuntimeError(f"{self.name} ended with {code}: {errors.read().decode()[-2000:]}")
            finally:
                process.kill()
                process.wait()
                process.stdin.close()
                process.stdout.close()

    def _end(self, process: subprocess.Popen[str]) -> None:
        """Tell the client of the end; kill it when it has been patient for long enough."""
        self.finish.wait()
        assert process.stdin is not None
        process.stdin.close()
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < deadline and not self.may_be_killed():
            time.sleep(0.02)
        process.kill()

    def may_be_killed(self) -> bool:
        """Whether nothing more is expected of the client after the end."""
        return False

    def told(self, words: list[str]) -> None:
        """A line of the client."""
        raise NotImplementedError


class WriterLoad(Client):
    """Events with routing keys."""

    kind = "write"

    def __init__(
        self, command: Sequence[str], controller: str, seed: int, name: str, rate: float, finish: threading.Event
    ) -> None:
        super().__init__(command, controller, seed, name, rate, finish)
        self.promises = Promises(name, TOPIC, True)
        self.answered: dict[int, float] = {}
        """When an event was acknowledged, or a moment later."""

    def told(self, words: list[str]) -> None:
        first, end = int(words[1]), int(words[2])
        if words[0] == "sent":
            self.promises.sent = end
        else:
            self.answered |= dict.fromkeys(range(first, end), time.monotonic())
            for number in range(first, end):
                self.promises.keep_anywhere(number)


@dataclass(slots=True)
class Transaction:
    """Numbers of its events, from ``first`` to before ``end``, and the last that is known of it."""

    first: int
    end: int
    fate: str = "open"


@dataclass(slots=True)
class Transactions:
    """By their first event."""

    every: dict[int, Transaction] = field(default_factory=dict)

    def count(self, fate: str) -> int:
        """How many have ended so."""
        return sum(one.fate == fate for one in self.every.values())


class TransactionLoad(Client):
    """Transactions, most of them committed."""

    kind = "transact"

    def __init__(
        self, command: Sequence[str], controller: str, seed: int, name: str, rate: float, finish: threading.Event
    ) -> None:
        super().__init__(command, controller, seed, name, rate, finish)
        self.promises = Promises(name, TOPIC, True)
        self.transactions = Transactions()
        self.answered: dict[int, float] = {}
        """When the transaction of an event was committed, or a moment later."""

    def told(self, words: list[str]) -> None:
        fate, first, end = words[0], int(words[1]), int(words[2])
        found = self.transactions.every.setdefault(first, Transaction(first, end))
        if fate != "failed":  # whether a commit that failed was carried out is not known
            found.fate = fate
        if fate == "open":
            self.promises.sent = end
        elif fate == "committed":
            self.answered |= dict.fromkeys(range(first, end), time.monotonic())
            for number in range(first, end):
                self.promises.keep_anywhere(number)


class PravegaMember(Client):
    """Readers of a reader group, one after the other. After the end they go on until they have everything that the
    ``writers`` were promised."""

    kind = "read"

    def __init__(
        self,
        command: Sequence[str],
        controller: str,
        name: str,
        writers: Iterable[WriterLoad | TransactionLoad],
        finish: threading.Event,
    ) -> None:
        super().__init__(command, controller, 0, name, 1, finish)
        self.writers = list(writers)
        self.events: list[tuple[str, int]] = []
        self._read: dict[str, set[int]] = {}

    def told(self, words: list[str]) -> None:
        if words:
            name, number = words[1], int(words[2])
            self.events.append((name, number))
            self._read.setdefault(name, set()).add(number)

    def may_be_killed(self) -> bool:
        return not any(writer.is_alive() or self.missing(writer.promises) for writer in self.writers)

    def missing(self, promises: Promises) -> set[int]:
        """What was acknowledged to a writer and not read."""
        with promises.lock:
            return set(promises.anywhere) - self._read.get(promises.name, set())


def check_member(member: PravegaMember, log: Mapping[Place, Mapping[int, bytes]], verdict: Verdict) -> None:
    """A reader group got everything that was acknowledged, nothing twice, nothing else, and in the order of keys."""
    lost = [
        f"{promises.name}'s event {number} was acknowledged and not read"
        for promises in (writer.promises for writer in member.writers)
        for number in sorted(member.missing(promises))
    ]
    stored = {parse(value) for (topic, _), records in log.items() if topic == TOPIC for value in records.values()}
    foreign = [f"{name}'s event {number} was read and is not stored" for name, number in set(member.events) - stored]
    doubled, disorder = [], []
    seen: set[tuple[str, int]] = set()
    last: dict[tuple[str, int], int] = {}
    for name, number in member.events:
        if (name, number) in seen:
            doubled.append(f"{name}'s event {number} was read again")
            continue
        seen.add((name, number))
        key = name, key_of(number)
        if number < last.get(key, -1):
            disorder.append(f"{name}'s event {number} was read after {last[key]}, of the same key")
        last[key] = number
    verdict.violations += few("not read", lost) + few("vanished", foreign)
    verdict.violations += few("read twice", doubled) + few("read out of order", disorder)


def check_transactions(
    name: str, transactions: Transactions, log: Mapping[Place, Mapping[int, bytes]], verdict: Verdict
) -> None:
    """Of a transaction all is stored, or nothing; nothing of those whose commit was never asked for, or aborted."""
    stored = {
        number
        for (topic, _), records in log.items()
        if topic == TOPIC
        for writer, number in map(parse, records.values())
        if writer == name
    }
    wrong = []
    for one in transactions.every.values():
        have = len(stored & set(range(one.first, one.end)))
        whole = one.end - one.first
        allowed = {"committed": (whole,), "asked": (0, whole)}.get(one.fate, (0,))
        if have not in allowed:
            wrong.append(f"{have} of {whole} events of the transaction from {one.first} on, {one.fate}, are stored")
    verdict.violations += few("transaction", wrong)
