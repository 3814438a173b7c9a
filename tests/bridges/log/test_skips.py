"""Batches that nobody can read, and operators who have readers pass over them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from bridges.catalog.database.schema import APPLICATION_ID, MIGRATIONS
from bridges.commands.cli import main
from bridges.errors import DataCorrupt, LogUnavailable, OffsetOutOfRange, StillReadable, StorageFull
from bridges.formats import FormatId, decode
from bridges.formats.kafka import TRANSACTIONAL, encode
from bridges.formats.producer import InTransaction
from bridges.formats.records import Record, StoredBatch
from bridges.log.damage.skipping import skip
from bridges.log.damage.skips import Skips, before, merged, next_after, past
from bridges.log.partition.partition_log import Batch, PartitionLog
from tests.bridges.log.log_lab import World, batch, settle
from tests.databases import database, on_each_engine
from tests.node_process import NodeProcess

spans = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)).map(lambda one: (one[0], sum(one))), max_size=6)


@given(spans)
def test_spans_say_which_offsets_are_skipped(some: list[tuple[int, int]]) -> None:
    skipped = {offset for first, end in some for offset in range(first, end)}
    told = merged(some)
    assert {offset for first, end in told for offset in range(first, end)} == skipped
    for offset in range(60):
        assert before(told, offset) == next(one for one in range(offset, -1, -1) if one - 1 not in skipped)
        assert past(told, offset) == next(one for one in range(offset, 100) if one not in skipped)
        if offset not in skipped:
            found = next((one for one in range(offset, 55) if one in skipped), 55)
            assert next_after(told, offset, 55) == found


async def written(world: World, counts: list[int]) -> PartitionLog:
    log = await world.boot()
    for count in counts:
        log.append(batch(count), world.done)
        world.writer.acknowledge(1)
    return log


async def offsets(log: PartitionLog) -> list[int]:
    """Base offsets of everything a reader gets who begins at the start."""
    found: list[int] = []
    position = log.log_start_offset
    while position < log.high_watermark:
        batches = await log.read_batches(position, 1 << 20)
        if not batches:
            break
        found += [one.base_offset for one in batches]
        position = batches[-1].end_offset
    return found


class Sleeper:
    woken = 0

    def log_moved(self, log: PartitionLog) -> None:
        self.woken += 1


async def test_readers_pass_over_a_damaged_batch_that_was_skipped_also_after_a_restart() -> None:
    world = World(tail_cache_bytes=0)
    log = await written(world, [3, 4, 5, 6])
    world.backend.damaged = {3}
    assert [b.base_offset for b in await log.read_batches(0, 1 << 20)] == [0]
    with pytest.raises(DataCorrupt):
        await log.read_batches(3, 1 << 20)
    sleeper = Sleeper()
    log.add_waiter(sleeper)
    assert (await skip(world.logs, log, 3, force=False))[0] == (3, 7)
    await settle()
    assert sleeper.woken == 1, "whoever waits there finds something now"
    assert await offsets(log) == [0, 7, 12]
    assert [b.base_offset for b in await log.read_batches(4, 1 << 20)] == [7, 12]
    assert log.available(3, 1 << 20) > 0
    log = await world.boot()
    assert await offsets(log) == [0, 7, 12]
    with pytest.raises(OffsetOutOfRange):
        await skip(world.logs, log, 5, force=False)


@pytest.mark.parametrize("commit", [True, False])
async def test_skipping_the_end_of_a_transaction_hides_nothing_also_after_a_crash(commit: bool) -> None:
    """What the log knows of the damaged batch is in a snapshot behind it before readers pass over it."""
    world = World(tail_cache_bytes=0)
    log = await written(world, [1])
    await world.logs.snapshotter.take(log)
    part = batch(2)
    part.transaction = InTransaction(9, 0)
    set_transactional(part)
    log.append(part, world.done)
    log.append_marker(9, 0, commit, world.done)
    log.append(batch(3), world.done)
    world.writer.acknowledge(3)
    world.backend.damaged = {3}
    assert (await skip(world.logs, log, 3, force=False))[0] == (3, 4)
    for _ in range(2):
        assert log.last_stable_offset == log.high_watermark == 7
        seen = [one.base_offset for one in await log.read_committed(0, 1 << 20) if list(records(one))]
        assert seen == ([0, 1] if commit else [0])
        assert [one.base_offset for one in await log.read_committed(4, 1 << 20)] == [4]
        log = await world.boot()  # the node was killed


def set_transactional(one: Batch) -> None:
    payload = encode([Record(None, b"x", timestamp=5)] * 2, attributes=TRANSACTIONAL, producer_id=9, producer_epoch=0)
    one.payload = memoryview(payload)


def records(one: StoredBatch) -> list[Record]:
    return decode(one)


async def test_a_batch_is_not_skipped_while_what_it_said_cannot_be_saved() -> None:
    world = World(tail_cache_bytes=0)
    log = await written(world, [1, 2, 3])

    async def full(stream_id: int, offset: int, pieces: Sequence[bytes]) -> None:
        raise StorageFull("no room")

    world.snapshots.save = full  # type: ignore[method-assign]
    world.backend.damaged = {1}
    with pytest.raises(LogUnavailable, match="no room"):
        await skip(world.logs, log, 1, force=False)
    assert world.skips.spans_of(1) == ()


async def test_what_can_be_read_is_skipped_only_by_force() -> None:
    world = World()
    log = await written(world, [3, 4, 5])
    for offset in (3, 5):
        with pytest.raises(StillReadable):
            await skip(world.logs, log, offset, force=False)
    assert await offsets(log) == [0, 3, 7]
    assert (await skip(world.logs, log, 5, force=True))[0] == (3, 7)
    assert await offsets(log) == [0, 7]
    for nowhere in (-1, 12):
        with pytest.raises(OffsetOutOfRange):
            await skip(world.logs, log, nowhere, force=True)


async def test_a_batch_that_is_not_what_it_says_is_skipped_whole() -> None:
    world = World()
    log = await written(world, [3])
    log.append(Batch(bytearray(200), 4, int(FormatId.KAFKA)), world.done)
    world.writer.acknowledge(1)
    log.append(batch(2), world.done)
    world.writer.acknowledge(1)
    span, reason = await skip(world.logs, log, 5, force=False)
    assert span == (3, 7)
    assert reason
    assert await offsets(log) == [0, 7]


async def test_skipping_the_end_of_the_log_leaves_readers_waiting_for_more() -> None:
    world = World(tail_cache_bytes=0)
    log = await written(world, [3, 4])
    world.backend.damaged = {3}
    assert (await skip(world.logs, log, 3, force=False))[0] == (3, 7)
    assert await log.read_batches(3, 1 << 20) == []
    assert log.available(3, 1) == 0, "or they would ask again and again"
    log.append(batch(2), world.done)
    world.writer.acknowledge(1)
    assert log.available(3, 1) == 1
    assert [b.base_offset for b in await log.read_batches(3, 1 << 20)] == [7]


@given(st.lists(st.tuples(st.integers(1, 300), st.booleans()), min_size=1, max_size=8), st.data())
async def test_a_stretch_of_damage_is_skipped_and_nothing_that_follows(
    batches: list[tuple[int, bool]], data: st.DataObject
) -> None:
    world = World(tail_cache_bytes=0)
    log = await written(world, [count for count, _ in batches])
    bases = [entry.base_offset for entry in world.backend.entries]
    world.backend.damaged = {base for base, (_, bad) in zip(bases, batches, strict=True) if bad}
    for base in sorted(world.backend.damaged):
        if past(world.skips.spans_of(1), base) == base:
            (first, end), _ = await skip(world.logs, log, base, force=False)
            assert first == base
            assert end == log.high_watermark or end in bases
            assert end not in world.backend.damaged
    good = [base for base in bases if base not in world.backend.damaged]
    # Between two damaged batches a small good one may be overlooked; what is read is good, and what is after the last.
    read = await offsets(log)
    assert set(read) <= set(good)
    last = max(world.backend.damaged, default=-1)
    assert [base for base in good if base > last] == [base for base in read if base > last]


async def test_a_partition_that_a_damaged_batch_keeps_from_being_opened_can_be_opened_once_it_is_skipped() -> None:
    world = World(tail_cache_bytes=0)
    await written(world, [3, 4, 5])
    world.backend.damaged = {3}
    with pytest.raises(LogUnavailable):
        await world.boot()
    log = world.logs.get("t", 0)
    assert log is not None
    assert (await skip(world.logs, log, 3, force=False))[0] == (3, 7)
    assert log.is_open
    assert await offsets(log) == [0, 7]
    log.append(batch(1), world.done)
    world.writer.acknowledge(1)
    assert world.answers[-1] == 12


async def test_a_skip_of_what_the_log_has_lost_hides_nothing_once_the_log_has_grown_past_it() -> None:
    world = World(tail_cache_bytes=0)
    log = await written(world, [3, 4])
    assert (await skip(world.logs, log, 3, force=True))[0] == (3, 7)
    del world.backend.entries[1:]  # power was lost
    world.backend.end = 3
    log = await world.boot()
    for _ in range(3):
        log.append(batch(2), world.done)
        world.writer.acknowledge(1)
    assert await offsets(log) == [0, 3, 5, 7]
    log = await world.boot()
    assert await offsets(log) == [0, 3, 5, 7]


@on_each_engine
async def test_skips_are_durable_and_go_with_their_topic(tmp_path: Path) -> None:
    db = database(tmp_path / "node.db", MIGRATIONS, application_id=APPLICATION_ID)
    await db.open()
    await db.run(lambda c: c.execute("INSERT INTO topics (name, topic_id, created_ms) VALUES ('t', x'00', 1)"))
    await db.run(lambda c: c.execute("INSERT INTO partitions (topic, idx, stream_id) VALUES ('t', 0, 1)"))
    skips = Skips(db)
    await skips.add(1, (5, 9), "damaged")
    await skips.add(1, (20, 30), "damaged")
    await skips.add(2, (1, 2), "of another stream")

    elsewhere = Skips(db)
    await elsewhere.reload([1, 2])
    assert elsewhere.spans_of(1) == ((5, 9), (20, 30))
    await db.run(lambda c: c.execute("UPDATE skipped_offsets SET end_offset = 8 WHERE first_offset = 5"))
    await elsewhere.reload([1])
    assert elsewhere.spans_of(1) == ((5, 8), (20, 30))
    await db.run(lambda c: c.execute("UPDATE skipped_offsets SET end_offset = 9 WHERE first_offset = 5"))

    async def stored() -> tuple[tuple[int, int], ...]:
        again = Skips(db)
        await again.load()
        assert again.spans_of(1) == skips.spans_of(1)
        return again.spans_of(1)

    assert await stored() == ((5, 9), (20, 30))
    assert await skips.within(1, 0, 30) == ((5, 9), (20, 30))
    assert await skips.within(1, 0, 29) == ((5, 9),)
    assert await stored() == ((5, 9),)
    assert await skips.within(1, 9, 40) == ()
    assert await stored() == ()
    await skips.add(1, (5, 9), "damaged")
    await db.run(lambda c: Skips.erase(c, "t"))
    skips.drop(1)
    assert await stored() == ()
    await db.close()


def read_all(node: NodeProcess, end: int) -> list[int]:
    """Offsets of the records of the topic, up to the one before ``end``."""
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    found: list[int] = []
    while not found or found[-1] < end - 1:
        message = consumer.poll(30)
        assert message is not None, found
        if message.error() is None:
            found.append(message.offset())
        else:
            found.append(-message.error().code())
            break
    consumer.close()
    return found


def test_a_kafka_client_reads_past_a_damaged_batch_once_an_operator_has_skipped_it(
    node_factory: Callable[..., NodeProcess],
) -> None:
    node = node_factory()
    producer = Producer({"bootstrap.servers": node.kafka, "linger.ms": 1000})
    for number in range(6):
        for _ in range(2):
            producer.produce("t", f"batch number {number}!", partition=0)
        assert producer.flush(30) == 0
    ends = read_all(node, 12)
    assert ends == list(range(12))
    node.terminate()
    # One bit of what the disk holds of the batch at offset 6.
    [(segment, content)] = [
        (path, content)
        for path in node.data.rglob("*.seg")
        if b"batch number 3!" in (content := bytearray(path.read_bytes()))
    ]
    content[content.index(b"batch number 3!")] ^= 1
    segment.write_bytes(content)
    node.start()

    def command(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, ["topic", *words, "--node", node.console, "--json"])
        assert result.exit_code == code, result.output
        return result.output

    before = read_all(node, 12)
    assert before[:-1] == list(range(len(before) - 1))
    assert before[-1] < 0, "an error, not a silent gap"
    damaged = len(before) - 1
    assert damaged <= 6
    assert json.loads(command("skip", "t", "0", "--yes", code=1))["kind"] == "StillReadable"
    assert json.loads(command("skip", "t", "99", "--yes", code=1))["kind"] == "OffsetOutOfRange"
    assert json.loads(command("skip", "t", "0", "--yes", "--partition", "7", code=1))["error"]
    skipped = json.loads(command("skip", "t", "6", "--yes"))
    assert (skipped["first"], skipped["end"]) == (6, 8)
    assert "checksum" in skipped["reason"]
    expected = [*range(6), *range(8, 12)]
    assert read_all(node, 12) == expected
    node.restart(kill=True)
    assert read_all(node, 12) == expected
    told = json.loads(command("describe", "t"))
    assert told["partitions"][0]["skipped"] == [{"first": 6, "end": 8}]
