"""Deduplication in one partition: the last writes of every writer, of every kind (docs/design.md, "Writing").

This is the one place that finds repetitions, whichever protocol they come through. The rule of a kind decides what is
remembered of its writers, and what that means for their next batch (bridges/log/ledger/rules.py). The ledger is pure
state: the partition log feeds it in append order, at run time and when rebuilding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from bridges.errors import ProducerFenced
from bridges.formats.producer import LedgerKind, producer_key
from bridges.log.ledger.rules import KEPT, RULES, Last, Rule, epoch_of
from bridges.log.ledger.table import ENTRY, LAST_MS, SLICE, LedgerTable, TableCapture
from sbp_back.errors import DecodeError

if TYPE_CHECKING:
    from bridges.formats.producer import InTransaction, Stamp

__all__ = ["SLICE", "Durable", "KindLimits", "Ledger", "LedgerCapture", "LedgerOptions"]

Durable = Mapping[tuple[int, bytes], bytes | None]
"""For each (kind, key) with batches in flight, the row before these batches."""

_SECTION = struct.Struct(">BI")
"""Kind of the writers that follow, and their bytes."""
_FORMER_HEAD = struct.Struct(">qhqB")
"""Beginning of a row in version 2 of the stored form, which had only Kafka's producers: producer id, epoch, wall clock,
number of batches."""
_FORMER_BATCH = 16
_STALE = 0x80


class KindLimits(Struct, frozen=True):
    """Limits of a kind of writers: how many are remembered on a partition, and for how long after their last append."""

    writers: int = 100_000
    idle_ms: int = 86_400_000


class LedgerOptions(Struct, frozen=True):
    """The rules of the kinds of writers, and their limits; a kind without limits of its own has the defaults."""

    rules: Mapping[int, Rule] = field(default_factory=lambda: RULES)
    limits: Mapping[int, KindLimits] = field(default_factory=dict)

    def limits_of(self, kind: int) -> KindLimits:
        return self.limits.get(kind) or KindLimits()


_USUAL = LedgerOptions()


class Ledger:
    """The writers of one partition, by kind and key."""

    __slots__ = ("_options", "tables")

    def __init__(self, options: LedgerOptions | None = None) -> None:
        self._options = options or _USUAL
        #: The kinds that have written here.
        self.tables: dict[int, LedgerTable] = {}

    def __len__(self) -> int:
        """Return the number of known writers; while a snapshot is read out, some may count twice."""
        return sum(map(len, self.tables.values()))

    def table(self, kind: int) -> LedgerTable:
        """Return the writers of one kind. Raises KeyError for a kind without a rule."""
        table = self.tables.get(kind)
        if table is None:
            table = self.tables[kind] = self._new_table(kind)
        return table

    def _new_table(self, kind: int, rows: dict[bytes, bytes] | None = None) -> LedgerTable:
        rule = self._options.rules[kind] if rows is None else self._options.rules.get(kind, KEPT)
        return LedgerTable(rule, self._options.limits_of(kind).writers, rows)

    def last(self, kind: int, key: bytes) -> Last | None:
        """Return a writer's last number, even if its batch is still in flight; None for an unknown writer."""
        table = self.tables.get(kind)
        return None if table is None else table.last(key)

    def rests_on(self, stamp: Stamp, base_offset: int, durable: Durable) -> bool:
        """Return whether the ledger's last batch of this writer is the one with ``stamp`` at ``base_offset``.
        ``durable``: rows of writers with batches in flight, as they were before these."""
        table = self.tables.get(stamp.kind)
        if table is None:
            return False
        place = (stamp.kind, stamp.key)
        row = durable[place] if place in durable else table.row(stamp.key)
        last = None if row is None else table.last_of(row)
        return last is not None and last.base_offset == base_offset

    def check_epoch(self, part: InTransaction) -> None:
        """Raise ProducerFenced if the ledger knows a later epoch of the producer than that of ``part``.

        For batches of transactions whose stamps do not carry the epoch.
        """
        table = self.tables.get(LedgerKind.KAFKA)
        row = None if table is None else table.row(producer_key(part.producer_id))
        if row is not None and 0 <= part.epoch < epoch_of(row):
            raise ProducerFenced(f"producer {part.producer_id} is at epoch {epoch_of(row)}, not {part.epoch}")

    def record(self, stamp: Stamp, base_offset: int, now_ms: int) -> bytes | None:
        """Remember a batch that lies at ``base_offset``; see :meth:`LedgerTable.record`."""
        if stamp.kind not in self._options.rules:
            return None  # no front here can write as one of that kind
        return self.table(stamp.kind).record(stamp.key, stamp, base_offset, now_ms)

    def take_back(self, stamp: Stamp, replaced: bytes | None) -> None:
        """Undo :meth:`record`, which returned ``replaced``; the latest record first."""
        self.table(stamp.kind).take_back(stamp.key, replaced)

    def expire(self, now_ms: int, options: LedgerOptions | None = None) -> int:
        """Forget writers that were idle for longer than the limit of their kind, at most :data:`SLICE` of each kind;
        return how many. Writers of a kind without a rule stay, because their front is not installed. ``options`` are
        those in force now; None: those with which the log was opened."""
        options = options or self._options
        known = ((kind, table) for kind, table in self.tables.items() if kind in options.rules)
        return sum(table.expire(now_ms - options.limits_of(kind).idle_ms) for kind, table in known)

    # --- snapshots --------------------------------------------------------------------------------------------------

    def capture(self, durable: Durable) -> LedgerCapture:
        """Capture the present state, which can be read out while writing goes on. Close it; one at a time."""
        return LedgerCapture(self.tables, durable)

    def restoring(self, data: bytes | memoryview, *, stale: bool = False, former: bool = False) -> Iterator[None]:
        """Replace all state by a capture's pieces, :data:`SLICE` writers at each step.

        ``stale``: later batches are lost, and writers may be further than the capture knows. Repetitions by Kafka's
        producers are still recognised, and any other batch counts as their next. ``former``: the pieces are of version
        2, before there were kinds. Rows of a kind without a rule, whose front is not installed, stay as they are.
        Raises DecodeError; then the state is empty.
        """
        self.tables = {}
        found: dict[int, dict[bytes, bytes]] = {}
        for number, (kind, key, row) in enumerate(_former_rows(data) if former else rows(data), 1):
            rule = self._options.rules.get(kind, KEPT)
            if not rule.valid(row):
                raise DecodeError("ledger snapshot has another shape")
            found.setdefault(kind, {})[key] = rule.stale(row) if stale else row
            if number % SLICE == 0:
                yield
        self.tables = {kind: self._new_table(kind, rows) for kind, rows in found.items()}


class LedgerCapture:
    """A ledger as it was at one instant."""

    __slots__ = ("_tables",)

    def __init__(self, tables: Mapping[int, LedgerTable], durable: Durable) -> None:
        by_kind: dict[int, dict[bytes, bytes | None]] = {}
        for (kind, key), row in durable.items():
            by_kind.setdefault(kind, {})[key] = row
        self._tables: dict[int, TableCapture] = {}
        for kind, table in tables.items():
            self._tables[kind] = table.capture(by_kind.get(kind, {}))

    def pieces(self) -> Iterator[bytes]:
        """Yield everything, :data:`SLICE` writers at a time, each piece behind its kind and size."""
        for kind, table in self._tables.items():
            for piece in table.pieces():
                if piece:
                    yield _SECTION.pack(kind, len(piece)) + piece

    def close(self) -> None:
        """Release the ledger. Idempotent."""
        for table in self._tables.values():
            table.close()


def rows(data: bytes | memoryview) -> Iterator[tuple[int, bytes, bytes]]:
    try:
        position, end = 0, len(data)
        while position < end:
            kind, size = _SECTION.unpack_from(data, position)
            position += _SECTION.size
            section_end = position + size
            while position < section_end:
                key_size, row_size = ENTRY.unpack_from(data, position)
                row_at = position + ENTRY.size + key_size
                key = bytes(data[position + ENTRY.size : row_at])
                position = row_at + row_size
                if row_size < LAST_MS.size or position > min(section_end, end):
                    raise DecodeError("ledger snapshot is cut short")
                yield kind, key, bytes(data[row_at:position])
    except struct.error as error:
        raise DecodeError("ledger snapshot is cut short") from error


def _former_rows(data: bytes | memoryview) -> Iterator[tuple[int, bytes, bytes]]:
    position, end = 0, len(data)
    while position < end:
        if end - position < _FORMER_HEAD.size:
            raise DecodeError("producer snapshot is cut short")
        producer = bytes(data[position : position + _FORMER_HEAD.size])
        batches_at = position + len(producer)
        position = batches_at + (producer[-1] & ~_STALE) * _FORMER_BATCH
        if position > end:
            raise DecodeError("producer snapshot is cut short")
        batches = [bytes(data[at : at + _FORMER_BATCH]) for at in range(batches_at, position, _FORMER_BATCH)]
        # The old order is id, epoch, clock, count. Now the id is the key, the clock comes first, and the latest batch
        # precedes the others.
        row = producer[10:18] + producer[8:10] + producer[18:] + b"".join(reversed(batches))
        yield LedgerKind.KAFKA, producer[:8], row
