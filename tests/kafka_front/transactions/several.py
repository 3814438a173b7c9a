"""Transactions over several nodes, played from a seed: the very services, over a simulated cluster, clock and logs.

Nodes are killed, paused and woken behind their own take-over; slots are handed over one by one; messages, and answers
of the database, come late or not at all. Clients begin, write, commit positions and end; in the end all is calm, and
what they were told is compared with what lies in the logs.

python -m tests.kafka_front.transactions.several 1000        # the first thousand seeds
"""

from __future__ import annotations

import asyncio
import logging
import random
import selectors
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import structlog

from anabranch_kit.run.barrier import Barrier
from bridges.catalog.database.schema import MIGRATIONS
from bridges.catalog.database.sql import DatabaseError
from bridges.catalog.progress import Committed, Progress
from bridges.cluster.members import Member, State
from bridges.cluster.owned import Wanted
from bridges.cluster.peers.peers import PeerUnreachable
from bridges.errors import LogError, LogUnavailable, NotOwner, ProducerFenced
from bridges.log.interfaces import NOT_APPENDED
from kafka_front.service.groups.owned import OwnedKeys
from kafka_front.service.log_errors import Refused
from kafka_front.service.transactions import tables
from kafka_front.service.transactions.coordinator import CONCURRENT, NOT_AVAILABLE
from kafka_front.service.transactions.service import Transactions
from kafka_front.service.transactions.tables import NotAsBelieved, require_group
from kafka_front.wire.errors import ErrorCode, KafkaError
from tests.kit.waiting import until

T = TypeVar("T")

NODES = 3
SLOTS = 8
PLACES = [("t", number) for number in range(4)]
CLIENTS = 3
FAULTS_S = 12.0
CALM_S = 16.0
_AGAIN = (
    NOT_AVAILABLE,
    CONCURRENT,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
Entry = tuple[str, int, int, Any]
"""Kind ("value", "marker"), producer's id and epoch; value, or whether it commits."""


class Broken(AssertionError):
    """A promise was not kept."""


class Unknown(LogError):
    """A batch was sent, and nobody knows what became of it."""


class _Jumping(selectors.SelectSelector):
    """Nobody waits for the time to pass."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Broken("everybody waits for somebody")
        self.loop.virtual += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    virtual = 0.0

    def __init__(self) -> None:
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.virtual


class Batch(NamedTuple):
    transaction: Any
    value: str


class Told(NamedTuple):
    """What a client knows of one of its transactions. ``outcome``: True committed, False aborted, None nobody knows."""

    outcome: bool | None
    written: list[str]
    position: bool


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.calm = False
        self.loop = asyncio.get_running_loop()
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        for migration in (*MIGRATIONS, *tables.MIGRATIONS):
            migration(self.connection)
        self.epoch = 0
        self.producer_ids = 100
        self.slots: list[tuple[int, int]] = []
        statement = "INSERT INTO cluster_slots (slot, owner, epoch) VALUES (?, 0, 0)"
        self.connection.executemany(statement, [(slot,) for slot in range(SLOTS)])
        self.entries: dict[tuple[str, int], list[Entry]] = {place: [] for place in PLACES}
        self.fences: dict[tuple[str, int], int] = dict.fromkeys(PLACES, 0)
        self.nodes: list[Node] = []
        self.starts = 0
        self.tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def delay(self, most: float = 0.02) -> None:
        slow = not self.calm and self.random.random() < 0.03
        await asyncio.sleep(self.random.random() * (1.0 if slow else most))

    def fails(self, share: float) -> bool:
        return not self.calm and self.random.random() < share

    def next_epoch(self) -> int:
        self.epoch += 1
        return self.epoch

    def owners(self) -> list[tuple[int, int]]:
        return self.connection.execute("SELECT owner, epoch FROM cluster_slots ORDER BY slot").fetchall()

    def place_slot(self, place: tuple[str, int]) -> int:
        return place[1] % SLOTS

    def key_slot(self, kind: str, key: str) -> int:
        return sum(map(ord, kind + key)) % SLOTS

    def node(self, start: int) -> Node | None:
        return next((node for node in self.nodes if node.start == start), None)

    async def assign(self, slot: int, to: int) -> None:
        self.connection.execute(
            "UPDATE cluster_slots SET owner = ?, epoch = ? WHERE slot = ?", (to, self.next_epoch(), slot)
        )
        for node in self.nodes:
            self.spawn(node.look())

    def fence(self, slots: Iterable[int]) -> None:
        """Whoever appended there appends nothing more: as the fence of an object log does."""
        for place in PLACES:
            if self.place_slot(place) in slots:
                self.fences[place] = self.next_epoch()


class Node:
    """One start of a node."""

    def __init__(self, world: World, number: int) -> None:
        world.starts += 1
        self.world = world
        self.number = number
        self.start = world.starts
        self.awake = asyncio.Event()
        self.awake.set()
        self.gone = False
        self.owned = Owners(self)
        self.db = Db(self)
        self.peers = PeersOf(self)
        self.logs = LogsOf(self)
        self.failures = Barrier()
        self.progress = Progress(self.db)  # type: ignore[arg-type]
        front = self.progress.front("kafka")
        services = SimpleNamespace(
            db=self.db,
            logs=self.logs,
            catalog=SimpleNamespace(on_change=[]),
            progress=front,
            barrier=self.failures,
            owners=self.owned,
            peers=self.peers,
        )
        self.front = front
        settings = SimpleNamespace(
            transaction_max_timeout_ms=900_000,
            transactional_ids=1000,
            transaction_partitions=1000,
            transactional_id_expiration_ms=1 << 40,
        )
        self.groups = Groups(self)
        self.service = Transactions(services, settings, self._id)  # type: ignore[arg-type]
        self.member = Member(self.start, number, State.UP)

    async def _id(self) -> int:
        await self.gate()
        self.world.producer_ids += 1
        return self.world.producer_ids

    async def begin(self) -> None:
        while True:
            try:
                await self.progress.load()
                break
            except LogError:
                continue
        await self.service.load()
        self.world.nodes.append(self)
        self.world.spawn(self._chores())

    async def _chores(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            await self.gate()
            try:
                await self.service.settle(0)
            except LogError:
                continue

    async def gate(self) -> None:
        """Who is paused goes on when it wakes up; who is dead never does."""
        await self.awake.wait()

    def kill(self) -> None:
        self.gone = True
        self.awake.clear()
        if self in self.world.nodes:
            self.world.nodes.remove(self)

    async def look(self) -> None:
        await self.world.delay(0.3)
        await self.gate()
        await self.owned.look()


class Db:
    """The one database, as a node reaches it: one thing after the other."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.engine = SimpleNamespace(shared=True)
        self.changes = SimpleNamespace(shared=True, catch_up=node.gate)
        self._turn = asyncio.Lock()

    async def run(self, fn: Callable[[Any], Any], *, then: Callable[[Any], None] | None = None, **_: Any) -> Any:
        world = self.node.world
        async with self._turn:
            await self.node.gate()
            await world.delay()
            await self.node.gate()
            if world.fails(0.02):
                raise DatabaseError("the database is away")
            connection = world.connection
            connection.execute("BEGIN")
            try:
                result = fn(connection)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
            await world.delay()
            await self.node.gate()
            if then is not None:
                then(result)
            return result

    def submit(self, fn: Callable[[Any], Any]) -> asyncio.Future[Any]:
        return self.node.world.spawn(self.run(fn))


class Owners:
    """What a node knows of who owns what."""

    is_sure = True

    def __init__(self, node: Node) -> None:
        self.node = node
        self.node_id = node.number
        self.on_lost: list[Any] = []
        self.on_gained: list[Any] = []
        self.on_gone: list[Any] = []
        self.slots: list[tuple[int, int]] = [(0, 0)] * SLOTS
        self.acting: dict[int, int] = {}
        self.giving: dict[int, int] = {}

    @property
    def nodes(self) -> list[Member]:
        return [node.member for node in self.node.world.nodes]

    @property
    def mine(self) -> list[int]:
        return list(self.acting)

    def slot_of(self, topic: str, partition: int) -> int:
        return self.node.world.place_slot((topic, partition))

    def slot_of_key(self, kind: str, key: str) -> int:
        return self.node.world.key_slot(kind, key)

    def owner(self, slot: int) -> Member | None:
        node = self.node.world.node(self.slots[slot][0])
        return None if node is None else node.member

    def is_mine(self, slot: int) -> bool:
        return slot in self.acting

    def epoch(self, slot: int) -> int:
        return self.slots[slot][1]

    def holding(self, slot: int) -> Callable[[Any], None]:
        def hold(connection: Any) -> None:
            (owner,) = connection.execute("SELECT owner FROM cluster_slots WHERE slot = ?", (slot,)).fetchone()
            if owner != self.node.start:
                raise NotOwner(f"slot {slot}", owner)

        return hold

    async def look(self) -> None:
        found = self.node.world.owners()
        lost, gained = [], []
        for slot, (owner, epoch) in enumerate(found):
            if epoch < self.slots[slot][1]:
                continue
            self.slots[slot] = (owner, epoch)
            if self.giving.get(slot, -1) >= epoch:
                continue
            self.giving.pop(slot, None)
            mine = epoch if owner == self.node.start else None
            if mine == self.acting.get(slot):
                continue
            if self.acting.pop(slot, None) is not None:
                lost.append(slot)
            if mine is not None:
                self.acting[slot] = mine
                gained.append(slot)
        if lost:
            for tell in self.on_lost:
                await tell(lost, False)
        if gained:
            for tell in self.on_gained:
                tell(gained)

    async def give(self, slot: int, to: int) -> None:
        """Hand a slot over in order."""
        epoch = self.acting.pop(slot, None)
        if epoch is None:
            return
        self.giving[slot] = epoch
        for tell in self.on_lost:
            try:
                await tell([slot], True)
            except LogError:
                return  # settled below, as after a lost answer
        await self.node.gate()
        owner, now = self.node.world.owners()[slot]
        if (owner, now) == (self.node.start, epoch):
            await self.node.world.assign(slot, to)


class PeersOf:
    """Messages between nodes: some are lost, and some answers."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.served: dict[str, Callable[[Any], Awaitable[Any]]] = {}

    def serve(self, kind: str, message: type, answer: Callable[[Any], Awaitable[Any]]) -> None:
        self.served[kind] = answer

    async def ask(self, member: Member, kind: str, message: Any, answer: type) -> Any:
        world = self.node.world
        await self.node.gate()
        try:
            async with asyncio.timeout(3.0):
                await world.delay()
                if world.fails(0.05):
                    raise PeerUnreachable("lost")
                other = world.node(member.start)
                if other is None:
                    raise PeerUnreachable("gone")
                # What was sent arrives, whether or not somebody waits for the answer.
                answering = world.spawn(_answered(other, kind, message))
                found = await asyncio.shield(answering)
                await world.delay()
        except TimeoutError:
            raise PeerUnreachable("late") from None
        await self.node.gate()
        if world.fails(0.05):
            raise PeerUnreachable("lost")
        if isinstance(found, LogError):
            raise found
        return found


async def _answered(node: Node, kind: str, message: Any) -> Any:
    await node.world.delay()
    await node.gate()
    try:
        return await node.peers.served[kind](message)
    except LogError as error:
        return error


class LogsOf:
    """The logs of a node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._logs = {place: Log(node, place) for place in PLACES}
        node.owned.on_lost.append(self._lost)

    def get(self, topic: str, partition: int) -> Log | None:
        return self._logs.get((topic, partition))

    async def _lost(self, slots: Iterable[int], in_order: bool) -> None:
        for place, log in self._logs.items():
            if self.node.world.place_slot(place) in slots:
                await log.give_up(in_order)


class Log:
    """A partition's log as its owner has it, over entries that only whoever is not fenced adds to."""

    def __init__(self, node: Node, place: tuple[str, int]) -> None:
        self.node = node
        self.topic, self.partition = place
        self.place = place
        self.stream_id = place[1]
        self.epoch = -1
        self.is_open = False
        self.state = SimpleNamespace(transactions=SimpleNamespace(open={}))
        self.epochs: dict[int, int] = {}
        self.in_flight = 0
        self._order = asyncio.Lock()
        self._opening = asyncio.Lock()

    async def ready(self) -> None:
        async with self._opening:
            if not self.is_open:
                await self._open()

    async def _open(self) -> None:
        world, owners = self.node.world, self.node.owned
        slot = world.place_slot(self.place)
        if not owners.is_mine(slot):
            raise NotOwner(f"{self.place}", -1)
        await self.node.gate()
        await world.delay()
        await self.node.gate()
        owner, _ = world.owners()[slot]
        if owner != self.node.start:
            raise NotOwner(f"{self.place}", owner)
        self.epoch = world.fences[self.place] = world.next_epoch()
        found: dict[int, int] = {}
        self.epochs = {}
        for offset, (kind, producer_id, epoch, _) in enumerate(world.entries[self.place]):
            self.epochs[producer_id] = max(epoch, self.epochs.get(producer_id, -1))
            if kind == "value":
                found.setdefault(producer_id, offset)
            else:
                found.pop(producer_id, None)
        await world.delay()
        await self.node.gate()
        if not owners.is_mine(slot):
            raise NotOwner(f"{self.place}", -1)
        self.state.transactions.open = found
        self.is_open = True

    async def give_up(self, in_order: bool) -> None:
        if in_order:
            self.is_open = False
            await until(lambda: not self.in_flight)
        self.is_open = False
        self.state.transactions.open = {}

    def append(self, batch: Batch, done: Callable[[Any, LogError | None], None]) -> None:
        part = batch.transaction
        self._append("value", part.producer_id, part.epoch, batch.value, done)

    def append_marker(
        self, producer_id: int, epoch: int, commit: bool, done: Callable[[Any, LogError | None], None]
    ) -> None:
        self._append("marker", producer_id, epoch, commit, done)

    def _append(
        self, kind: str, producer_id: int, epoch: int, value: Any, done: Callable[[Any, LogError | None], None]
    ) -> None:
        if not self.is_open:
            done(NOT_APPENDED, LogUnavailable("closed"))
        elif epoch < self.epochs.get(producer_id, -1):
            done(NOT_APPENDED, ProducerFenced("an earlier epoch"))
        else:
            self.epochs[producer_id] = epoch
            self.in_flight += 1
            self.node.world.spawn(self._write((kind, producer_id, epoch, value), done))

    async def _write(self, entry: Entry, done: Callable[[Any, LogError | None], None]) -> None:
        world, epoch = self.node.world, self.epoch
        error: LogError | None = None
        async with self._order:
            await self.node.gate()
            await world.delay()
            await self.node.gate()
            if world.fences[self.place] == epoch:
                kind, producer_id, _, _ = entry
                world.entries[self.place].append(entry)
                await world.delay()
                await self.node.gate()
                found = self.state.transactions.open
                if kind == "value":
                    found.setdefault(producer_id, len(world.entries[self.place]))
                else:
                    found.pop(producer_id, None)
            else:
                error = Unknown("fenced")
                self.is_open = False
        self.in_flight -= 1
        done((0, 0), error)


class Groups(OwnedKeys):
    """Groups, of which there are positions only."""

    what = "group"

    def __init__(self, node: Node) -> None:
        super().__init__(node.owned)  # type: ignore[arg-type]
        self._front = node.front
        node.front.holding = self.holding

    def slot(self, name: str) -> int:
        return self._owners.slot_of_key(self._front.space, name)

    async def read(self, wanted: Wanted) -> None:
        await self._front.reload(wanted, wanted.slots)

    async def give_up(self, slots: Any, in_order: bool) -> None:
        if in_order:
            await self._front.await_writes()


class Client:
    """Transactions of one id, one after the other."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"x{number}"
        self.group = f"g{number}"
        self.implicit = bool(number % 2)
        self.told: list[Told] = []
        self.in_calm = 0

    async def run(self) -> None:
        while True:
            told = await self._settled(lambda node: node.service.init(self.name, 5_000, None), self._coordinator)
            if told is None or isinstance(told, int):
                continue
            self.producer = (told.producer_id, told.epoch)
            while await self._transaction():
                pass

    async def _transaction(self) -> bool:
        world, number = self.world, len(self.told)
        written: list[str] = []
        places = world.random.sample(PLACES, world.random.randint(1, 3))
        good = self.implicit or await self._add(places)
        for place in places:
            for count in range(world.random.randint(1, 2)):
                value = f"{self.name}.{number}.{place[1]}.{count}"
                if good:
                    done = await self._write(place, value)
                    good = done
                    if done:
                        written.append(value)
        positions = good and world.random.random() < 0.7
        if positions:
            good = await self._commit_position(number)
        commit = good and world.random.random() < 0.7
        if good and world.random.random() < 0.4:
            # It does not wait for this one: it may be there or not, but not behind the end. With version 1 it may
            # become part of the next transaction, as docs/kafka-transactions.md says.
            name = f"{self.name}.{number}.late" if self.implicit else f"late {self.name}.{number}"
            place = world.random.choice(PLACES if self.implicit else places)
            if world.random.random() < 0.5:
                await self._write(place, name, self.producer, waits=False)
            else:
                world.spawn(self._delayed(place, name, self.producer))
        else:
            await world.delay(0.2)
        told = await self._settled(
            lambda node: node.service.end(self.name, *self.producer, commit=commit, bumps=self.implicit),
            self._coordinator,
            tries=60,
        )
        known = told is not None and not isinstance(told, int)
        # That it is in a state which does not go with a commit says that it was aborted; nothing else does.
        self.told.append(Told(commit if known else None, written, positions))
        self.in_calm += world.calm and known
        if known and self.implicit:
            self.producer = (told.producer_id, told.epoch)
        return known

    async def _add(self, places: list[tuple[str, int]]) -> bool:
        async def add(node: Node) -> bool:
            await node.service.add(self.name, *self.producer, list(places), [self.group])
            return True

        return await self._settled(add, self._coordinator) is True

    async def _delayed(self, place: tuple[str, int], value: str, producer: tuple[int, int]) -> None:
        await asyncio.sleep(self.world.random.random())
        await self._write(place, value, producer, waits=False)

    async def _write(
        self, place: tuple[str, int], value: str, producer: tuple[int, int] | None = None, *, waits: bool = True
    ) -> bool:
        world = self.world
        for _ in range(30):
            node = self._owner(world.place_slot(place))
            if node is not None:
                done: asyncio.Future[LogError | None] = world.loop.create_future()

                def settle(_: Any, error: LogError | None, done: asyncio.Future[LogError | None] = done) -> None:
                    if not done.done():
                        done.set_result(error)

                log = node.logs.get(*place)
                assert log is not None
                producer_id, epoch = producer or self.producer
                batch = Batch(SimpleNamespace(producer_id=producer_id, epoch=epoch), value)
                version = 12 if self.implicit else 11
                node.service.owned.append(self.name, log, batch, version, settle)  # type: ignore[arg-type]
                if not waits:
                    return True
                try:
                    async with asyncio.timeout(3.0):
                        error = await done
                except TimeoutError:
                    return False
                if error is None:
                    return True
                if isinstance(error, Unknown | ProducerFenced) or not (isinstance(error, LogUnavailable | Refused)):
                    return False
            await asyncio.sleep(0.2)
        return False

    async def _commit_position(self, number: int) -> bool:
        async def commit(node: Node) -> bool:
            node.groups.require(self.group)
            if self.implicit:
                await node.service.owned.add(self.name, *self.producer, [], [self.group])

            def check(connection: Any) -> None:
                require_group(connection, self.name, *self.producer, self.group)

            try:
                await node.front.commit_with(self.name, self.group, [("t", 0, Committed(number))], check)
            except NotAsBelieved as error:
                raise KafkaError(error.code) from error
            return True

        return await self._settled(commit, lambda: self._owner(self._group_slot())) is True

    def _group_slot(self) -> int:
        node = self.world.nodes[0] if self.world.nodes else None
        return 0 if node is None else self.world.key_slot(node.front.space, self.group)

    def _coordinator(self) -> Node | None:
        node = self.world.nodes[0] if self.world.nodes else None
        return None if node is None else self._owner(node.service.owned.slot(self.name))

    def _owner(self, slot: int) -> Node | None:
        """Who is told to own a slot; now and then it is whoever was before, or any node."""
        if self.world.fails(0.1) and self.world.nodes:
            return self.world.random.choice(self.world.nodes)
        return self.world.node(self.world.owners()[slot][0])

    async def _settled(
        self, call: Callable[[Node], Awaitable[Any]], find: Callable[[], Node | None], tries: int = 25
    ) -> Any:
        """What a node answers in the end, or the code of its refusal; None: nothing that one could go by."""
        for _ in range(tries):
            node = find()
            if node is not None:
                try:
                    async with asyncio.timeout(3.0):
                        return await call(node)
                except KafkaError as refused:
                    if refused.code not in _AGAIN:
                        return refused.code
                except (TimeoutError, LogError):
                    pass
            await asyncio.sleep(0.25)
        return None


class Schedule:
    """A run under faults, then in calm, then the judgement. Raises Broken."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def run(self) -> int:
        """How many transactions there were."""
        return run_virtually(self._run)

    async def _run(self) -> int:
        world = self.world = World(self.seed)
        for number in range(1, NODES + 1):
            await Node(world, number).begin()
        for slot in range(SLOTS):
            await world.assign(slot, world.nodes[slot % NODES].start)
        clients = [Client(world, number) for number in range(CLIENTS)]
        running = [world.spawn(client.run()) for client in clients]
        faults = world.spawn(self._faults())
        await asyncio.sleep(FAULTS_S)
        world.calm = True
        await faults
        await asyncio.sleep(CALM_S)
        for task in running:
            if task.done():
                task.result()
            task.cancel()
        # What they had begun when they were stopped is aborted, since its time is over.
        await asyncio.sleep(CALM_S)
        for node in world.nodes:
            if node.failures.failures:
                raise Broken(f"unexpected: {node.failures.failures}")
        self._judge(clients)
        return sum(len(client.told) for client in clients)

    # --- faults -----------------------------------------------------------------------------------------------------

    async def _faults(self) -> None:
        world = self.world
        while not world.calm:
            await asyncio.sleep(world.random.uniform(0.2, 2.5))
            if len(world.nodes) < 2:
                continue
            node = world.random.choice(world.nodes)
            others = [one for one in world.nodes if one is not node]
            match world.random.randrange(5):
                case 0:
                    node.kill()
                    await asyncio.sleep(world.random.uniform(0.1, 2.0))
                    await self._take_over(node, others)
                case 1:
                    node.awake.clear()
                    await asyncio.sleep(world.random.uniform(0.1, 2.0))
                    await self._take_over(node, others)
                    await asyncio.sleep(world.random.uniform(0.0, 1.0))
                    node.awake.set()  # a zombie, until it finds out
                    await asyncio.sleep(world.random.uniform(0.0, 1.0))
                    node.kill()
                case 2:
                    node.awake.clear()
                    await asyncio.sleep(world.random.uniform(0.1, 1.0))
                    node.awake.set()
                case _:
                    mine = sorted(node.owned.acting)
                    if mine:
                        slot = world.random.choice(mine)
                        to = world.random.choice(others)
                        world.spawn(node.owned.give(slot, to.start))
                        if world.random.random() < 0.4:  # and back again
                            await asyncio.sleep(world.random.uniform(0.3, 1.0))
                            world.spawn(to.owned.give(slot, node.start))
            if len(world.nodes) < NODES:
                await Node(world, 10 + world.starts).begin()
        for node in world.nodes:
            node.awake.set()
        for slot, (owner, _) in enumerate(world.owners()):
            # What nobody knows whether it was given away, its owner takes again.
            await world.assign(slot, owner)

    async def _take_over(self, node: Node, others: list[Node]) -> None:
        world = self.world
        if node in world.nodes and not node.gone:
            world.nodes.remove(node)
            world.nodes.append(node)  # it still answers who knows it
        theirs = [slot for slot, (owner, _) in enumerate(world.owners()) if owner == node.start]
        world.fence(theirs)
        others = [one for one in others if one in world.nodes] or [one for one in world.nodes if one is not node]
        for slot in theirs:
            await world.assign(slot, world.random.choice(others).start)

    # --- the judgement ----------------------------------------------------------------------------------------------

    def _judge(self, clients: list[Client]) -> None:
        world = self.world
        fates: dict[str, bool] = {}
        for place, entries in world.entries.items():
            is_open: dict[int, list[str]] = {}
            for kind, producer_id, _, value in entries:
                if kind == "value":
                    is_open.setdefault(producer_id, []).append(value)
                else:
                    for one in is_open.pop(producer_id, ()):
                        fates[one] = value
            if any(is_open.values()):
                raise Broken(f"open for ever in {place}: {is_open}")
        for client in clients:
            if not client.in_calm:
                raise Broken(f"{client.name} has not gone on in the calm")
            position = -1
            # Of the last one nobody was told anything.
            for number, told in enumerate([*client.told, Told(None, [], position=True)]):
                mine = {value: fate for value, fate in fates.items() if value.startswith(f"{client.name}.{number}.")}
                if missing := [value for value in told.written if value not in mine]:
                    raise Broken(f"lost: {missing}")
                if len(set(mine.values())) > 1:
                    raise Broken(f"torn: {mine}")
                if told.outcome is not None and mine and set(mine.values()) != {told.outcome}:
                    raise Broken(f"{client.name}.{number} was told {told.outcome}: {mine}")
                if told.position and (told.outcome or (told.outcome is None and True in mine.values())):
                    position = number
            row = world.connection.execute("SELECT offset FROM positions WHERE grp = ?", (client.group,)).fetchone()
            found = -1 if row is None else row[0]
            if found != position and not (found < position == len(client.told)):
                raise Broken(f"the position of {client.group} is {found}, not {position}")
        if world.connection.execute("SELECT 1 FROM pending_positions").fetchone() is not None:
            raise Broken("positions are pending for ever")


def run_virtually(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What ``work`` gives, on a loop whose time passes by itself."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work())
    finally:
        while tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks, timeout=1))
        loop.close()


def first_broken(seeds: Iterable[int]) -> tuple[int, Exception] | None:
    """The first seed that breaks a promise, and how; None: none does."""
    for seed in seeds:
        try:
            Schedule(seed).run()
        except Broken as broken:
            return seed, broken
    return None


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    found = first_broken(range(int(sys.argv[1]) if sys.argv[1:] else 100))
    print("every promise kept" if found is None else f"seed {found[0]}: {found[1]}")
    sys.exit(found is not None)
