"""The derived state of a partition's log: writers, offset index, leader epochs, transactions.

All of it follows from batch headers, so it is rebuilt by reading the log. A snapshot shortens the reading, and keeps
the producers of trimmed data (docs/design.md, "Writing").
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator

from bridges.errors import BatchInvalid
from bridges.formats import APPEND_TIME, FORMAT_MASK, FORMATS, IMPORTED, FormatId, format_of
from bridges.formats.records import Buffer
from bridges.log.ledger.ledger import Durable, Ledger, LedgerCapture, LedgerOptions
from bridges.log.state.offset_index import OffsetIndex
from bridges.log.transactions.partition_transactions import Transactions
from sbp_back.errors import DecodeError

_VERSION = 6
_BEFORE_BLOCKS = 5
_BEFORE_FORMATS = 4
_BEFORE_TRANSACTIONS = 3
_BEFORE_KINDS = 2
"""The version before the ledger had kinds of writers. All four are still read."""
_HEAD = struct.Struct(">BIIqqqIH")
"""Version, bytes of the index, bytes of the epochs, the last batch, bytes of the transactions, formats. The index,
epochs, transactions and ledger follow."""
_HEAD_WITHOUT_FORMATS = struct.Struct(">BIIqqqI")
_FORMER_HEAD = struct.Struct(">BIIqqq")
_EPOCH = struct.Struct(">qq")

_OWN_CLOCK = 1 << FormatId.RAW | 1 << FormatId.KAFKA | 1 << FormatId.PRAVEGA | 1 << FormatId.LEDGER_NOTE
"""Formats whose claims are ages, that claim nothing, or that claim the time of the append."""

LastBatch = tuple[int, int, int]
"""Base offset, bytes and append time (ms) of a batch: no other history of a log has the same batch at the same
offset."""
_NO_BATCH: LastBatch = (-1, 0, 0)


class PartitionState:
    """The derived state of one partition, fed batch by batch in offset order."""

    __slots__ = ("_unread_last", "epochs", "formats", "index", "last", "ledger", "transactions", "unread")

    def __init__(self, ledger: LedgerOptions | None = None, transactions: Transactions | None = None) -> None:
        self.ledger = Ledger(ledger)
        self.index = OffsetIndex()
        self.transactions = Transactions() if transactions is None else transactions
        # (epoch, offset of the first batch written in it), ascending in both.
        self.epochs: list[tuple[int, int]] = []
        self.last = _NO_BATCH
        #: Offset of the first batch that was read and whose format only a front knows that is not installed, -1 without
        #: any: what it says of writers and transactions is told by nothing but the log.
        #: Bit n: there have been batches of the stored format n. 0 from a snapshot of an earlier version.
        #: ``unread``: offset of the first batch read whose front is not installed, -1 without any. Only the log has its
        #: facts about writers and transactions.
        self.formats = 0
        #: Offset of the first batch that was read and whose format only a front knows that is not installed, -1 without
        #: any: what it says of writers and transactions is told by nothing but the log.
        self.all_read()

    def all_read(self) -> None:
        """Forget the unread batches: nothing has to be read again."""
        self.unread = self._unread_last = -1

    def enter_epoch(self, epoch: int, start_offset: int) -> None:
        """Note that batches from ``start_offset`` on are written in ``epoch``."""
        if epoch >= 0 and (not self.epochs or self.epochs[-1][0] < epoch):
            self.epochs.append((epoch, start_offset))

    def observe(self, base_offset: int, payload: Buffer, flags: int, append_ms: int) -> None:
        """Add a stored batch while rebuilding. ``append_ms``: wall clock of its append."""
        self.last = (base_offset, len(payload), append_ms)
        self.formats |= 1 << (flags & FORMAT_MASK)
        try:
            info = format_of(flags).describe(payload)
        except BatchInvalid:
            # An SBP client misreported the format: the batch has no usable header.
            self.index.add(base_offset, len(payload), -1, -1, append_ms)
            if flags & FORMAT_MASK not in FORMATS:
                self.unread = base_offset if self.unread < 0 else self.unread
                self._unread_last = base_offset
            return
        claimed = append_ms if flags & APPEND_TIME else info.max_timestamp
        counted = info.max_timestamp if flags & FORMAT_MASK == FormatId.KAFKA else -1
        self.index.add(base_offset, len(payload), claimed, counted, append_ms)
        self.enter_epoch(info.epoch, base_offset)
        if info.producer is not None and not flags & IMPORTED:
            self.ledger.record(info.producer, base_offset, append_ms)
        if info.transaction is not None:
            self.transactions.observe(info.transaction, base_offset)

    def epoch_end(self, epoch: int, log_end: int) -> tuple[int, int] | None:
        """Return (largest epoch not above ``epoch``, offset after its last batch); None when no epoch is known.

        An epoch older than everything kept ends where the oldest kept one starts (KIP-101, KIP-320).
        """
        if not self.epochs:
            return None
        found, end = epoch, self.epochs[0][1]
        for position, (known, _) in enumerate(self.epochs):
            if known > epoch:
                break
            found = known
            end = self.epochs[position + 1][1] if position + 1 < len(self.epochs) else log_end
        return found, end

    def drop_before(self, offset: int) -> None:
        self.index.drop_before(offset)
        self.transactions.drop_before(offset)
        if self.unread < offset:
            self.unread = -1 if self._unread_last < offset else max(self.unread, offset)
        while len(self.epochs) > 1 and self.epochs[1][1] <= offset:
            del self.epochs[0]

    def capture(self, offset: int, durable: Durable | None = None) -> StateCapture:
        """Capture the present state of everything below ``offset``, which must be durable; it can be read out while
        writing goes on.

        ``durable``: rows of writers with batches at or above ``offset``, as they were before these. Close it; one at a
        time.
        """
        return StateCapture(self, offset, durable or {})

    def restoring(self, data: bytes, *, stale: bool = False) -> Generator[None, None, None]:
        """Replace all state by a capture's, a bounded number of writers at each step.

        ``stale``: some later batches are lost (see :meth:`bridges.log.ledger.ledger.Ledger.restoring`). Raises
        DecodeError; the state is then unusable.
        """
        try:
            version = data[0]
            if version in (_VERSION, _BEFORE_BLOCKS):
                _, index, epochs, base, size, append_ms, transactions, formats = _HEAD.unpack_from(data)
                at = _HEAD.size
            elif version == _BEFORE_FORMATS:
                _, index, epochs, base, size, append_ms, transactions = _HEAD_WITHOUT_FORMATS.unpack_from(data)
                at, formats = _HEAD_WITHOUT_FORMATS.size, 0
            elif version in (_BEFORE_TRANSACTIONS, _BEFORE_KINDS):
                _, index, epochs, base, size, append_ms = _FORMER_HEAD.unpack_from(data)
                at, transactions, formats = _FORMER_HEAD.size, 0, 0
            else:
                raise DecodeError(f"partition snapshot is of version {version}")
        except (struct.error, IndexError) as error:
            raise DecodeError("partition snapshot is cut short") from error
        if len(data) < at + index + epochs + transactions or epochs % _EPOCH.size:
            raise DecodeError("partition snapshot has another shape")
        self.last = (base, size, append_ms)
        self.formats = formats
        # In older rows every claim counts as an age. Batches that claim another clock are taken to be as old as the
        # last append.
        self.index.restore(data[at : at + index], -1 if not formats & ~_OWN_CLOCK else append_ms)
        self.epochs = list(_EPOCH.iter_unpack(data[at + index : at + index + epochs]))
        at += index + epochs
        if transactions:
            self.transactions.restore(data[at : at + transactions], stale=stale, former=version != _VERSION)
        former = version == _BEFORE_KINDS
        yield from self.ledger.restoring(memoryview(data)[at + transactions :], stale=stale, former=former)


class StateCapture:
    """A partition's state as it was at one instant."""

    __slots__ = ("_head", "_ledger", "offset")

    def __init__(self, state: PartitionState, offset: int, durable: Durable) -> None:
        self.offset = offset
        index = state.index.snapshot()
        epochs = b"".join(_EPOCH.pack(*row) for row in state.epochs)
        transactions = state.transactions.capture()
        head = _HEAD.pack(_VERSION, len(index), len(epochs), *state.last, len(transactions), state.formats)
        self._head = head + index + epochs + transactions
        self._ledger: LedgerCapture = state.ledger.capture(durable)

    def pieces(self) -> Iterator[bytes]:
        """Yield everything, for :meth:`PartitionState.restoring`, a bounded number of writers at a time."""
        yield self._head
        yield from self._ledger.pieces()

    def close(self) -> None:
        """Release the state. Idempotent."""
        self._ledger.close()
