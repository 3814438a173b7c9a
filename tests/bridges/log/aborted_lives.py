"""A life of a node that aborts and commits transactions, and is killed at one step of what is saved of these."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from anabranch_kit.run.awaited import awaited
from bridges.catalog.topics.topic import TopicExists
from bridges.formats import FormatId, decode
from bridges.formats.kafka import TRANSACTIONAL, encode
from bridges.formats.producer import InTransaction
from bridges.formats.records import Record
from bridges.log.partition.partition_log import Batch, PartitionLog
from bridges.log.state import snapshots
from bridges.log.transactions import aborted_blocks
from bridges.log.transactions.partition_transactions import Transactions
from bridges.node.assembly import Node
from tests.bridges.log.blocks_lab import small_blocks
from tests.bridges.node.test_node import settings_of
from tests.kill_steps import Steps

PAIRS = 12
"""Aborted and committed transactions of each life."""


def live(path: str, number: int, kill_at: int | None, opening: bool, tell: Connection) -> None:
    """Tell ("found", what is visible, aborted ranges), then of each pair ("committed", value) and ("aborting",)."""
    with small_blocks():
        asyncio.run(_live(Path(path), number, Steps(kill_at, armed=opening), tell))


async def _live(path: Path, number: int, steps: Steps, tell: Connection) -> None:
    aborted_blocks._write = steps.around(aborted_blocks._write)  # type: ignore[assignment]
    Transactions.is_persisted = _around(steps, Transactions.is_persisted)  # type: ignore[method-assign]
    snapshots.Snapshots.save = steps.around_async(snapshots.Snapshots.save)  # type: ignore[method-assign]
    node = Node(settings_of(path), fronts=[])
    await node.start()
    with suppress(TopicExists):
        await node.catalog.create_topic("t", 1, {})
    log = node.logs.get("t", 0)
    assert log is not None
    await log.ready()
    tell.send(("found", await _visible(log), len(await log.all_aborted(0, log.high_watermark))))
    steps.armed = True
    for at in range(PAIRS):
        value = f"{number}-{at}".encode()
        await _append(log, 1, b"no")
        await _append(log, 2, value)
        await awaited(lambda done: log.append_marker(2, 0, True, done))
        tell.send(("committed", value))
        tell.send(("aborting",))
        await awaited(lambda done: log.append_marker(1, 0, False, done))
        await node.logs.aborted.drain()
        if at % 5 == number % 5:
            assert await node.logs.snapshotter.take(log) is None
    await node.stop()


def _around(steps: Steps, work: Any) -> Any:
    def done(*args: Any) -> None:
        steps.step()
        work(*args)
        steps.step()

    return done


async def _append(log: PartitionLog, producer: int, value: bytes) -> None:
    payload = encode(
        [Record(None, value, timestamp=5)], attributes=TRANSACTIONAL, producer_id=producer, producer_epoch=0
    )
    batch = Batch(payload, 1, int(FormatId.KAFKA), 5, transaction=InTransaction(producer, 0))
    await awaited(lambda done: log.append(batch, done))


async def _visible(log: PartitionLog) -> list[bytes | None]:
    found: list[bytes | None] = []
    position = log.log_start_offset
    while position < log.last_stable_offset:
        batches = await log.read_committed(position, 4096)
        found += [record.value for batch in batches for record in decode(batch)]
        position = batches[-1].end_offset
    return found
