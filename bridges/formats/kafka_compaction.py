"""Compaction of one Kafka batch: the same batch with fewer records, or none, at the same offsets.

A batch keeps its first and last offset, its producer and its sequence numbers, whichever records are left (KIP-98).
Tombstones, and markers of transactions that have no records left, get a delete horizon: the time from which the next
pass may remove them. It replaces the header's base timestamp (KIP-534).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple, TypeVar

from bridges.formats.checksum import crc32c
from bridges.formats.codecs.compression import DEFAULT_LIMIT
from bridges.formats.kafka import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
    BatchBuilder,
    Header,
    Outline,
    RawRecord,
    iterate,
    outlines,
    parse_header,
    slices,
)
from bridges.formats.records import Buffer, Record

R = TypeVar("R", Outline, RawRecord)

NO_HORIZON = -1
_RECORDS_AT_ONCE = 100

IsLatest = Callable[[int, "bytes | None"], bool]
"""Returns whether no record at a higher offset replaces the record with this key at this offset."""


class Compacted(NamedTuple):
    """A compacted batch. ``payload``: None where the batch stays as it is. ``horizon_ms``: the time from which the next
    pass finds something to remove in it (:data:`NO_HORIZON`: never)."""

    payload: Buffer | None
    records: int
    horizon_ms: int


def horizon_of(header: Header) -> int:
    """Return the batch's delete horizon (ms), :data:`NO_HORIZON` without one."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else NO_HORIZON


def keys(batch: Buffer, limit: int = DEFAULT_LIMIT) -> Generator[tuple[int, bytes | None] | None, None, None]:
    """Yield (offset, key) of every record of a batch; None now and then, for sliced work. Raises BatchInvalid."""
    for number, one in enumerate(outlines(batch, limit)):
        if one is None or number % _RECORDS_AT_ONCE == 0:
            yield None
        if one is not None:
            yield one.offset, one.key


def compacted(
    batch: Buffer, is_latest: IsLatest, now_ms: int, horizon_ms: int, limit: int = DEFAULT_LIMIT
) -> Generator[None, None, Compacted]:
    """Compact a batch, as sliced work: keep those of its records that are the latest of their keys.

    Tombstones among these are removed once the batch's horizon has passed. A batch that has tombstones and no horizon
    gets ``horizon_ms``. Records without a key are removed. Raises BatchInvalid.
    """
    header = parse_header(batch)
    horizon = horizon_of(header)
    passed = NO_HORIZON < horizon <= now_ms
    kept = array("q")
    tombstones = 0
    for number, one in enumerate(outlines(batch, limit)):
        if one is None or number % _RECORDS_AT_ONCE == 0:
            yield None
        if one is None or one.key is None or not is_latest(one.offset, one.key):
            continue
        if not one.has_value:
            if passed:
                continue
            tombstones += 1
        kept.append(one.offset)
    if not kept:
        return Compacted(None if not header.record_count else emptied(batch), 0, NO_HORIZON)
    wanted = horizon
    if tombstones and horizon == NO_HORIZON:
        wanted = horizon_ms
    told = wanted if tombstones else NO_HORIZON
    if len(kept) == header.record_count and wanted == horizon:
        return Compacted(None, len(kept), told)
    rebuilt = _cut if wanted == horizon else _rebuilt
    payload = yield from rebuilt(batch, header, kept, wanted, limit)
    return Compacted(payload, len(kept), told)


def _builder(header: Header, base_timestamp: int) -> BatchBuilder:
    return BatchBuilder(
        header.base_offset,
        count=header.last_offset_delta + 1,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        base_timestamp=base_timestamp,
    )


def _pick(records: Iterator[R | None], kept: array[int]) -> Iterator[R | None]:
    """Yield the records with the offsets ``kept``, and None now and then."""
    at = 0
    for number, one in enumerate(records):
        if one is None or number % _RECORDS_AT_ONCE == 0:
            yield None
        if one is not None and one.offset == kept[at]:
            yield one
            at += 1
            if at == len(kept):
                return


def _cut(batch: Buffer, header: Header, kept: array[int], horizon: int, limit: int) -> Generator[None, None, Buffer]:
    """Keep the remaining records' bytes: their base offset and base timestamp stay."""
    builder = _builder(header, header.base_timestamp)
    for one in _pick(outlines(batch, limit, raw=True), kept):
        if one is None:
            yield None
        else:
            builder.add_raw(one)
    return (yield from builder.finish_in_slices(header.codec, header.attributes & ~CODEC_MASK))


def _rebuilt(
    batch: Buffer, header: Header, kept: array[int], horizon: int, limit: int
) -> Generator[None, None, Buffer]:
    """Encode the remaining records again with another horizon, because it replaces the base timestamp of all
    records."""
    builder = _builder(header, horizon)
    for raw in _pick(slices(batch, limit, kept[0] - header.base_offset), kept):
        if raw is None:
            yield None
        else:
            builder.add(Record(raw.key, raw.value, raw.headers, raw.timestamp, raw.offset))
    attributes = header.attributes & ~CODEC_MASK | DELETE_HORIZON
    return (yield from builder.finish_in_slices(header.codec, attributes))


_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_START = 21
_CRC_AT = 17


def _header_only(header: Header) -> bytearray:
    batch = bytearray(HEADER_SIZE)
    _HEADER.pack_into(batch, 0, *header._replace(length=HEADER_SIZE - LOG_OVERHEAD, magic=MAGIC, record_count=0))
    struct.pack_into(">I", batch, _CRC_AT, crc32c(memoryview(batch)[_CRC_START:]))
    return batch


def emptied(batch: Buffer) -> bytearray:
    """Return the batch without its records: it still carries its producer and sequence numbers. It leaves its
    transaction, so that no transaction counts as open because of it."""
    header = parse_header(batch)
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON | TRANSACTIONAL)
    return _header_only(header._replace(attributes=attributes, base_timestamp=-1))


def gap(base_offset: int, end_offset: int, leader_epoch: int = -1) -> bytearray:
    """Return a batch without records and without a producer, which replaces many batches."""
    span = end_offset - base_offset - 1
    return _header_only(Header(base_offset, 0, leader_epoch, MAGIC, 0, 0, span, -1, -1, -1, -1, -1, 0))


def is_gap(header: Header) -> bool:
    """Return whether a batch has neither records nor a producer."""
    return not header.record_count and header.producer_id < 0


def with_horizon(marker: Buffer, horizon_ms: int) -> Buffer:
    """Return a transaction's marker that may be removed from ``horizon_ms`` on. Raises BatchInvalid."""
    header = parse_header(marker)
    builder = _builder(header, horizon_ms)
    for raw in iterate(marker):
        builder.add(Record(raw.key, raw.value, raw.headers, raw.timestamp, raw.offset))
    return builder.finish(header.codec, header.attributes & ~CODEC_MASK | DELETE_HORIZON)
