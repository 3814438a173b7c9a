"""A partition that a migration fills takes appends of that migration's present run, and learns no producers of them."""

from __future__ import annotations

import pytest

from bridges.errors import AppendConditionFailed, ImportFenced, TopicImporting
from bridges.formats import IMPORTED, FormatId, decode
from bridges.formats.kafka import TRANSACTIONAL, encode, marker
from bridges.formats.producer import InTransaction
from bridges.formats.records import Record
from bridges.log.interfaces import Guard
from bridges.log.partition.partition_log import Batch, PartitionLog
from tests.bridges.log.log_lab import World, batch, kafka_ids, settle

FLAGS = int(FormatId.KAFKA) | IMPORTED


def brought(epoch: int, base: int, producer: int = 7, *, count: int = 1, commit: bool | None = None) -> Batch:
    """A batch of another cluster, one of a transaction's, or the marker that ends it."""
    part = InTransaction(producer, 3, commit)
    if commit is None:
        payload = encode(
            [Record(None, b"x", timestamp=5)] * count,
            base,
            attributes=TRANSACTIONAL,
            producer_id=producer,
            producer_epoch=3,
            base_sequence=40,
        )
    else:
        payload = marker(part, 5)
    return Batch(payload, count, FLAGS, 5, guard=Guard(base), transaction=part, import_epoch=epoch)


async def importing(world: World, epoch: int) -> PartitionLog:
    log = await world.boot()
    log.import_epoch = epoch
    return log


async def test_only_the_present_run_of_the_migration_appends() -> None:
    world = World()
    log = await importing(world, 4)
    log.append(batch(), world.done)
    log.append(brought(3, 0), world.done)
    assert [type(one) for one in world.answers] == [TopicImporting, ImportFenced]
    log.append(brought(4, 0), world.done)
    world.writer.acknowledge(1)
    assert world.answers[2:] == [0]
    log.import_epoch = -1  # handed over
    log.append(brought(4, 1), world.done)
    assert isinstance(world.answers[-1], ImportFenced)
    log.append(batch(), world.done)
    world.writer.acknowledge(1)
    assert world.answers[-1] == 1


async def test_what_is_imported_takes_no_room_from_what_is_read_at_the_end() -> None:
    world = World()
    log = await importing(world, 4)
    log.append(brought(4, 0), world.done)
    world.writer.acknowledge(1)
    assert (log.tail.read(0, 1000), log.high_watermark) == (None, 1)
    log.import_epoch = -1  # handed over
    log.append(batch(), world.done)
    world.writer.acknowledge(1)
    assert log.tail.read(0, 1000) is None
    (kept,) = log.tail.read(1, 1000) or ()
    assert kept.base_offset == 1


async def test_what_waited_for_the_opening_is_refused_too() -> None:
    world = World()
    log = await world.boot(open_it=False)
    log.import_epoch = 2
    log.append(batch(), world.done)
    await log.ready()
    await settle()
    assert isinstance(world.answers[0], TopicImporting)


async def test_nobody_else_trims_or_marks() -> None:
    world = World()
    log = await importing(world, 4)
    log.append(brought(4, 0, count=3), world.done)
    world.writer.acknowledge(1)
    for wrong in (-1, 3):
        with pytest.raises(TopicImporting if wrong < 0 else ImportFenced):
            await log.trim(2, wrong)
    with pytest.raises(TopicImporting):
        await log.trim_bytes(1)
    log.append_marker(7, 3, False, world.done)
    assert isinstance(world.answers[-1], TopicImporting)
    assert await log.trim(2, 4) == 2


async def test_a_batch_lies_where_it_did_or_nowhere() -> None:
    world = World()
    log = await importing(world, 0)
    log.append(brought(0, 5), world.done)
    assert isinstance(world.answers[0], AppendConditionFailed)


async def test_producers_of_another_cluster_are_not_known_here_after_a_restart_either() -> None:
    world = World()
    log = await importing(world, 0)
    log.append(brought(0, 0), world.done)
    log.append(brought(0, 1, commit=True), world.done)
    world.writer.acknowledge(2)
    assert kafka_ids(log.state.ledger) == []
    # One of this node's own, which has the same number, begins anew once the topic is handed over.
    log.import_epoch = -1
    log.append(batch(1, sequence=0), world.done)
    world.writer.acknowledge(1)
    assert world.answers[-1] == 2
    for _ in range(2):  # from the batches, and from the snapshot that the logs save at their end
        again = await world.boot()
        assert kafka_ids(again.state.ledger) == [7]
        again.append(batch(1, sequence=0), world.done)
        assert world.answers[-1] == 2, "a repetition of its own batch"
        await world.logs.close()


async def test_transactions_are_brought_with_their_ends() -> None:
    world = World()
    log = await importing(world, 0)
    log.append(brought(0, 0, 7), world.done)
    log.append(brought(0, 1, 8), world.done)
    log.append(brought(0, 2, 7, commit=False), world.done)
    log.append(brought(0, 3, 8, commit=True), world.done)
    world.writer.acknowledge(2)
    assert log.last_stable_offset == 0
    world.writer.acknowledge(2)
    assert log.last_stable_offset == 4
    for found in (log, await world.boot()):
        batches = await found.read_committed(0, 1 << 20)
        assert [record.offset for one in batches for record in decode(one)] == [1]
