"""Auto-scaling by rate as streams' policies ask for it (docs/protocols/pravega.md, "Key ranges and epochs"): hot
segments are split, cold neighbours merged.

Once per interval the rates are derived from the growth of the logs, whichever protocol wrote. In a cluster, each node
publishes the rates of the segments it owns in the database, and the owner of a stream's first segment scales the
stream. A segment is split when it was above its target for ``scale_up_intervals`` intervals in a row. Two neighbours
are merged when both were below half of it for ``scale_down_intervals``, as long as the stream keeps the minimum number
of segments of its policy.

A split helps if several routing keys are hot. If all events of a segment have one key, one child gets them all, and so
on down to ranges that cannot be split further. So after :data:`_IN_VAIN` splits in a row of which one child got nearly
everything, that child is not split while this is so.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import structlog
from msgspec import Struct

from anabranch_kit.run.rounds import Rounds
from bridges.catalog.database.sql import upsert
from bridges.catalog.topics.lineage import KeyRange, PartitionInfo
from bridges.errors import LogError
from pravega_front.wire.controller import ScaleType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bridges.catalog.topics.topic import Topic
    from bridges.log.partition.partition_log import PartitionLog
    from pravega_front.controller.core import Controller

log = structlog.get_logger(__name__)

_MOST_PARTS = 16
"""Most parts into which one split divides a segment, whatever the policy says."""
_RECENT = 3
"""Intervals after which a rate published by another node is stale."""
_TELL = upsert("front_pravega_loads", "topic partition", "rate hot cold seen_ms")
_IN_VAIN = 2
_LITTLE = 0.1
"""Fraction of a hot segment's rate: if its siblings have less than that together, the split has not helped."""


class _Load(Struct):
    """Load of one segment: its end, its rate in the last interval, and for how many intervals it has been hot or
    cold."""

    end: int
    seen_ms: int
    rate: float = 0.0
    hot: int = 0
    cold: int = 0


class AutoScaler:
    """Scales the streams whose policies ask for it; :meth:`check_all` is a chore."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._settings = controller.settings
        self._loads: dict[PartitionLog, _Load] = {}
        self._rounds: Rounds[Topic] = controller.node.rounds("scaling by rate")

    async def check_all(self, now_ms: int) -> None:
        """Check all streams once."""
        loads: dict[PartitionLog, _Load] = {}
        streams = self._controller.streams.scaled_by_rate()
        await self._rounds.each(streams, lambda topic: self._check(topic, now_ms, loads))
        self._loads = loads

    async def _check(self, topic: Topic, now_ms: int, loads: dict[PartitionLog, _Load]) -> None:
        policy = self._controller.streams.config(topic).scalingPolicy
        owners = self._controller.segments.owners
        found = self._measure(topic, now_ms, loads, policy)
        if len(owners.nodes) > 1:
            try:
                await self._publish_rates(topic, found, now_ms)
                if not owners.is_mine(topic.name, 0):
                    return
                found = await self._read_rates(topic, now_ms) | found
            except LogError as error:
                log.warning("rates of a stream are not shared", topic=topic.name, reason=str(error))
                return
        change = self._choose_change(topic, found, policy)
        if change is None:
            return
        seal, ranges = change
        try:
            await self._controller.scale(topic, seal, ranges)
        except LogError as error:
            log.warning("a stream is not scaled", topic=topic.name, reason=str(error))
        else:
            log.info("a stream was scaled by its rate", topic=topic.name, sealed=seal, segments=len(topic.active))

    def _measure(self, topic: Topic, now_ms: int, loads: dict[PartitionLog, _Load], policy: Any) -> dict[int, _Load]:
        """Return the loads of this node's active segments of a stream since the last check, by number."""
        found: dict[int, _Load] = {}
        for partition in topic.active:
            if not self._controller.segments.owners.is_mine(topic.name, partition.index):
                continue
            partition_log = self._controller.node.logs.get(topic.name, partition.index)
            if partition_log is None:
                continue
            # A log that is not open was not appended to since the node started.
            end = _end(partition_log, policy.scaleType) if partition_log.is_open else -1
            if end is None:
                continue
            load = self._loads.get(partition_log) or _Load(end, now_ms)
            elapsed = now_ms - load.seen_ms
            if elapsed > 0:
                grown = end - load.end if load.end >= 0 and end >= 0 else 0
                rate = load.rate = grown * 1000 / elapsed
                load.hot = load.hot + 1 if rate > policy.targetRate else 0
                load.cold = load.cold + 1 if rate < policy.targetRate / 2 else 0
                load.end, load.seen_ms = end, now_ms
            loads[partition_log] = found[partition.index] = load
        return found

    async def _publish_rates(self, topic: Topic, loads: dict[int, _Load], now_ms: int) -> None:
        """Publish the rates of this node's segments to the other nodes."""
        rows = [(topic.name, at, one.rate, one.hot, one.cold, now_ms) for at, one in loads.items()]
        if rows:
            await self._controller.node.db.run(lambda connection: connection.executemany(_TELL, rows))

    async def _read_rates(self, topic: Topic, now_ms: int) -> dict[int, _Load]:
        """Return the rates that other nodes have published recently, of segments that are active."""
        query = "SELECT partition, rate, hot, cold FROM front_pravega_loads WHERE topic = ? AND seen_ms > ?"
        key = (topic.name, now_ms - _RECENT * self._settings.scale_interval_ms)
        rows = await self._controller.node.db.run(lambda connection: connection.execute(query, key).fetchall())
        active = {one.index for one in topic.active}
        return {at: _Load(-1, now_ms, rate, hot, cold) for at, rate, hot, cold in rows if at in active}

    def _choose_change(
        self, topic: Topic, loads: dict[int, _Load], policy: object
    ) -> tuple[list[int], list[KeyRange]] | None:
        """Return the segments to seal and the key ranges of their replacements; None if no change is due."""
        active = sorted(topic.active, key=lambda one: one.keys.low)
        if any(one.keys.high != after.keys.low for one, after in pairwise(active)):
            return None  # a topic of another protocol, whose partitions all have the whole key range
        factor = max(2, min(_MOST_PARTS, policy.scaleFactor))  # type: ignore[attr-defined]
        for one in active:
            load = loads.get(one.index)
            if load is None or load.hot < self._settings.scale_up_intervals:
                continue
            ranges = split(one, factor)
            if len(ranges) > 1 and not _in_vain(topic, one, loads):
                return [one.index], ranges
        if len(active) <= max(1, policy.minNumSegments):  # type: ignore[attr-defined]
            return None
        needed = self._settings.scale_down_intervals
        for one, after in pairwise(active):
            first, second = loads.get(one.index), loads.get(after.index)
            if first is not None and second is not None and min(first.cold, second.cold) >= needed:
                return [one.index, after.index], [KeyRange(one.keys.low, after.keys.high)]
        return None


def split(partition: PartitionInfo, parts: int) -> list[KeyRange]:
    """Divide a partition's key range into ``parts`` equal ranges, whose bounds are doubles as in clients' messages.
    Fewer if there are not enough doubles between its bounds."""
    low, high = partition.keys.doubles
    inner = {low + (high - low) * part / parts for part in range(1, parts)}
    between = sorted(KeyRange.of_doubles(0.0, bound).high for bound in inner if low < bound < high)
    return [KeyRange(one, after) for one, after in pairwise([partition.keys.low, *between, partition.keys.high])]


def _in_vain(topic: Topic, partition: PartitionInfo, loads: Mapping[int, _Load]) -> bool:
    """Return whether the last splits that led to a hot segment have left nearly all load with it."""
    least = loads[partition.index].rate * _LITTLE
    splits = 0
    while splits < _IN_VAIN and len(partition.parents) == 1:
        parent = topic.partitions[partition.parents[0]]
        others = sum(
            loads[one.index].rate
            for one in topic.active
            if one.index in loads and one.keys.overlaps(parent.keys) and not one.keys.overlaps(partition.keys)
        )
        if others > least:
            return False
        partition = parent
        splits += 1
    return splits == _IN_VAIN


def _end(partition_log: PartitionLog, kind: int) -> int | None:
    """Return a segment's end, in events or in kilobytes; None while that is unknown."""
    if kind == ScaleType.BY_RATE_IN_EVENTS_PER_SEC:
        return partition_log.high_watermark
    length = partition_log.byte_length
    return None if length is None else length // 1024
