"""What a stored format must offer (design, section 3: stored as received, translated on read)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from bridges.ledger import ProducerStamp
from bridges.records import Buffer, Record, StoredBatch

FORMAT_MASK = 0x0F
"""The bits of an entry's flags that name its format."""


class FormatId(IntEnum):
    """Format numbers, stored in the low four bits of an entry's flags; never renumber."""

    RAW = 0
    KAFKA = 1
    PRAVEGA = 2
    YDB = 3
    SBP_V01 = 4


class BatchInfo(NamedTuple):
    """What a rebuild needs of a stored batch; ``max_timestamp`` in ms (-1 unknown), ``epoch`` -1 when not stored."""

    max_timestamp: int
    epoch: int
    producer: ProducerStamp | None


class StoredFormat(Protocol):
    """One way to lay out a batch's bytes."""

    id: FormatId
    name: str

    def describe(self, payload: Buffer) -> BatchInfo:
        """Header facts, without touching the records. Raises BatchInvalid."""

    def stamp(self, payload: Buffer, base_offset: int, epoch: int) -> None:
        """Write what the log decides into the batch, in place, before it is stored."""

    def place(self, payload: Buffer, base_offset: int) -> Buffer:
        """A stored batch that says it begins at ``base_offset``: itself if it does. Raises BatchInvalid."""

    def decode(self, batch: StoredBatch) -> list[Record]:
        """All records with their offsets. Raises BatchInvalid."""

    def encode(self, records: Sequence[Record], base_offset: int, end_offset: int) -> Buffer:
        """A batch that spans ``[base_offset, end_offset)`` and holds ``records`` at their offsets."""
