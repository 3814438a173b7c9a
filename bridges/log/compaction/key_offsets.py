"""A table of the highest offset of each key, in a bounded number of bytes.

It knows keys by 16 bytes of a hash. Each table has its own hash key, so that nobody can choose keys that collide. Two
colliding keys would be taken for one; that happens in one of 10^26 pairs of tables with a million keys each.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from struct import Struct

_TWO = Struct("=qq").unpack
SLOT_BYTES = 24
_FULL = 0.8
"""Share of the slots that are used: beyond it a lookup takes many steps."""


class KeyOffsets:
    """A table of ``size_bytes``. It may be used in any thread, by one thread at a time."""

    __slots__ = ("_begun", "_cells", "_most", "_slots", "_used")

    def __init__(self, size_bytes: int) -> None:
        self._slots = max(8, size_bytes // SLOT_BYTES)
        self._most = int(self._slots * _FULL)
        self._used = 0
        # Begun once: beginning anew would be half the work of each hash.
        self._begun = blake2b(digest_size=16, key=os.urandom(16))
        # Two halves of a hash, and the offset plus one: 0 is an empty slot.
        self._cells = memoryview(bytearray(self._slots * SLOT_BYTES)).cast("q")

    def __len__(self) -> int:
        return self._used

    @classmethod
    def bytes_for(cls, keys: int) -> int:
        """Return the bytes of a table that has room for ``keys``."""
        return (int(keys / _FULL) + 2) * SLOT_BYTES

    def _place(self, key: bytes | bytearray | memoryview) -> tuple[int, int, int, int]:
        """Return (index of the key's cells, known offset plus one, both halves of the hash)."""
        hashed = self._begun.copy()
        hashed.update(key)
        high, low = _TWO(hashed.digest())
        cells = self._cells
        at = high % self._slots * 3
        end = self._slots * 3
        while True:
            known = cells[at + 2]
            if not known or (cells[at] == high and cells[at + 1] == low):
                return at, known, high, low
            at += 3
            if at == end:
                at = 0

    def put(self, key: bytes | bytearray | memoryview, offset: int) -> bool:
        """Note ``key`` at ``offset``. Return False when there is no room for another key."""
        at, known, high, low = self._place(key)
        cells = self._cells
        if not known:
            if self._used >= self._most:
                return False
            self._used += 1
            cells[at], cells[at + 1] = high, low
        if offset >= known:
            cells[at + 2] = offset + 1
        return True

    def highest(self, key: bytes | bytearray | memoryview) -> int:
        """Return the highest offset of ``key``; -1 if the table does not have it."""
        return self._place(key)[1] - 1
