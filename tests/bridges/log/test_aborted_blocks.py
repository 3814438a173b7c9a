"""Aborted ranges in the database: against a list of all, at every step of their way there, and what a read costs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridges.catalog.database.sql import Database, DatabaseError
from bridges.errors import AbortedNotAtHand, DataCorrupt, LogUnavailable, TooManyTransactions
from bridges.formats.producer import InTransaction
from bridges.log.partition.partition_log import PartitionLog
from bridges.log.transactions import partition_transactions as rules
from bridges.log.transactions.aborted_blocks import AbortedBlocks, Window, read_window
from bridges.log.transactions.partition_transactions import KEPT, MOST_TOLD, Aborted, Transactions
from tests.bridges.log.blocks_lab import a_database, small_blocks
from tests.bridges.log.log_lab import World
from tests.bridges.log.test_transactions import ALL, data, values, written
from tests.depth import examples


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    async with a_database(tmp_path) as opened:
        yield opened


async def count(db: Database) -> int:
    query = "SELECT count(*) FROM aborted_blocks"
    return int(await db.run(lambda connection: connection.execute(query).fetchone()[0]))


# --- against the list -------------------------------------------------------------------------------------------------

Steps = list[tuple[str, int]]
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["write", "abort", "abort", "commit"]), st.integers(0, 4)),
        st.tuples(st.sampled_from(["trim", "forget", "restart"]), st.integers(0, 40)),
    ),
    max_size=60,
)


@settings(max_examples=examples(100), deadline=None)
@given(steps)
def test_what_is_told_is_what_a_list_of_all_ranges_has(given_steps: Steps) -> None:
    async def run(path: Path) -> None:
        async with a_database(path) as db:
            await against_a_list(db, given_steps)

    with TemporaryDirectory() as path, small_blocks():
        asyncio.run(run(Path(path)))


async def against_a_list(db: Database, given_steps: Steps) -> None:
    blocks, state = AbortedBlocks(db), Transactions()
    known: list[Aborted] = []
    opened: dict[int, int] = {}
    offset = start = 0
    for what, number in given_steps:
        if what in ("write", "abort", "commit"):
            commit = {"write": None, "abort": False, "commit": True}[what]
            state.observe(InTransaction(number, 0, commit), offset)
            if commit is None:
                opened.setdefault(number, offset)
            elif number in opened and (first := opened.pop(number)) >= 0 and not commit:
                known.append(Aborted(number, first, offset))
            offset += 1
        elif what == "trim":
            start = max(start, min(number, offset))
            state.drop_before(start)
            known = [one for one in known if one.last_offset >= start]
        elif what == "forget":
            gone = [one.last_offset for one in known if one.last_offset % 3 == number % 3]
            await blocks.forget(1, state, gone)
            known = [one for one in known if one.last_offset not in gone]
        else:
            captured, state, blocks = state.capture(), Transactions(), AbortedBlocks(db)
            state.restore(captured)
            assert await blocks.hold(1, state, start)
        await blocks.keep(1, 0, state, start)
        assert len(state) - len(state.open) < 3
        for position in range(start, offset):
            end = offset
            told: list[Aborted] = []
            if position <= state.persisted:
                persisted, at = state.persisted, position
                window: Window = await db.run(lambda c, at=at, to=persisted: read_window(1, at, to, c))  # type: ignore[misc]
                assert window.start == position < window.end
                end = min(end, window.end)
                told = window.aborted(position, end)
            told += state.aborted(position, end)
            assert told == [one for one in known if one.last_offset >= position and one.first_offset < end]


# --- durability -------------------------------------------------------------------------------------------------------


async def aborting(world: World, transactions: int) -> PartitionLog:
    return await more(world, await world.boot(), transactions)


async def read_all(log: PartitionLog) -> list[bytes | None]:
    position, found = log.log_start_offset, []
    while position < log.last_stable_offset:
        batches = await log.read_committed(position, ALL)
        found += values(batches)
        position = batches[-1].end_offset
    return found


async def test_memory_keeps_ranges_that_could_not_be_written_and_writers_wait_only_then(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "MOST_UNSAVED", 9)
    with small_blocks():
        world = World(db=db)
        run, broken = db.run, True

        async def failing(work: Callable[[Any], Any], **more: Any) -> Any:
            if broken:
                raise DatabaseError("the disk is gone")
            return await run(work, **more)

        monkeypatch.setattr(db, "run", failing)
        log = await aborting(world, 9)
        assert log.state.transactions.persisted == -1
        assert await read_all(log) == []
        log.append(data(1), world.done)
        assert isinstance(world.answers[-1], TooManyTransactions)
        broken = False
        world.logs.aborted.want(log)
        await world.logs.aborted.drain()
        assert log.state.transactions.persisted > 0
        log.append(data(1), world.done)
        world.writer.acknowledge(1)
        assert isinstance(world.answers[-1], int)
        assert await read_all(log) == []


@pytest.mark.parametrize("snapshot", ["none", "before the blocks", "behind them"])
async def test_every_aborted_range_is_known_after_a_crash(db: Database, snapshot: str) -> None:
    with small_blocks():
        world = World(db=db)
        if snapshot == "before the blocks":
            log = await aborting(world, 1)
            assert await world.logs.snapshotter.take(log) is None
        log = await aborting(world, 20)
        if snapshot == "behind them":
            assert await world.logs.snapshotter.take(log) is None
        written_before = await count(db)
        assert written_before >= 9
        log = await world.boot()
        assert await read_all(log) == []
        everything = 21 if snapshot == "before the blocks" else 20
        assert len(await log.all_aborted(0, log.high_watermark)) == everything
        assert len(log.state.transactions) <= 3, "memory does not keep them all when a log is read again"


@pytest.mark.parametrize("lost", ["first", "middle", "last", "all"])
async def test_a_snapshot_whose_blocks_are_missing_is_not_believed(db: Database, lost: str) -> None:
    with small_blocks():
        world = World(db=db)
        log = await aborting(world, 20)
        assert await world.logs.snapshotter.take(log) is None
        which = {"first": "number = 0", "middle": "number = 4", "last": "number = 8", "all": "1 = 1"}[lost]
        await db.run(lambda connection: connection.execute(f"DELETE FROM aborted_blocks WHERE {which}"))
        log = await world.boot()
        assert await read_all(log) == []
        assert len(await log.all_aborted(0, log.high_watermark)) == 20


async def test_a_damaged_block_is_told_and_never_taken_for_committed(db: Database) -> None:
    with small_blocks():
        world = World(db=db)
        log = await aborting(world, 20)
        await db.run(lambda connection: connection.execute("UPDATE aborted_blocks SET ranges = x'00000001'"))
        with pytest.raises(DataCorrupt):
            await log.read_committed(0, ALL)
        assert log.committed_limit(0) == 0, "nothing of it is shown"
        with pytest.raises(AbortedNotAtHand):
            log.aborted(0, 4)
        await world.logs.aborted.drain()


async def test_who_has_lost_a_log_writes_no_blocks_over_those_of_its_next_owner(db: Database) -> None:
    with small_blocks():
        former, state = AbortedBlocks(db), Transactions()
        for producer in (1, 2):
            for at in range(10):
                state.observe(InTransaction(producer, 0), 100 * producer + 2 * at)
                state.observe(InTransaction(producer, 0, False), 100 * producer + 2 * at + 1)
            if producer == 1:
                await former.keep(1, 4, state, 0)
                captured = state.capture()
        again = Transactions()
        again.restore(captured)
        for at in range(10):
            again.observe(InTransaction(3, 0), 200 + 2 * at)
            again.observe(InTransaction(3, 0, False), 200 + 2 * at + 1)
        await AbortedBlocks(db).keep(1, 5, again, 0)
        with pytest.raises(LogUnavailable):
            await former.keep(1, 4, state, 0)
        window = await db.run(lambda connection: read_window(1, 214, again.persisted, connection))
        assert set(window.producers) == {3}


async def test_what_is_trimmed_goes_from_the_database(db: Database) -> None:
    with small_blocks():
        world = World(db=db)
        log = await aborting(world, 20)
        before = await count(db)
        await log.trim(20)
        await world.logs.aborted.drain()
        assert 0 < await count(db) < before
        assert await world.logs.snapshotter.take(log) is None
        log = await world.boot()
        assert await read_all(log) == []
        assert len(await log.all_aborted(20, log.high_watermark)) == 10
        await log.trim(log.high_watermark)
        await world.logs.aborted.drain()
        assert await count(db) == 0


async def test_a_window_at_hand_does_not_outlive_a_range_that_reaches_over_it(db: Database) -> None:
    with small_blocks():
        world = World(db=db)
        log = await world.boot()
        for producer in (1, 9, 1):
            log.append(data(producer, b"no"), world.done)
        log.append_marker(1, 0, False, world.done)
        world.writer.acknowledge(4)
        log = await more(world, log, 5)
        log.append_marker(9, 0, False, world.done)
        world.writer.acknowledge(1)
        await world.logs.aborted.drain()
        assert log.state.transactions.persisted < log.high_watermark - 1
        assert values(await log.read_committed(0, ALL)) == []
        log = await more(world, log, 5)
        assert log.state.transactions.persisted >= 14
        assert values(await log.read_committed(0, ALL)) == [], "its marker is in another block now"


async def more(world: World, log: PartitionLog, transactions: int) -> PartitionLog:
    for _ in range(transactions):
        log.append(data(1, b"no"), world.done)
        log.append_marker(1, 0, False, world.done)
        world.writer.acknowledge(2)
    await world.logs.aborted.drain()
    return log


async def _believed(*_: object) -> bool:
    return True


@pytest.mark.parametrize(
    ("name", "value", "scenario"),
    [
        ("hold", _believed, lambda db: test_a_snapshot_whose_blocks_are_missing_is_not_believed(db, "middle")),
        ("_spilled", lambda *_: None, test_a_window_at_hand_does_not_outlive_a_range_that_reaches_over_it),
    ],
)
async def test_a_safeguard_that_is_left_out_is_noticed(
    db: Database, monkeypatch: pytest.MonkeyPatch, name: str, value: object, scenario: Callable[[Database], Any]
) -> None:
    monkeypatch.setattr(AbortedBlocks, name, value)
    with pytest.raises(AssertionError):
        await scenario(db)


# --- reads ------------------------------------------------------------------------------------------------------------


class Moves:
    def __init__(self) -> None:
        self.seen = asyncio.Event()

    def log_moved(self, log: PartitionLog) -> None:
        self.seen.set()


async def test_a_reader_of_what_is_not_at_hand_sees_nothing_until_the_log_moves(db: Database) -> None:
    with small_blocks():
        world = World(db=db)
        log = await aborting(world, 20)
        moves = Moves()
        log.add_waiter(moves)
        assert log.committed_limit(0) == 0
        await asyncio.wait_for(moves.seen.wait(), 10)
        limit = log.committed_limit(0)
        assert limit == 4
        assert log.aborted(0, limit) == [Aborted(1, 0, 1), Aborted(1, 2, 3)]
        with pytest.raises(AbortedNotAtHand):
            log.aborted(0, limit + 1)
        log.remove_waiter(moves)


async def test_the_cache_of_all_partitions_is_bounded(db: Database) -> None:
    with small_blocks():
        world = World(db=db)
        log = await aborting(world, 50)
        blocks = world.logs.aborted
        blocks.most = 2000
        for offset in range(0, 80, 2):
            await log.know_aborted(offset)
            assert blocks.cached_bytes <= 2000
        assert await read_all(log) == []
        blocks.drop(log.stream_id)
        assert blocks.cached_bytes == 0


def lines(work: Callable[[], object]) -> int:
    """How many lines of Python ``work`` takes."""
    seen = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal seen
        seen += event == "line"
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(former)
    return seen


@pytest.mark.parametrize("beside", [False, True])
async def test_a_read_behind_very_many_aborted_transactions_takes_few_steps(db: Database, beside: bool) -> None:
    """``beside``: of a transaction that lasts as long as all others together."""
    costs = []
    for ranges in (20_000, 200_000):
        await db.run(lambda connection: connection.execute("DELETE FROM aborted_blocks"))
        world = World(db=db)
        log = await written(world, data(None))
        blocks, state = world.logs.aborted, log.state.transactions
        if beside:
            state.observe(InTransaction(1, 0), 0)
        for at in range(1, ranges):
            state.observe(InTransaction(7, 0), 2 * at)
            state.observe(InTransaction(7, 0, False), 2 * at + 1)
            if at % 10_000 == 0:
                await blocks.keep(1, 0, state, 0)
        if beside:
            state.observe(InTransaction(1, 0, False), 2 * ranges)
        await blocks.keep(1, 0, state, 0)
        log.high_watermark = 2 * ranges + 1
        assert len(state) < 2 * KEPT
        worst = 0
        for offset in (2, ranges, 2 * ranges - 3 * KEPT, 2 * ranges - 1):
            await log.know_aborted(offset)
            found: list[Aborted] = []

            def read(log: PartitionLog = log, offset: int = offset, found: list[Aborted] = found) -> None:
                found += log.aborted(offset, log.committed_limit(offset))

            worst = max(worst, lines(read))
            assert 0 < len(found) <= 2 * MOST_TOLD
            assert (Aborted(1, 0, 2 * ranges) in found) == beside
        costs.append(worst)
    assert max(costs) < 10 * MOST_TOLD
    assert abs(costs[0] - costs[1]) < MOST_TOLD, "it does not matter how many there are"


def test_nothing_of_it_is_asked_for_where_a_topic_has_few() -> None:
    state = Transactions()
    for at in range(KEPT):
        state.observe(InTransaction(7, 0), 2 * at)
        state.observe(InTransaction(7, 0, False), 2 * at + 1)
    assert not state.full
    assert state.surplus() is None
