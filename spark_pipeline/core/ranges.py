"""Ranges of offsets: what is read, cut into pieces for tasks, and how much of what is new a micro-batch takes.

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
        """The offsets ``[start, end)`` of it."""
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
        """How many offsets these are; none of a range that ends before it starts."""
        return max(0, self.end - self.start)

    @property
    def of(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    def within(self, start: int, end: int) -> OffsetRange:
        """The offsets ``[start, end)`` of the same partition."""
        return OffsetRange(self.topic, self.partition, start, end)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.start}, {self.end})"


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """As Spark's connector for Kafka writes them: topic -> partition -> offset, in order."""
    found: dict[str, dict[str, int]] = {}
    for part in sorted(offsets):
        found.setdefault(part.topic, {})[str(part.partition)] = offsets[part]
    return found


def split(
    ranges: Iterable[OffsetRange], min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """``ranges`` cut into pieces for tasks, without the empty ones; the pieces of a range follow one another.

    ``max_records``: offsets that a piece may have at most (option ``maxRecordsPerPartition``). ``min_partitions``: if
    there are fewer pieces than this, large ones are cut again, each in proportion to its part of the whole, so that
    there are about as many (option ``minPartitions``; rounding may make it a few more or fewer, as with Spark's
    connector). Raises ValueError for a bound below 1.
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
    """Pieces of nearly equal length, none of them empty."""
    parts = min(parts, whole.count)
    bounds = [whole.start + whole.count * number // parts for number in range(parts + 1)]
    return [whole.within(start, end) for start, end in pairwise(bounds)]


def admit(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: int
) -> dict[TopicPartition, int]:
    """Where a micro-batch ends that starts at ``start`` and takes about ``limit`` of the offsets up to ``end``.

    Each partition gives in proportion to what it has; one that has anything gives at least one offset, so that none
    starves beside a large one, which may make it a few more than ``limit``. A partition that ``start`` does not have
    is taken to start at its end. Never goes behind ``start``.
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
    """Decides whether a micro-batch waits for more (options ``minOffsetsPerTrigger`` and ``maxTriggerDelay``).

    It goes ahead with at least ``min_offsets``, or when the last one is ``max_delay_ms`` ago; the first goes at once.
    """

    min_offsets: int
    max_delay_ms: int
    _last_ms: int | None = None

    def waits(self, new_offsets: int, now_ms: int) -> bool:
        """Whether a micro-batch with ``new_offsets`` should not begin yet; if not, it counts as begun at ``now_ms``."""
        waited_out = self._last_ms is None or now_ms - self._last_ms >= self.max_delay_ms
        if new_offsets < self.min_offsets and not waited_out:
            return True
        self._last_ms = now_ms
        return False


def total(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    """How many offsets lie between the two."""
    return sum(max(0, end[part] - start.get(part, end[part])) for part in end)


def between(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[OffsetRange]:
    """The ranges from ``start`` to ``end`` of the partitions that both have, in order; empty ones are left out."""
    parts: Sequence[TopicPartition] = sorted(part for part in end if part in start and end[part] > start[part])
    return [part.range(start[part], end[part]) for part in parts]
