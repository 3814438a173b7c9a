"""Search for the first offset at which two copies of a partition differ, inside a block whose digests differ.

Two ordered copies have the same digest of a prefix exactly if the prefix is the same. So digests of halves, which each
side may compute at its own place, locate the half with the first difference. Only the last few hundred records are
compared one by one.
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
"""Offsets per block, so large that one block holds every offset."""
FEW = 512
"""Offsets that are compared record by record instead of being halved again."""

DigestOf = Callable[[int, int], BlockDigest]
"""The digest of the records at the offsets ``[start, end)``, over the boundaries of blocks too."""
RecordsOf = Callable[[int, int], list[pa.RecordBatch]]
"""The records at the offsets ``[start, end)`` in the order in which they are kept; one batch at least, if of none."""


@dataclass(frozen=True, slots=True)
class BadOffset:
    """The first offset at which two copies differ, the reason, and the record on either side."""

    offset: int
    reason: str
    left: dict[str, Any] | None
    right: dict[str, Any] | None


def range_digest(batches: list[pa.RecordBatch], fields: tuple[str, ...] = ALL_FIELDS) -> BlockDigest:
    """Return one digest of all records in ``batches``."""
    return digest(batches, fields, _WHOLE).get(0, BlockDigest())


def narrow(left: DigestOf, right: DigestOf, start: int, end: int, few: int = FEW) -> tuple[int, int] | None:
    """Return the at most ``few`` offsets of ``[start, end)`` that hold the first difference; None if there is none."""
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
    """Find the first difference between two copies in ``[start, end)``.

    Returns the start of the at most ``few`` offsets that hold it, and the difference itself (None if it has gone away
    meanwhile); None if the copies are the same.
    """
    span = narrow(
        lambda low, high: range_digest(left(low, high), fields),
        lambda low, high: range_digest(right(low, high), fields),
        start,
        end,
        few,
    )
    return None if span is None else (span[0], first_bad(joined(left(*span)), joined(right(*span)), fields))


def first_bad(left: pa.RecordBatch, right: pa.RecordBatch, fields: tuple[str, ...] = ALL_FIELDS) -> BadOffset | None:
    """Return the first difference between the records of the same range in two copies; None if there is none.

    Records are compared in order: a missing, doubled or added record is named by the offset that should have come
    there.
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
    row_here = _show(left, at)
    row_there = _show(right, at)
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


def _show(batch: pa.RecordBatch, at: int) -> dict[str, Any] | None:
    """Return a record for a report: bytes as text where they are valid UTF-8, at most 200 of them."""
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
