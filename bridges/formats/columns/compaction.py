"""Compaction by columns (docs/design.md, "Compaction"). Batches that columns do not take go record by record."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

import numpy as np

from anabranch_kit.run.sliced import Sliced
from bridges.errors import BatchInvalid
from bridges.formats import format_of
from bridges.formats.base import FORMAT_MASK, FormatId
from bridges.formats.codecs.compression import DEFAULT_LIMIT
from bridges.formats.columns import Unusual, kafka
from bridges.formats.columns.rows import Body, Rows, spread
from bridges.formats.columns.translation import rows_of
from bridges.formats.columns.varints import Bools, Int64s
from bridges.formats.kafka import CODEC_MASK, DELETE_HORIZON, BatchBuilder, Header, parse_header
from bridges.formats.kafka_compaction import NO_HORIZON, builder_of, emptied, horizon_of
from bridges.formats.records import LOSSY_HEADER, Buffer, Record, StoredBatch

_RECORDS_AT_ONCE, _BYTES_AT_ONCE = 200, 512 * 1024

Highest = Callable[[Sequence[bytes]], Int64s]
"""Returns the highest offset at which each of some keys was noted, -1 for none."""


class Compacted(NamedTuple):
    """A compacted batch. ``payload``: None where the batch stays as it is. ``horizon_ms``: the time from which the next
    pass finds something to remove in it (:data:`NO_HORIZON`: never)."""

    payload: Buffer | None
    records: int
    horizon_ms: int


class Keys(NamedTuple):
    """The keys of some records, and these records' offsets. ``missing``: number of further records, without a key."""

    keys: Sequence[bytes]
    offsets: Int64s
    missing: int


def all_keys(batches: Sequence[StoredBatch], limit: int = DEFAULT_LIMIT) -> Iterator[Keys | None]:
    """Yield the keys of all records; None where much was done. A batch is left out from where it cannot be read."""
    for _, together in groupby(batches, lambda batch: batch.flags & FORMAT_MASK):
        with suppress(BatchInvalid):  # its readers get the error
            yield from keys_of(list(together), limit)


def keys_of(batches: Sequence[StoredBatch], limit: int = DEFAULT_LIMIT) -> Iterator[Keys | None]:
    """Yield the keys of batches of one format, as :func:`all_keys` does. Raises BatchInvalid if there is only one."""
    try:
        for found in rows_of(batches, limit):
            yield None
            if found is not None:
                rows = found[1]
                keyed, keys = (rows.offsets[:0], []) if rows.keys is None else rows.keys.present()
                yield Keys(keys, rows.offsets[keyed], len(rows) - len(keys))
        return
    except (Unusual, BatchInvalid):
        yield None
    if len(batches) > 1:
        for batch in batches:
            with suppress(BatchInvalid):
                yield from keys_of([batch], limit)
        return
    for some in _records(batches[0], limit):
        keyed_ones = [one for one in some if one.key is not None]
        offsets = np.array([one.offset for one in keyed_ones], np.int64)
        yield Keys([one.key or b"" for one in keyed_ones], offsets, len(some) - len(keyed_ones))
        yield None


def compacted(
    batches: Sequence[StoredBatch], highest: Highest, now_ms: int, horizon_ms: int, limit: int = DEFAULT_LIMIT
) -> Sliced[list[Compacted | None]]:
    """Compact batches of Kafka that hold records: keep those records that are the latest of their keys.

    Tombstones among these are removed once their batch's horizon has passed. A batch that has tombstones and no horizon
    gets ``horizon_ms``. Records without a key are removed. Returns None for a batch that cannot be read, or not be
    written as it was.
    """
    rules = _Rules(highest, now_ms, horizon_ms, limit)
    batches = [batch._replace(flags=FormatId.KAFKA) for batch in batches]  # with the times that their writers gave
    try:
        return (yield from rules.by_columns(batches))
    except (Unusual, BatchInvalid):
        yield None
    made: list[Compacted | None] = []
    for batch in batches:
        if len(batches) > 1:
            made += yield from compacted([batch], highest, now_ms, horizon_ms, limit)
            continue
        try:
            made.append((yield from rules.one_by_one(batch)))
        except BatchInvalid:
            made.append(None)
    return made


class _Rules(NamedTuple):
    highest: Highest
    now_ms: int
    horizon_ms: int
    limit: int

    def by_columns(self, batches: Sequence[StoredBatch]) -> Sliced[list[Compacted | None]]:
        made: list[Compacted | None] = []
        parts: list[Rows] = []
        for found in rows_of(batches, self.limit):
            yield None
            if found is not None:
                bodies, rows, _ = found
                parts.append(rows)
                if sum(map(len, parts)) == sum(body.count for body in bodies):
                    made += yield from self._compact(bodies, parts)
                    parts = []
        return made

    def _compact(self, bodies: Sequence[Body], parts: Sequence[Rows]) -> Sliced[list[Compacted]]:
        """Compact batches that were decoded together, or one that was decoded in parts."""
        count = len(bodies)
        headers = [parse_header(body.batch.payload) for body in bodies]
        passed = [self._is_over(header) for header in headers]
        records, tombstones = np.zeros(count, np.int64), np.zeros(count, np.int64)
        stay: list[tuple[Rows, Int64s, Bools]] = []
        for rows in parts:
            whose = spread(bodies, range(count), len(rows))
            kept = np.zeros(len(rows), np.bool_)
            if rows.keys is not None:
                keyed, keys = rows.keys.present()
                kept[keyed] = self.highest(keys) <= rows.offsets[keyed]
            if rows.values.missing is not None:
                kept &= ~(rows.values.missing & np.array(passed)[whose])
                tombstones += np.bincount(whose[kept & rows.values.missing], minlength=count)
            records += np.bincount(whose[kept], minlength=count)
            stay.append((rows, whose, kept))
            yield None
        made: list[Compacted] = []
        builders: list[BatchBuilder | None] = []
        for body, header, left, empty in zip(bodies, headers, records.tolist(), tombstones.tolist(), strict=True):
            one, builder = self._decide(body.batch, header, left, empty)
            made.append(one)
            builders.append(builder)
        is_built = np.array([builder is not None for builder in builders])
        built = [builder for builder in builders if builder is not None]
        for rows, whose, kept in stay if built else ():
            chosen = np.flatnonzero(kept & is_built[whose])
            counts = np.bincount(whose[chosen], minlength=count)[is_built].tolist()
            if len(chosen):
                kafka.encode(built, rows.take(chosen), counts, [None] * len(built))
            yield None
        for number, builder in enumerate(builders):
            if builder is not None:
                made[number] = yield from self._finish(made[number], headers[number], builder)
        return made

    def one_by_one(self, batch: StoredBatch) -> Sliced[Compacted]:
        header = parse_header(batch.payload)
        passed = self._is_over(header)
        kept = array("q")
        tombstones = 0
        lossy = False
        for some in _records(batch, self.limit):
            newest = self.highest([one.key or b"" for one in some]).tolist()
            for one, highest in zip(some, newest, strict=True):
                if one.key is not None and highest <= one.offset and (one.value is not None or not passed):
                    tombstones += one.value is None
                    lossy = lossy or any(name == LOSSY_HEADER for name, _ in one.headers)
                    kept.append(one.offset)
            yield None
        made, builder = self._decide(batch, header, len(kept), tombstones)
        if builder is None:
            return made
        if lossy:
            raise BatchInvalid("a record has headers that would change if it were encoded again")
        at = 0
        for some in _records(batch, self.limit, kept[0]):
            for one in some:
                if at < len(kept) and one.offset == kept[at]:
                    builder.add(one)
                    at += 1
            yield None
        return (yield from self._finish(made, header, builder))

    def _is_over(self, header: Header) -> bool:
        return NO_HORIZON < horizon_of(header) <= self.now_ms

    def _decide(
        self, batch: StoredBatch, header: Header, records: int, tombstones: int
    ) -> tuple[Compacted, BatchBuilder | None]:
        """Return what becomes of a batch in which so many records stay; and a builder if these are to be encoded."""
        if not records:
            return Compacted(emptied(batch.payload) if header.record_count else None, 0, NO_HORIZON), None
        header = header._replace(base_offset=batch.base_offset)
        horizon = horizon_of(header)
        if tombstones and horizon == NO_HORIZON:
            horizon = self.horizon_ms
        made = Compacted(None, records, horizon if tombstones else NO_HORIZON)
        if horizon != horizon_of(header):
            return made, builder_of(header, horizon)
        return made, None if records == header.record_count else builder_of(header, header.base_timestamp)

    def _finish(self, made: Compacted, header: Header, builder: BatchBuilder) -> Sliced[Compacted]:
        attributes = header.attributes & ~CODEC_MASK | (0 if made.horizon_ms == NO_HORIZON else DELETE_HORIZON)
        return made._replace(payload=(yield from builder.finish_in_slices(header.codec, attributes)))


def _records(batch: StoredBatch, limit: int, start: int = 0) -> Iterator[list[Record]]:
    """Yield the records from ``start`` on, some at once; an empty list where much was done. Raises BatchInvalid."""
    some: list[Record] = []
    size = 0
    for record in format_of(batch.flags).records(batch, limit, start):
        if record is not None:
            some.append(record)
            size += record.size
        if record is None or len(some) == _RECORDS_AT_ONCE or size > _BYTES_AT_ONCE:
            yield some
            some, size = [], 0
    yield some
