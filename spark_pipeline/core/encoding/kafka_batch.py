"""A Kafka record batch (v2) that gets its producer last: the records are encoded first, the header when it is sent.

A task's attempt that has to begin anew gets another producer and reuses its encoded records. Layout and field names are
KIP-98's; ``bridges.formats.kafka`` reads them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import crc32c

from bridges.formats.kafka import HEADER_SIZE, LOG_OVERHEAD, MAGIC, TRANSACTIONAL
from bridges.formats.producer import SEQUENCES
from bridges.formats.records import Buffer

_FRONT = struct.Struct(">qiibI")
_REST = struct.Struct(">hiqqqhii")


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """The encoded records that follow the header, compressed by ``codec``. Times are in ms since 1970."""

    body: Buffer
    count: int
    base_timestamp: int
    max_timestamp: int
    codec: int = 0

    @property
    def size(self) -> int:
        """Return the bytes of the whole batch."""
        return HEADER_SIZE + (self.body.nbytes if isinstance(self.body, memoryview) else len(self.body))

    def header(
        self, producer_id: int = -1, epoch: int = -1, sequence: int = -1, *, transactional: bool = True
    ) -> bytes:
        """Return the 61 bytes in front of the body; ``sequence`` is the first record's, and wraps as Kafka's do."""
        rest = _REST.pack(
            self.codec | (TRANSACTIONAL if transactional else 0),
            self.count - 1,
            self.base_timestamp,
            self.max_timestamp,
            producer_id,
            epoch,
            sequence % SEQUENCES if sequence >= 0 else -1,
            self.count,
        )
        checksum = crc32c.crc32c(self.body, crc32c.crc32c(rest))
        return _FRONT.pack(0, self.size - LOG_OVERHEAD, -1, MAGIC, checksum) + rest
