"""Lives of a node that changes a topic's partitions and may be killed at any step of that, each in its own process.

A life tells what it finds and does over a pipe, so that the parent knows everything up to the instant of a kill.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bridges.catalog.topics.config import SPLIT
from bridges.catalog.topics.lineage import KEY_SPACE, KeyRange, PartitionInfo
from bridges.catalog.topics.topic import ChangeKind
from bridges.errors import LogError, PartitionSealed
from bridges.formats import FormatId
from bridges.log.partition.partition_log import Appended, Batch, PartitionLog
from bridges.node.assembly import Node
from bridges.node.settings.config import load
from tests.kill_steps import Steps

TOPIC = "t"
FIRST = [KeyRange(KEY_SPACE * n // 3, KEY_SPACE * (n + 1) // 3) for n in range(3)]
_BURST = 5


@dataclass(slots=True)
class Plan:
    """What the life number ``life`` is to do: ``kill_at`` counts the steps of its change (None: it only looks)."""

    life: int
    kill_at: int | None = None


def live(path: str, plan: Plan, tell: Connection) -> None:
    """One life of the node on the directory ``path``."""
    asyncio.run(_live(Path(path), plan, tell))
    tell.send(("end",))


async def _live(path: Path, plan: Plan, tell: Connection) -> None:
    listen = {f"listen.{name}": "off" for name in ("console", "sbp-pd", "sbp-range-server")}
    sizes = {"sbp.segment_bytes": "4MiB", "sbp.low_water_bytes": "1MiB"}
    node = Node(load({"data_dir": str(path), **listen, **sizes}, environ={}, directory=path).settings, fronts=[])
    # Known before anything can be carried out: what was left to do may be done at any time from the start on.
    moved = asyncio.Event()
    await node.start()
    node.catalog.on_change.append(lambda change: moved.set())
    catalog = node.catalog
    if TOPIC not in catalog.topics:
        await catalog.create_topic(TOPIC, len(FIRST), {SPLIT: "true"}, keys=FIRST)
    topic = catalog.topic(TOPIC)
    tell.send(("found", topic.epoch, list(topic.partitions)))
    while catalog.pending_seals:
        moved.clear()
        await moved.wait()
    while catalog.pending_deletions:
        await node.db.run(lambda connection: None)
    tell.send(("settled", list(topic.partitions), await _unowned(node)))
    for partition in topic.partitions:
        log = node.logs.get(TOPIC, partition.index)
        assert log is not None
        await log.ready()
        tell.send(("holds", partition.index, log.high_watermark, log.final_offset, await _records(log)))
        await _append(log, f"{partition.index}: opened in life {plan.life}", tell)
    if plan.kill_at is not None:
        await _change(node, plan, tell)
    await node.stop()


async def _change(node: Node, plan: Plan, tell: Connection) -> None:
    steps = Steps(plan.kill_at, armed=False)
    topic = node.catalog.topic(TOPIC)
    seal, make = cut(topic.active, random.Random(plan.life))
    client: Any = node.floors.storage.client
    steps.around_commits(node.db)
    client.create_stream = steps.around_async(client.create_stream)
    client.seal = steps.around_async(client.seal)
    sealed: set[int] = set()
    all_sealed = asyncio.Event()

    def changed(change: Any) -> None:
        if change.kind is ChangeKind.SEALED:
            sealed.update(one.index for one in change.topic.partitions if one.end is not None)
            if sealed.issuperset(seal):
                all_sealed.set()

    node.catalog.on_change.append(changed)
    ended = False

    async def writing(partition: int) -> None:
        log = node.logs.get(TOPIC, partition)
        assert log is not None
        number = 0
        while not ended:
            burst = (_append(log, f"{partition}: {number + n} in life {plan.life}", tell) for n in range(_BURST))
            if not all(await asyncio.gather(*burst)):
                return
            number += _BURST

    writers = [asyncio.create_task(writing(number)) for number in seal]
    steps.armed = True
    tell.send(("changing", seal, make))
    await node.catalog.change_partitions(TOPIC, seal, make)
    tell.send(("changed", topic.epoch, list(topic.partitions)))
    for child in topic.partitions[-len(make) :]:
        log = node.logs.get(TOPIC, child.index)
        assert log is not None
        await _append(log, f"{child.index}: first", tell)
    await all_sealed.wait()
    steps.armed = False
    ended = True
    await asyncio.gather(*writers)
    tell.send(("steps", steps.seen))
    for number in seal:
        log = node.logs.get(TOPIC, number)
        assert log is not None
        tell.send(("ended", number, log.high_watermark, log.final_offset))


def cut(active: list[PartitionInfo], choices: random.Random) -> tuple[list[int], list[KeyRange]]:
    """Two neighbours to seal, and three ranges that cover what they cover."""
    by_key = sorted(active, key=lambda one: one.keys.low)
    place = choices.randrange(len(by_key) - 1)
    left, right = by_key[place : place + 2]
    inner = sorted(choices.randrange(left.keys.low + 1, right.keys.high) for _ in range(2))
    bounds = [left.keys.low, *inner, right.keys.high]
    make = [KeyRange(low, high) for low, high in pairwise(bounds)]
    choices.shuffle(make)
    return [left.index, right.index], make


async def _append(log: PartitionLog, value: str, tell: Connection) -> bool:
    """Whether a record was taken; tells before it is tried, and how it went."""
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def answered(appended: Appended, error: LogError | None) -> None:
        # At once: what a client was told before a kill must be known here.
        if error is None:
            tell.send(("stored", log.partition, appended.base, value))
            done.set_result(appended.base)
        else:
            done.set_exception(error)

    tell.send(("trying", log.partition, value))
    log.append(Batch(value.encode(), 1, int(FormatId.RAW)), answered)
    try:
        await done
    except PartitionSealed as error:
        tell.send(("refused", log.partition, error.children, str(error)))
        return False
    return True


async def _records(log: PartitionLog) -> dict[int, str]:
    found: dict[int, str] = {}
    offset = log.log_start_offset
    while offset < log.high_watermark:
        batches = await log.read_batches(offset, 1 << 20)
        found.update((batch.base_offset, bytes(batch.payload).decode()) for batch in batches)
        offset = batches[-1].end_offset
    return found


async def _unowned(node: Node) -> list[int]:
    """Streams of the backend that belong to no partition."""
    owned = {one.stream_id for topic in node.catalog.topics.values() for one in topic.partitions}
    unowned = []
    for stream in range(max(owned) + 10):
        with suppress(Exception):
            await node.floors.storage.client.describe_stream(stream)
            if stream not in owned:
                unowned.append(stream)
    return unowned


def as_told(partitions: list[PartitionInfo]) -> list[tuple[int, KeyRange, int, int | None]]:
    """What the model knows of partitions."""
    return [(one.index, one.keys, one.made_epoch, one.sealed_epoch) for one in partitions]
