"""Batches of a response as a place in the log: they are read while the socket takes them.

A stretch knows its number of bytes from the start, so the response's length can be sent first. A later read must give
just those bytes. A stretch that finds anything else fails, which ends the connection before a wrong byte is sent. The
log remembers the place, so that the next request gets the error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bridges.errors import BatchInvalid, LogError
from bridges.formats import FORMAT_MASK, FormatId
from bridges.formats.records import Buffer, StoredBatch

if TYPE_CHECKING:
    from bridges.log.partition.partition_log import PartitionLog

Accept = Callable[[StoredBatch], Buffer]
"""Returns all stored bytes of the batch, as the client gets them. Raises BatchInvalid."""
PiecesDone = Callable[[list[Buffer], LogError | None], None]
_UNKNOWN_BATCH = 64 * 1024


class Stretch:
    """Whole batches of one log, ``size`` bytes from ``start`` to ``end``; see anabranch_kit/net/outbox.py."""

    __slots__ = ("__weakref__", "_accept", "_log", "_offset", "_read", "_skip", "end", "left", "size")

    def __init__(self, log: PartitionLog, start: int, end: int, size: int, accept: Accept) -> None:
        self.end = end
        self.size = size
        self.left = size
        self._log = log
        self._accept = accept
        # The next batch to read, and how many of its bytes to skip.
        self._offset = start
        self._skip = 0
        # Base offset and size of each batch of the last read.
        self._read: list[tuple[int, int]] = []
        log.promised.add(self)

    def holds(self, start: int, end: int) -> bool:
        """Return whether batches in ``[start, end)`` are still to be read, and must not change until then."""
        first = self._read[0][0] if self._read else self._offset  # rewind() may go back to the last read
        return first < end and start < self.end

    def __len__(self) -> int:
        return self.size

    def least(self) -> int:
        """Return the bytes of the shortest possible read."""
        place = self._log.locate(self._offset, 1)
        return min(self.left, _UNKNOWN_BATCH) if place is None else place.size

    def read(self, max_bytes: int, done: PiecesDone) -> None:
        """Read the next bytes, in whole batches, at least one; ``done`` may be called before this returns."""
        offset = self._offset
        most = min(max_bytes, self.left) + self._skip

        def answered(batches: list[StoredBatch], error: LogError | None) -> None:
            pieces: list[Buffer] = []
            if error is None:
                pieces, error = self._take(batches)
            elif offset >= self._log.log_start_offset:
                self._log.reading.distrust(offset)
            done(pieces, error)

        self._log.read(offset, most, answered)

    def _take(self, batches: list[StoredBatch]) -> tuple[list[Buffer], LogError | None]:
        """Return the pieces of the batches that match the stretch; an error if not even the first does."""
        pieces: list[Buffer] = []
        self._read = []
        for batch in batches:
            if batch.base_offset >= self.end:
                break
            size = len(batch.payload)
            left = self.left - size + self._skip
            last = batch.end_offset >= self.end
            try:
                if batch.base_offset != self._offset or left < 0 or last != (left == 0):
                    raise BatchInvalid(
                        f"offset {self._offset} holds another batch than the index says: {batch.base_offset} to "
                        f"{batch.end_offset} of {size} bytes, with {self.left} bytes left up to {self.end}"
                    )
                if batch.flags & FORMAT_MASK != FormatId.KAFKA:
                    raise BatchInvalid(
                        f"the batch at offset {self._offset} has format {batch.flags & FORMAT_MASK}, not Kafka's"
                    )
                piece = self._accept(batch)
            except BatchInvalid as wrong:
                if pieces:
                    break
                self._log.reading.locatable = False
                return [], wrong
            pieces.append(memoryview(piece)[self._skip :] if self._skip else piece)
            self._read.append((batch.base_offset, size))
            self._offset, self.left, self._skip = batch.end_offset, left, 0
        if not pieces:
            return [], BatchInvalid(f"there is nothing at offset {self._offset}")
        return pieces, None

    def rewind(self, size: int) -> None:
        """Go back: the last ``size`` bytes of the last read were not sent and must be read again."""
        self.left += size
        for base, length in reversed(self._read):
            self._offset = base
            if size <= length:
                self._skip = length - size
                return
            size -= length
        raise AssertionError("more is wanted again than was read")
