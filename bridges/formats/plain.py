"""The short way between formats, for what most batches are: each offset has a record, and that is a key or none, a
value and a time.

A :class:`bridges.formats.records.Record` for each costs more than its bytes do. So a format may hand out the records of
such a batch in columns, a bounded number at a time (``plain``), and a builder may take them so (``add_plain``). A batch
that has anything else, or is malformed, is begun anew the long way: so there is one place that knows of all else, and
the short way never has to be exact about what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from bridges.formats.compression import DEFAULT_LIMIT
from bridges.formats.records import StoredBatch

CHUNK = 128 * 1024
"""Bytes that are looked at in one step."""
AT_ONCE = 500
"""Records of one step: each takes some two microseconds with its way into another format."""


class Plain(NamedTuple):
    """Records one behind another, from the offset ``first`` on. ``keys`` is None where none has one; ``sequences`` are
    -1 where there are none."""

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
    """A format that has a short way."""

    def plain(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT) -> Iterator[Plain | None]:
        """All records of a batch from its first offset to its last, one part after another. It ends before that where
        one of them is not plain, missing, or malformed. None stands where much was done. Raises BatchInvalid."""


@runtime_checkable
class PlainBuilder(Protocol):
    """A builder that takes the short way, from its first offset on."""

    def add_plain(self, plain: Plain) -> None: ...


def numbers(first: int, count: int) -> Sequence[int]:
    """``count`` sequence numbers from ``first`` on, or none if that is none."""
    return range(first, first + count) if first >= 0 else (-1,) * count
