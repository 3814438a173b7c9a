"""The framing of batches on their way to the node that imports them: a small head before each batch not in Kafka's
format.

Kafka's batches contain their own offsets and length, so they follow one another as they are. Batches of other formats
do not: a head before each has its first offset, its number of offsets, and its size in bytes, in network order.
"""

from __future__ import annotations

import struct

import crc32c

from bridges.formats import FormatId
from spark_pipeline.core.kafka_batches import digest as kafka_digest
from spark_pipeline.core.kafka_batches import heads

HEAD = struct.Struct(">qII")
"""First offset, number of offsets, bytes of the payload that follows."""


def put(out: bytearray, base: int, count: int, payload: bytes | bytearray | memoryview) -> None:
    """Append one batch with its head to ``out``."""
    out += HEAD.pack(base, count, len(payload))
    out += payload


def digest(form: int, payload: memoryview, place: str, before: int = 0) -> int:
    """Return the CRC-32C of ``before`` and of the batches in ``payload``, which are of stored format ``form``."""
    if form != FormatId.KAFKA:
        return int(crc32c.crc32c(payload, before))
    for head in heads(payload, place):
        before = kafka_digest(payload, head, before)
    return before
