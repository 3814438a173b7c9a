"""Scaling by rate, as streams' policies ask for it (reference/pravega.md, section 4.1): hot segments are split, cold
neighbours merged.

Rates are looked at once in an interval, from what the logs have grown by, whoever wrote. A segment is split when it was
above its target for as many intervals in a row as the settings say, and two neighbours are merged when both were below
half of it for long, as long as the stream keeps the least number of segments that its policy names.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct

from bridges.catalog.lineage import KeyRange, PartitionInfo
from bridges.errors import LogError
from pravega_front.wire.controller import ScaleType

if TYPE_CHECKING:
    from bridges.catalog.topic import Topic
    from bridges.log.partition_log import PartitionLog
    from pravega_front.controller.core import Controller

log = structlog.get_logger(__name__)

_SLICE = 50
"""Streams that are looked at in one turn of the event loop."""
_MOST_PARTS = 16
"""Into how many a segment is split at once, whatever the policy says."""


class _Load(Struct):
    """What is known of one segment: where it ended, and for how many intervals it has been hot or cold."""

    end: int
    seen_ms: int
    hot: int = 0
    cold: int = 0


class AutoScaler:
    """Scales the streams of a node whose policies ask for it; :meth:`look` is a chore."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._settings = controller.settings
        self._loads: dict[PartitionLog, _Load] = {}
        self._running = False

    async def look(self, now_ms: int) -> None:
        """Look at all streams once, one after the other: one that waits for its transactions holds up the others."""
        if self._running:
            return
        self._running = True
        try:
            loads: dict[PartitionLog, _Load] = {}
            for number, topic in enumerate(self._controller.streams.scaled_by_rate()):
                if number % _SLICE == 0:
                    await asyncio.sleep(0)
                await self._look_at(topic, now_ms, loads)
            self._loads = loads
        finally:
            self._running = False

    async def _look_at(self, topic: Topic, now_ms: int, loads: dict[PartitionLog, _Load]) -> None:
        policy = self._controller.streams.config(topic).scalingPolicy
        found: dict[int, _Load] = {}
        for partition in topic.active:
            partition_log = self._controller.node.logs.get(topic.name, partition.index)
            if partition_log is None:
                continue
            # A log that is not open was not appended to: nobody has used it since the start.
            end = _end(partition_log, policy.scaleType) if partition_log.is_open else -1
            if end is None:
                continue
            load = self._loads.get(partition_log) or _Load(end, now_ms)
            elapsed = now_ms - load.seen_ms
            if elapsed > 0:
                grown = end - load.end if load.end >= 0 and end >= 0 else 0
                rate = grown * 1000 / elapsed
                load.hot = load.hot + 1 if rate > policy.targetRate else 0
                load.cold = load.cold + 1 if rate < policy.targetRate / 2 else 0
                load.end, load.seen_ms = end, now_ms
            loads[partition_log] = found[partition.index] = load
        change = self._wanted(topic, found, policy)
        if change is None:
            return
        seal, ranges = change
        try:
            await self._controller.scale(topic, seal, ranges)
        except LogError as error:
            log.warning("a stream is not scaled", topic=topic.name, reason=str(error))
        else:
            log.info("a stream was scaled by its rate", topic=topic.name, sealed=seal, segments=len(topic.active))

    def _wanted(self, topic: Topic, loads: dict[int, _Load], policy: object) -> tuple[list[int], list[KeyRange]] | None:
        """Which segments are to be sealed, and the ranges of those that come in their place."""
        active = sorted(topic.active, key=lambda one: one.keys.low)
        if any(one.keys.high != after.keys.low for one, after in pairwise(active)):
            return None  # a topic of Kafka's: its partitions share all keys
        factor = max(2, min(_MOST_PARTS, policy.scaleFactor))  # type: ignore[attr-defined]
        for one in active:
            load = loads.get(one.index)
            if load is not None and load.hot >= self._settings.scale_up_intervals:
                return [one.index], split(one, factor)
        if len(active) <= max(1, policy.minNumSegments):  # type: ignore[attr-defined]
            return None
        needed = self._settings.scale_down_intervals
        for one, after in pairwise(active):
            first, second = loads.get(one.index), loads.get(after.index)
            if first is not None and second is not None and min(first.cold, second.cold) >= needed:
                return [one.index, after.index], [KeyRange(one.keys.low, after.keys.high)]
        return None


def split(partition: PartitionInfo, parts: int) -> list[KeyRange]:
    """A partition's keys in equal parts, with bounds that are doubles, as clients get them."""
    low, high = partition.keys.doubles
    inner = [low + (high - low) * part / parts for part in range(1, parts)]
    bounds = [partition.keys.low, *(KeyRange.of_doubles(0.0, bound).high for bound in inner), partition.keys.high]
    return [KeyRange(one, after) for one, after in pairwise(bounds)]


def _end(partition_log: PartitionLog, kind: int) -> int | None:
    """Where a segment ends, in events or in kilobytes; None while that is not known."""
    if kind == ScaleType.BY_RATE_IN_EVENTS_PER_SEC:
        return partition_log.high_watermark
    length = partition_log.byte_length
    return None if length is None else length // 1024
