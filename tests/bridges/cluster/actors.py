"""Nodes of a simulated cluster, in the world of the object log's simulation, over the product's own tables and keepers.

The database is SQLite in memory with the product's transactions, or, with ``Rules.postgres``, what the product's engine
for PostgreSQL makes of a wire that breaks (tests/bridges/cluster/postgres.py). What lies below, ranges and a fence for
each start's log, is as little as is needed to tell whether two nodes were acknowledged: the object log has a simulation
of its own.
``Rules`` leaves safeguards out, one at a time, so that a test can tell whether they are noticed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bridges.catalog.database.schema import extend_cluster, make_cluster
from bridges.cluster import tables, wishes
from bridges.cluster.keeper import Keeper, News
from bridges.cluster.members import Member, Patience, State
from bridges.cluster.slots import Move
from tests.bridges.cluster.postgres import Client, Database, Guard
from tests.sbp_back.range_server.object_log.checker import Broken, Checker
from tests.sbp_back.range_server.object_log.world import Service, World

PATIENCE = Patience()
_LOOK = 0.25


@dataclass
class Rules:
    """Safeguards; each is needed, which the tests show."""

    keeper: Callable[[int, Patience], Keeper] = Keeper
    claim: Callable[..., bool] = tables.claim
    finish: Callable[..., bool] = tables.finish
    give: Callable[..., list[int]] = tables.give
    raise_epoch: Callable[..., int | None] = tables.raise_epoch
    beat: Callable[..., bool] = tables.beat
    postgres: bool = False
    """Nodes reach the database by the product's engine, and its wire breaks; without, what is asked is lost whole."""
    engine: tuple[str, str] | None = None
    """A line of the engine's, and what stands there instead."""
    workers: bool = False
    """Nodes are processes of one machine with logs that nobody else can take over: whoever comes back serves what its
    former self has written, of which nothing is under way any more."""
    succeed: Callable[..., int] = tables.succeed
    join: Callable[..., bool] = tables.join
    pin: Callable[..., bool] = wishes.pin
    unpin: Callable[..., bool] = wishes.unpin
    drain: Callable[..., bool] = wishes.drain
    undrain: Callable[..., bool] = wishes.undrain
    adopt_first: bool = True
    """The log of one who has ended is taken over before its slots are."""
    close_first: bool = True
    """What is in flight is decided before a slot is given away."""
    raise_unsettled: bool = True
    """What was perhaps given away is acted for in a higher epoch only."""
    come_again: bool = True
    """A node whose start was ended comes again as a new one."""


@dataclass
class Range:
    """A range of a slot's log; ``end`` is -1 while it is open."""

    epoch: int
    start: int
    values: list[str] = field(default_factory=list)
    sealed: bool = False


class Logs:
    """What the object log and the placement driver promise together: a range takes appends in its own epoch, from the
    start that opened it, until it is sealed; one start's log can be fenced."""

    def __init__(self, slots: int) -> None:
        self.ranges: list[list[Range]] = [[] for _ in range(slots)]
        self.fenced: set[int] = set()

    def open(self, slot: int, epoch: int, start: int, alive: Collection[int]) -> int:
        """The offset at which the range begins; -1: in a lower epoch than the last one, or the end is not known."""
        ranges = self.ranges[slot]
        if ranges:
            last = ranges[-1]
            if last.epoch > epoch or (last.epoch == epoch and last.start != start):
                return -1
            if start in self.fenced:
                return -1
            if last.epoch == epoch:
                return -1 if last.sealed else self.length(slot)
            if not last.sealed and last.start not in alive and last.start not in self.fenced:
                return -1
            last.sealed = True
        ranges.append(Range(epoch, start))
        return self.length(slot)

    def append(self, slot: int, epoch: int, start: int, value: str) -> int:
        """The value's offset; -1: refused."""
        last = self.ranges[slot][-1]
        if start in self.fenced or last.sealed or (last.epoch, last.start) != (epoch, start):
            return -1
        last.values.append(value)
        return self.length(slot) - 1

    def adopt(self, start: int) -> None:
        self.fenced.add(start)
        for ranges in self.ranges:
            for one in ranges:
                one.sealed |= one.start == start

    def length(self, slot: int) -> int:
        return sum(len(one.values) for one in self.ranges[slot])

    def contents(self, slot: int) -> list[str]:
        return [value for one in self.ranges[slot] for value in one.values]


class Asking:
    """A process' way to a database that does what it is asked, at some time, or not, and answers, or not."""

    def __init__(self, cluster: Cluster, guard: Guard) -> None:
        self._cluster = cluster
        self._guard = guard

    def ask(self, work: Callable[[sqlite3.Connection], Any], done: Callable[[bool, Any], None]) -> None:
        """``done`` gets whether there was an answer, and which."""
        self._cluster.database.ask(partial(self._cluster.transaction, work), self._guard(done))

    def kill(self) -> None:
        """What was asked is on its way."""


class Cluster:
    """Nodes, their database, and what lies below."""

    def __init__(self, seed: int, nodes: int, slots: int, rules: Rules) -> None:
        self.rules = rules
        self.world = World(seed)
        self.database = Service(self.world, "database", 0.002)
        self.postgres = Database(self.world, self._committed, rules.engine) if rules.postgres else None
        self.backend = Service(self.world, "backend", 0.005)
        self.logs = Logs(slots)
        self.checker = Checker()
        self.connection = (
            sqlite3.connect(":memory:", isolation_level=None, cached_statements=256)
            if self.postgres is None
            else self.postgres.server.connection
        )
        migrated(self.connection)
        self.connection.execute("CREATE TABLE noted (what TEXT, start INTEGER)")
        tables.make(self.connection, slots)
        self.slots = slots
        self.nodes = [Node(self, number) for number in range(1, nodes + 1)]
        self._numbers: dict[int, int] = {}
        # By slot and epoch: whose it is, as the database had it or a node acted by.
        self._owners: dict[tuple[int, int], int] = {}
        self.moves = 0
        self._beaten: dict[int, float] = {}
        self._noted = 0

    def beat(self, connection: sqlite3.Connection, start: int) -> bool:
        lives = self.rules.beat(connection, start)
        if lives:
            connection.execute("INSERT INTO noted VALUES ('beat', ?)", (start,))
        return lives

    def claim(self, connection: sqlite3.Connection, member: Member, by: int) -> bool:
        lived = tables.state_of(connection, member.start) is not State.ENDING
        claimed = self.rules.claim(connection, member.start, member.beats, by)
        if claimed and lived:
            connection.execute("INSERT INTO noted VALUES ('claim', ?)", (member.start,))
        return claimed

    def client(self, guard: Guard) -> Client | Asking:
        """A process' way to the database; ``guard`` makes its steps those of its life."""
        return Asking(self, guard) if self.postgres is None else self.postgres.client(guard)

    def transaction(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        """Run ``work`` at once, with nothing between it and the database."""
        if self.postgres is not None:
            self.postgres.server.end_holders(None, 0.0)
        self.connection.execute("BEGIN")
        result = work(self.connection)
        self.connection.execute("COMMIT")
        self._committed()
        return result

    def leave(self, seconds: float) -> None:
        """The database is away for so long."""
        self.database.away_until = self.world.now + seconds
        if self.postgres is not None:
            self.postgres.server.leave(seconds)

    def _committed(self) -> None:
        """Raises Broken where what is committed now must not be."""
        now = self.world.now
        query = "SELECT rowid, what, start FROM noted WHERE rowid > ? ORDER BY rowid"
        for number, what, start in self.connection.execute(query, (self._noted,)).fetchall():
            self._noted = number
            since = now - self._beaten.get(start, -PATIENCE.lease)
            if what == "beat":
                self._beaten[start] = now
            # So long it believes that it is not suspected.
            elif since < (PATIENCE.lease if self.rules.workers else PATIENCE.doubt):
                raise Broken(f"{start} is ended though it has beaten {since} s ago")
        for slot, owner, epoch in self.connection.execute("SELECT slot, owner, epoch FROM cluster_slots").fetchall():
            if owner:
                self.owned(slot, epoch, owner)

    def close(self) -> None:
        if self.postgres is not None:
            self.postgres.server.close()

    def owned(self, slot: int, epoch: int, start: int) -> None:
        """``start`` has the slot in the epoch."""
        if (slot, epoch) not in self._owners:
            self.moves += 1
        before = self._owners.setdefault((slot, epoch), start)
        if before != start:
            raise Broken(f"slot {slot} has two owners in epoch {epoch}: {before} and {start}")

    def running(self) -> set[int]:
        """Starts whose processes there are."""
        return {node.start for node in self.nodes if node.alive}

    def alive(self) -> set[int]:
        """Starts whose log can be asked."""
        if not self.rules.workers:
            return {node.start for node in self.nodes if node.alive and not node.paused}
        answering = {node.number for node in self.nodes if node.alive and node.keeper and not node.paused}
        return {start for start, number in self._numbers.items() if number in answering}

    def began(self, start: int, number: int) -> None:
        """A node has come as ``start``."""
        self._numbers[start] = number


def migrated(connection: sqlite3.Connection) -> None:
    """The product's tables, as far as a cluster needs them."""
    connection.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
    connection.execute("INSERT INTO meta VALUES ('next_epoch', '0')")
    make_cluster(connection)
    extend_cluster(connection)


class Node:
    """A process that may be killed and paused. Each of its lives is another start."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.number = number
        self.life = 0
        self.alive = False
        self.paused = False
        self.start = 0
        self.keeper: Keeper | None = None
        self._waiting: list[Callable[[], None]] = []
        self._open: dict[int, int] = {}
        self._opening: set[int] = set()
        self.in_flight: dict[int, int] = {}
        self._ending: set[int] = set()
        self._busy = False
        self._stopping = False
        self.leaves = False
        self._former: tuple[int, int, float] | None = None
        self._client = cluster.client(self.mine)

    # --- its life -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.kill()
        self.alive = True
        self.life += 1
        self.start = 0
        self.keeper = None
        self._open, self._opening, self.in_flight, self._ending = {}, set(), {}, set()
        self._busy = self._stopping = self.leaves = False
        self._former = None
        self._client = self.cluster.client(self.mine)
        self._enter()

    def kill(self) -> None:
        self._client.kill()
        self.alive = self.paused = False
        self.life += 1
        self._waiting = []

    @property
    def stays(self) -> bool:
        """It lives, and is not about to stop."""
        return self.alive and not self._stopping

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        waiting, self._waiting = self._waiting, []
        for step in waiting:
            step()

    def stop(self) -> None:
        """In order."""
        if self.cluster.rules.workers:
            self.world.tell(f"n{self.number} stops")
            self.kill()  # nothing is handed over: it comes back
        elif self.keeper is not None and not self._stopping:
            self._stopping = True
            self.world.tell(f"n{self.number} leaves")

            def told(answered: bool, result: Any) -> None:
                self.leaves = answered

            self._ask(partial(tables.leave, start=self.start), told)

    def mine(self, step: Callable[..., None]) -> Callable[..., None]:
        """A step of this life: not done after its end, and not while it is paused."""
        life = self.life

        def guarded(*arguments: Any) -> None:
            if life != self.life:
                return
            if self.paused:
                self._waiting.append(lambda: guarded(*arguments))
            else:
                step(*arguments)

        return guarded

    def _ask(self, work: Callable[[sqlite3.Connection], Any], done: Callable[[bool, Any], None]) -> None:
        life = self.life

        def closure(connection: sqlite3.Connection) -> Any:
            # What a process of this machine has not begun when it is killed never happens.
            return None if life != self.life and self.cluster.rules.workers else work(connection)

        self._client.ask(closure, done)

    def _after(self, seconds: float, step: Callable[[], None]) -> None:
        self.world.after(seconds, self.mine(step))

    # --- coming -------------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        if self.cluster.rules.workers:
            workers = [node.number for node in self.cluster.nodes]
            work = partial(self.cluster.rules.succeed, node_id=self.number, workers=workers)
            self._ask(work, self._entered)
        else:
            self._ask(partial(tables.enter, node_id=self.number), self._entered)

    def _entered(self, answered: bool, told: Any) -> None:
        if not answered:
            self._after(0.2, self._enter)
            return
        if not isinstance(told, Member):
            self.start = told
            self.cluster.began(told, self.number)
            self._serve()
            return
        # A former self, or another process with this node's id: the latter raises the counter.
        now = self.world.now
        if self._former is None or self._former[:2] != (told.start, told.beats):
            self._former = (told.start, told.beats, now)
        elif now - self._former[2] >= PATIENCE.lease:
            self._ask(partial(self.cluster.claim, member=told, by=0), lambda answered, result: None)
        self._after(0.2, self._enter)

    def _serve(self) -> None:
        def joined(answered: bool, member: bool) -> None:
            if not answered:
                self._after(0.2, self._serve)
            elif not member:
                self._end("it was ended while it started")
            elif self.keeper is None:
                self.keeper = self.cluster.rules.keeper(self.start, PATIENCE)
                self.world.tell(f"n{self.number} is {self.start}")
                self._beat()
                self._look()

        self._ask(
            partial(self.cluster.rules.join, start=self.start, server_id=self.number, addresses={}, rack=""), joined
        )

    def _end(self, why: str) -> None:
        self.world.tell(f"n{self.number} ends: {why}")
        if self.cluster.rules.come_again:
            self.kill()
            self.world.after(0.3, lambda: self.alive or self.begin())

    # --- chores -------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        def done(answered: bool, member: bool) -> None:
            self._after(PATIENCE.heartbeat, self._beat)
            if answered and not member and self.keeper is not None and not self.keeper.ended:
                self._told(self.keeper.end())
                self._end("its row is gone")

        self._ask(partial(self.cluster.beat, start=self.start), done)

    def _look(self) -> None:
        keeper = self.keeper
        assert keeper is not None
        asked = self.world.now

        def done(answered: bool, look: Any) -> None:
            self._after(_LOOK, self._look)
            if not answered:
                return
            before = dict(keeper.acting)
            self._told(keeper.take_in(look, asked, self.world.now))
            if keeper.ended:
                self._end("it is no member")
                return
            for slot, epoch in keeper.acting.items():
                self.cluster.owned(slot, epoch, self.start)
                if epoch < before.get(slot, -1):
                    raise Broken(f"{self.start} goes back to epoch {epoch} of slot {slot}")
            self._act()

        self._ask(partial(tables.read_cluster, known=keeper.version), done)

    def _told(self, news: News) -> None:
        for slot in news.lost:
            self._open.pop(slot, None)

    def _act(self) -> None:
        keeper = self.keeper
        assert keeper is not None
        for member in keeper.doubtful() if not self.cluster.rules.workers else ():
            # Whoever looks for its process is wrong at times.
            if member.start not in self.cluster.running() or self.world.chance(0.05):
                keeper.past(member)
        for member in keeper.to_end():
            if member.start not in self._ending:
                self._ending.add(member.start)
                self._end_member(member)
        if self._busy:
            return
        if unsettled := keeper.unsettled():
            self._settle(unsettled[0])
        elif moves := keeper.to_give():
            move = moves[0]
            self._give([one for one in moves if one.to == move.to][:2], move.to)
        elif keeper.state is State.LEAVING and not keeper.acting and self._stopping:
            self._ask(partial(tables.mark_stopped, start=self.start), lambda answered, result: None)
            self.kill()
            self.world.tell(f"n{self.number} has left")

    def _end_member(self, member: Member) -> None:
        start, by = member.start, self.start
        rules = self.cluster.rules

        def over(*_: Any) -> None:
            self._ending.discard(start)

        def claimed(answered: bool, mine: bool) -> None:
            if not answered or not mine:
                over()
                return
            self.world.tell(f"n{self.number} takes over {start}")
            finish = partial(self._ask, partial(rules.finish, start=start, by=by), over)
            if rules.adopt_first and not rules.workers:
                self._adopt(start, finish)
            else:
                finish()

        self._ask(partial(self.cluster.claim, member=member, by=by), claimed)

    def _adopt(self, start: int, then: Callable[[], None]) -> None:
        def done(answered: bool, result: Any) -> None:
            if answered:
                then()
            else:
                self._after(0.2, lambda: self._adopt(start, then))

        self.cluster.backend.ask(partial(self.cluster.logs.adopt, start), self.mine(done))

    # --- handing over -------------------------------------------------------------------------------------------

    def _give(self, moves: Sequence[Move], to: int) -> None:
        keeper = self.keeper
        assert keeper is not None
        self._busy = True
        given = [(move.slot, keeper.acting[move.slot]) for move in moves]
        keeper.begin_giving(slot for slot, _ in given)

        def close() -> None:
            if self.cluster.rules.close_first and any(self.in_flight.get(slot) for slot, _ in given):
                self._after(0.01, close)
                return
            for slot, _ in given:
                self._open.pop(slot, None)
            self._ask(commit, done)

        start = self.start

        def commit(connection: sqlite3.Connection) -> list[int]:
            moved = self.cluster.rules.give(connection, given, start, to)
            for slot in moved:
                if self.alive and self.start == start and self.in_flight.get(slot):
                    raise Broken(f"slot {slot} was given away while {start} was appending there")
            return moved

        def done(answered: bool, moved: Any) -> None:
            self._busy = False
            self.world.tell(f"n{self.number} gave {moved if answered else 'perhaps'} to {to}")
            if not self.cluster.rules.raise_unsettled:
                keeper.giving.clear()

        close()

    def _settle(self, slot: int) -> None:
        keeper = self.keeper
        assert keeper is not None
        self._busy = True

        def done(answered: bool, epoch: Any) -> None:
            self._busy = False
            if answered:
                self._raised(slot, epoch)

        self._ask(partial(self.cluster.rules.raise_epoch, slot=slot, start=self.start), done)

    def _raised(self, slot: int, epoch: int | None) -> None:
        keeper = self.keeper
        assert keeper is not None
        self._told(keeper.raised(slot, epoch))
        if slot in keeper.acting:
            self.cluster.owned(slot, keeper.acting[slot], self.start)

    # --- clients ------------------------------------------------------------------------------------------------

    def append(self, slot: int, value: str, reply: Callable[[int], None]) -> None:
        """``reply`` gets the offset, or -1."""
        keeper = self.keeper
        if keeper is None or slot not in keeper.acting:
            reply(-1)
            return
        epoch = keeper.acting[slot]
        if self._open.get(slot) != epoch:
            self._open_log(slot, epoch)
            reply(-1)
            return
        self.in_flight[slot] = self.in_flight.get(slot, 0) + 1
        life = self.life

        def done(answered: bool, offset: Any) -> None:
            if life == self.life:
                self.in_flight[slot] -= 1
            if answered and offset >= 0:
                reply(offset)
                return
            if self._open.get(slot) == epoch:
                del self._open[slot]
                # Opened again in a higher epoch only, if the slot is still this node's.
                self._ask(
                    partial(self.cluster.rules.raise_epoch, slot=slot, start=self.start),
                    lambda answered, raised: self._raised(slot, raised) if answered else None,
                )
            reply(-1)

        self.cluster.backend.ask(
            partial(self.cluster.logs.append, slot, epoch, self.start, value),
            self.mine(done),
        )

    def _open_log(self, slot: int, epoch: int) -> None:
        if slot in self._opening:
            return
        self._opening.add(slot)

        def done(answered: bool, offset: Any) -> None:
            self._opening.discard(slot)
            keeper = self.keeper
            if not answered or keeper is None or keeper.acting.get(slot) != epoch:
                return
            if offset >= 0:
                self._open[slot] = epoch
            else:
                self._ask(
                    partial(self.cluster.rules.raise_epoch, slot=slot, start=self.start),
                    lambda answered, raised: self._raised(slot, raised) if answered else None,
                )

        cluster = self.cluster
        start = self.start
        cluster.backend.ask(lambda: cluster.logs.open(slot, epoch, start, cluster.alive()), self.mine(done))
