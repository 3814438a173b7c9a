"""Snapshots of a partition's state: taken while it goes on, never believed of another history, and taken in time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from bridges.catalog.database.schema import APPLICATION_ID, MIGRATIONS
from bridges.catalog.database.sql import Database, DatabaseError
from bridges.errors import LogUnavailable, OutOfOrderSequence, StorageFull
from bridges.formats.producer import ProducerStamp
from bridges.log.ledger.expiry import expire_producers
from bridges.log.ledger.ledger import SLICE, LedgerCapture
from bridges.log.partition.partition_log import PartitionLog
from bridges.log.state.snapshots import Snapshots
from sbp_back.errors import ErrorCode, SbpError
from sbp_back.wire.entry import pack_entry
from tests.bridges.log.log_lab import World, batch, kafka_ids, kafka_row, settle
from tests.databases import database, on_each_engine


async def write(world: World, log: PartitionLog, *sequences: int, size: int = 10) -> None:
    for sequence in sequences:
        log.append(batch(sequence=sequence, size=size), world.done)
        world.writer.acknowledge(1)
        await settle()


def repeat(world: World, log: PartitionLog, sequence: int) -> object:
    """What the producer is told that repeats the batch of ``sequence``; None if it is stored again."""
    told = len(world.answers)
    log.append(batch(sequence=sequence), world.done)
    return world.answers[told] if len(world.answers) > told else None


async def crash(world: World) -> PartitionLog:
    """The node dies and starts again; gives the log."""
    return await world.boot()


@pytest.mark.usefixtures("slow_turns")
async def test_a_snapshot_of_many_producers_takes_many_turns_and_is_exact_although_the_log_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producers = 4 * SLICE
    world = World(tail_cache_bytes=0)
    log = await world.boot()
    for pid in range(100, 100 + producers):
        log.state.ledger.record(ProducerStamp(pid, 0, 0, 1), 0, 1)
    await write(world, log, 0, 1)
    log.append(batch(sequence=2), world.done)  # in flight: the snapshot must not vouch for it
    turn = 0
    turns: list[int] = []
    pieces = LedgerCapture.pieces

    def watched(capture: LedgerCapture):  # type: ignore[no-untyped-def]
        for piece in pieces(capture):
            turns.append(turn)
            yield piece

    monkeypatch.setattr(LedgerCapture, "pieces", watched)
    world.logs.snapshotter.want(log)
    taking = asyncio.create_task(world.logs.snapshotter.take(log))
    sequence = 3
    while not taking.done():
        await asyncio.sleep(0)
        turn += 1
        log.append(batch(sequence=sequence), world.done)
        world.writer.acknowledge(1)
        sequence += 1
    assert await taking is None
    assert len(turns) == 5
    assert len(set(turns)) == len(turns), "a slice a turn"
    offset, data = world.snapshots.saved[1]
    assert offset == 2
    state = type(log.state)()
    for _ in state.restoring(data):
        pass
    assert len(state.ledger) == producers + 1
    assert [b.base_offset for b in kafka_row(state.ledger, 7).batches] == [0, 1]  # type: ignore[union-attr]
    assert state.last[0] == 1
    # Nothing of what came meanwhile is missing in the log's own ledger.
    assert [b.base_offset for b in kafka_row(log.state.ledger, 7).batches] == [*range(sequence - 5, sequence)]  # type: ignore[union-attr]
    assert len(log.state.ledger) == producers + 1


async def test_a_snapshot_ahead_of_the_log_is_deleted_before_anything_is_acknowledged() -> None:
    world = World()
    log = await world.boot()
    await write(world, log, 0, 1, 2)
    assert await world.logs.snapshotter.take(log) is None
    assert world.snapshots.saved[1][0] == 3
    # Power was lost, and with it the last two batches.
    del world.backend.entries[1:]
    world.backend.end = 1

    async def refuse(stream_id: int) -> None:
        raise DatabaseError("no")

    forget, world.snapshots.forget = world.snapshots.forget, refuse  # type: ignore[method-assign]
    with pytest.raises(LogUnavailable):
        await crash(world)
    world.snapshots.forget = forget  # type: ignore[method-assign]
    log = await crash(world)
    assert not world.snapshots.saved
    await write(world, log, 1, 2, 3)
    log = await crash(world)
    assert repeat(world, log, 3) == 3


@pytest.mark.parametrize("difference", ["time", "size", "place"])
async def test_a_snapshot_of_another_history_is_not_believed_though_the_log_has_grown_past_it(difference: str) -> None:
    world = World()
    log = await world.boot()
    await write(world, log, 0, 1)
    assert await world.logs.snapshotter.take(log) is None
    stale = world.snapshots.saved[1]
    # In the history that survived the second batch was another one, that differs in nothing but this.
    second = world.backend.entries.pop()
    other = batch(2 if difference == "place" else 1, size=11 if difference == "size" else 10)
    when = second.timestamp + (difference == "time")
    world.backend.entries += [
        pack_entry(1, 0, other.flags, 1, other.count, when, other.payload),
        pack_entry(1, 0, other.flags, 1 + other.count, 1, when, batch().payload),
    ]
    world.backend.end = 2 + other.count
    world.snapshots.saved[1] = stale
    log = await crash(world)
    log.append(batch(sequence=1), world.done)
    world.writer.acknowledge(1)
    assert world.answers[-1] == 2 + other.count, "nothing at offset 1 is this producer's"
    assert not world.snapshots.saved


async def test_a_snapshot_of_this_history_is_believed() -> None:
    world = World()
    log = await world.boot()
    await write(world, log, 0, 1)
    assert await world.logs.snapshotter.take(log) is None
    await write(world, log, 2)
    world.backend.rebuilt = 0
    log = await crash(world)
    assert world.backend.rebuilt == 2, "the batch below its offset, to compare, and the one above"
    assert world.snapshots.saved[1][0] == 2


async def test_a_node_that_dies_young_again_and_again_does_not_read_more_each_time() -> None:
    world = World(snapshot_bytes=50_000)
    sequence = 0
    read: list[int] = []
    for _ in range(12):
        world.backend.rebuilt = 0
        log = await crash(world)
        read.append(world.backend.rebuilt)
        await write(world, log, *range(sequence, sequence + 9))  # some 19,000 bytes as they are counted
        sequence += 9
    assert max(read) < 40, "batches read after the latest snapshot"
    assert len(read) == 12
    assert repeat(world, log, sequence - 1) == sequence - 1


@pytest.mark.usefixtures("slow_turns")
async def test_a_long_rebuild_leaves_others_their_turns() -> None:
    world = World()
    log = await world.boot()
    await write(world, log, *range(100))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(others())
    await crash(world)
    counting.cancel()
    assert turns >= 100


async def test_a_long_rebuild_keeps_what_it_has_read() -> None:
    world = World(snapshot_bytes=1_000)
    log = await world.boot()
    log.upkeep.snapshot_at = 1 << 62
    await write(world, log, *range(10))
    assert not world.snapshots.saved
    world.backend.broken_at = 8
    with pytest.raises(LogUnavailable):
        await crash(world)
    assert 3 <= world.snapshots.saved[1][0] < 10
    world.backend.broken_at = None
    log = await crash(world)
    assert repeat(world, log, 5) == 5


async def test_a_snapshot_that_could_not_be_saved_is_tried_again_when_more_was_appended() -> None:
    world = World(snapshot_bytes=10_000)
    log = await world.boot()
    save = world.snapshots.save
    tried = 0

    async def refuse(stream_id: int, offset: int, pieces: Sequence[bytes]) -> None:
        nonlocal tried
        tried += 1
        raise StorageFull("no room")

    world.snapshots.save = refuse  # type: ignore[method-assign]
    await write(world, log, *range(20))
    assert 2 <= tried <= 4, "not with every batch"
    world.snapshots.save = save  # type: ignore[method-assign]
    await write(world, log, *range(20, 26))
    assert world.snapshots.saved[1][0] >= 20
    await write(world, log, *range(26, 32))


async def test_what_is_trimmed_is_still_recognised_when_it_is_repeated_after_a_crash() -> None:
    world = World()
    log = await world.boot()
    await write(world, log, 0, 1)
    await log.trim(2)
    log = await crash(world)
    assert repeat(world, log, 1) == 1
    assert isinstance(repeat(world, log, 5), OutOfOrderSequence)


async def test_a_trim_waits_for_its_snapshot_but_not_when_the_disk_is_full() -> None:
    world = World()
    log = await world.boot()
    await write(world, log, 0, 1)
    error: Exception = DatabaseError("no")

    async def refuse(stream_id: int, offset: int, pieces: Sequence[bytes]) -> None:
        raise error

    world.snapshots.save = refuse  # type: ignore[method-assign]
    with pytest.raises(LogUnavailable):
        await log.trim(2)
    assert world.backend.start == 0
    error = StorageFull("no room")
    assert await log.trim(2) == 2, "it makes room"


async def test_an_opening_waits_for_a_snapshot_of_the_log_that_is_under_way() -> None:
    """It describes what the backend has lost meanwhile, and would be found once the log has grown past it."""
    world = World()
    log = await world.boot()
    await write(world, log, 0, 1, 2)
    save = world.snapshots.save
    go = asyncio.Event()

    async def slow(stream_id: int, offset: int, pieces: Sequence[bytes]) -> None:
        await go.wait()
        await save(stream_id, offset, pieces)

    world.snapshots.save = slow  # type: ignore[method-assign]
    taking = asyncio.ensure_future(world.logs.snapshotter.take(log))
    await settle()
    del world.backend.entries[1:]
    world.backend.end = 1
    world.writer.fail(SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "lost"))
    log.fail(LogUnavailable("lost"))
    opening = asyncio.ensure_future(log.ready())
    await settle()
    assert not log.is_open
    go.set()
    await opening
    assert await taking is None
    assert not world.snapshots.saved
    assert log.high_watermark == 1


async def test_closing_saves_what_was_appended_after_a_snapshot_that_is_still_under_way() -> None:
    world = World()
    log = await world.boot()
    await write(world, log, 0)
    save = world.snapshots.save
    go = asyncio.Event()

    async def slow(stream_id: int, offset: int, pieces: Sequence[bytes]) -> None:
        await go.wait()
        await save(stream_id, offset, pieces)

    world.snapshots.save = slow  # type: ignore[method-assign]
    world.logs.snapshotter.want(log)
    await settle()
    await write(world, log, 1)
    closing = asyncio.ensure_future(world.logs.close())
    await settle()
    go.set()
    await closing
    assert world.snapshots.saved[1][0] == 2


@pytest.mark.usefixtures("slow_turns")
async def test_expiry_and_retention_look_at_few_partitions_in_a_turn() -> None:
    world = World(partitions=1000)
    await world.boot()
    looked: list[int] = []
    turn = 0

    def count(topic: str) -> tuple[int, int]:
        looked.append(turn)
        return (-1, -1)

    async def turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(turns())
    await world.retain([("t", n) for n in range(1000)], count, 1)
    assert len(looked) == 1000
    assert max(looked.count(one) for one in set(looked)) <= 5
    assert len(list(world.logs)) == 1, "what is only looked at takes no memory"
    for number in range(1000):
        world.logs.get("t", number)
    first = turn
    await expire_producers(world.logs, 1)
    assert turn - first >= 300
    counting.cancel()


async def test_the_partitions_with_most_producers_give_room_for_those_with_few() -> None:
    world = World(partitions=3, max_producers=1600)
    await world.boot()
    logs = [world.logs.get("t", n) for n in range(3)]
    for log, producers in zip(logs, (10, 1400, 1200), strict=True):
        assert log is not None
        await log.ready()
        for pid in range(producers):
            log.state.ledger.record(ProducerStamp(pid, 0, 0, 1), pid, 1_000_000)
    assert await expire_producers(world.logs, 1_000_000) > 0
    left = [kafka_ids(log.state.ledger) for log in logs if log is not None]
    assert len(left[0]) == 10
    assert 1400 <= sum(map(len, left)) <= 1500
    assert left[1][-1] == 1399, "the longest idle go first"
    assert abs(len(left[1]) - len(left[2])) < 50


async def test_a_start_remembered_of_what_the_log_has_lost_hides_nothing_once_the_log_has_grown_past_it() -> None:
    world = World()
    log = await world.boot()
    await write(world, log, 0, 1, 2, 3)
    await world.starts.save(1, 4)
    log = await crash(world)
    assert log.log_start_offset == 4
    del world.backend.entries[1:]  # power was lost
    world.backend.end = 1
    log = await crash(world)
    for _ in range(5):
        log.append(batch(), world.done)
        world.writer.acknowledge(1)
    assert (log.log_start_offset, log.high_watermark) == (1, 6)
    log = await crash(world)
    assert log.log_start_offset == 1
    assert len(await log.read_batches(1, 1 << 20)) == 5


@pytest.fixture
async def db(tmp_path: Path):  # type: ignore[no-untyped-def]
    db = database(tmp_path / "node.db", MIGRATIONS, application_id=APPLICATION_ID, synchronous="NORMAL")
    await db.open()
    yield db
    await db.close()


@on_each_engine
async def test_snapshots_are_of_partitions_that_exist_and_go_with_their_topic(db: Database) -> None:
    snapshots = Snapshots(db)
    await snapshots.save(1, 5, [b"of nobody"])
    assert await snapshots.load(1) is None
    await db.run(lambda c: c.execute("INSERT INTO topics (name, topic_id, created_ms) VALUES ('t', x'00', 1)"))
    await db.run(lambda c: c.execute("INSERT INTO partitions (topic, idx, stream_id) VALUES ('t', 0, 1)"))
    await snapshots.save(1, 5, [b"a", b"b"])
    await snapshots.save(1, 6, [b"c", b"d"])
    assert await snapshots.load(1) == (6, b"cd")
    await db.run(lambda c: c.execute("UPDATE partition_snapshots SET log_offset = 7"))
    assert await snapshots.load(1) is None, "it is damaged"
    await db.run(lambda c: Snapshots.erase(c, "t"))
    assert await db.run(lambda c: c.execute("SELECT count(*) FROM partition_snapshots").fetchone()) == (0,)


async def test_what_must_survive_loss_of_power_is_flushed_where_the_database_promises_less(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from anabranch_kit.sql import sqlite

    flushed: list[str] = []
    fsync = sqlite.os.fsync

    def watched(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(sqlite.os, "fsync", watched)
    await db.run(lambda c: c.execute("INSERT INTO meta VALUES ('a', 1)"))
    assert not flushed
    await Snapshots(db).forget(1)
    assert flushed == ["node.db-wal", tmp_path.name]

    def fail(descriptor: int) -> None:
        raise OSError(5, "the disk is gone")

    monkeypatch.setattr(sqlite.os, "fsync", fail)
    with pytest.raises(DatabaseError):
        await Snapshots(db).forget(1)


@on_each_engine
async def test_a_flush_may_be_the_first_thing_a_database_is_asked_for(tmp_path: Path) -> None:
    for _ in range(3):
        db = database(tmp_path / "node.db", MIGRATIONS, application_id=APPLICATION_ID, synchronous="NORMAL")
        await db.open()
        await Snapshots(db).forget(1)
        await db.close()


@pytest.mark.timeout(30)
async def test_who_needs_a_newer_snapshot_in_the_turn_in_which_one_ends_does_not_stop_the_loop() -> None:
    world = World()
    log = await world.boot()
    await write(world, log, 0)
    save = world.snapshots.save
    asking: list[asyncio.Task[None]] = []

    async def saved(stream_id: int, offset: int, pieces: Sequence[bytes]) -> None:
        await save(stream_id, offset, pieces)
        if not asking:  # the snapshot ends in this step: its callbacks come after who asks now
            log.append(batch(sequence=1), world.done)
            world.writer.acknowledge(1)
            asking.append(asyncio.create_task(log.upkeep.saved_behind(2)))

    world.snapshots.save = saved  # type: ignore[method-assign]
    assert await world.logs.snapshotter.take(log) is None
    await asking[0]
    assert world.snapshots.saved[1][0] == 2


async def test_who_goes_away_does_not_end_a_snapshot_for_others() -> None:
    world = World()
    log = await world.boot()
    await write(world, log, 0)
    save = world.snapshots.save
    go = asyncio.Event()

    async def slow(stream_id: int, offset: int, pieces: Sequence[bytes]) -> None:
        await go.wait()
        await save(stream_id, offset, pieces)

    world.snapshots.save = slow  # type: ignore[method-assign]
    taking = [asyncio.create_task(world.logs.snapshotter.take(log)) for _ in range(2)]
    await settle()
    taking[0].cancel()
    await settle()
    go.set()
    assert await taking[1] is None
    assert world.snapshots.saved[1][0] == 1
