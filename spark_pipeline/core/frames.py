"""The framing of stored batches between the pipeline's clients and a node.

To the node that imports them, Kafka's batches follow one another as they are, since they contain their own offsets and
length. Before each batch of another format is a head: its first offset, number of offsets and size in bytes, in network
order. From a node to a reader, an answer is the number of batches, a head of fixed size for each, and their bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import crc32c

from bridges.formats import FormatId
from bridges.formats.records import Buffer, StoredBatch
from spark_pipeline.core.kafka_batches import digest as kafka_digest
from spark_pipeline.core.kafka_batches import heads

HEAD = struct.Struct(">qII")
"""First offset, number of offsets, bytes of the payload that follows."""


def put_batch(out: bytearray, base: int, count: int, payload: bytes | bytearray | memoryview) -> None:
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


MOST_BATCHES = 5_000
"""Most batches of one answer, because their heads are made in one step."""
_COUNT = struct.Struct(">I")
_HEAD = struct.Struct(">qqIqI")
"""Base offset, end offset, flags of the format, time of the append, bytes."""


def packed(batches: Sequence[StoredBatch]) -> list[Buffer]:
    """Return the pieces of an answer: all heads, then the batches' own bytes, which are not copied."""
    heads = bytearray(_COUNT.pack(len(batches)))
    for base, end, flags, payload, written_ms in batches:
        heads += _HEAD.pack(base, end, flags, written_ms, len(payload))
    return [heads, *(batch.payload for batch in batches)]


def unpacked(data: bytes) -> list[StoredBatch]:
    """Return the batches of an answer, whose bytes are views on it. Raises ValueError for an invalid answer."""
    view = memoryview(data)
    try:
        (count,) = _COUNT.unpack_from(view)
        at = _COUNT.size + count * _HEAD.size
        found = []
        for base, end, flags, written_ms, size in _HEAD.iter_unpack(view[_COUNT.size : at]):
            found.append(StoredBatch(base, end, flags, view[at : at + size], written_ms))
            at += size
    except struct.error as error:
        raise ValueError(f"these are no batches: {error}") from None
    if len(found) != count or at != len(view):
        raise ValueError(f"an answer of {len(view)} bytes describes {at}, with {len(found)} of {count} batches")
    return found
