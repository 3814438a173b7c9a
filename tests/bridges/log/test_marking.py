"""Whoever writes a marker believes nobody: what may happen between a decision and its marker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from bridges.cluster.members import Member, State
from bridges.errors import LogDeleted, LogError, LogUnavailable, NotOwner
from bridges.log.interfaces import NOT_APPENDED
from bridges.log.transactions import marking
from bridges.log.transactions.open_transaction import OpenTransaction, Place
from tests.left_out import Scenario, is_noticed, without

PRODUCER, EPOCH = 7, 3


class Ending(OpenTransaction):
    """A transaction whose end was decided by this node."""

    commits = True
    producer_id = PRODUCER
    marker_epoch = EPOCH
    about: dict[str, object] = {}  # noqa: RUF012 - of the class that it stands for


class Log:
    """A log in which the producer has something open, and whose markers arrive when the test says."""

    def __init__(self, number: int) -> None:
        self.topic, self.partition, self.stream_id = "t", number, number
        self.is_open, self.epoch = True, 5
        self.state = SimpleNamespace(transactions=SimpleNamespace(open={PRODUCER: 0}))
        self.opening: Callable[[], Awaitable[None]] | None = None
        self.waiting: list[tuple[int, bool, Callable[..., None]]] = []
        self.markers: list[tuple[int, bool]] = []

    async def ready(self) -> None:
        if self.opening is not None:
            await self.opening()

    def append_marker(self, producer_id: int, epoch: int, commit: bool, done: Callable[..., None]) -> None:
        self.waiting.append((epoch, commit, done))

    def arrive(self) -> None:
        epoch, commit, done = self.waiting.pop(0)
        self.markers.append((epoch, commit))
        self.state.transactions.open.pop(PRODUCER, None)
        done(SimpleNamespace(), None)


class World:
    """The owner of partitions, and the database that says whether an end is due."""

    def __init__(self, module: ModuleType, count: int = 1) -> None:
        self.module = module
        self.logs = {("t", number): Log(number) for number in range(count)}
        self.hidden: set[Place] = set()
        """Partitions that the node has not heard of yet."""
        self.mine = set(range(count))
        self.is_due = True
        self.looked_up: Callable[[], None] = lambda: None
        """Happens while the database is asked."""
        self.quiet: Callable[[], Awaitable[None]] | None = None
        self.asked: list[tuple[int, list[Place]]] = []
        owners = SimpleNamespace(
            slot_of=lambda topic, partition: partition,
            is_mine=lambda slot: slot in self.mine,
            node_id=1,
            owner=lambda slot: Member(100, 2, State.UP),
            holding=lambda slot: lambda connection: self._hold(slot),
        )
        db = SimpleNamespace(run=self._run, changes=SimpleNamespace(shared=True, catch_up=self._catch_up))
        logs = SimpleNamespace(get=lambda *place: None if place in self.hidden else self.logs.get(place))
        self.markers = module.Markers(logs, db, owners, self._quiet)
        self.transaction = Ending()

    @property
    def log(self) -> Log:
        return self.logs["t", 0]

    async def _run(self, work: Callable[[Any], Any]) -> Any:
        await asyncio.sleep(0)
        self.looked_up()
        return work(None)

    def _hold(self, slot: int) -> None:
        if slot not in self.mine:
            raise NotOwner(f"t-{slot}", -1)

    async def _catch_up(self) -> None:
        self.hidden.clear()

    async def _quiet(self, to: Log, producer_id: int) -> None:
        if self.quiet is not None:
            await self.quiet()

    def write(self, *, commit: bool = True, fences: bool = False) -> asyncio.Task[None]:
        """Another node asks."""
        end = self.module.End(PRODUCER, EPOCH, commit, fences)
        return asyncio.ensure_future(self.markers.write(end, list(self.logs), lambda connection: self.is_due))

    def mark(self) -> asyncio.Task[None]:
        """This node has decided it."""
        return asyncio.ensure_future(self.markers.mark(self.transaction, list(self.logs), self._ask))

    async def _ask(self, owner: Any, places: list[Place]) -> None:
        self.asked.append((owner.start, places))


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def refused(writing: asyncio.Task[None], error: type[LogError], world: World) -> None:
    await turns()
    for log in world.logs.values():
        assert not log.waiting
        assert not log.markers
    with pytest.raises(error):
        await writing


async def is_written_where_it_is_due(module: ModuleType) -> None:
    for commit in (True, False):
        world = World(module, 3)
        writing = world.write(commit=commit)
        await turns()
        for log in world.logs.values():
            log.arrive()
        await writing
        assert [log.markers for log in world.logs.values()] == [[(EPOCH, commit)]] * 3


async def is_not_written_where_it_is_not_due(module: ModuleType) -> None:
    world = World(module)
    world.is_due = False
    await asyncio.wait_for(world.write(), 1)
    assert not world.log.waiting


async def is_not_written_by_who_has_lost_the_partition(module: ModuleType) -> None:
    world = World(module)
    world.mine.clear()
    await refused(world.write(), NotOwner, world)


async def is_not_written_in_a_log_that_was_opened_anew(module: ModuleType) -> None:
    def anew(log: Log) -> None:
        log.epoch += 1

    def closed(log: Log) -> None:
        log.is_open = False

    for happens in (anew, closed):
        world = World(module)
        world.looked_up = lambda world=world, happens=happens: happens(world.log)  # type: ignore[misc]
        await refused(world.write(), LogUnavailable, world)


async def is_not_written_on_a_lookup_from_before_the_log_was_opened(module: ModuleType) -> None:
    """The end was due when the partition left. It came back with the end written down, and the next transaction."""
    world = World(module)
    opened = asyncio.Event()
    world.log.opening = opened.wait  # type: ignore[assignment]
    writing = world.write()
    await turns()
    world.is_due = False
    world.log.epoch += 2
    opened.set()
    await asyncio.wait_for(writing, 1)
    assert not world.log.waiting


async def is_not_written_twice(module: ModuleType) -> None:
    """The same is asked twice, and what was asked first carries it out: the producer is in its next life by then."""
    world = World(module)
    first, second = world.write(), world.write()
    await turns()
    assert len(world.log.waiting) == 1
    world.is_due = False
    world.log.arrive()
    world.log.state.transactions.open[PRODUCER] = 9
    await asyncio.wait_for(asyncio.gather(first, second), 1)
    assert world.log.markers == [(EPOCH, True)]
    assert not world.log.waiting


async def is_not_written_by_who_has_given_it_up(module: ModuleType) -> None:
    world = World(module)
    left = asyncio.Event()
    world.quiet = left.wait  # type: ignore[assignment]
    marking_it = world.mark()
    await turns()
    world.transaction.given_up = True
    left.set()
    await refused(marking_it, LogUnavailable, world)


async def waits_for_what_is_on_its_way(module: ModuleType) -> None:
    world = World(module)
    arrived = asyncio.Event()
    world.quiet = arrived.wait  # type: ignore[assignment]
    writing = world.write()
    await turns()
    assert not world.log.waiting
    arrived.set()
    await turns()
    world.log.arrive()
    await writing


async def fences_where_nothing_has_arrived(module: ModuleType) -> None:
    for commit, fences, wanted in ((False, True, 1), (True, True, 0), (False, False, 0)):
        world = World(module)
        world.log.state.transactions.open.clear()
        writing = world.write(commit=commit, fences=fences)
        await turns()
        assert len(world.log.waiting) == wanted
        for _ in range(wanted):
            world.log.arrive()
        await writing


async def a_partition_that_cannot_be_had_holds_up_no_other(module: ModuleType) -> None:
    async def away() -> None:
        raise LogUnavailable("the disk is full")

    world = World(module, 2)
    world.log.opening = away
    writing = world.write()
    await turns()
    world.logs["t", 1].arrive()
    with pytest.raises(LogUnavailable, match="full"):
        await writing


async def needs_nothing_where_it_is_deleted(module: ModuleType) -> None:
    async def deleted() -> None:
        raise LogDeleted("t-0")

    world = World(module)
    world.log.opening = deleted
    await asyncio.wait_for(world.write(), 1)

    world = World(module)
    writing = world.write()
    await turns()
    world.log.waiting.pop()[2](NOT_APPENDED, LogDeleted("t-0"))
    await asyncio.wait_for(writing, 1)


async def takes_no_new_topic_for_a_deleted_one(module: ModuleType) -> None:
    world = World(module, 2)
    world.hidden.add(("t", 1))
    writing = world.write()
    await turns()
    assert all(log.waiting for log in world.logs.values())
    for log in world.logs.values():
        log.arrive()
    await writing


async def is_asked_of_the_owners_of_other_partitions(module: ModuleType) -> None:
    world = World(module, 3)
    world.mine = {1}
    marking_it = world.mark()
    await turns()
    world.logs["t", 1].arrive()
    await marking_it
    assert world.asked == [(100, [("t", 0), ("t", 2)])]


SCENARIOS: tuple[Scenario, ...] = (
    is_written_where_it_is_due,
    is_not_written_where_it_is_not_due,
    is_not_written_by_who_has_lost_the_partition,
    is_not_written_in_a_log_that_was_opened_anew,
    is_not_written_on_a_lookup_from_before_the_log_was_opened,
    is_not_written_twice,
    is_not_written_by_who_has_given_it_up,
    waits_for_what_is_on_its_way,
    fences_where_nothing_has_arrived,
    a_partition_that_cannot_be_had_holds_up_no_other,
    needs_nothing_where_it_is_deleted,
    takes_no_new_topic_for_a_deleted_one,
    is_asked_of_the_owners_of_other_partitions,
)

SAFEGUARDS = {
    "the partition is this node's": ("                hold(connection)\n", "                pass\n"),
    "the end is due": ("return is_due(connection)", "return True"),
    "the log is open": ("not still() or not to.is_open or to.epoch != opened", "not still() or to.epoch != opened"),
    "the log was not opened anew": (
        "not still() or not to.is_open or to.epoch != opened",
        "not still() or not to.is_open",
    ),
    "the epoch is from before the lookup": ("to.epoch != opened", "False"),
    "the log is ready before the lookup": ("    await to.ready()\n", ""),
    "one after the other": ("self._alone.setdefault((stream, end.producer_id), asyncio.Lock())", "asyncio.Lock()"),
    "the coordinator still has it": (
        "not still() or not to.is_open or to.epoch != opened",
        "not to.is_open or to.epoch != opened",
    ),
    "what is on its way comes first": ("await self._quiet(to, end.producer_id)", "pass"),
    "an abort fences": ("end.commit or not end.fences", "True"),
    "a commit marks what is open": ("end.commit or not end.fences", "not end.fences"),
    "a failure is told": ("if isinstance(error, BaseException) and not isinstance(error, _ENDED):", "if False:"),
    "catching up": ("            await self._db.changes.catch_up()\n", ""),
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
async def test_markers_are_written_once_whatever_happens(scenario: Scenario) -> None:
    await scenario(marking)


@pytest.mark.parametrize("left_out", SAFEGUARDS)
async def test_a_safeguard_that_is_left_out_is_noticed(left_out: str) -> None:
    assert await is_noticed(without(marking, *SAFEGUARDS[left_out]), SCENARIOS)
