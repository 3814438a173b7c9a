"""Audits: the content of a system, whether it is undamaged, and whether two systems hold the same records.

Levels, each with all before it: 0 positions and numbers of records, 1 checksums of stored batches, 2 digests of blocks,
3 gaps, repetitions, order by key and producer. (Level 4, the same topic through every protocol of a node, is in
:mod:`spark_pipeline.jobs.audit.cross`.)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_pipeline.core.bisect import BadOffset, first_bad_in
from spark_pipeline.core.digest import ALL_FIELDS, BLOCK, BlockDifference, BlockDigest, differences
from spark_pipeline.core.errors import OptionError
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import Endpoint, Positions, endpoint, may_cut
from spark_pipeline.jobs.audit.pieces import (
    EXAMPLES,
    Checked,
    Piece,
    Seen,
    beyond,
    check,
    distinct,
    examine,
    filtered,
    pieces,
)
from spark_pipeline.jobs.engine import Engine
from spark_pipeline.jobs.topics import match_names, matching, unknown

BISECTED = 10
"""Most differing blocks of a partition in which the first bad offset is searched; others are only reported."""

Told = Callable[[int, int], None]
"""A progress callback, called after each piece with the offsets done and their total."""


@dataclass(frozen=True, slots=True)
class Side:
    """One system of an audit: a URL and its options."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict)

    def open(self) -> Endpoint:
        """Open a connection, which the caller closes."""
        return endpoint(self.url, self.options)


@dataclass(slots=True, kw_only=True)
class PartitionSeen(Seen):
    """The combined findings of all pieces of a partition's range."""

    positions: Positions

    def whole_gaps(self) -> list[tuple[int, int]]:
        """Return the gaps in order; gaps that touch at the border of two pieces are joined."""
        joined: list[tuple[int, int]] = []
        for start, end in sorted(self.gaps):
            if joined and joined[-1][1] == start:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((start, end))
        return joined

    def as_json(self, level: int) -> dict[str, Any]:
        told: dict[str, Any] = {
            "topic": self.range.topic,
            "partition": self.range.partition,
            **asdict(self.positions),
            "records": self.records,
            "bytes": self.size,
        }
        if level >= 3:
            told |= {
                "offsets_without_records": self.missing,
                "gaps": [f"[{start}, {end})" for start, end in self.whole_gaps()[:EXAMPLES]],
                "repeated_offsets": sorted(self.repeated)[:EXAMPLES],
                "offsets_out_of_order": sorted(self.backwards)[:EXAMPLES],
                "producer_numbers_again": sorted(self.numbers_again)[:EXAMPLES],
                "older_than_an_earlier_record_of_the_key": self.times_back,
            }
        return told


@dataclass(slots=True)
class Audit:
    """Audits on an engine. ``fields`` are the record fields to compare; see Piece for ``since_us``."""

    engine: Engine
    fields: tuple[str, ...] = ALL_FIELDS
    since_us: int | None = None
    told: Told = lambda done, all_: None

    def examine_ranges(
        self,
        side: Side,
        ranges: Mapping[TopicPartition, OffsetRange],
        positions: Mapping[TopicPartition, Positions],
        level: int,
        *,
        plain_headers: bool = False,
    ) -> dict[TopicPartition, PartitionSeen]:
        """Read ``ranges`` of a system and return the findings; see Piece for ``plain_headers``."""
        seen = {part: PartitionSeen(one, positions=positions[part]) for part, one in ranges.items()}
        fields = self.fields if level >= 2 else ()
        items = [
            Piece(side.url, side.options, one, fields, self.since_us, level >= 3, plain_headers)
            for whole in ranges.values()
            for one in pieces(whole, cut=may_cut(side.url))
        ]
        total, done = sum(item.range.count for item in items), 0
        for one in self.engine.map(examine, items):
            seen[one.range.part].add(one)
            done += one.range.count
            self.told(done, total)
        return seen

    def whole(self, side: Side, topics: Sequence[str], level: int, *, checksums: bool = True) -> dict[str, Any]:
        """Audit one system and return a report; ``equal`` in it means that nothing is wrong."""
        began = time.monotonic()
        positions = positions_of(side, topics)
        ranges = {part: part.range(one.start, one.stable) for part, one in positions.items()}
        seen = self.examine_ranges(side, ranges, positions, level)
        report = [one.as_json(level) for _, one in sorted(seen.items())]
        wrong = 0
        if level >= 3:
            wrong = sum(len(one.repeated) + len(one.backwards) + len(one.numbers_again) for one in seen.values())
        told: dict[str, Any] = {"url": side.url, "level": level, "partitions": report}
        damaged = [one for part in seen.values() for one in part.damaged]
        if checksums and level >= 1 and not side.url.startswith("archive"):  # an archive has no batches
            checked = self.check(side, ranges)
            told["batches"] = {
                "checked": sum(one.batches for one in checked),
                "without_a_checksum": sum(one.unchecked for one in checked),
                "bytes": sum(one.size for one in checked),
            }
            damaged += [one for part in checked for one in part.damaged]
        told["damaged"] = [asdict(one) for one in distinct(damaged)]
        wrong += len(damaged)
        records = sum(one.records for one in seen.values())
        return told | {"records": records, "equal": not wrong, "seconds": round(time.monotonic() - began, 3)}

    def check(self, side: Side, ranges: Mapping[TopicPartition, OffsetRange]) -> list[Checked]:
        """Compare every stored batch with its checksum."""
        items = [
            Piece(side.url, side.options, one)
            for whole in ranges.values()
            for one in pieces(whole, cut=may_cut(side.url))
        ]
        return list(self.engine.map(check, items))

    def digests(self, side: Side, topics: Sequence[str]) -> dict[str, Any]:
        """Return the digests of all blocks, as a document for later comparisons (:class:`Digests`)."""
        positions = positions_of(side, topics)
        ranges = {part: part.range(one.start, one.stable) for part, one in positions.items()}
        seen = self.examine_ranges(side, ranges, positions, 2)
        return {
            "digests": 1,
            "url": side.url,
            "fields": list(self.fields),
            "since_us": self.since_us,
            "block": BLOCK,
            "partitions": [
                {
                    "topic": part.topic,
                    "partition": part.partition,
                    "start": one.range.start,
                    "end": one.range.end,
                    "records": one.records,
                    "blocks": {str(number): digest.as_json() for number, digest in sorted(one.blocks.items())},
                }
                for part, one in sorted(seen.items())
            ],
            "damaged": damaged_in(seen),
        }

    def diff(
        self, left: Side, right: Side, topics: Sequence[str], level: int, *, same_ends: bool = True
    ) -> dict[str, Any]:
        """Compare two systems that should hold the same records at the same offsets; return a report.

        ``same_ends``: different starts or ends count as differences; otherwise only offsets that both have are
        compared. Raises UnknownTopic for a topic that neither has.
        """
        began = time.monotonic()
        not_here: set[str] = set()
        not_there: set[str] = set()
        here = positions_of(left, topics, absent=not_here)
        there = positions_of(right, topics, absent=not_there)
        for nowhere in sorted(not_here & not_there):
            raise unknown(nowhere)
        found: list[dict[str, Any]] = []
        ranges: dict[TopicPartition, OffsetRange] = {}
        for part in sorted(here.keys() | there.keys()):
            one, other = here.get(part), there.get(part)
            if one is None or other is None:
                found.append(
                    _difference(part, "topic or partition", "only on the left" if one else "only on the right")
                )
                continue
            if same_ends and (one.start, one.stable) != (other.start, other.stable):
                reason = f"[{one.start}, {one.stable}) on the left, [{other.start}, {other.stable}) on the right"
                found.append(_difference(part, "range", reason))
            start, end = max(one.start, other.start), min(one.stable, other.stable)
            ranges[part] = part.range(start, max(start, end))
        seen_here = self.examine_ranges(left, ranges, here, level)
        seen_there = self.examine_ranges(right, ranges, there, level)
        for part in ranges:
            found += _damage_of(part, "left", seen_here[part]) + _damage_of(part, "right", seen_there[part])
            found += differing(self, left, right, part, seen_here[part], seen_there[part])
        return {
            "left": left.url,
            "right": right.url,
            "level": level,
            "fields": list(self.fields),
            "equal": not found,
            "records": sum(one.records for one in seen_here.values()),
            "partitions": [
                {
                    "topic": part.topic,
                    "partition": part.partition,
                    "compared": [one.start, one.end],
                    "left": seen_here[part].as_json(level),
                    "right": seen_there[part].as_json(level),
                    "blocks": len(seen_here[part].blocks.keys() | seen_there[part].blocks.keys()),
                }
                for part, one in ranges.items()
            ],
            "differences": found,
            "seconds": round(time.monotonic() - began, 3),
        }

    def first_bad(self, left: Side, right: Side, whole: OffsetRange, block: BlockDifference) -> BadOffset | None:
        """Return the first offset of a block at which two systems differ; None if they no longer do."""
        start, end = max(whole.start, block.start), min(whole.end, block.start + BLOCK)
        with closing(left.open()) as one, closing(right.open()) as other:
            here, there = (partial(self._records, side, whole) for side in (one, other))
            found = first_bad_in(here, there, start, end, self.fields)
        return None if found is None else found[1]

    def _records(self, source: Endpoint, whole: OffsetRange, start: int, end: int) -> list[pa.RecordBatch]:
        columns = Columns(tuple(dict.fromkeys(("offset", *self.fields, "timestamp"))))
        wanted = whole.within(start, end)
        # Damage was reported before.
        read = beyond(wanted, lambda rest: source.read(rest, columns), lambda damaged: None)
        return [filtered(batch, self.since_us) for batch in read] or [
            pa.RecordBatch.from_pylist([], schema=columns.schema)
        ]


def differing(
    audit: Audit, left: Side, right: Side | None, part: TopicPartition, here: PartitionSeen, there: PartitionSeen
) -> Iterator[dict[str, Any]]:
    """Yield a report of each block of a partition that differs, with the first bad offset if both sides can be read."""
    for number, one in enumerate(differences(here.blocks, there.blocks)):
        said = _difference(part, "block", one.reason) | {
            "block": one.block,
            "offsets": [one.start, one.start + BLOCK],
            "left": one.left.as_json(),
            "right": one.right.as_json(),
        }
        if number < BISECTED and right is not None and may_cut(left.url) and may_cut(right.url):
            bad = audit.first_bad(left, right, here.range, one)
            said["first"] = None if bad is None else asdict(bad)
        yield said


def damaged_in(seen: Mapping[TopicPartition, Seen]) -> list[dict[str, Any]]:
    """Return the damage of all partitions, for reports."""
    return [asdict(one) for one in distinct(one for part in seen.values() for one in part.damaged)]


def _damage_of(part: TopicPartition, side: str, seen: Seen) -> list[dict[str, Any]]:
    """Return the damage of one side of a comparison, for reports."""
    return [
        _difference(part, "damage", f"on the {side}: {one.reason}") | {"offsets": [one.offset, one.end]}
        for one in distinct(seen.damaged)
    ]


def _difference(part: TopicPartition, what: str, reason: str) -> dict[str, Any]:
    return {"topic": part.topic, "partition": part.partition, "what": what, "reason": reason}


def positions_of(
    side: Side, topics: Sequence[str], *, absent: set[str] | None = None
) -> dict[TopicPartition, Positions]:
    """Return the positions of the partitions of ``topics`` (names or patterns).

    Topics that match nothing are added to ``absent``; without it raises UnknownTopic.
    """
    with closing(side.open()) as source:
        return source.positions(matching(source, topics, absent=absent))


@dataclass(frozen=True, slots=True)
class Digests:
    """The document of :meth:`Audit.digests`: ranges and blocks by partition, fields, and lowest timestamp."""

    fields: tuple[str, ...]
    since_us: int | None
    partitions: Mapping[TopicPartition, tuple[OffsetRange, dict[int, BlockDigest]]]

    @classmethod
    def read(cls, path: Path) -> Digests:
        """Read a document from a file. Raises OptionError if it holds something else."""
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            if told["digests"] != 1 or told["block"] != BLOCK:
                raise OptionError(f"{path} holds digests of another version")
            partitions = {
                TopicPartition(one["topic"], one["partition"]): (
                    OffsetRange(one["topic"], one["partition"], one["start"], one["end"]),
                    {int(number): BlockDigest.from_json(digest) for number, digest in one["blocks"].items()},
                )
                for one in told["partitions"]
            }
            return cls(tuple(told["fields"]), told.get("since_us"), partitions)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OptionError(f"{path} holds no digests: {error}") from error

    def choose(self, topics: Sequence[str]) -> dict[TopicPartition, tuple[OffsetRange, dict[int, BlockDigest]]]:
        """Return the partitions of ``topics`` (names or patterns; empty for all), in order. Raises UnknownTopic."""
        names = {part.topic for part in self.partitions}
        wanted = set() if topics else names
        for one in topics:
            found = match_names(one, names, names)
            if not found:
                raise unknown(one)
            wanted.update(found)
        return {part: one for part, one in sorted(self.partitions.items()) if part.topic in wanted}


def against_digests(audit: Audit, side: Side, path: Path, topics: Sequence[str] = ()) -> dict[str, Any]:
    """Compare a system with earlier digests, of it or of another system, by the same fields and records.

    Only whole blocks below the end at that time are compared, and only offsets that the system still has.
    """
    began = time.monotonic()
    before = Digests.read(path)
    known = before.choose(topics)
    audit.fields, audit.since_us = before.fields, before.since_us
    # A deleted topic is a difference, even if its name as a pattern matches other topics.
    positions = positions_of(side, sorted({part.topic for part in known}), absent=set())
    found: list[dict[str, Any]] = []
    ranges: dict[TopicPartition, OffsetRange] = {}
    for part, (range_, _) in known.items():
        now = positions.get(part)
        if now is None:
            found.append(_difference(part, "topic or partition", "is gone"))
            continue
        if now.stable < range_.end:
            found.append(_difference(part, "range", f"ends at {now.stable}, and ended at {range_.end} before"))
        start = range_.start
        if now.start > start:  # trimmed since: the first whole block of what is left
            start = -(-now.start // BLOCK) * BLOCK
        end = min(range_.end, now.stable)
        ranges[part] = part.range(start, max(start, end))
    seen = audit.examine_ranges(side, ranges, positions, 2)
    for part, range_ in ranges.items():
        found += _damage_of(part, "right", seen[part])
        kept = {number: one for number, one in known[part][1].items() if (number + 1) * BLOCK > range_.start}
        for one in differences(kept, seen[part].blocks):
            found.append(
                _difference(part, "block", one.reason) | {"block": one.block, "offsets": [one.start, one.start + BLOCK]}
            )
    return {
        "left": str(path),
        "right": side.url,
        "level": 2,
        "fields": list(audit.fields),
        "equal": not found,
        "records": sum(one.records for one in seen.values()),
        "differences": found,
        "seconds": round(time.monotonic() - began, 3),
    }
