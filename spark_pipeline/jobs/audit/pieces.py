"""The unit of work of an audit, one piece of a partition: digests, gaps, order, checksums. It runs on any engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from bridges.errors import BatchInvalid
from bridges.formats import FormatId, format_of
from bridges.formats.base import FORMAT_MASK
from bridges.formats.codecs.compression import DEFAULT_LIMIT
from bridges.formats.kafka import LOG_OVERHEAD, parse_header
from bridges.formats.records import StoredBatch
from spark_pipeline.core.digest import ALL_FIELDS, BLOCK, BlockDigest, Digester, hashes
from spark_pipeline.core.errors import UnreadableBatch
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import endpoint

T = TypeVar("T")

PIECE = 8 * BLOCK
"""Offsets of a piece: whole blocks, so that each block's digest is made in one place."""
EXAMPLES = 100
"""Most gaps, damaged batches and the like that a report lists; beyond that it only counts them."""
_CRC_START = 21
"""Position in a Kafka batch from which on its checksum covers the bytes."""


@dataclass(frozen=True, slots=True, order=True)
class Damaged:
    """Damage at the offsets ``[offset, end)``, as far as the bounds are known; ``reason`` describes it."""

    topic: str
    partition: int
    offset: int
    end: int
    reason: str

    @classmethod
    def from_error(cls, error: UnreadableBatch) -> Damaged:
        """Return the damage that an endpoint has reported."""
        return cls(error.topic, error.partition, error.offset, error.end, error.reason)


def beyond(
    wanted: OffsetRange, read: Callable[[OffsetRange], Iterable[T]], found: Callable[[Damaged], None]
) -> Iterator[T]:
    """Yield the results of ``read`` over a range, also behind damage; ``found`` is called with each damaged range."""
    start = wanted.start
    while start < wanted.end:
        try:
            yield from read(wanted.within(start, wanted.end))
        except UnreadableBatch as error:
            found(Damaged.from_error(error))
            start = max(error.end, start + 1)
        else:
            return


def distinct(found: Iterable[Damaged]) -> list[Damaged]:
    """Return damage in order, without duplicates from several pieces of a partition or several kinds of checks."""
    told: list[Damaged] = []
    for one in sorted(found):
        last = told[-1] if told else None
        apart = last is None or (one.topic, one.partition) != (last.topic, last.partition) or one.offset > last.end
        if last is None or apart or (one.offset == last.end and one.reason != last.reason):
            told.append(one)
        elif one.end > last.end:
            told[-1] = replace(last, end=one.end)
    return told


@dataclass(frozen=True, slots=True)
class Piece:
    """A range to audit.

    ``fields`` are compared, none for counting alone; ``since_us``: only records with timestamps (microseconds) from
    then on; ``order``: also check the order of keys' times and producers' numbers; ``plain_headers``: a header without
    a value counts as one with an empty value.
    """

    url: str
    options: Mapping[str, str]
    range: OffsetRange
    fields: tuple[str, ...] = ALL_FIELDS
    since_us: int | None = None
    order: bool = False
    plain_headers: bool = False


@dataclass(slots=True)
class Seen:
    """The findings of one piece.

    ``gaps`` are ranges without records, ``repeated`` offsets that came again, ``backwards`` offsets that came after a
    higher one. ``numbers_again`` are offsets of records whose producer used the same or a higher sequence before within
    the piece. ``times_back`` counts records older than an earlier one of their key, which a writer may well intend.
    ``damaged`` are ranges that could not be read, which are no gaps.
    """

    range: OffsetRange
    blocks: dict[int, BlockDigest] = field(default_factory=dict)
    records: int = 0
    size: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    missing: int = 0
    repeated: list[int] = field(default_factory=list)
    backwards: list[int] = field(default_factory=list)
    numbers_again: list[int] = field(default_factory=list)
    times_back: int = 0
    damaged: list[Damaged] = field(default_factory=list)

    def add(self, other: Seen) -> None:
        """Add the findings of another piece of the range."""
        self.blocks.update(other.blocks)
        self.records += other.records
        self.size += other.size
        self.missing += other.missing
        self.times_back += other.times_back
        for name in ("gaps", "repeated", "backwards", "numbers_again", "damaged"):
            getattr(self, name).extend(getattr(other, name))


def pieces(range_: OffsetRange, *, cut: bool = True) -> list[OffsetRange]:
    """Cut a range at the ends of blocks, if it may be cut."""
    if not cut:
        return [range_] if range_.count else []
    bounds = [range_.start, *range((range_.start // PIECE + 1) * PIECE, range_.end, PIECE), range_.end]
    return [range_.within(start, end) for start, end in pairwise(bounds) if end > start]


def columns_of(piece: Piece) -> Columns:
    """Return the columns that have to be read for a piece."""
    wanted = {"offset", *piece.fields}
    if piece.order:
        wanted |= {"key", "timestamp", "producer", "seq"}
    if piece.since_us is not None:
        wanted.add("timestamp")
    return Columns(tuple(sorted(wanted)))


def filtered(batch: pa.RecordBatch, since_us: int | None) -> pa.RecordBatch:
    """Return the records with timestamps from ``since_us`` on."""
    if since_us is None:
        return batch
    return batch.filter(pc.greater_equal(batch.column("timestamp").cast(pa.int64()), since_us))


def plainly(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the records with empty values in place of headers' missing values."""
    column = batch.column("headers")
    flat = column.flatten()
    bounds = np.zeros(len(column) + 1, np.int32)
    np.cumsum(np.asarray(pc.fill_null(column.value_lengths(), 0)), out=bounds[1:])
    pairs = [flat.field("key"), flat.field("value").fill_null(b"")]
    kind = column.type
    made = pa.ListArray.from_arrays(
        pa.array(bounds), pa.StructArray.from_arrays(pairs, fields=list(kind.value_type)), type=kind
    )
    return batch.set_column(batch.schema.get_field_index("headers"), batch.schema.field("headers"), made)


def examine(piece: Piece) -> Seen:
    """Read a piece and return the findings, damage included. Raises PipelineError."""
    digester = Digester(piece.fields)
    seen = Seen(piece.range)
    order = _Order() if piece.order else None
    expected = piece.range.start
    columns = columns_of(piece)

    def note_damage(one: Damaged) -> None:
        nonlocal expected
        if expected < one.offset:
            _gap(seen, expected, one.offset)
        expected = max(expected, min(one.end, piece.range.end))
        seen.damaged.append(one)

    with closing(endpoint(piece.url, piece.options)) as source:
        for whole in beyond(piece.range, lambda rest: source.read(rest, columns), note_damage):
            batch = filtered(whole, piece.since_us)
            if piece.plain_headers and "headers" in piece.fields:
                batch = plainly(batch)
            if not batch.num_rows:
                continue
            offsets = np.asarray(batch.column("offset"))
            seen.records += batch.num_rows
            seen.size += batch.nbytes
            expected = _places(seen, offsets, expected)
            # Without fields all hashes are 0: digests then cover only numbers and offsets.
            of = hashes(batch, piece.fields) if piece.fields else np.zeros(batch.num_rows, np.uint64)
            digester.add_hashes(offsets, of)
            if order is not None:
                order.add(seen, batch)
    if expected < piece.range.end:
        _gap(seen, expected, piece.range.end)
    seen.blocks = digester.blocks
    return seen


def _gap(seen: Seen, start: int, end: int) -> None:
    seen.missing += end - start
    if len(seen.gaps) < EXAMPLES:
        seen.gaps.append((start, end))


def _places(seen: Seen, offsets: npt.NDArray[np.int64], expected: int) -> int:
    """Record gaps and offsets out of order; return the offset that should come next."""
    before = np.concatenate([[expected - 1], offsets[:-1]])
    if (offsets - before == 1).all():
        return int(offsets[-1]) + 1
    highest = np.maximum.accumulate(before)
    for at in np.flatnonzero(offsets - highest != 1):
        offset, high = int(offsets[at]), int(highest[at])
        if offset > high:
            _gap(seen, high + 1, offset)
        elif offset == high:
            seen.repeated.append(offset)
        else:
            seen.backwards.append(offset)
    return max(expected, int(offsets.max()) + 1)


class _Order:
    """The sequences of producers and the times of keys within one piece."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._times: dict[bytes, int] = {}

    def add(self, seen: Seen, batch: pa.RecordBatch) -> None:
        offsets = batch.column("offset").to_pylist()
        producers, numbers = batch.column("producer"), batch.column("seq")
        if producers.null_count < batch.num_rows and numbers.null_count < batch.num_rows:
            for offset, producer, number in zip(offsets, producers.to_pylist(), numbers.to_pylist(), strict=True):
                if producer is None or number is None:
                    continue
                before = self._numbers.get(producer)
                # Kafka's numbers begin anew with each epoch of a producer, at 0, and after 2^31 - 1.
                if before is not None and number <= before and number != 0 and len(seen.numbers_again) < EXAMPLES:
                    seen.numbers_again.append(offset)
                self._numbers[producer] = number
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        for key, moment in zip(batch.column("key").to_pylist(), times, strict=True):
            if key is None:
                continue
            if moment < self._times.get(key, moment):
                seen.times_back += 1
            else:
                self._times[key] = moment


@dataclass(slots=True)
class Checked:
    """The result of checking a piece's batches; ``unchecked`` counts batches of formats without checksums."""

    range: OffsetRange
    batches: int = 0
    unchecked: int = 0
    size: int = 0
    damaged: list[Damaged] = field(default_factory=list)


def check(piece: Piece) -> Checked:
    """Compare each stored batch of a piece with its own checksum, and decode all of it. Raises PipelineError."""
    checked = Checked(piece.range)
    with closing(endpoint(piece.url, piece.options)) as source:
        for batch in beyond(piece.range, source.read_raw, checked.damaged.append):
            checked.batches += 1
            checked.size += len(batch.payload)
            if batch.flags & FORMAT_MASK in (FormatId.RAW, FormatId.LEDGER_NOTE):
                checked.unchecked += 1
            reason = damage(batch)
            if reason is not None:
                of = piece.range.part
                checked.damaged.append(Damaged(of.topic, of.partition, batch.base_offset, batch.end_offset, reason))
    return checked


def damage(batch: StoredBatch) -> str | None:
    """Return what is wrong with a stored batch; None if it is undamaged."""
    try:
        form = batch.flags & FORMAT_MASK
        if form == FormatId.KAFKA:
            header = parse_header(batch.payload)
            if header.length + LOG_OVERHEAD != len(batch.payload):
                return f"its header tells {header.length + LOG_OVERHEAD} bytes, it has {len(batch.payload)}"
            if crc32c(memoryview(batch.payload)[_CRC_START:]) != header.crc:
                return "its checksum does not match its bytes"
            if header.base_offset != batch.base_offset:
                return f"its header tells the offset {header.base_offset}"
        plug = format_of(form)
        if not plug.describe(batch.payload).control:
            for _ in plug.records(batch, DEFAULT_LIMIT):
                pass
    except BatchInvalid as error:
        return str(error)
    return None
