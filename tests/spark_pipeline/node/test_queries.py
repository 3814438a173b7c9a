"""Ends of sinks' attempts among several nodes. How markers are written is tested in tests/bridges/log/test_marking."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from bridges.errors import NotOwner
from spark_pipeline.node.front import PipelineFront
from spark_pipeline.node.messages import Mark, Whole
from spark_pipeline.node.sinks import queries
from spark_pipeline.node.sinks.tables import AttemptRow, AttemptState, add_places, decide, forget_attempt
from tests.left_out import Scenario, is_noticed, without

PLACE = ("t", 0)
PRODUCER, EPOCH = 7, 3
KEY = (PRODUCER, EPOCH)


def _anybody(connection: Any) -> None:
    pass


class World:
    """One node, and what it has of others: a database in common, and a log that it owns until it does not."""

    def __init__(self, module: ModuleType) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        for migration in PipelineFront.migrations:
            migration(self.connection)
        self.is_mine = True
        self.markers: list[tuple[int, int, bool]] = []
        self.asked: asyncio.Event = asyncio.Event()
        """Somebody has asked for a marker."""
        self.let = asyncio.Event()
        self.let.set()
        self.marked: Callable[[], None] = lambda: None
        """What happens as soon as a marker is in the log."""
        self.log = SimpleNamespace(
            topic=PLACE[0],
            partition=PLACE[1],
            stream_id=1,
            epoch=5,
            is_open=True,
            ready=self._ready,
            state=SimpleNamespace(transactions=SimpleNamespace(open={PRODUCER: 0})),
            append_marker=self._append_marker,
        )
        owners = SimpleNamespace(
            on_gained=[],
            on_lost=[],
            mine=(),
            slot_of=lambda topic, partition: 0,
            is_mine=lambda slot: self.is_mine,
            holding=lambda slot: self._hold,
        )
        node = SimpleNamespace(
            node_id=1,
            owners=owners,
            peers=SimpleNamespace(),
            db=SimpleNamespace(run=self._run, changes=SimpleNamespace(shared=True, catch_up=self._ready)),
            logs=SimpleNamespace(get=lambda topic, partition: self.log if (topic, partition) == PLACE else None),
        )
        self.queries = module.Queries(node, self._ready, lambda gone: None)

    async def _ready(self) -> None:
        pass

    async def _run(self, work: Callable[[Any], Any]) -> Any:
        await asyncio.sleep(0)
        return work(self.connection)

    def _hold(self, connection: Any) -> None:
        if not self.is_mine:
            raise NotOwner("t-0", -1)

    def _append_marker(self, producer_id: int, epoch: int, commit: bool, done: Callable[[Any], None]) -> None:
        self.asked.set()

        async def append() -> None:
            await self.let.wait()
            self.markers.append((producer_id, epoch, commit))
            self.log.state.transactions.open.pop(producer_id, None)
            self.marked()
            done(SimpleNamespace())

        self.appending = asyncio.ensure_future(append())

    def decided(self, state: AttemptState) -> None:
        row = AttemptRow(PRODUCER, EPOCH, "me", "q", 0, 0, int(AttemptState.OPEN), 1000, 0, "t")
        add_places(self.connection, row, [PLACE], _anybody)
        commits = state is AttemptState.COMMITTING
        decide(self.connection, None, [KEY] if commits else [], [] if commits else [KEY], _anybody)

    async def mark(self, *, commit: bool = True) -> None:
        await self.queries.mark_here(Mark(PRODUCER, EPOCH, commit, [PLACE]))


async def is_marked_once_it_was_decided(module: ModuleType) -> None:
    for state in (AttemptState.COMMITTING, AttemptState.ABORTING):
        world = World(module)
        world.decided(state)
        await world.mark(commit=state is AttemptState.COMMITTING)
        assert world.markers == [(PRODUCER, EPOCH + 1, state is AttemptState.COMMITTING)]


async def is_not_marked_as_nobody_has_decided(module: ModuleType) -> None:
    world = World(module)
    await world.mark()
    world.decided(AttemptState.ABORTING)
    await world.mark()
    assert not world.markers


async def is_not_marked_behind_its_own_end(module: ModuleType) -> None:
    """The same is asked twice, and what was asked first carries it out: the producer is in its next life by then."""
    world = World(module)
    world.decided(AttemptState.ABORTING)
    world.let.clear()
    world.marked = lambda: forget_attempt(world.connection, KEY, _anybody)
    first = asyncio.ensure_future(world.mark(commit=False))
    await world.asked.wait()
    second = asyncio.ensure_future(world.mark(commit=False))
    for _ in range(20):
        await asyncio.sleep(0)
    world.let.set()
    await first
    await second
    assert len(world.markers) == 1


async def is_fenced_where_nothing_of_it_has_arrived(module: ModuleType) -> None:
    for commit, wanted in ((False, 1), (True, 0)):
        world = World(module)
        world.log.state.transactions.open.clear()
        world.decided(AttemptState.COMMITTING if commit else AttemptState.ABORTING)
        await world.mark(commit=commit)
        assert len(world.markers) == wanted


async def is_missing_where_it_is_not_open(module: ModuleType) -> None:
    world = World(module)
    assert not (await world.queries.find_missing_here(Whole(PRODUCER, [PLACE, ("gone", 0)]))).places
    world.log.state.transactions.open.clear()
    assert (await world.queries.find_missing_here(Whole(PRODUCER, [PLACE]))).places == [PLACE]


SCENARIOS: tuple[Scenario, ...] = (
    is_marked_once_it_was_decided,
    is_not_marked_as_nobody_has_decided,
    is_not_marked_behind_its_own_end,
    is_fenced_where_nothing_of_it_has_arrived,
    is_missing_where_it_is_not_open,
)

SAFEGUARDS = {
    "it was decided so": (
        "self.markers.write(end, asked.places, is_due)",
        "self.markers.write(end, asked.places, lambda connection: True)",
    ),
    "it is the attempt's": (
        "partial(is_decided, producer_id=asked.producer_id, epoch=asked.epoch, commit=asked.commit)",
        "partial(is_decided, producer_id=asked.producer_id, epoch=asked.epoch + 1, commit=asked.commit)",
    ),
    "the next epoch is marked": (
        "End(asked.producer_id, asked.epoch + 1, ..., fences=True)",
        "End(asked.producer_id, asked.epoch, asked.commit, fences=True)",
    ),
    "an abort fences": (
        "End(asked.producer_id, asked.epoch + 1, asked.commit, fences=True)",
        "End(asked.producer_id, asked.epoch + 1, asked.commit, fences=False)",
    ),
    "all of it is there": ("if asked.producer_id not in to.state.transactions.open:", "if False:"),
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
async def test_the_markers_of_an_attempt_are_written_by_its_decision(scenario: Scenario) -> None:
    await scenario(queries)


@pytest.mark.parametrize("left_out", SAFEGUARDS)
async def test_a_safeguard_that_is_left_out_is_noticed(left_out: str) -> None:
    assert await is_noticed(without(queries, *SAFEGUARDS[left_out]), SCENARIOS)
