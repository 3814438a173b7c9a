"""Deduplication of one partition: who wrote what last, for every kind of writer (docs/design.md, "Writing").

The one place where repetitions are found, whatever protocol they come through. What is remembered of a kind's writers,
and what that means for their next batch, is its rule's (bridges/log/ledger/rules.py). It is pure state: the partition
log feeds it in append order, at run time and when rebuilding.
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
"""Of each (kind, key) with batches in flight the row as it was before them."""

_SECTION = struct.Struct(">BI")
"""Kind of the writers that follow, and their bytes."""
_FORMER_HEAD = struct.Struct(">qhqB")
"""How rows began in version 2 of the stored form, which knew only Kafka's: producer id, epoch, wall clock, batches."""
_FORMER_BATCH = 16
_STALE = 0x80


class KindLimits(Struct, frozen=True):
    """How many writers of a kind are remembered on a partition, and how long after their last append."""

    writers: int = 100_000
    idle_ms: int = 86_400_000


class LedgerOptions(Struct, frozen=True):
    """The kinds of writers there are, and how long they are remembered; without limits of its own a kind has the
    usual ones."""

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
        """Writers known; while a snapshot is read out, some may count twice."""
        return sum(map(len, self.tables.values()))

    def table(self, kind: int) -> LedgerTable:
        """The writers of one kind. Raises KeyError for a kind without a rule."""
        table = self.tables.get(kind)
        if table is None:
            table = self.tables[kind] = self._made(kind)
        return table

    def _made(self, kind: int, rows: dict[bytes, bytes] | None = None) -> LedgerTable:
        rule = self._options.rules[kind] if rows is None else self._options.rules.get(kind, KEPT)
        return LedgerTable(rule, self._options.limits_of(kind).writers, rows)

    def last(self, kind: int, key: bytes) -> Last | None:
        """A writer's last number, also if its batch is still in flight; None if nothing is known of it."""
        table = self.tables.get(kind)
        return None if table is None else table.last(key)

    def rests_on(self, stamp: Stamp, base_offset: int, durable: Durable) -> bool:
        """Whether the batch with ``stamp`` at ``base_offset`` is the last that is known of its writer; ``durable``:
        rows of writers with batches in flight as they were before these."""
        table = self.tables.get(stamp.kind)
        if table is None:
            return False
        place = (stamp.kind, stamp.key)
        row = durable[place] if place in durable else table.row(stamp.key)
        last = None if row is None else table.last_of(row)
        return last is not None and last.base_offset == base_offset

    def check_epoch(self, part: InTransaction) -> None:
        """Raises ProducerFenced if a later epoch of the producer is known than that of ``part``.

        For batches of transactions whose stamps do not tell it.
        """
        table = self.tables.get(LedgerKind.KAFKA)
        row = None if table is None else table.row(producer_key(part.producer_id))
        if row is not None and 0 <= part.epoch < epoch_of(row):
            raise ProducerFenced(f"producer {part.producer_id} is at epoch {epoch_of(row)}, not {part.epoch}")

    def record(self, stamp: Stamp, base_offset: int, now_ms: int) -> bytes | None:
        """Remember a batch that lies at ``base_offset``; see :meth:`LedgerTable.record`."""
        if stamp.kind not in self._options.rules:
            return None  # nobody here can write as one of that kind
        return self.table(stamp.kind).record(stamp.key, stamp, base_offset, now_ms)

    def take_back(self, stamp: Stamp, replaced: bytes | None) -> None:
        """Undo :meth:`record`, which gave ``replaced``; the latest one first."""
        self.table(stamp.kind).take_back(stamp.key, replaced)

    def expire(self, now_ms: int) -> int:
        """Forget writers that were idle for longer than their kind is remembered, at most :data:`SLICE` of each kind;
        returns how many. Those of a kind without a rule stay: their front is not there to write."""
        options = self._options
        known = ((kind, table) for kind, table in self.tables.items() if kind in options.rules)
        return sum(table.expire(now_ms - options.limits_of(kind).idle_ms) for kind, table in known)

    # --- snapshots --------------------------------------------------------------------------------------------------

    def capture(self, durable: Durable) -> LedgerCapture:
        """All of it as of now, to be read out while writing goes on. Close it; one at a time."""
        return LedgerCapture(self.tables, durable)

    def restoring(self, data: bytes | memoryview, *, stale: bool = False, former: bool = False) -> Iterator[None]:
        """Replace all state by a capture's pieces, :data:`SLICE` writers at each step.

        ``stale``: what was written since is lost, and writers may be further than is known here; the repetitions of
        Kafka's are recognised, and what is none is taken for their next batch. ``former``: the pieces are of version 2,
        from before there were kinds. Writers of a kind without a rule, whose front is not installed, are kept as they
        are. Raises DecodeError; then the state is empty.
        """
        self.tables = {}
        found: dict[int, dict[bytes, bytes]] = {}
        for number, (kind, key, row) in enumerate(_former_rows(data) if former else _rows(data), 1):
            rule = self._options.rules.get(kind, KEPT)
            if not rule.valid(row):
                raise DecodeError("ledger snapshot has another shape")
            found.setdefault(kind, {})[key] = rule.stale(row) if stale else row
            if number % SLICE == 0:
                yield
        self.tables = {kind: self._made(kind, rows) for kind, rows in found.items()}


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
        """All of it, :data:`SLICE` writers at a time, each piece behind its kind and size."""
        for kind, table in self._tables.items():
            for piece in table.pieces():
                if piece:
                    yield _SECTION.pack(kind, len(piece)) + piece

    def close(self) -> None:
        """Let the ledger go on alone. Idempotent."""
        for table in self._tables.values():
            table.close()


def _rows(data: bytes | memoryview) -> Iterator[tuple[int, bytes, bytes]]:
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
        # Id, epoch, clock, count: now the id is the key, the clock comes first, and the latest batch before others.
        row = producer[10:18] + producer[8:10] + producer[18:] + b"".join(reversed(batches))
        yield LedgerKind.KAFKA, producer[:8], row
