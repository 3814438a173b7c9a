"""The first offset at which two readings of the same range differ, found by reading both side by side once.

For systems whose ranges cannot be cut: elsewhere :mod:`spark_pipeline.core.bisect` reads less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from spark_pipeline.core.digest import ALL_FIELDS, Hashes, Offsets, hashes


def first_unlike(
    left: Iterable[pa.RecordBatch], right: Iterable[pa.RecordBatch], fields: tuple[str, ...] = ALL_FIELDS
) -> tuple[int, str] | None:
    """The first offset that is not the same on both sides, and what is wrong with it; None if nothing is."""
    sides = (_Side(left, fields), _Side(right, fields))
    while True:
        one, other = (side.some() for side in sides)
        if one is None and other is None:
            return None
        if other is None or (one is not None and other is not None and one[0][0] < other[0][0]):
            assert one is not None
            return int(one[0][0]), "missing on the right"
        if one is None or other[0][0] < one[0][0]:
            return int(other[0][0]), "missing on the left"
        count = min(len(one[0]), len(other[0]))
        places = np.flatnonzero(one[0][:count] != other[0][:count])
        contents = np.flatnonzero(one[1][:count] != other[1][:count])
        same = int(min(places[0] if len(places) else count, contents[0] if len(contents) else count))
        if same < count and (not len(places) or contents[0] < places[0]):
            return int(one[0][same]), "contents differ"
        for side in sides:
            side.pass_over(same if same < count else count)


class _Side:
    """What was read of one side and is not compared yet."""

    def __init__(self, batches: Iterable[pa.RecordBatch], fields: tuple[str, ...]) -> None:
        self._batches: Iterator[pa.RecordBatch] = iter(batches)
        self._fields = fields
        self._offsets: Offsets = np.empty(0, np.int64)
        self._hashes: Hashes = np.empty(0, np.uint64)

    def some(self) -> tuple[Offsets, Hashes] | None:
        """The next offsets and hashes, at least one; None at the end."""
        while not len(self._offsets):
            batch = next(self._batches, None)
            if batch is None:
                return None
            self._offsets = np.asarray(batch.column("offset"))
            self._hashes = hashes(batch, self._fields)
        return self._offsets, self._hashes

    def pass_over(self, count: int) -> None:
        """These are the same."""
        self._offsets, self._hashes = self._offsets[count:], self._hashes[count:]
