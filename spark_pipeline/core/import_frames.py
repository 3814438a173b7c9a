"""How batches of other stored formats than Kafka's travel to the node that imports them: each behind a small head.

Kafka's batches tell their own offsets and length, so they lie one behind another as they are. Others do not: in front
of each stand its first offset, how many offsets it spans, and how many bytes it has, in network order.
"""

from __future__ import annotations

import struct

import crc32c

from bridges.formats import FormatId
from spark_pipeline.core.kafka_batches import digest as kafka_digest
from spark_pipeline.core.kafka_batches import heads

HEAD = struct.Struct(">qII")
"""First offset, number of offsets, bytes of the payload, which follows."""


def put(out: bytearray, base: int, count: int, payload: bytes | bytearray | memoryview) -> None:
    """Append one batch."""
    out += HEAD.pack(base, count, len(payload))
    out += payload


def digest(form: int, payload: memoryview, place: str, before: int = 0) -> int:
    """CRC-32C of ``before`` and of the batches in ``payload``, which are of stored format ``form``."""
    if form != FormatId.KAFKA:
        return int(crc32c.crc32c(payload, before))
    for head in heads(payload, place):
        before = kafka_digest(payload, head, before)
    return before
