"""From a block whose digests differ to the first offset at which two copies of a partition do.

Of two ordered copies the digests of a beginning are the same exactly if nothing in it differs. So the half of a range
that holds the first difference is found by digests of halves, which the two sides may compute wherever they are, and
only the last few hundred records are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from spark_pipeline.core.digest import ALL_FIELDS, BlockDigest, digest, hashes
from spark_pipeline.core.rows import joined

_WHOLE = 1 << 62
"""Offsets of a block that has all of them."""
FEW = 512
"""Offsets that are compared record by record instead of being halved again."""

DigestOf = Callable[[int, int], BlockDigest]
"""The digest of the records at the offsets ``[start, end)``, over the boundaries of blocks too."""
RecordsOf = Callable[[int, int], list[pa.RecordBatch]]
"""The records at the offsets ``[start, end)`` in the order in which they are kept; one batch at least, if of none."""


@dataclass(frozen=True, slots=True)
class BadOffset:
    """The first offset at which two copies differ, and how: ``left`` and ``right`` show the record on either side."""

    offset: int
    reason: str
    left: dict[str, Any] | None
    right: dict[str, Any] | None


def range_digest(batches: list[pa.RecordBatch], fields: tuple[str, ...] = ALL_FIELDS) -> BlockDigest:
    """One digest of all records in ``batches``."""
    return digest(batches, fields, _WHOLE).get(0, BlockDigest())


def narrow(left: DigestOf, right: DigestOf, start: int, end: int, few: int = FEW) -> tuple[int, int] | None:
    """The at most ``few`` offsets of ``[start, end)`` that hold the first difference; None if there is none."""
    if left(start, end) == right(start, end):
        return None
    while end - start > few:
        middle = start + (end - start) // 2
        if left(start, middle) == right(start, middle):
            start = middle
        else:
            end = middle
    return start, end


def first_bad_in(
    left: RecordsOf, right: RecordsOf, start: int, end: int, fields: tuple[str, ...] = ALL_FIELDS, few: int = FEW
) -> tuple[int, BadOffset | None] | None:
    """Where the at most ``few`` offsets of ``[start, end)`` begin that hold the first difference, and what it is, None
    if it went away meanwhile; None if there is none."""
    span = narrow(
        lambda low, high: range_digest(left(low, high), fields),
        lambda low, high: range_digest(right(low, high), fields),
        start,
        end,
        few,
    )
    return None if span is None else (span[0], first_bad(joined(left(*span)), joined(right(*span)), fields))


def first_bad(left: pa.RecordBatch, right: pa.RecordBatch, fields: tuple[str, ...] = ALL_FIELDS) -> BadOffset | None:
    """The first difference between the records of the same range in two copies; None if there is none.

    Records are compared in order: a missing, doubled or added one is named by the offset that should have come there.
    """
    here, there = np.asarray(left.column("offset")), np.asarray(right.column("offset"))
    hash_here, hash_there = hashes(left, fields), hashes(right, fields)
    common = min(len(here), len(there))
    unlike = np.flatnonzero((here[:common] != there[:common]) | (hash_here[:common] != hash_there[:common]))
    if len(unlike):
        at = int(unlike[0])
    elif len(here) != len(there):
        at = common
    else:
        return None
    row_here = _shown(left, at)
    row_there = _shown(right, at)
    offset_here = int(here[at]) if at < len(here) else None
    offset_there = int(there[at]) if at < len(there) else None
    if offset_here is not None and offset_here == offset_there:
        names = [name for name in fields if left.column(name)[at].as_py() != right.column(name)[at].as_py()]
        return BadOffset(offset_here, f"{', '.join(names) or 'contents'} differ", row_here, row_there)
    for offset, where, before, row_left, row_right in (
        (offset_here, "left", here[:at], row_here, None),
        (offset_there, "right", there[:at], None, row_there),
    ):
        if offset is not None and at and offset <= int(before[-1]):
            kind = "twice" if offset == int(before[-1]) else "out of order"
            return BadOffset(offset, f"{kind} on the {where}", row_left, row_right)
    if offset_there is None or (offset_here is not None and offset_here < offset_there):
        assert offset_here is not None
        return BadOffset(offset_here, "missing on the right", row_here, None)
    return BadOffset(offset_there, "missing on the left", None, row_there)


def _shown(batch: pa.RecordBatch, at: int) -> dict[str, Any] | None:
    """A record for a report: bytes as text where they are text, at most 200 of them."""
    if at >= batch.num_rows:
        return None
    row: dict[str, Any] = batch.slice(at, 1).to_pylist()[0]
    return {name: _plain(value) for name, value in row.items() if name not in {"topic", "partition"}}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value[:200].decode()
        except UnicodeDecodeError:
            return "0x" + value[:100].hex()
    if isinstance(value, list):
        return [{name: _plain(one) for name, one in header.items()} for header in value]
    if value is None or isinstance(value, (int, str)):
        return value
    return str(value)
