"""Ranges of offsets: cutting them into pieces for tasks, and bounding how much of the new offsets a micro-batch takes.

The rules are those of Spark's connector for Kafka (docs/protocols/spark.md, "The connector for Kafka"), so that its
options mean the same here. Offsets count records, gaps included: a range of a thousand offsets holds at most a thousand
records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def range(self, start: int, end: int) -> OffsetRange:
        """Return the offsets ``[start, end)`` of this partition."""
        return OffsetRange(self.topic, self.partition, start, end)


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The offsets ``[start, end)`` of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def count(self) -> int:
        """Return the number of offsets, 0 for a range that ends before it starts."""
        return max(0, self.end - self.start)

    @property
    def part(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def within(self, start: int, end: int) -> OffsetRange:
        """Return the offsets ``[start, end)`` of the same partition."""
        return OffsetRange(self.topic, self.partition, start, end)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.start}, {self.end})"


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as Spark's connector for Kafka writes them: topic -> partition -> offset, in order."""
    found: dict[str, dict[str, int]] = {}
    for part in sorted(offsets):
        found.setdefault(part.topic, {})[str(part.partition)] = offsets[part]
    return found


def split(
    ranges: Iterable[OffsetRange], min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Cut ``ranges`` into pieces for tasks, without empty ones; the pieces of a range follow one another.

    ``max_records`` is the most offsets of a piece (option ``maxRecordsPerPartition``). ``min_partitions``: if there are
    fewer pieces than this, large ones are cut again, each in proportion to its part of the whole, so that there are
    about as many (option ``minPartitions``; rounding may make it a few more or fewer, as with Spark's connector).
    Raises ValueError for a bound below 1.
    """
    if (min_partitions is not None and min_partitions < 1) or (max_records is not None and max_records < 1):
        raise ValueError("a bound on the pieces of a range is at least 1")
    pieces = [one for one in ranges if one.count]
    if max_records is not None:
        pieces = [piece for one in pieces for piece in _cut(one, math.ceil(one.count / max_records))]
    if min_partitions is None or len(pieces) >= min_partitions:
        return pieces
    total = sum(one.count for one in pieces)
    return [piece for one in pieces for piece in _cut(one, max(1, round(one.count * min_partitions / total)))]


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """Cut a range into pieces of nearly equal length, none of them empty."""
    parts = min(parts, whole.count)
    bounds = [whole.start + whole.count * number // parts for number in range(parts + 1)]
    return [whole.within(start, end) for start, end in pairwise(bounds)]


def admit(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: int
) -> dict[TopicPartition, int]:
    """Return the end of a micro-batch that starts at ``start`` and takes about ``limit`` of the offsets up to ``end``.

    Each partition gives in proportion to its new offsets. A partition with any new offset gives at least one, so that
    none starves beside a large one; that may exceed ``limit`` by a few. A partition missing from ``start`` is taken to
    start at its end. The result is never below ``start``.
    """
    sizes = {part: max(0, end[part] - start.get(part, end[part])) for part in end}
    total = sum(sizes.values())
    if total <= limit:
        return {part: max(end[part], start.get(part, end[part])) for part in end}
    until: dict[TopicPartition, int] = {}
    for part, size in sizes.items():
        share = limit * size // total
        until[part] = start.get(part, end[part]) + (min(size, max(1, share)) if size else 0)
    return until


@dataclass(slots=True)
class Patience:
    """The decision whether a micro-batch waits for more offsets (options ``minOffsetsPerTrigger`` and
    ``maxTriggerDelay``).

    It begins with at least ``min_offsets``, or ``max_delay_ms`` after the previous one; the first begins at once.
    """

    min_offsets: int
    max_delay_ms: int
    _last_ms: int | None = None

    def waits(self, new_offsets: int, now_ms: int) -> bool:
        """Return whether a micro-batch with ``new_offsets`` should wait; if not, count it as begun at ``now_ms``."""
        waited_out = self._last_ms is None or now_ms - self._last_ms >= self.max_delay_ms
        if new_offsets < self.min_offsets and not waited_out:
            return True
        self._last_ms = now_ms
        return False


def total(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    """Return the number of offsets between ``start`` and ``end``."""
    return sum(max(0, end[part] - start.get(part, end[part])) for part in end)


def between(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[OffsetRange]:
    """Return the ranges from ``start`` to ``end`` of the partitions that both have, in order, without empty ones."""
    parts: Sequence[TopicPartition] = sorted(part for part in end if part in start and end[part] > start[part])
    return [part.range(start[part], end[part]) for part in parts]
