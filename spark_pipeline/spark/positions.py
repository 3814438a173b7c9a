"""The positions of a query: offsets as Spark stores them in checkpoints, and their computation from the options."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from spark_pipeline.core.errors import OptionError, UnknownTopic
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.core.ranges import to_json as offsets_to_json
from spark_pipeline.endpoints.base import Endpoint, Positions
from spark_pipeline.spark.source_options import EARLIEST, Bound, SourceOptions, Topics

Offsets = dict[TopicPartition, int]
Loss = Callable[[str], None]
"""A callback for lost data, called with a sentence; raises if the loss is to end the query."""


Identities = dict[str, str]
"""Topic -> its identity, which a later topic of the same name does not have; absent in systems without identities."""
_IDENTITIES = ""
"""The key of the identities among the topics in a checkpoint; no topic has this name."""


def from_json(told: Mapping[str, Any] | None) -> tuple[Offsets, Identities]:
    """Parse the result of :func:`to_json`; None is empty. Checkpoints of Spark's connector have no identities."""
    topics = dict(told or {})
    identities = topics.pop(_IDENTITIES, {})
    return {
        TopicPartition(topic, int(number)): int(offset)
        for topic, numbers in topics.items()
        for number, offset in numbers.items()
    }, identities


def to_json(offsets: Offsets, identities: Identities) -> dict[str, Any]:
    """Return a checkpoint's content: the offsets as in Spark's connector for Kafka, and the identities."""
    topics = {part.topic for part in offsets}
    known = {topic: identity for topic, identity in sorted(identities.items()) if topic in topics}
    return {**offsets_to_json(offsets), **({_IDENTITIES: known} if known else {})}


class Finder:
    """A finder of partitions and offsets by the options. ``identities`` are those of all topics that it has met."""

    def __init__(self, source: Endpoint, options: SourceOptions) -> None:
        self._source = source
        self._options = options
        self.identities: Identities = {}

    def partitions(self, known: Collection[str] = ()) -> list[TopicPartition]:
        """Return all present partitions to be read. Raises UnknownTopic for missing topics but those in ``known``."""
        topics = self._options.topics
        wanted = {part.topic for part in topics.parts} if topics.parts else _topics_wanted(topics)
        found = self._source.some_topics(wanted)
        self.identities |= {name: info.identity for name, info in found.items() if info.identity}
        if topics.parts:
            there = [
                part for part in topics.parts if part.topic in found and part.partition in found[part.topic].partitions
            ]
            for part in topics.parts:
                if part not in there and part.topic not in known:
                    raise UnknownTopic(f"there is no partition {part}")
            return sorted(there)
        for name in topics.names:
            if name not in found and name not in known:
                raise UnknownTopic(f"there is no topic {name!r}")
        return sorted(TopicPartition(name, number) for name, info in found.items() for number in info.partitions)

    def positions(self, parts: Collection[TopicPartition]) -> dict[TopicPartition, Positions]:
        return self._remember(self._source.positions(sorted(parts))) if parts else {}

    def _remember(self, told: dict[TopicPartition, Positions]) -> dict[TopicPartition, Positions]:
        self.identities |= {part.topic: one.identity for part, one in told.items() if one.identity}
        return told

    def all_positions(self, known: Collection[str] = ()) -> dict[TopicPartition, Positions]:
        """Return the positions of all :meth:`partitions`. Raises UnknownTopic."""
        topics = self._options.topics
        if not topics.parts:
            # A missing named topic is reported below. A topic that matched the pattern may be deleted by now: no error.
            with suppress(UnknownTopic):
                found = self._source.topic_positions(_topics_wanted(topics))
                if found is not None:
                    return self._remember(found)
        return self.positions(self.partitions(known))

    def starting(self, parts: Collection[TopicPartition], loss: Loss) -> Offsets:
        """Return the offsets at which a new query begins. A given offset outside the log counts as lost."""
        positions = self.positions(parts)
        found = self._at(self._options.starting, positions, "startingOffsets", self._no_start)
        for part, offset in found.items():
            told = positions[part]
            if not told.start <= offset <= told.high_watermark:
                nearest = min(max(offset, told.start), told.high_watermark)
                loss(f"{part} was to be read from offset {offset}, but has [{told.start}, {told.high_watermark})")
                found[part] = nearest
        return found

    def ending(self, parts: Collection[TopicPartition]) -> Offsets:
        """Return the offsets at which a batch query ends."""
        positions = self.positions(parts)
        return self._at(self._options.ending, positions, "endingOffsets", lambda part, _: positions[part].stable)

    def _no_start(self, part: TopicPartition, at_ms: int) -> int:
        if self._options.latest_if_no_timestamp:
            return self.positions([part])[part].stable
        raise OptionError(
            f"{part} has no record of the time {at_ms} ms or later: "
            "startingOffsetsByTimestampStrategy = latest begins at its end"
        )

    def _at(
        self,
        bound: Bound,
        positions: Mapping[TopicPartition, Positions],
        name: str,
        none: Callable[[TopicPartition, int], int],
    ) -> Offsets:
        if bound.timestamp is not None or bound.timestamps is not None:
            at = bound.timestamps
            if at is None:
                assert bound.timestamp is not None
                at = dict.fromkeys(positions, bound.timestamp)
            _require_all(at, positions, f"{name}ByTimestamp")
            found = self._source.find_timestamp(at) if at else {}
            return {
                part: none(part, at[part]) if offset is None else min(offset, positions[part].stable)
                for part, offset in found.items()
            }
        if bound.offsets is not None:
            _require_all(bound.offsets, positions, name)
            places = {-2: "start", -1: "stable"}
            return {
                part: getattr(positions[part], places[offset]) if offset in places else offset
                for part, offset in bound.offsets.items()
            }
        earliest = bound.place == EARLIEST
        return {part: told.start if earliest else told.stable for part, told in positions.items()}


def _topics_wanted(topics: Topics) -> Collection[str] | re.Pattern[str]:
    return topics.names if topics.pattern is None else re.compile(topics.pattern)


def _require_all(given: Collection[TopicPartition], parts: Collection[TopicPartition], name: str) -> None:
    """Raise OptionError unless ``given`` has exactly ``parts``: a missing partition would have no defined start."""
    if set(given) != set(parts):
        missing = ", ".join(map(str, sorted(set(parts) - set(given)))) or "none"
        more = ", ".join(map(str, sorted(set(given) - set(parts)))) or "none"
        raise OptionError(f"{name} must name all partitions and no others: missing are {missing}, not read are {more}")
