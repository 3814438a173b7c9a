"""The writers of one kind in one partition: a row of bytes for each, in the order of last use."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bridges.formats.producer import Stamp
    from bridges.log.ledger.rules import Last, Repeated, Rule, Skip, Unproven

SLICE = 1000
"""Writers handled in one turn of the event loop: clients choose how many there are."""

ENTRY = struct.Struct(">HH")
"""Bytes of a key and of its row, which follow."""
LAST_MS = struct.Struct(">q")
"""The first field of every row."""


class LedgerTable:
    """The rows of the writers of one kind, at most ``limit``; the longest idle make room."""

    __slots__ = ("_check", "_frozen", "_record", "_rule", "limit", "rows")

    def __init__(self, rule: Rule, limit: int, rows: dict[bytes, bytes] | None = None) -> None:
        self.limit = limit
        self._rule = rule
        self._check = rule.check
        self._record = rule.record
        # Insertion order is order of last use, so the longest idle writer is always the first. An empty row, which
        # exists only while a snapshot is read out, marks a new writer whose batch was taken back.
        self.rows: dict[bytes, bytes] = {} if rows is None else rows
        # While a snapshot is read out: the captured rows, unchanged; ``rows`` has the later ones.
        self._frozen: dict[bytes, bytes] | None = None
        self.shrink(limit)

    def __len__(self) -> int:
        """Return the number of known writers; while a snapshot is read out, some may count twice."""
        return len(self.rows) + (len(self._frozen) if self._frozen is not None else 0)

    def row(self, key: bytes) -> bytes | None:
        """Return a writer's row, in the form of its rule; None for an unknown writer."""
        row = self.rows.get(key)
        if row is None and self._frozen is not None:
            row = self._frozen.get(key)
        return row or None

    def last(self, key: bytes) -> Last | None:
        """Return a writer's last number, even if its batch is still in flight; None for an unknown writer."""
        row = self.row(key)
        return None if row is None else self._rule.last(row)

    def last_of(self, row: bytes) -> Last | None:
        return self._rule.last(row)

    def writers(self) -> list[bytes]:
        """Return all known writers, the longest idle first."""
        written = [key for key, row in self.rows.items() if row]
        if self._frozen is None:
            return written
        return [*(one for one in self._frozen if one not in self.rows), *written]

    def check(self, key: bytes, stamp: Stamp) -> Repeated | Skip | Unproven | None:
        """Return None if this batch may be appended next; see :class:`bridges.log.ledger.rules.Rule`, also for
        errors."""
        row = self.rows.get(key)
        if row is None and self._frozen is not None:
            row = self._frozen.get(key)
        return self._check(row or None, stamp)

    def record(self, key: bytes, stamp: Stamp, base_offset: int, now_ms: int) -> bytes | None:
        """Remember a batch that was appended at ``base_offset``; return the replaced row, for :meth:`take_back`."""
        rows = self.rows
        row = rows.pop(key, None)
        if row is None and self._frozen is not None:
            row = self._frozen.get(key)
        row = row or None
        rows[key] = self._record(row, stamp, base_offset, now_ms)
        if len(rows) > self.limit:
            self.shrink(self.limit)
        return row

    def take_back(self, key: bytes, replaced: bytes | None) -> None:
        """Undo :meth:`record`, which returned ``replaced``, for a batch that could not be stored; the latest record
        first."""
        if replaced is not None:
            self.rows[key] = replaced
        elif self._frozen is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = b""

    def shrink(self, writers: int) -> int:
        """Forget the longest idle beyond ``writers``; return how many. Does nothing while a snapshot is read out, whose
        end shrinks the table."""
        if self._frozen is not None or len(self.rows) <= writers:
            return 0
        # Remove some more than necessary: finding the first key costs more, the more keys were removed before it.
        surplus = len(self.rows) - writers + (writers >> 7)
        for key in list(islice(self.rows, surplus)):
            del self.rows[key]
        return surplus

    def expire(self, before_ms: int) -> int:
        """Forget writers idle since ``before_ms``, at most :data:`SLICE`; return how many.

        Reads only these and one more, because the longest idle come first. Nothing expires while a snapshot is read
        out.
        """
        if self._frozen is not None:
            return 0
        idle: list[bytes] = []
        for key, row in self.rows.items():
            if len(idle) >= SLICE or LAST_MS.unpack_from(row)[0] >= before_ms:
                break
            idle.append(key)
        for key in idle:
            del self.rows[key]
        return len(idle)

    def capture(self, durable: Mapping[bytes, bytes | None]) -> TableCapture:
        """Capture the present state, which can be read out while writing goes on. Close it; one at a time.

        ``durable``: rows of writers with batches in flight, as they were before these, because a snapshot must not
        vouch for what may not become durable.
        """
        if self._frozen is not None:
            raise RuntimeError("another snapshot of this ledger is being read out")
        return TableCapture(self, durable)

    def _freeze(self) -> dict[bytes, bytes]:
        self._frozen, self.rows = self.rows, {}
        return self._frozen

    def _thaw(self) -> None:
        written, self.rows, self._frozen = self.rows, self._frozen or {}, None
        for key, row in written.items():
            self.rows.pop(key, None)  # moves it to its place in the order
            if row:
                self.rows[key] = row
        self.shrink(self.limit)


class TableCapture:
    """A table as it was at one instant."""

    __slots__ = ("_durable", "_table", "rows")

    def __init__(self, table: LedgerTable, durable: Mapping[bytes, bytes | None]) -> None:
        self._table: LedgerTable | None = table
        self._durable = durable
        self.rows = iter(table._freeze().items())

    def pieces(self) -> Iterator[bytes]:
        """Yield everything, :data:`SLICE` writers at a time: keys and rows, each behind an :data:`ENTRY`."""
        durable = self._durable
        pack = ENTRY.pack
        while rows := list(islice(self.rows, SLICE)):
            told = [(key, durable.get(key, row)) for key, row in rows] if durable else rows
            yield b"".join([part for key, row in told if row for part in (pack(len(key), len(row)), key, row)])

    def close(self) -> None:
        """Release the table. Idempotent."""
        table, self._table = self._table, None
        if table is not None:
            table._thaw()
