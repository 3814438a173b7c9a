"""What a partition log knows beyond its bytes: writers, offset index, leader epochs.

All of it can be told from batch headers, so it is rebuilt by reading the log; a snapshot shortens the reading, and
remembers the producers of what was trimmed (design, section 4).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from bridges.errors import BatchInvalid
from bridges.formats import format_of
from bridges.formats.records import Buffer
from bridges.log.ledger import Durable, Ledger, LedgerCapture, LedgerOptions
from bridges.log.offset_index import OffsetIndex
from sbp_back.errors import DecodeError

_VERSION = 3
_FORMER_VERSION = 2
"""Before the ledger had kinds of writers; it is still read."""
_HEAD = struct.Struct(">BIIqqq")
"""Version, bytes of the index, bytes of the epochs, the last batch. Then come index, epochs, ledger."""
_EPOCH = struct.Struct(">qq")

LastBatch = tuple[int, int, int]
"""Base offset, bytes and append time (ms) of a batch: no other history of a log has the same one in the same place."""
_NO_BATCH: LastBatch = (-1, 0, 0)


class PartitionState:
    """Derived state of one partition, fed batch by batch in offset order."""

    __slots__ = ("epochs", "index", "last", "ledger")

    def __init__(self, ledger: LedgerOptions | None = None) -> None:
        self.ledger = Ledger(ledger)
        self.index = OffsetIndex()
        # (epoch, offset of the first batch written in it), ascending in both.
        self.epochs: list[tuple[int, int]] = []
        self.last = _NO_BATCH

    def enter_epoch(self, epoch: int, start_offset: int) -> None:
        """Note that batches from ``start_offset`` on are written in ``epoch``."""
        if epoch >= 0 and (not self.epochs or self.epochs[-1][0] < epoch):
            self.epochs.append((epoch, start_offset))

    def observe(self, base_offset: int, payload: Buffer, flags: int, append_ms: int) -> None:
        """Take in a stored batch while rebuilding. ``append_ms``: wall clock of its append."""
        self.last = (base_offset, len(payload), append_ms)
        try:
            info = format_of(flags).describe(payload)
        except BatchInvalid:
            # Written by an SBP client that lied about the format: it has no header to learn from.
            self.index.add(base_offset, len(payload), -1, append_ms)
            return
        self.index.add(base_offset, len(payload), info.max_timestamp, append_ms)
        self.enter_epoch(info.epoch, base_offset)
        if info.producer is not None:
            self.ledger.record(info.producer, base_offset, append_ms)

    def epoch_end(self, epoch: int, log_end: int) -> tuple[int, int] | None:
        """(largest epoch not above ``epoch``, offset after its last batch); None when no epoch is known.

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
        """Forget what describes only offsets below ``offset``."""
        self.index.drop_before(offset)
        while len(self.epochs) > 1 and self.epochs[1][1] <= offset:
            del self.epochs[0]

    def capture(self, offset: int, durable: Durable | None = None) -> StateCapture:
        """State of everything below ``offset``, which must be durable, as of now; to be read out while it goes on.

        ``durable``: rows of writers with batches at or above ``offset`` as they were before. Close it; one at a time.
        """
        return StateCapture(self, offset, durable or {})

    def restoring(self, data: bytes, *, stale: bool = False) -> Iterator[None]:
        """Replace all state by a capture's, a bounded number of writers at each step.

        ``stale``: some of what was appended since is lost (see :meth:`bridges.log.ledger.Ledger.restoring`).
        Raises DecodeError; the state is then unusable.
        """
        try:
            version, index, epochs, *last = _HEAD.unpack_from(data)
        except struct.error as error:
            raise DecodeError("partition snapshot is cut short") from error
        at = _HEAD.size
        if version not in (_VERSION, _FORMER_VERSION) or len(data) < at + index + epochs or epochs % _EPOCH.size:
            raise DecodeError("partition snapshot has another shape")
        self.last = (last[0], last[1], last[2])
        self.index.restore(data[at : at + index])
        self.epochs = list(_EPOCH.iter_unpack(data[at + index : at + index + epochs]))
        former = version == _FORMER_VERSION
        yield from self.ledger.restoring(memoryview(data)[at + index + epochs :], stale=stale, former=former)


class StateCapture:
    """A partition's state as it was at one instant."""

    __slots__ = ("_head", "_ledger", "offset")

    def __init__(self, state: PartitionState, offset: int, durable: Durable) -> None:
        self.offset = offset
        index = state.index.snapshot()
        epochs = b"".join(_EPOCH.pack(*row) for row in state.epochs)
        self._head = _HEAD.pack(_VERSION, len(index), len(epochs), *state.last) + index + epochs
        self._ledger: LedgerCapture = state.ledger.capture(durable)

    def pieces(self) -> Iterator[bytes]:
        """All of it, for :meth:`PartitionState.restoring`, a bounded number of writers at a time."""
        yield self._head
        yield from self._ledger.pieces()

    def close(self) -> None:
        """Let the state go on alone. Idempotent."""
        self._ledger.close()
