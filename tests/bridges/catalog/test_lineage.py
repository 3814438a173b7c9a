"""Partitions that are split and merged: ranges of keys, one step of the catalog, seals at the logs."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.catalog.database.schema import APPLICATION_ID, MIGRATIONS
from bridges.catalog.database.sql import Connection
from bridges.catalog.topics.catalog import Catalog
from bridges.catalog.topics.config import SPLIT
from bridges.catalog.topics.lineage import (
    KEY_SPACE,
    WHOLE,
    InvalidChange,
    InvalidKeyRange,
    KeyRange,
    PartitionInfo,
    check_change,
    related,
)
from bridges.catalog.topics.topic import ChangeKind, InvalidPartitions, SplitNotAllowed, TopicEnded, TopicNotFound
from bridges.errors import LogError, LogUnavailable, OffsetOutOfRange, PartitionSealed, TransactionsOpen
from sbp_back.errors import ErrorCode, NoSpace, SbpError
from tests.bridges.catalog.test_catalog import Home
from tests.bridges.log.log_lab import World, batch, settle
from tests.databases import database, on_each_engine

HALVES = [KeyRange.of_doubles(0.0, 0.5), KeyRange.of_doubles(0.5, 1.0)]
QUARTERS = [KeyRange.of_doubles(0.0, 0.25), KeyRange.of_doubles(0.25, 0.5)]
THIRDS = [KeyRange.of_doubles(0.0, 1 / 3), KeyRange.of_doubles(1 / 3, 2 / 3), KeyRange.of_doubles(2 / 3, 1.0)]


# --- ranges of keys -------------------------------------------------------------------------------------------------


@given(st.floats(0, 1).filter(lambda bound: bound == 0 or bound >= 2**-76), st.floats(2**-76, 1))
def test_doubles_are_kept_exactly(one: float, other: float) -> None:
    low, high = sorted((one, other))
    if low == high:
        with pytest.raises(InvalidKeyRange):
            KeyRange.of_doubles(low, high)
        return
    keys = KeyRange.of_doubles(low, high)
    assert keys.doubles == (low, high)
    assert KeyRange.from_stored(*keys.stored) == keys


@given(st.integers(1, 100_000), st.data())
def test_equal_shares_as_pravega_makes_them_are_kept_and_meet(parts: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, parts - 1))
    keys = KeyRange.of_doubles(number / parts, (number + 1) / parts)
    assert keys.doubles == (number / parts, (number + 1) / parts)
    if number:
        assert KeyRange.of_doubles((number - 1) / parts, number / parts).high == keys.low


@given(st.integers(0, KEY_SPACE - 1), st.integers(1, KEY_SPACE))
def test_what_is_stored_comes_back_and_sorts_like_the_numbers(low: int, high: int) -> None:
    if low >= high:
        with pytest.raises(InvalidKeyRange):
            KeyRange(low, high)
        return
    keys = KeyRange(low, high)
    assert KeyRange.from_stored(*keys.stored) == keys
    assert keys.stored[0] < keys.stored[1]
    assert [int.from_bytes(bound) for bound in keys.byte_strings] == [low, high % KEY_SPACE]


@pytest.mark.parametrize("bounds", [(0.5, 0.5), (0.5, 0.2), (-0.1, 0.5), (0.5, 1.5), (float("nan"), 1.0), (2**-129, 1)])
def test_ranges_that_are_none(bounds: tuple[float, float]) -> None:
    with pytest.raises(InvalidKeyRange):
        KeyRange.of_doubles(*bounds)


# --- what may become of partitions ----------------------------------------------------------------------------------


@given(st.sets(st.integers(1, 63), max_size=8), st.sets(st.integers(1, 63), max_size=8), st.data())
def test_new_ranges_must_cover_exactly_what_the_old_ones_do(old: set[int], new: set[int], data: st.DataObject) -> None:
    def ranges(bounds: set[int]) -> list[KeyRange]:
        return [KeyRange(low << 122, high << 122) for low, high in pairwise([0, *sorted(bounds), 64])]

    partitions = [PartitionInfo(n, n, keys) for n, keys in enumerate(ranges(old))]
    seal = data.draw(st.lists(st.sampled_from(range(len(partitions))), unique=True, min_size=1))
    make = data.draw(st.lists(st.sampled_from(ranges(new)), unique=True, min_size=1))

    def cells(chosen: list[KeyRange]) -> list[int]:
        return sorted(cell for keys in chosen for cell in range(keys.low >> 122, keys.high >> 122))

    same = cells([partitions[n].keys for n in seal]) == cells(make)
    try:
        check_change(partitions, seal, make)
    except InvalidChange:
        assert not same
    else:
        assert same


def test_changes_that_are_refused() -> None:
    partitions = [PartitionInfo(0, 0, sealed_epoch=1), *(PartitionInfo(n + 1, n + 1, HALVES[n], 1) for n in range(2))]
    for seal, make, words in (
        ([], HALVES, "no partition"),
        ([1, 1], [HALVES[0]], "twice"),
        ([3], [WHOLE], "there is no partition 3"),
        ([-1], [WHOLE], "there is no partition -1"),
        ([0], HALVES, "sealed already"),
        ([1], [], "only when all"),
        ([1, 2], [HALVES[0], WHOLE], "overlap"),
        ([1], [WHOLE], "would cover"),
        ([1, 2], [HALVES[0]], "would cover"),
    ):
        with pytest.raises(InvalidChange, match=words):
            check_change(partitions, seal, make)
    check_change(partitions, [1, 2], [])
    check_change(partitions, [1, 2], THIRDS)


def test_relations_follow_from_epochs_and_ranges() -> None:
    made = related(
        [
            PartitionInfo(0, 0, HALVES[0], 0, 1),
            PartitionInfo(1, 1, HALVES[1], 0, 1),
            *(PartitionInfo(n + 2, n + 2, THIRDS[n], 1) for n in range(3)),
            PartitionInfo(5, 5, WHOLE, 2),
        ]
    )
    assert [one.children for one in made] == [(2, 3), (3, 4), (), (), (), ()]
    assert [one.parents for one in made] == [(), (), (0,), (0, 1), (1,), ()]


# --- the catalog ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def home(tmp_path: Path):  # type: ignore[no-untyped-def]
    home = Home(tmp_path)
    await home.start()
    yield home
    await home.stop()


class Sealer:
    """Stands for the logs of a node."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, topic: str, partition: int) -> int:
        self.asked.append((topic, partition))
        if self.failures:
            self.failures -= 1
            raise LogUnavailable("not now")
        return 100 + partition


async def sealed(catalog: Catalog) -> None:
    told = asyncio.Event()
    catalog.on_change.append(lambda change: told.set())
    while catalog.pending_seals:
        told.clear()
        await told.wait()


@on_each_engine
async def test_partitions_are_sealed_and_made_in_one_step_which_lasts(home: Home) -> None:
    catalog = home.catalog
    topic = await catalog.create_topic("t", 2, {SPLIT: "true"}, keys=HALVES)
    assert await catalog.change_partitions("t", [0, 1], THIRDS) is topic
    assert home.changes[-1].kind is ChangeKind.PARTITIONS
    assert [one.index for one in topic.partitions] == [0, 1, 2, 3, 4]
    assert [one.keys for one in topic.partitions] == [*HALVES, *THIRDS]
    assert [one.made_epoch for one in topic.partitions] == [0, 0, 1, 1, 1]
    assert [one.sealed_epoch for one in topic.partitions] == [1, 1, None, None, None]
    assert [one.children for one in topic.partitions] == [(2, 3), (3, 4), (), (), ()]
    assert [one.index for one in topic.active] == [2, 3, 4]
    assert [[one.index for one in topic.partitions_of(epoch)] for epoch in (0, 1)] == [[0, 1], [2, 3, 4]]
    assert catalog.pending_seals == 2
    assert catalog.sealed_as("t", 0) == ((2, 3), None)
    assert catalog.sealed_as("t", 2) is None
    assert catalog.sealed_as("t", 9) is None

    before = list(topic.partitions)
    catalog = await home.restart()
    assert catalog.topic("t").partitions == before
    assert (catalog.topic("t").epoch, catalog.partition_count, catalog.pending_seals) == (1, 5, 2)
    sealer = Sealer(failures=1)
    catalog.start_sealing(sealer)
    await sealed(catalog)
    assert sorted(sealer.asked) == [("t", 0), ("t", 0), ("t", 1)]
    assert home.changes[-1].kind is ChangeKind.SEALED
    assert [one.end for one in catalog.topic("t").partitions] == [100, 101, None, None, None]

    before = list(catalog.topic("t").partitions)
    catalog = await home.restart()
    assert catalog.topic("t").partitions == before
    assert catalog.pending_seals == 0
    assert catalog.sealed_as("t", 1) == ((3, 4), 101)
    assert home.streams() == home.backend.alive()


async def test_a_topic_is_split_only_when_its_configuration_allows_it(home: Home) -> None:
    catalog = home.catalog
    topic = await catalog.create_topic("t", 1)
    with pytest.raises(SplitNotAllowed, match=SPLIT):
        await catalog.change_partitions("t", [0], HALVES)
    await catalog.set_config("t", {SPLIT: "true"})
    await catalog.change_partitions("t", [0], HALVES)
    assert len(topic.active) == 2
    with pytest.raises(TopicNotFound):
        await catalog.change_partitions("u", [0], HALVES)


async def test_numbers_go_on_behind_sealed_ones_and_added_partitions_have_all_keys(home: Home) -> None:
    catalog = home.catalog
    topic = await catalog.create_topic("t", 1, {SPLIT: "true"})
    await catalog.change_partitions("t", [0], HALVES)
    with pytest.raises(InvalidPartitions):
        await catalog.add_partitions("t", 3)
    await catalog.add_partitions("t", 4)
    added = topic.partitions[3]
    assert (added.index, added.keys, added.made_epoch, added.parents) == (3, WHOLE, 2, ())
    assert (await home.restart()).topic("t").partitions == topic.partitions


async def test_a_topic_whose_partitions_are_all_sealed_has_ended(home: Home) -> None:
    catalog = home.catalog
    await catalog.create_topic("t", 2, {SPLIT: "true"})
    await catalog.change_partitions("t", [0, 1], [])
    assert not catalog.topic("t").active
    with pytest.raises(TopicEnded):
        await catalog.add_partitions("t", 3)
    assert catalog.sealed_as("t", 0) == ((), None)


@on_each_engine
async def test_two_changes_at_once_of_the_same_partition(home: Home) -> None:
    catalog = home.catalog
    await catalog.create_topic("t", 1, {SPLIT: "true"})
    results = await asyncio.gather(
        catalog.change_partitions("t", [0], HALVES), catalog.change_partitions("t", [0], THIRDS), return_exceptions=True
    )
    assert isinstance(results[1], InvalidChange)
    assert [one.keys for one in catalog.topic("t").active] == HALVES
    assert home.streams() == home.backend.alive()


async def test_an_end_is_not_final_before_a_promised_append_is_there(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridges.catalog.topics.seals.RETRY_FIRST_S", 3600.0)
    asked, kept = asyncio.Semaphore(0), asyncio.Event()
    loop = asyncio.get_running_loop()

    def promise(connection: Connection, topic: str, number: int) -> bool:
        loop.call_soon_threadsafe(asked.release)
        return (topic, number) == ("t", 0) and not kept.is_set()

    catalog = home.catalog
    home.promises.append(promise)
    topic = await catalog.create_topic("t", 2, {SPLIT: "true"}, keys=HALVES)
    catalog.start_sealing(Sealer())
    await catalog.change_partitions("t", [0, 1], [WHOLE])
    for _ in range(2):
        await asked.acquire()
    while topic.partitions[1].end is None:
        await asyncio.sleep(0)
    assert (topic.partitions[0].end, catalog.pending_seals) == (None, 1)
    kept.set()
    catalog.seal_again(topic.partitions[0].stream_id)
    await sealed(catalog)
    assert topic.partitions[0].end == 100


@on_each_engine
async def test_partitions_are_repeated_behind_all_their_descendants(home: Home) -> None:
    catalog = home.catalog
    topic = await catalog.create_topic("t", 2, {SPLIT: "true"}, keys=HALVES)
    await catalog.change_partitions("t", [0], QUARTERS)  # 2, 3
    told: list[Mapping[int, int]] = []

    def refuse(connection: Connection, repeated: Mapping[int, int]) -> None:
        raise InvalidChange("no")

    before = list(topic.partitions)
    with pytest.raises(InvalidChange):
        await catalog.repeat_partitions("t", [0, 1], refuse)
    assert (topic.partitions, topic.epoch) == (before, 1)
    await catalog.repeat_partitions("t", [0, 1], lambda _, repeated: told.append(repeated))
    assert told[-1] == {0: 4}
    found = topic.partitions
    assert [found[n].children for n in (0, 2, 3, 4)] == [(2, 3), (4,), (4,), (5, 6)]
    assert [found[n].parents for n in (4, 5, 6)] == [(2, 3), (4,), (4,)]
    assert [one.index for one in topic.active] == [1, 5, 6]
    assert [found[n].keys for n in (4, 5, 6)] == [found[n].keys for n in (0, 2, 3)]
    assert (topic.epoch, [topic.place(n)[1] for n in range(7)]) == (3, [0, 1, 2, 3, 0, 2, 3])
    # What began before is repeated again, what began in a repeated partition's original has that.
    await catalog.repeat_partitions("t", [0, 1], lambda _, repeated: told.append(repeated))
    assert told[-1] == {0: 7}
    assert [(one.index, one.root) for one in topic.active] == [(1, 1), (8, 2), (9, 3)]
    await catalog.change_partitions("t", [1, 8, 9], [WHOLE])
    await catalog.repeat_partitions("t", [1, 2, 3], lambda _, repeated: told.append(repeated))
    assert (told[-1], [one.keys for one in topic.active]) == ({1: 11, 2: 12, 3: 13}, [WHOLE])
    assert [topic.partitions[n].parents for n in (11, 12, 13, 14)] == [(10,), (10,), (10,), (11, 12, 13)]
    kept = list(topic.partitions)
    assert (await home.restart()).topic("t").partitions == kept
    await home.catalog.change_partitions("t", [14], [])
    with pytest.raises(TopicEnded):
        await home.catalog.repeat_partitions("t", [0], refuse)


@on_each_engine
async def test_a_change_whose_streams_cannot_be_made_changes_nothing(home: Home) -> None:
    catalog = home.catalog
    topic = await catalog.create_topic("t", 1, {SPLIT: "true"})
    before = list(topic.partitions)
    home.backend.fail_creates_after = 1
    with pytest.raises(LogUnavailable):
        await catalog.change_partitions("t", [0], HALVES)
    await home.no_doomed()
    assert (topic.partitions, topic.epoch, catalog.pending_seals) == (before, 0, 0)
    assert home.streams() == home.backend.alive()
    assert (await home.restart()).topic("t").partitions == before


async def test_limits_hold_for_children(tmp_path: Path) -> None:
    home = Home(tmp_path)
    catalog = await home.start(max_partitions_per_topic=3, max_partitions=4)
    await catalog.create_topic("t", 1, {SPLIT: "true"})
    with pytest.raises(InvalidPartitions, match="1 to 3"):
        await catalog.change_partitions("t", [0], THIRDS)
    await catalog.create_topic("u", 2)
    with pytest.raises(InvalidPartitions, match="limit of 4"):
        await catalog.change_partitions("t", [0], HALVES)
    await home.stop()


@on_each_engine
async def test_a_topic_that_is_split_and_merged_for_ever_goes_on_as_what_was_trimmed_is_given_back(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path)
    limits = {"max_partitions_per_topic": 3, "max_partitions": 4}
    catalog = await home.start(**limits)
    catalog.start_sealing(Sealer())
    topic = await catalog.create_topic("t", 1, {SPLIT: "true"})
    for number in range(9):
        with pytest.raises(TopicNotFound):
            await catalog.give_back("u", [0])
        await catalog.give_back("t", [one.index for one in topic.partitions])  # those that take appends stay
        assert topic.spent == len(topic.partitions) - len(topic.active)
        active = [one.index for one in topic.active]
        await catalog.change_partitions("t", active, [WHOLE] if len(active) > 1 else HALVES)
        await sealed(catalog)
        if number == 4:
            catalog = await home.restart(**limits)
            catalog.start_sealing(Sealer())
            topic = catalog.topic("t")
            assert topic.spent == sum(one.spent for one in topic.partitions) > 3
    with pytest.raises(InvalidPartitions):
        await catalog.change_partitions("t", [one.index for one in topic.active], THIRDS)
    assert catalog.partition_count == len(topic.partitions) > 10
    # What it had counts no more, and no less, when it is gone.
    await catalog.delete_topic("t")
    await catalog.create_topic("t", 3)
    with pytest.raises(InvalidPartitions):
        await catalog.create_topic("u", 2)
    await catalog.create_topic("u", 1)
    await home.stop()


@on_each_engine
async def test_seals_of_a_deleted_topic_are_forgotten(home: Home) -> None:
    catalog = home.catalog
    await catalog.create_topic("t", 1, {SPLIT: "true"})
    await catalog.change_partitions("t", [0], HALVES)
    await catalog.delete_topic("t")
    assert catalog.pending_seals == 0
    await catalog.create_topic("t", 1, {SPLIT: "true"})
    await catalog.change_partitions("t", [0], HALVES)
    catalog.start_sealing(Sealer())
    await sealed(catalog)
    assert catalog.topic("t").partitions[0].end == 100


async def test_a_sealer_that_raises_the_unexpected_is_asked_again(home: Home) -> None:
    asked = 0

    async def broken(topic: str, partition: int) -> int:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RuntimeError("a bug")
        return 7

    await home.catalog.create_topic("t", 1, {SPLIT: "true"})
    home.catalog.start_sealing(broken)
    await home.catalog.change_partitions("t", [0], HALVES)
    await sealed(home.catalog)
    assert home.catalog.topic("t").partitions[0].end == 7


async def test_one_that_waits_for_transactions_is_sealed_as_soon_as_they_are_over(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it has been put off: readers of the parts wait for that end."""
    monkeypatch.setattr("bridges.catalog.topics.seals.RETRY_FIRST_S", 3600.0)
    open_in = {0, 1}
    refused = asyncio.Semaphore(0)

    async def seal(topic: str, partition: int) -> int:
        if partition in open_in:
            refused.release()
            raise TransactionsOpen("one is open")
        return 7

    topic = await home.catalog.create_topic("t", 2, {SPLIT: "true"}, keys=HALVES)
    home.catalog.start_sealing(seal)
    await home.catalog.change_partitions("t", [0, 1], [WHOLE])
    for _ in range(2):
        await refused.acquire()
    open_in.clear()
    told = asyncio.Event()
    home.catalog.on_change.append(lambda change: told.set())
    home.catalog.seal_again(topic.partitions[1].stream_id)
    await told.wait()
    assert [one.end for one in topic.partitions] == [None, 7, None], "the other one has not been told of"
    home.catalog.seal_again()
    await sealed(home.catalog)


@on_each_engine
async def test_a_database_of_the_version_before(tmp_path: Path) -> None:
    """What was there before partitions had a lineage: all of them active, with the whole range of keys."""
    path = tmp_path / "node.db"
    before = database(path, MIGRATIONS[:8], application_id=APPLICATION_ID)
    await before.open()

    def fill(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO topics VALUES ('t', x'000102030405060708090a0b0c0d0e0f', 5)")
        connection.executemany("INSERT INTO partitions VALUES ('t', ?, ?)", [(0, 4), (1, 3)])
        connection.execute("INSERT INTO topic_names VALUES ('ydb', 't', 't')")

    await before.run(fill)
    await before.close()
    home = Home(tmp_path)
    catalog = await home.start()
    topic = catalog.topic("t")
    assert topic.partitions == [PartitionInfo(0, 4), PartitionInfo(1, 3)]
    assert (topic.epoch, topic.created_ms, topic.names) == (0, 5, {"ydb": "t"})
    await catalog.set_config("t", {SPLIT: "true"})
    await catalog.change_partitions("t", [1], HALVES)
    assert [one.index for one in topic.active] == [0, 2, 3]
    await home.stop()


# --- the log --------------------------------------------------------------------------------------------------------


async def test_a_sealed_log_settles_what_is_under_way_and_then_takes_nothing(tmp_path: Path) -> None:
    world = World()
    log = await world.boot()
    log.append(batch(2, sequence=0), world.done)
    log.append(batch(1, sequence=2), world.done)
    log.sealed((4, 5))
    log.append(batch(1), world.done)
    assert isinstance(world.answers[0], PartitionSealed)
    assert world.answers[0].children == (4, 5)
    assert "partition 4, 5" in str(world.answers[0])
    sealing = asyncio.ensure_future(log.seal())
    await settle()
    assert not sealing.done()
    world.writer.acknowledge(1)
    await settle()
    assert not sealing.done()
    assert log.final_offset is None
    # A producer that repeats what is stored, or about to be, is told so, and does not send it elsewhere.
    log.append(batch(2, sequence=0), world.done)
    log.append(batch(1, sequence=2), world.done)
    world.writer.acknowledge(1)
    assert await sealing == 3
    assert world.answers[1:] == [0, 0, 2, 2]
    assert (log.final_offset, log.high_watermark, log.next_offset) == (3, 3, 3)
    assert world.backend.seals == [0]
    assert await log.seal() == 3
    assert [one.base_offset for one in await log.read_batches(0, 1 << 20)] == [0, 2]
    with pytest.raises(OffsetOutOfRange):
        await log.read_batches(4, 1)
    log.append(batch(1, sequence=3), world.done)
    assert isinstance(world.answers[-1], PartitionSealed)


class Told:
    def __init__(self) -> None:
        self.finals: list[int | None] = []

    def log_moved(self, log) -> None:  # type: ignore[no-untyped-def]
        self.finals.append(log.final_offset)


async def test_those_who_wait_at_the_end_are_told_that_it_is_final() -> None:
    world = World()
    log = await world.boot()
    waiter = Told()
    log.add_waiter(waiter)
    log.sealed((1,))
    await log.seal()
    await settle()
    assert waiter.finals == [0]


async def test_a_log_that_was_sealed_in_an_earlier_run_refuses_what_waits_for_its_opening() -> None:
    world = World()
    log = await world.boot()
    log.append(batch(3), world.done)
    world.writer.acknowledge(1)
    world.lineage[0] = ((1,), None)
    world.logs = None  # type: ignore[assignment]
    log = await world.boot(open_it=False)
    log.append(batch(1), world.done)
    await log.ready()
    assert isinstance(world.answers[-1], PartitionSealed)
    assert await world.logs.seal("t", 0) == 3
    world.lineage[0] = ((1,), 3)
    log = await world.boot()
    assert (log.final_offset, log.successors) == (3, (1,))
    assert len(world.backend.seals) == 1


async def test_what_others_appended_behind_the_final_end_is_not_shown() -> None:
    world = World()
    log = await world.boot()
    log.append(batch(3), world.done)
    world.writer.acknowledge(1)
    world.lineage[0] = ((1,), 2)
    log = await world.boot()
    assert log.high_watermark == 2


async def test_a_batch_that_was_refused_while_the_log_was_being_sealed_does_not_hold_it_up() -> None:
    world = World()
    log = await world.boot()
    log.append(batch(1), world.done)
    log.sealed((1,))
    sealing = asyncio.ensure_future(log.seal())
    await settle()
    world.writer.refuse(NoSpace("full"))
    assert await sealing == 0
    assert [isinstance(one, LogError) for one in world.answers] == [True]


async def test_a_seal_that_finds_more_than_the_log_knows_opens_it_anew() -> None:
    """A batch that was answered as failed had got in after all."""
    world = World()
    log = await world.boot()
    log.append(batch(2), world.done)
    log.sealed((1,))
    sealing = asyncio.ensure_future(log.seal())
    await settle()
    entry, _ = world.writer.flying[0]
    world.writer.refuse(SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "no answer"))
    world.backend.entries.append(entry)
    world.backend.end = 2
    with pytest.raises(LogUnavailable, match="opened anew"):
        await sealing
    assert await log.seal() == 2
    assert len(await log.read_batches(0, 1 << 20)) == 1
