"""Decoded records as columns, and the bodies of batches that they come from."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, Self

import numpy as np

from bridges.formats.base import APPEND_TIME
from bridges.formats.columns import Unusual
from bridges.formats.columns.varints import Bools, Int64s, Numbers
from bridges.formats.records import Buffer, StoredBatch

STEP_RECORDS = 2000


@dataclass(slots=True)
class Fields:
    """Byte strings in a buffer: field ``i`` is ``[starts[i], ends[i])``, in order and without overlap.

    ``missing`` marks the fields that are null; None: none is.
    """

    data: bytes
    starts: Int64s
    ends: Int64s
    missing: Bools | None = None

    @property
    def sizes(self) -> Int64s:
        return self.ends - self.starts

    def take(self, chosen: Int64s) -> Fields:
        missing = None if self.missing is None else self.missing[chosen]
        return Fields(self.data, self.starts[chosen], self.ends[chosen], missing)

    def present(self) -> tuple[Int64s, list[bytes]]:
        """Return the fields that are not null, with their indices."""
        chosen = np.arange(len(self.starts)) if self.missing is None else np.flatnonzero(~self.missing)
        bounds = zip(self.starts[chosen].tolist(), self.ends[chosen].tolist(), strict=True)
        return chosen, [self.data[start:end] for start, end in bounds]


Headers = tuple[Int64s, Fields, Fields]
"""Names and values: record ``i`` has those from ``first[i]`` to ``first[i + 1]``, ``first`` being the first array."""


def take_headers(headers: Headers, chosen: Int64s) -> Headers:
    """Return the headers of the records at ``chosen``."""
    first, names, values = headers
    begins = first[chosen]
    counts = first[chosen + 1] - begins
    bounds = np.concatenate(([0], np.cumsum(counts)))
    which = np.arange(bounds[-1]) + np.repeat(begins - bounds[:-1], counts)
    return bounds, names.take(which), values.take(which)


@dataclass(slots=True)
class Rows:
    """Records of one or several batches, in order. Timestamps are in ms; those and sequences are -1 where unknown.

    ``keys`` and ``headers`` are None if no record has one; headers are read when they are asked for, which may raise
    Unusual. ``behind`` is the position in the bytes at which the last record ends.
    """

    numbers: Numbers
    offsets: Int64s
    timestamps: Int64s
    sequences: Int64s
    keys: Fields | None
    values: Fields
    headers: Callable[[], Headers] | None
    behind: int

    def __len__(self) -> int:
        return len(self.offsets)

    def take(self, chosen: Int64s) -> Rows:
        """Return the records at ``chosen``. Raises Unusual for headers that cannot be read."""
        headers = None if self.headers is None else partial(take_headers, self.headers(), chosen)
        return Rows(
            self.numbers,
            self.offsets[chosen],
            self.timestamps[chosen],
            self.sequences[chosen],
            None if self.keys is None else self.keys.take(chosen),
            self.values.take(chosen),
            headers,
            self.behind,
        )


@dataclass(slots=True, kw_only=True)
class Body:
    """The records of a batch, decompressed if its format compresses whole batches; or a part of them."""

    batch: StoredBatch
    data: Buffer
    """Bytes that begin with a record."""
    count: int
    """Number of records."""
    first: int = 0
    """Number of records of the batch in front of these."""
    skipped: int = 0
    """Bytes of the batch's records in front of these."""

    def part(self, data: Buffer, number: int, position: int) -> Self:
        """Return the records from ``number`` of these on: their bytes, a part of which ``data`` is, begin at
        ``position``."""
        return replace(self, data=data, count=self.count - number, first=number, skipped=position)

    @property
    def step_records(self) -> int:
        """Return the most records that are decoded in one step, which takes some two milliseconds."""
        return STEP_RECORDS

    @property
    def producer(self) -> str | None:
        """Return the batch's producer, as :attr:`bridges.formats.records.Record.producer`."""
        raise NotImplementedError

    @property
    def written(self) -> int:
        """Return when the log stored the batch, in ms; -1 unknown."""
        return self.batch.written_ms

    @property
    def late(self) -> bool:
        """Return whether the records' timestamps are those of the log."""
        return self.batch.flags & APPEND_TIME != 0


class Arrays(Protocol):
    """A module that decodes and encodes batches of one format."""

    def open_body(self, batch: StoredBatch, limit: int) -> Generator[None, None, Body | None]:
        """Return the batch's checked body, yielding now and then; None for a batch that holds no records for readers.

        Raises BatchInvalid, and Unusual.
        """

    def decode(self, bodies: Sequence[Any], partial: bool) -> Rows:
        """Return the records of ``bodies``, at least one. ``partial``: those of the only body that are complete. Raises
        Unusual, and IndexError for bytes that end too early."""

    def encode(
        self, builders: Sequence[Any], rows: Rows, counts: Sequence[int], producers: Sequence[str | None]
    ) -> None:
        """Add ``rows`` to builders of the format: to each as many as its count. Raises Unusual."""


def distinct(names: Fields) -> set[str]:
    """Return the names, each once. Raises Unusual if one is not UTF-8."""
    data, bounds = names.data, zip(names.starts.tolist(), names.ends.tolist(), strict=True)
    try:
        return {name.decode() for name in {data[begin:end] for begin, end in bounds}}
    except UnicodeDecodeError:
        raise Unusual from None


def decode(arrays: Arrays, bodies: Sequence[Body], partial: bool = False) -> Rows:
    """Return the records of ``bodies`` with the timestamps that their topic demands. Raises Unusual."""
    try:
        rows = arrays.decode(bodies, partial)
    except IndexError:
        raise Unusual from None
    stamped = [body.batch.flags & APPEND_TIME != 0 for body in bodies]
    if any(stamped):
        written = spread(bodies, [body.batch.written_ms for body in bodies], len(rows))
        rows.timestamps = np.where(spread(bodies, stamped, len(rows)), written, rows.timestamps)
    return rows


def spread(bodies: Sequence[Body], values: Sequence[int], count: int) -> Int64s:
    """Repeat each body's number for each of its records, of which there are ``count``."""
    if len(bodies) == 1:
        return np.full(count, values[0], np.int64)
    return np.repeat(np.array(values, np.int64), [body.count for body in bodies])
