"""Conversion of YDB's read messages into batches of YDB's stored format, without decoding bodies.

A read message and a written one have the same fields under other numbers (bridges/formats/ydb.py), so a batch made here
contains what its writer sent: bodies in their codec, producer, seq_no, the session's metadata and the items of
messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bridges.formats import FormatId
from bridges.formats.protobuf import put_bytes, put_varint
from bridges.formats.records import StoredBatch
from bridges.formats.ydb import DELTA_TAG, Head, created_ms, encode_batch
from bridges.formats.ydb_codecs import Codec
from spark_pipeline.endpoints.ydb.client import WriteRequest

_META_TAG = 3 << 3 | 2
"""Tag of an entry of a write session's metadata, in a batch and in an InitRequest."""
_BATCH_BYTES = 4 * 1024 * 1024


def stored_batches(batch: Any, start: int, end: int) -> Iterator[StoredBatch]:
    """Yield the messages of a ``ReadResponse.Batch`` whose offsets are in ``[start, end)``, in batches of a few MiB."""
    some: list[Any] = []
    size = 0
    for one in batch.message_data:
        if not start <= one.offset < end:
            continue
        if some and size + len(one.data) > _BATCH_BYTES:
            yield _stored(batch, some)
            some, size = [], 0
        some.append(one)
        size += len(one.data)
    if some:
        yield _stored(batch, some)


def _stored(batch: Any, messages: Sequence[Any]) -> StoredBatch:
    base, until = messages[0].offset, messages[-1].offset + 1
    sparse = until - base != len(messages)
    producer = batch.producer_id or messages[0].message_group_id
    newest = max(
        (created_ms(one.created_at.seconds, one.created_at.nanos) for one in messages if one.HasField("created_at")),
        default=-1,
    )
    payload = encode_batch(
        Head(
            sparse,
            batch.codec or Codec.RAW,
            len(messages),
            messages[0].seq_no,
            messages[-1].seq_no,
            newest,
            producer.encode(),
            _session_meta(batch.write_session_meta),
        ),
        _written(messages, base if sparse else None),
    )
    return StoredBatch(base, until, int(FormatId.YDB), payload, _written_ms(batch))


def _written(messages: Sequence[Any], base: int | None) -> bytes:
    """Encode the messages as a ``WriteRequest``; with their distances from ``base``, if it is given."""
    request = WriteRequest()
    for one in messages:
        target = request.messages.add()
        target.seq_no = one.seq_no
        if one.HasField("created_at"):
            target.created_at.CopyFrom(one.created_at)
        target.data = one.data
        target.uncompressed_size = one.uncompressed_size
        if one.metadata_items:
            target.metadata_items.extend(one.metadata_items)
        if base is not None:
            place = bytearray((DELTA_TAG,))
            put_varint(place, one.offset - base)
            target.MergeFromString(bytes(place))
    return bytes(request.SerializeToString())


def _session_meta(items: Any) -> bytes:
    """Encode the metadata in the order of their names: a map has no order, and equal batches need equal bytes."""
    out = bytearray()
    for name in sorted(items):
        entry = bytearray()
        put_bytes(entry, 0x0A, name.encode())
        put_bytes(entry, 0x12, items[name].encode())
        put_bytes(out, _META_TAG, entry)
    return bytes(out)


def _written_ms(batch: Any) -> int:
    if not batch.HasField("written_at"):
        return -1
    return created_ms(batch.written_at.seconds, batch.written_at.nanos)
