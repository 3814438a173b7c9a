"""The highest offset of each of many keys, in a bounded number of bytes.

Keys are known by 16 bytes of a hash, which is keyed anew for each table, so that nobody can choose keys that meet: two
that are alike would be taken for one, which happens to one in 10^26 pairs of tables with a million keys each.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from struct import Struct

_TWO = Struct("=qq").unpack
SLOT_BYTES = 24
_FULL = 0.8
"""Share of the slots that are used: beyond it looking for a key takes many steps."""


class KeyOffsets:
    """A table of ``size_bytes``. May be used in any thread, by one at a time."""

    __slots__ = ("_begun", "_cells", "_most", "_slots", "_used")

    def __init__(self, size_bytes: int) -> None:
        self._slots = max(8, size_bytes // SLOT_BYTES)
        self._most = int(self._slots * _FULL)
        self._used = 0
        # Begun once: of each hash that would be half the work.
        self._begun = blake2b(digest_size=16, key=os.urandom(16))
        # Two halves of a hash, and the offset plus one: 0 is an empty slot.
        self._cells = memoryview(bytearray(self._slots * SLOT_BYTES)).cast("q")

    def __len__(self) -> int:
        return self._used

    @classmethod
    def bytes_for(cls, keys: int) -> int:
        """Bytes of a table that has room for ``keys``."""
        return (int(keys / _FULL) + 2) * SLOT_BYTES

    def _place(self, key: bytes | bytearray | memoryview) -> tuple[int, int, int, int]:
        """(where in the cells the key is or would be, offset plus one that is known, two halves of the hash)."""
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
        """There is ``key`` at ``offset``. False when there is no room for another key."""
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
        """The highest offset at which there is ``key``; -1 where none was told."""
        return self._place(key)[1] - 1
