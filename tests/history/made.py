"""Histories of a log that does everything right, from a seed: clients of it write, read, commit and end transactions at
the same time, some of their calls are never answered. What they leave has no anomaly; tests plant them."""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable, Generator
from functools import partial
from itertools import count

from msgspec import Struct, field

from tests.history.history import Commit, Committed, End, Outcome, Partition, Poll, Send, Tail, Told

PARTITIONS = ("t/0", "t/1")
PROTOCOLS = ("kafka", "ydb", "pravega")

Step = tuple[float, Callable[[], object] | None]
"""How long from now, and what then happens to the log."""


class Log(Struct):
    """Partitions: each offset has a value and its transaction, or is a marker (None)."""

    parts: dict[Partition, list[tuple[str, str | None] | None]] = field(default_factory=lambda: defaultdict(list))
    open: dict[str, set[Partition]] = field(default_factory=dict)
    ended: dict[str, bool] = field(default_factory=dict)
    positions: dict[tuple[str, Partition], int] = field(default_factory=dict)

    def append(self, partition: Partition, value: str, transaction: str | None) -> int:
        if transaction is not None:
            self.open.setdefault(transaction, set()).add(partition)
        self.parts[partition].append((value, transaction))
        return len(self.parts[partition]) - 1

    def end(self, transaction: str, commit: bool) -> None:
        for partition in sorted(self.open.pop(transaction, ())):
            self.parts[partition].append(None)
        self.ended[transaction] = commit

    def shown(self, partition: Partition, position: int, most: int) -> tuple[list[tuple[Partition, int, str]], int]:
        """Committed records from ``position`` on, and where to go on."""
        found: list[tuple[Partition, int, str]] = []
        for offset in range(position, len(self.parts[partition])):
            entry = self.parts[partition][offset]
            if entry is not None:
                value, transaction = entry
                if transaction in self.open:
                    return found, offset
                if transaction is None or self.ended[transaction]:
                    found.append((partition, offset, value))
            if len(found) == most:
                return found, offset + 1
        return found, len(self.parts[partition])


class _Clients:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.log = Log()
        self.events: list[Told] = []
        self.now = 0.0

    def wait(self) -> float:
        return self.random.expovariate(1.0)

    def call(self, effect: Callable[[], object]) -> Generator[Step, None, tuple[float, Outcome, list[object]]]:
        """Ask for ``effect``: when that was, what the client knows then, and what was answered."""
        invoked = self.now
        answer: list[object] = []
        fate = self.random.random()
        if fate < 0.04:  # the question was lost
            yield self.wait(), None
            return invoked, Outcome.UNKNOWN, answer
        yield self.wait(), lambda: answer.append(effect())
        yield self.wait(), None
        return invoked, Outcome.UNKNOWN if fate < 0.08 else Outcome.DONE, answer

    def writer(self, name: str) -> Generator[Step, None, None]:
        for number in range(30):
            partition = self.random.choice(PARTITIONS)
            yield from self.send(name, number, partition, None)

    def send(
        self, name: str, number: int, partition: Partition, transaction: str | None
    ) -> Generator[Step, None, Outcome]:
        value = f"{name}:{number}"
        made = yield from self.call(lambda: self.log.append(partition, value, transaction))
        invoked, outcome, answer = made
        offset = int(str(answer[0])) if outcome is Outcome.DONE else None
        self.events.append(
            Send(
                client=name,
                invoked=invoked,
                told=self.now,
                partition=partition,
                value=value,
                outcome=outcome,
                order=number,
                offset=offset,
                transaction=transaction,
            )
        )
        return outcome

    def transactor(self, name: str) -> Generator[Step, None, None]:
        numbers = count()
        for turn in range(10):
            transaction = f"{name}/{turn}"
            sent = Outcome.DONE
            for _ in range(self.random.randint(1, 4)):
                sent = yield from self.send(name, next(numbers), self.random.choice(PARTITIONS), transaction)
                if sent is not Outcome.DONE:
                    break  # as clients do: what is not known to be there is not committed
            commit = sent is Outcome.DONE and self.random.random() < 0.7
            ended = yield from self.call(partial(self.log.end, transaction, commit))
            invoked, outcome, answer = ended
            if not answer:  # its timeout ends it
                invoked, outcome, commit = self.now, Outcome.DONE, False
                yield self.wait(), partial(self.log.end, transaction, False)
            end = End(
                client=name, invoked=invoked, told=self.now, transaction=transaction, commit=commit, outcome=outcome
            )
            self.events.append(end)

    def reader(self, name: str) -> Generator[Step, None, None]:
        group, partition = f"group of {name}", self.random.choice(PARTITIONS)
        position, session = 0, 0
        for _ in range(40):
            if self.random.random() < 0.1:
                asked = self.now
                at: list[int | None] = []
                yield self.wait(), partial(self.position, group, partition, at)
                yield self.wait(), None
                self.events.append(
                    Committed(client=name, invoked=asked, told=self.now, group=group, partition=partition, offset=at[0])
                )
                position, session = at[0] or 0, session + 1
                continue
            invoked = self.now
            got: list[tuple[list[tuple[Partition, int, str]], int]] = []
            yield self.wait(), partial(self.shown, partition, position, got)
            yield self.wait(), None
            records, position = got[0]
            protocol = self.random.choice(PROTOCOLS)
            self.events.append(
                Poll(
                    client=name,
                    invoked=invoked,
                    told=self.now,
                    protocol=protocol,
                    session=str(session),
                    records=records,
                )
            )
            if self.random.random() < 0.3:
                made = yield from self.call(partial(self.log.positions.__setitem__, (group, partition), position))
                self.events.append(
                    Commit(
                        client=name,
                        invoked=made[0],
                        told=self.now,
                        group=group,
                        partition=partition,
                        offset=position,
                        outcome=made[1],
                    )
                )

    def position(self, group: str, partition: Partition, to: list[int | None]) -> None:
        to.append(self.log.positions.get((group, partition)))

    def shown(self, partition: Partition, at: int, to: list[tuple[list[tuple[Partition, int, str]], int]]) -> None:
        to.append(self.log.shown(partition, at, 5))

    def length(self, partition: Partition, to: list[int]) -> None:
        to.append(len(self.log.parts[partition]))

    def watcher(self, name: str) -> Generator[Step, None, None]:
        for _ in range(20):
            partition = self.random.choice(PARTITIONS)
            invoked = self.now
            at: list[int] = []
            yield self.wait(), partial(self.length, partition, at)
            yield self.wait(), None
            self.events.append(Tail(client=name, invoked=invoked, told=self.now, partition=partition, end=at[0]))

    def run(self) -> list[Told]:
        clients = [self.writer(f"w{n}") for n in range(3)] + [self.transactor(f"x{n}") for n in range(2)]
        clients += [self.reader(f"r{n}") for n in range(3)] + [self.watcher("e")]
        turns = count()
        waiting: list[tuple[float, int, Callable[[], object] | None, Generator[Step, None, None]]] = []
        for client in clients:
            heapq.heappush(waiting, (self.wait(), next(turns), None, client))
        while waiting:
            self.now, _, effect, client = heapq.heappop(waiting)
            if effect is not None:
                effect()
            try:
                after, then = next(client)
            except StopIteration:
                continue
            heapq.heappush(waiting, (self.now + after, next(turns), then, client))
        for protocol in PROTOCOLS:
            for partition in PARTITIONS:
                self.events.append(
                    Poll(
                        client=f"all through {protocol}",
                        invoked=self.now,
                        told=self.now + 1,
                        protocol=protocol,
                        session="whole",
                        records=self.log.shown(partition, 0, 10**9)[0],
                        whole=True,
                    )
                )
        return self.events


def history(seed: int) -> list[Told]:
    """Of nine clients and the readers of everything."""
    return _Clients(seed).run()
