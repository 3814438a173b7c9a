"""The periodic work of a node: retention, compaction, spent partitions, expiry, users, memory, watchdog, history."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import structlog

from anabranch_kit.run.rounds import Rounds
from anabranch_kit.run.turns import in_turns
from anabranch_kit.run.watchdog import SlowThreads
from bridges.console.history.rings import FINE_S
from bridges.log.ledger.expiry import expire_producers
from bridges.node.floors.lower import Floors
from bridges.node.listening import CONSOLE
from bridges.node.process.memory import FreeMemory

if TYPE_CHECKING:
    from bridges.catalog.topics.catalog import Catalog
    from bridges.catalog.topics.lineage import PartitionInfo
    from bridges.catalog.topics.topic import Topic
    from bridges.log.logs import Logs

_USERS_CHECK_MS = 1000
"""Interval at which the file of users is checked: a removed user keeps access for at most so long."""

_log = structlog.get_logger("anabranch.node")


@asynccontextmanager
async def upkeep(below: Floors) -> AsyncIterator[None]:
    """Do the periodic work of a node while inside."""
    plan, log, catalog = below.plan, below.log, below.metadata.catalog
    settings, every = plan.settings, plan.chores.every
    every(FreeMemory.LOOK_MS, FreeMemory(settings.limits.connections_memory_bytes).return_unused, "free memory")
    every(settings.log.retention_check_interval_ms, partial(enforce_retention, below), "retention")
    every(settings.log.cleaner_interval_ms, partial(compact, below), "compaction")
    spent = SpentPartitions(catalog, log.logs, plan.chores.rounds("sealed partitions that are given back"))
    every(settings.log.retention_check_interval_ms, spent.report_spent, "sealed partitions that are given back")
    every(settings.node.check_interval_ms, partial(expire_producers, log.logs), "producer expiry")
    every(_USERS_CHECK_MS, partial(_refresh_users, below), "users")
    if settings.node.stall_ms:
        waits = {"the node's database": lambda: below.ground.db.busy_seconds}
        if (embedded := below.storage.embedded) is not None:
            waits["the log's disk or object storage"] = lambda: embedded.store.stuck_seconds
        slow = SlowThreads(settings.node.stall_ms / 1000, waits)
        every(settings.node.stall_ms // 10, slow.check, "slow threads")
    if below.place.marks is not None:
        from bridges.cluster.marks import EVERY_S  # imported only with a bucket

        every(round(EVERY_S * 1000), below.place.mark_again, "marks of the database")
    if CONSOLE in plan.listen:
        every(FINE_S * 1000, below.host.recorder.sample, "history")
    every(FINE_S * 1000, lambda _: below.host.watch.sample(below.host), "what is wrong")
    try:
        yield
    finally:
        await plan.chores.close()


async def enforce_retention(below: Floors, now_ms: int) -> None:
    """Trim what retention no longer keeps of all topics that were handed over."""
    log, catalog = below.log, below.metadata.catalog
    topics = log.handed_over.find_released(catalog.topics.values(), now_ms)
    places = ((topic.name, index) for topic in topics for index in range(len(topic.partitions)))
    trimmed = await log.retention.enforce(places, now_ms)
    if trimmed:
        _log.info("retention applied", partitions=trimmed)


async def compact(below: Floors, now_ms: int) -> None:
    """Have the cleaner examine all partitions."""
    topics = list(below.metadata.catalog.topics.values())  # topics come and go during the look
    await below.log.cleaner.clean(((topic.name, n) for topic in topics for n in range(len(topic.partitions))), now_ms)


async def _refresh_users(below: Floors, now_ms: int) -> None:
    directory = below.ground.directory
    if await asyncio.to_thread(directory.is_held):
        await below.plan.authenticator.refresh()
    else:
        below.plan.life.fail(f"data directory {directory.path} was removed, or another one put in its place")


class SpentPartitions:
    """Reports spent partitions to the catalog: sealed and completely trimmed. They stop counting against the limits of
    partitions.

    Otherwise a topic that is split and merged again and again would reach its limit, however little it holds. The
    numbers of spent partitions stay reserved, since readers may still ask where such a partition ended and what
    followed it. :meth:`report_spent` is a chore.
    """

    def __init__(self, catalog: Catalog, logs: Logs, rounds: Rounds[Topic]) -> None:
        self._catalog = catalog
        self._logs = logs
        self._rounds = rounds

    async def report_spent(self, now_ms: int) -> None:
        """Examine all topics that have sealed partitions, once."""
        scaled = []
        async for topic in in_turns(list(self._catalog.topics.values())):
            if len(topic.active) + topic.spent < len(topic.partitions):
                scaled.append(topic)
        await self._rounds.each(scaled, self._look_at)

    async def _look_at(self, topic: Topic) -> None:
        found = []
        async for partition in in_turns(list(topic.partitions)):
            if self._is_spent(topic, partition):
                found.append(partition.index)
        if found and self._catalog.topics.get(topic.name) is topic:
            await self._catalog.give_back(topic.name, found)

    def _is_spent(self, topic: Topic, partition: PartitionInfo) -> bool:
        if partition.spent or partition.end is None:
            return False
        # A partition that was not used since the start is reported once retention has opened it.
        log = self._logs.find_used(topic.name, partition.index)
        return log is not None and log.is_open and log.log_start_offset >= partition.end
