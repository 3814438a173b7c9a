"""A table of the highest offset of each key, in a bounded number of bytes.

It knows keys by 16 bytes of a hash. Each table has its own hash key, so that nobody can choose keys that collide. Two
colliding keys would be taken for one; that happens in one of 10^26 pairs of tables with a million keys each.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bridges.formats.columns.varints import Int64s

SLOT_BYTES = 24
_FULL = 0.8
"""Share of the slots that are used: beyond it a lookup takes many steps."""


class KeyOffsets:
    """A table of ``size_bytes``. It may be used in any thread, by one thread at a time; the first use of keys imports
    numpy."""

    __slots__ = ("_begun", "_cells", "_most", "_slots", "_used")

    def __init__(self, size_bytes: int) -> None:
        self._slots = max(8, size_bytes // SLOT_BYTES)
        self._most = int(self._slots * _FULL)
        self._used = 0
        # Begun once: beginning anew would be half the work of each hash.
        self._begun = blake2b(digest_size=16, key=os.urandom(16))
        self._cells = bytearray(self._slots * SLOT_BYTES)

    def __len__(self) -> int:
        return self._used

    @classmethod
    def bytes_for(cls, keys: int) -> int:
        """Return the bytes of a table that has room for ``keys``."""
        return (int(keys / _FULL) + 2) * SLOT_BYTES

    def put(self, keys: Sequence[bytes], offsets: Int64s) -> int:
        """Note each key at its offset, from the first on, as far as there is room. Return how many were noted."""
        import numpy as np

        hashes, at = self._places(keys)
        cells = self._cells_as_array()
        noted = len(keys)
        room = self._most - self._used
        if noted > room:
            new = np.flatnonzero(self.highest(keys) < 0)
            _, first = np.unique(hashes[new], axis=0, return_index=True)
            if len(first) > room:
                noted = int(new[np.sort(first)[room]])
        left = np.arange(noted)
        while len(left):
            free = left[cells[at[left], 2] == 0]
            if len(free):
                slots, first = np.unique(at[free], return_index=True)
                which = free[first]
                cells[slots, :2], cells[slots, 2] = hashes[which], offsets[which] + 1
                self._used += len(slots)
            same = (cells[at[left], :2] == hashes[left]).all(1)
            np.maximum.at(cells[:, 2], at[left[same]], offsets[left[same]] + 1)
            left = left[~same]
            at[left] = (at[left] + 1) % self._slots
        return noted

    def highest(self, keys: Sequence[bytes]) -> Int64s:
        """Return the highest offset of each key; -1 if the table does not have it."""
        import numpy as np

        hashes, at = self._places(keys)
        cells = self._cells_as_array()
        highest = np.full(len(keys), -1, np.int64)
        left = np.arange(len(keys))
        while len(left):
            found = cells[at[left]]
            same = (found[:, :2] == hashes[left]).all(1)
            highest[left[same]] = found[same, 2] - 1
            left = left[~same & (found[:, 2] != 0)]
            at[left] = (at[left] + 1) % self._slots
        return highest

    def _places(self, keys: Sequence[bytes]) -> tuple[Int64s, Int64s]:
        """Return both halves of each key's hash, and the slot at which to look first."""
        import numpy as np

        digests = []
        for key in keys:
            hashed = self._begun.copy()
            hashed.update(key)
            digests.append(hashed.digest())
        hashes = np.frombuffer(b"".join(digests), np.int64).reshape(-1, 2)
        return hashes, hashes[:, 0] % self._slots

    def _cells_as_array(self) -> Int64s:
        """Return a row for each slot: two halves of a hash, and the offset plus one; 0 for an empty slot."""
        import numpy as np

        return np.frombuffer(self._cells, np.int64).reshape(-1, 3)
