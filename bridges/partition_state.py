"""What a partition log knows beyond its bytes: producers, offset index, leader epochs.

All of it can be told from batch headers, so it is rebuilt by reading the log; a snapshot only shortens the reading
(design, section 4).
"""

from __future__ import annotations

import struct

from bridges.errors import BatchInvalid
from bridges.formats import format_of
from bridges.ledger import Ledger
from bridges.offset_index import OffsetIndex
from bridges.records import Buffer
from sbp_back.errors import DecodeError

_VERSION = 1
_HEAD = struct.Struct(">BIII")
_EPOCH = struct.Struct(">qq")


class PartitionState:
    """Derived state of one partition, fed batch by batch in offset order."""

    __slots__ = ("epochs", "index", "ledger")

    def __init__(self, max_producers: int) -> None:
        self.ledger = Ledger(max_producers)
        self.index = OffsetIndex()
        # (epoch, offset of the first batch written in it), ascending in both.
        self.epochs: list[tuple[int, int]] = []

    def enter_epoch(self, epoch: int, start_offset: int) -> None:
        """Note that batches from ``start_offset`` on are written in ``epoch``."""
        if epoch >= 0 and (not self.epochs or self.epochs[-1][0] < epoch):
            self.epochs.append((epoch, start_offset))

    def observe(self, base_offset: int, payload: Buffer, flags: int, append_ms: int) -> None:
        """Take in a stored batch while rebuilding. ``append_ms``: wall clock of its append."""
        try:
            info = format_of(flags).describe(payload)
        except BatchInvalid:
            # Written by an SBP client that lied about the format: it has no header to learn from.
            self.index.add(base_offset, len(payload), append_ms)
            return
        self.index.add(base_offset, len(payload), info.max_timestamp if info.max_timestamp >= 0 else append_ms)
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

    def snapshot(self, offset: int) -> bytes:
        """State of everything below ``offset``, which must be durable."""
        ledger = self.ledger.snapshot(offset)
        index = self.index.snapshot()
        epochs = b"".join(_EPOCH.pack(*row) for row in self.epochs)
        return _HEAD.pack(_VERSION, len(ledger), len(index), len(epochs)) + ledger + index + epochs

    def restore(self, data: bytes) -> None:
        """Replace all state by a snapshot's. Raises DecodeError; the state is then unusable."""
        try:
            version, ledger, index, epochs = _HEAD.unpack_from(data)
            if version != _VERSION or len(data) != _HEAD.size + ledger + index + epochs:
                raise DecodeError("partition snapshot has another shape")
            at = _HEAD.size
            self.ledger.restore(data[at : at + ledger])
            self.index.restore(data[at + ledger : at + ledger + index])
            self.epochs = list(_EPOCH.iter_unpack(data[at + ledger + index :]))
        except struct.error as error:
            raise DecodeError("partition snapshot is cut short") from error
