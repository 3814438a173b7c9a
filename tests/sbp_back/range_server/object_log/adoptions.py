"""Servers that adopt each other's logs, in the world of :mod:`.world`: they start, claim, fence, read, write records of
what they have adopted, and ask the placement driver to write it down. They are killed and paused anywhere in between,
come back under the same name, and adopt who is not dead.

Claims, fences and writers are the product's own; so is the rule of the placement driver, over tables of this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from sbp_back.placement_driver import rules as pd_rules
from sbp_back.range_server.object_log.objects.content import decode_head
from sbp_back.range_server.object_log.ownership.chain import Chain, Entry
from sbp_back.range_server.object_log.ownership.claims import Claim, Closing, adopter_in
from sbp_back.range_server.object_log.ownership.takeover import Takeover
from sbp_back.range_server.object_log.writer import Group, LogWriter, Put
from sbp_back.wire import model as m
from tests.sbp_back.range_server.object_log.checker import Broken, Checker
from tests.sbp_back.range_server.object_log.nodes import Stored
from tests.sbp_back.range_server.object_log.world import Service, Store, World

FAULTS_UNTIL = 12.0
PATIENCE = 60.0
NAMES = 3
PARTITIONS = 3

Operation = Callable[[Callable[..., None]], None]
Process = Generator[Operation, tuple[Any, ...], Any]
Key = tuple[int, int]
"""Partition, number of the range."""


@dataclass
class AdoptionRules:
    """Safeguards; each is needed, which the tests show."""

    claim: Callable[..., Claim] = Claim
    closing: Callable[..., Closing] = Closing
    claim_before_reading: bool = True
    others_claims_count: bool = True
    """A log that somebody else has closed is left to that one."""
    look_before_judging: bool = True
    """Who has closed a log and was closed as well may have adopted it before."""
    chain: Callable[..., Chain] = Chain
    entry_of_ones_own: bool = True
    """Who opens a log writes into its chain of indexes that it is the one who writes it now."""
    chain_is_looked_at_again: bool = True
    """What was read behind an index counts only if that is still the last one."""
    index_before_deleting: bool = True
    record_before_telling: bool = True
    """The placement driver hears of it when the adopter's own log has it."""
    record_when_read: bool = True
    """Whoever reads a log reads those that were adopted in it, too."""


@dataclass
class Row:
    """A range as the placement driver has it."""

    stream_id: int
    index: int
    start: int
    server: int
    end: int = -1
    floor: int = 0
    trim_offset: int = 0

    @property
    def is_open(self) -> bool:
        return self.end < 0

    @property
    def server_ids(self) -> list[int]:
        return [self.server]


class Tables:
    """The placement driver's; what :func:`sbp_back.placement_driver.rules.adopt_server` needs of a transaction."""

    def __init__(self) -> None:
        self.rows: dict[int, list[Row]] = {partition: [] for partition in range(PARTITIONS)}
        self.logs: list[str] = []
        """By server id."""
        self.adopted: dict[int, int] = {}

    def register(self, log: str) -> int:
        if log not in self.logs:
            self.logs.append(log)
        return self.logs.index(log)

    def last(self, partition: int) -> Row | None:
        rows = self.rows[partition]
        return Row(**vars(rows[-1])) if rows else None

    def create(self, partition: int, server: int) -> None:
        rows = self.rows[partition]
        if server not in self.adopted and (not rows or not rows[-1].is_open):
            rows.append(Row(partition, len(rows), rows[-1].end if rows else 0, server))

    def adopt(self, request: m.AdoptServerRequest) -> m.AdoptServerResponse:
        return pd_rules.adopt_server(self, request)  # type: ignore[arg-type]

    # --- of a transaction

    def adopted_servers(self) -> dict[int, int]:
        return self.adopted

    def ranges_of_server(self, server_id: int, first: int = 0, last: int = PARTITIONS, *, only_open: bool) -> list[Row]:
        rows = [rows[-1] for partition, rows in self.rows.items() if rows and first <= partition <= last]
        return [row for row in rows if row.is_open >= only_open and row.server == server_id]

    def end_ranges(self, rows: Sequence[Row]) -> None:
        """They are the rows themselves."""

    def adopt_server(self, server_id: int, by: int) -> None:
        for rows in self.rows.values():
            for row in rows:
                if row.server == server_id:
                    row.server = by
        self.adopted.update({one: by for one, other in self.adopted.items() if other == server_id})
        self.adopted[server_id] = by


class Held:
    """A range as a server has it. ``confirmed``: values that are acknowledged."""

    __slots__ = ("confirmed", "open", "start", "values")

    def __init__(self, start: int) -> None:
        self.start = start
        self.values: list[str] = []
        self.confirmed = 0
        self.open = True


class State:
    """What a log says. ``refs``: the objects that its data is in."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ranges: dict[Key, Held] = {}
        self.adopted: set[str] = set()
        self.refs: set[str] = set()
        self.chain: Chain = Chain(0, [])

    def merge(self, other: State) -> None:
        self.refs |= other.refs
        for key, held in other.ranges.items():
            held.open = False
            held.confirmed = len(held.values)
            self.ranges.setdefault(key, held)
        self.adopted |= {other.name, *other.adopted}


Record = tuple[Any, ...]
"""("append", key, start, offset, value), ("adopt", log, number)."""


class Server:
    """A process that may be killed and paused; its log goes on under its name, unless somebody has adopted it."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.world = cluster.world
        self.life = 0
        self.alive = self.paused = False
        self._waiting: list[Callable[[], None]] = []
        self._uniques = 0
        self.state: State | None = None
        """Once it serves."""

    def start(self) -> None:
        self.alive = True
        self.life += 1
        self.state = None
        self.server_id = -1
        self._records: dict[int, list[tuple[Record, Callable[[], None]]]] = {}
        self._adopting = False
        self.run(self._open())

    def kill(self) -> None:
        self.alive = self.paused = False
        self.life += 1
        self.state = None
        self._waiting = []

    def resume(self) -> None:
        self.paused = False
        waiting, self._waiting = self._waiting, []
        for step in waiting:
            step()

    def mine(self, step: Callable[..., None]) -> Callable[..., None]:
        life = self.life

        def guarded(*arguments: Any) -> None:
            if life != self.life:
                return
            if self.paused:
                self._waiting.append(lambda: guarded(*arguments))
            else:
                step(*arguments)

        return guarded

    def run(self, process: Process) -> None:
        """Operations one after the other, each with the answer of the one before."""

        def step(*answer: Any) -> None:
            try:
                operation = process.send(answer) if answer else next(process)
            except StopIteration:
                return
            operation(self.mine(lambda *told: step(*(told or (None,)))))

        step()

    def pause_for(self, seconds: float) -> Operation:
        return lambda done: self.world.after(seconds, done)

    def ask(self, service: Callable[[Callable[..., None]], None]) -> Process:
        """The answer, asked for until there is one: what is asked must bear that."""
        while True:
            answered, answer = yield service
            if answered:
                return answer
            yield self.pause_for(0.1)

    def unique(self) -> bytes:
        self._uniques += 1
        return b"%016d" % (self.number * 10_000_000 + self.life * 10_000 + self._uniques)

    # --- logs

    def _put_absent(self, key: str, content: Any) -> Process:
        there = yield from self.ask(lambda done: self.cluster.store.put_absent(key, content, done))
        return content if there is None else there

    def _claims(self, log: str) -> Process:
        prefix = f"{log}/incarnations/"
        keys = yield from self.ask(lambda done: self.cluster.store.listing(prefix, done))
        return [int(key.rpartition("/")[2]) for key in keys]

    def _claim(self, log: str) -> Process:
        listed = yield from self._claims(log)
        claim = self.cluster.rules.claim(self.unique(), listed)
        while True:
            there = yield from self._put_absent(f"{log}/incarnations/{claim.number}", Stored(claim.content, []))
            if claim.answered(there.head):
                return claim

    def _look(self, log: str, closing: Closing) -> Process:
        while True:
            key = f"{log}/incarnations/{closing.number}"
            there = yield from self.ask(lambda done, key=key: self.cluster.store.get(key, done))
            if closing.take_claim(None if there is None else there.head):
                return

    def _close(self, log: str, adopter: str) -> Process:
        """The number of the closing claim; the log that has it instead, and was closed; or None: somebody else's."""
        rules = self.cluster.rules
        listed = yield from self._claims(log)
        closing = rules.closing(self.unique(), listed, adopter)
        while True:
            yield from self._look(log, closing)
            if closing.is_closed:
                return closing.number
            if closing.by and rules.others_claims_count:
                listed = yield from self._claims(closing.by)
                last = Closing(self.unique(), listed, "-")
                yield from self._look(closing.by, last)
                has = True
                if last.by:
                    has = yield from self._has(closing.by, last.number, log)
                if has:
                    return closing.by if last.by else None
            there = yield from self._put_absent(f"{log}/incarnations/{closing.number}", Stored(closing.content, []))
            if closing.put(there.head):
                return closing.number

    def _has(self, log: str, upto: int, other: str) -> Process:
        rules = self.cluster.rules
        if not rules.look_before_judging:
            return False
        chain = yield from self._chain(log, upto)
        while True:
            last = chain.last
            if last is not None and last.adopted is not None:
                return self.cluster.tables.register(other) in last.adopted
            # Nothing can be added to it from here on.
            state = yield from self._read_behind(log, last, upto)
            seen = chain.number
            yield from self._look_at(log, chain)
            if state is not None and chain.number == seen:
                return other in state.adopted

    def _read(self, log: str, writer: int) -> Process:
        rules = self.cluster.rules
        chain = yield from self._chain(log, writer)
        while True:
            if chain.fenced:
                return None
            state = yield from self._read_behind(log, chain.last, writer)
            if state is None:
                yield from self._look_at(log, chain)
                continue
            state.chain = chain
            seen = chain.number
            yield from self._look_at(log, chain)
            if chain.number != seen and rules.chain_is_looked_at_again:
                continue
            if not rules.entry_of_ones_own:
                return state
            last = chain.last
            mine = Entry(writer, 0, 0, "", self.unique())
            if last is not None:
                mine = Entry(writer, last.incarnation, last.number, last.index, self.unique(), last.adopted)
            counts = yield from self._put_entry(log, chain, mine)
            if counts or (not rules.chain_is_looked_at_again and not chain.fenced):
                return state

    def _read_behind(self, log: str, entry: Entry | None, upto: int) -> Process:
        """None: something is not there any more."""
        store = self.cluster.store
        state = State(log)
        if entry is not None and entry.index:
            stored = yield from self.ask(lambda done: store.get(entry.index, done))
            if stored is None:
                return None
            ranges, state.adopted, state.refs = stored.entries[0]
            state.adopted, state.refs = set(state.adopted), set(state.refs)
            for key, (start, values, is_open) in ranges.items():
                held = state.ranges[key] = Held(start)
                held.values, held.confirmed, held.open = list(values), len(values), is_open
        first_incarnation, first = (0, 0) if entry is None else (entry.incarnation, entry.number)
        for incarnation in range(first_incarnation, upto):
            begin = first if incarnation == first_incarnation else 0
            prefix = f"{log}/{incarnation}/"
            keys = yield from self.ask(lambda done, prefix=prefix: store.listing(prefix, done))
            listed = {int(key.rpartition("/")[2]): size for key, size in keys.items()}
            takeover = Takeover(incarnation, begin, self.unique(), listed)
            while True:
                there = yield from self._put_absent(f"{prefix}{takeover.number}", Stored(takeover.content(), []))
                if takeover.put_ended(Put.TAKEN, decode_head(there.head, incarnation, takeover.number)):
                    break
            for number in range(begin, takeover.end):
                stored = yield from self.ask(lambda done, at=number, prefix=prefix: store.get(f"{prefix}{at}", done))
                if stored is None:
                    return None
                state.refs.add(f"{prefix}{number}")
                for record in stored.entries:
                    yield from self._apply(state, record)
        return state

    # --- chains of indexes

    def _chain(self, log: str, writer: int) -> Process:
        keys = yield from self.ask(lambda done: self.cluster.store.listing(f"{log}/chain/", done))
        chain = self.cluster.rules.chain(writer, [int(key.rpartition("/")[2]) for key in keys])
        yield from self._look_at(log, chain)
        return chain

    def _look_at(self, log: str, chain: Chain) -> Process:
        while True:
            key = f"{log}/chain/{chain.number}"
            there = yield from self.ask(lambda done, key=key: self.cluster.store.get(key, done))
            if chain.take_entry(None if there is None else there.entries[0]):
                return

    def _put_entry(self, log: str, chain: Chain, entry: Entry) -> Process:
        there = yield from self._put_absent(f"{log}/chain/{chain.number}", Stored(b"", [entry]))
        return chain.put(entry, there.entries[0])

    def _index(self) -> Process:
        """Write an index now and then; some of what it names was rewritten, and is deleted when the next is there."""
        rules, store, state = self.cluster.rules, self.cluster.store, self.state
        assert state is not None
        given_up: list[str] = []
        before = ""
        while True:
            yield self.pause_for(self.world.random.uniform(0.2, 3.0))
            number = self.writer.acknowledged
            ranges = {
                key: (held.start, tuple(held.values[: held.confirmed]), held.open) for key, held in state.ranges.items()
            }
            incarnation = self.writer.incarnation
            prefix = f"{state.name}/{incarnation}/"
            state.refs |= {f"{prefix}{at}" for at in range(self._covered, number)}
            self._covered = number
            rewritten = {ref for ref in state.refs if self.world.random.random() < 0.5}
            copy = f"{state.name}/copies/{self.unique().decode()}"
            yield from self._put_absent(copy, Stored(b"", []))
            refs = (state.refs - rewritten) | {copy}
            key = f"{state.name}/index/{self.unique().decode()}"
            yield from self._put_absent(key, Stored(b"", [(ranges, frozenset(state.adopted), frozenset(refs))]))
            if not rules.index_before_deleting:
                store.delete(sorted(rewritten))
            while True:
                entry = Entry(state.chain.writer, incarnation, number, key, self.unique())
                counts = yield from self._put_entry(state.name, state.chain, entry)
                if state.chain.fenced:
                    self._fenced()
                    return
                if counts:
                    break
            self.world.tell(f"s{self.number} has indexed {number} of {state.name}")
            state.refs = (state.refs - rewritten) | {copy}
            store.delete(given_up)
            given_up = sorted(rewritten) + ([before] if before else [])
            before = key

    def _apply(self, state: State, record: Record) -> Process:
        if record[0] == "adopt":
            if self.cluster.rules.record_when_read:
                other = yield from self._read(record[1], record[2])
                if other is not None:
                    state.merge(other)
            return
        _, key, start, offset, value = record
        held = state.ranges.setdefault(key, Held(start))
        if held.start + len(held.values) != offset:
            raise Broken(f"{state.name} goes on at {offset} behind {held.start + len(held.values)}")
        held.values.append(value)
        held.confirmed = len(held.values)

    def _open(self) -> Process:
        generation = 0
        while True:
            name = f"{self.number}-{generation}"
            claim = yield from self._claim(name)
            if not claim.closed:
                break
            generation += 1
        state = yield from self._read(name, claim.number)
        if state is None:
            self._fenced()
            return
        self._covered = 0
        self.server_id = yield from self.ask(
            lambda done: self.cluster.database.ask(lambda: self.cluster.tables.register(name), done)
        )
        # Half of the schedules wait for each put as long as it takes: some faults need one that comes very late.
        late = 1.0 if self.cluster.seed % 2 else math.inf
        self.writer: LogWriter[Any] = LogWriter(claim.number, self.unique, linger=0.02, late=late, most_under_way=3)
        self.state = state
        self.world.tell(f"s{self.number} is {claim.number} of {name}")
        self.run(self._index())
        for other in sorted(state.adopted):
            self.run(self._tell_adopted(other))

    # --- writing

    def append(self, key: Key, start: int, value: str, reply: Callable[[int], None]) -> None:
        state = self.state
        if state is None or self.writer.fenced:
            reply(-1)
            return
        held = state.ranges.setdefault(key, Held(start))
        if not held.open:
            reply(-1)
            return
        offset = held.start + len(held.values)
        held.values.append(value)

        def acknowledged() -> None:
            held.confirmed += 1
            reply(offset)

        self._write(("append", key, start, offset, value), acknowledged)

    def _write(self, record: Record, acknowledged: Callable[[], None]) -> None:
        writer = self.writer
        writer.append(100, acknowledged, self.world.now)
        number = writer.acknowledged + writer.pending - 1
        self._records.setdefault(number, []).append((record, acknowledged))
        closes_at = writer.closes_at()
        if closes_at is not None:
            self.world.after(closes_at - self.world.now + 0.001, self.mine(self._put))

    def _put(self) -> None:
        if self.state is None:
            return
        for group in self.writer.puts(self.world.now):
            head = bytes(self.writer.content(group, b"x")[0])
            stored = Stored(head, [record for record, _ in self._records[group.number]])
            key = f"{self.state.name}/{self.writer.incarnation}/{group.number}"
            was_put = self.mine(lambda answered, there, group=group: self._was_put(group, answered, there))
            self.cluster.store.put_absent(key, stored, was_put)

    def _was_put(self, group: Group[Any], answered: bool, there: Stored | None) -> None:
        if not answered:
            told = self.writer.put_ended(group, Put.UNKNOWN)
            self.world.after(0.1, self.mine(self._put))
        elif there is None:
            told = self.writer.put_ended(group, Put.CREATED)
        else:
            head = decode_head(there.head, self.writer.incarnation, group.number)
            told = self.writer.put_ended(group, Put.TAKEN, head.unique)
        for acknowledged in told:
            acknowledged()
        if self.writer.fenced:
            self._fenced()
        else:
            self._put()

    def _fenced(self) -> None:
        self.world.tell(f"s{self.number} is fenced")
        self.kill()
        self.world.after(0.3, lambda: self.alive or self.start())

    # --- adopting

    def adopt(self, log: str) -> None:
        if self.state is not None and not self._adopting and log != self.state.name:
            self._adopting = True
            self.run(self._adopt(log))

    def _adopt(self, log: str) -> Process:
        state, rules = self.state, self.cluster.rules
        assert state is not None
        before = set(state.adopted)
        wanted = [log]
        while wanted:
            if wanted[-1] in state.adopted:
                wanted.pop()
                continue
            log = wanted[-1]
            if rules.claim_before_reading:
                number = yield from self._close(log, state.name)
                if isinstance(number, str):
                    wanted.append(number)
                    continue
                if number is None:
                    self._adopting = False
                    return
            else:
                listed = yield from self._claims(log)
                number = len(listed)
            other = yield from self._read(log, number)
            if other is None:
                self._adopting = False
                return
            while other.chain.last is None or other.chain.last.adopted is None:
                last = other.chain.last or Entry(number, 0, 0, "", b"")
                said = [self.cluster.tables.register(one) for one in sorted(other.adopted)]
                entry = Entry(number, last.incarnation, last.number, last.index, self.unique(), said)
                yield from self._put_entry(log, other.chain, entry)
                if other.chain.fenced:
                    self._adopting = False
                    return
            if not rules.record_before_telling:
                state.merge(other)
                yield from self._tell_adopted(log)
            yield lambda done, log=log, number=number: self._write(("adopt", log, number), lambda: done(True))
            if rules.record_before_telling:
                state.merge(other)
            self.world.tell(f"s{self.number} has adopted {log}")
        for log in sorted(state.adopted - before) or sorted(state.adopted):
            yield from self._tell_adopted(log)
        self._adopting = False

    def _tell_adopted(self, log: str) -> Process:
        tables, state = self.cluster.tables, self.state
        assert state is not None
        ends = [(*key, held.start + len(held.values)) for key, held in state.ranges.items() if not held.open]

        request = m.AdoptServerRequest(tables.register(log), self.server_id, ends)
        yield lambda done: self.cluster.database.ask(lambda: tables.adopt(request), done)


class Cluster:
    """One schedule from a seed."""

    def __init__(self, seed: int, rules: AdoptionRules) -> None:
        self.seed = seed
        self.world = World(seed)
        self.rules = rules
        choice = self.world.random.choice
        self.store = Store(self.world, choice((0.005, 0.02, 0.1)))
        self.database = Service(self.world, "database", choice((0.002, 0.02, 0.2)))
        self.tables = Tables()
        self.servers = [Server(self, number) for number in range(NAMES)]
        self.checker = Checker()
        self.after_calm = [0] * PARTITIONS
        self._written = 0

    def run(self) -> Cluster:
        """Raises Broken."""
        world = self.world
        for server in self.servers:
            world.after(world.random.random(), server.start)
        for partition in range(PARTITIONS):
            world.after(world.random.random(), lambda partition=partition: self._write(partition))
        world.after(1.0, self._fault)
        world.after(0.5, self._look)
        world.run(FAULTS_UNTIL)
        world.calm = True
        for server in self.servers:
            if server.paused:
                server.resume()
            if not server.alive:
                server.start()
        world.run(FAULTS_UNTIL + PATIENCE, lambda: min(self.after_calm) >= 3 and not self._lost())
        lost = self._lost()
        if lost:
            raise Broken(f"nobody serves {lost[0]}")
        self.checker.judge(self._contents())
        for server in self.servers:
            state = server.state
            if state is not None and not self._is_closed(state.name) and not state.chain.fenced:
                missing = sorted(ref for ref in state.refs if ref not in self.store.objects)
                if missing:
                    raise Broken(f"{missing[0]} is gone, which {state.name} needs")
        # What is on the disk of nobody is all there is after this.
        for server in self.servers:
            server.kill()
            server.start()
        world.run(world.now + PATIENCE, lambda: not self._lost())
        if self._lost():
            raise Broken(f"nobody serves {self._lost()[0]} after a new start")
        self.checker.judge(self._contents())
        if not all(self.after_calm):
            raise Broken(f"no progress: {self.after_calm} written in {PATIENCE} s of calm")
        return self

    def serving(self, log: str) -> Server | None:
        for server in self.servers:
            if server.state is not None and server.state.name == log:
                return server
        return None

    def _lost(self) -> list[Row]:
        """Ranges whose server is none that serves."""
        return [
            row
            for rows in self.tables.rows.values()
            for row in rows
            if self.serving(self.tables.logs[row.server]) is None
        ]

    def _contents(self) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for partition, rows in self.tables.rows.items():
            values: list[str] = []
            for row in rows:
                server = self.serving(self.tables.logs[row.server])
                assert server is not None
                assert server.state is not None
                held = server.state.ranges.get((partition, row.index))
                if held is not None:
                    values += held.values[: held.confirmed if row.is_open else row.end - row.start]
            found[partition] = values
        holders: dict[str, str] = {}
        for server in self.servers:
            state = server.state
            if state is None or self._is_closed(state.name):
                continue  # it does not know yet that it was adopted
            for log in state.adopted:
                if holders.setdefault(log, state.name) != state.name:
                    raise Broken(f"{log} belongs to {holders[log]} and to {state.name}")
        return found

    def _is_closed(self, log: str) -> bool:
        claims = [stored for key, stored in self.store.objects.items() if key.startswith(f"{log}/incarnations/")]
        return any(adopter_in(stored.head) for stored in claims)

    def _write(self, partition: int) -> None:
        world, tables = self.world, self.tables
        self._written += 1
        value = f"v{self._written}"
        over = False

        def again(seconds: float) -> None:
            nonlocal over
            if not over:
                over = True
                world.after(seconds, lambda: self._write(partition))

        def found(answered: bool, row: Row | None) -> None:
            if over or not answered:
                return
            if row is None or not row.is_open:
                serving = [server for server in self.servers if server.state is not None]
                if serving:
                    server_id = world.random.choice(serving).server_id
                    self.database.ask(lambda: tables.create(partition, server_id), lambda *_: None)
                again(0.1)
                return
            server = self.servers[int(tables.logs[row.server].partition("-")[0])]
            key, log = (partition, row.index), tables.logs[row.server]

            def reply(offset: int) -> None:
                if offset < 0:
                    again(0.1)
                    return
                self.checker.acknowledge(partition, offset, value)
                world.tell(f"{value} is {partition}@{offset}")
                self.after_calm[partition] += world.calm
                again(world.random.random() * 0.2)

            def arrived() -> None:
                # What is found at an address says which server it is.
                if server.state is not None and server.state.name == log:
                    server.append(key, row.start, value, reply)

            if server.alive:
                world.after(world.latency(0.002), server.mine(arrived))

        self.database.ask(lambda: tables.last(partition), found)
        world.after(1.5, lambda: again(0.05))

    def _look(self) -> None:
        """Somebody adopts a server that has ranges and serves none."""
        world = self.world
        world.after(0.5, self._look)
        able = [server for server in self.servers if server.state is not None and not server.paused]
        lost = self._lost()
        if able and lost:
            world.random.choice(able).adopt(self.tables.logs[world.random.choice(lost).server])

    def _fault(self) -> None:
        world = self.world
        if world.calm:
            return
        random = world.random
        server = random.choice(self.servers)
        match random.randrange(6):
            case 0 | 1 if server.alive:
                world.tell(f"kill s{server.number}")
                server.kill()
                world.after(random.uniform(0.2, 4.0), lambda: server.alive or world.calm or server.start())
            case 2 if server.alive and not server.paused:
                world.tell(f"pause s{server.number}")
                server.paused = True
                world.after(random.uniform(0.5, 6.0), lambda: server.paused and server.resume())
            case 3:
                self.store.away_until = world.now + random.uniform(0.1, 2.0)
            case 4:
                self.database.away_until = world.now + random.uniform(0.1, 2.0)
            case _:
                if server.alive and not server.paused and self.tables.logs:
                    server.adopt(random.choice(self.tables.logs))
        world.after(random.uniform(0.1, 1.2), self._fault)


def first_broken(seeds: range, rules: AdoptionRules | None = None) -> tuple[int, Broken] | None:
    """The first seed whose schedule breaks a promise, and how; None: none does."""
    for seed in seeds:
        try:
            Cluster(seed, rules or AdoptionRules()).run()
        except Broken as broken:
            return seed, broken
    return None
