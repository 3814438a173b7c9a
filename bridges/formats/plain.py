"""The short way between formats, for the shape of most batches: each offset has a record, which is a key or none, a
value and a time.

A :class:`bridges.formats.records.Record` for each costs more than the bytes do. So a format may return the records of
such a batch in columns, a bounded number at a time (``plain``), and a builder may accept columns (``add_plain``). A
batch with anything else in it, or a malformed one, is translated again from its beginning, record by record. So only
one place handles everything else, and the short way need not report precisely what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from bridges.formats.compression import DEFAULT_LIMIT
from bridges.formats.records import StoredBatch

CHUNK = 128 * 1024
"""Bytes parsed in one step."""
AT_ONCE = 500
"""Records in one step: each takes some two microseconds, encoding included."""


class Plain(NamedTuple):
    """Consecutive records from the offset ``first`` on, in columns. ``keys`` is None if no record has one;
    ``sequences`` are -1 where there are none."""

    first: int
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]
    timestamps: Sequence[int]
    sequences: Sequence[int]
    producer: str | None

    @property
    def end(self) -> int:
        return self.first + len(self.values)


@runtime_checkable
class PlainSource(Protocol):
    """A format that can return records in columns."""

    def plain(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT) -> Iterator[Plain | None]:
        """Yield all records of a batch from its first offset to its last, in parts. The iteration ends early at a
        record that is not plain, missing, or malformed. None comes where much was done. Raises BatchInvalid."""


@runtime_checkable
class PlainBuilder(Protocol):
    """A builder that accepts records in columns, from its first offset on."""

    def add_plain(self, plain: Plain) -> None: ...


def numbers(first: int, count: int) -> Sequence[int]:
    """Return ``count`` sequence numbers from ``first`` on; -1 for each if ``first`` is below 0."""
    return range(first, first + count) if first >= 0 else (-1,) * count
