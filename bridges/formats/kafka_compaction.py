"""What compaction makes of a batch of Kafka's: the same batch with fewer records, or none, at the same offsets.

A batch keeps its first and last offset, its producer and its numbers, whatever is left in it (KIP-98). Records that
tell that a key is gone, and markers of transactions that nothing is left of, get a time from which on the next pass may
take them: the delete horizon, which stands in the place of the header's base timestamp (KIP-534).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple, TypeVar

from bridges.formats.checksum import crc32c
from bridges.formats.compression import DEFAULT_LIMIT
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
"""Whether nothing above this offset replaces the record with this key there."""


class Compacted(NamedTuple):
    """``payload``: None where the batch stays as it is. ``horizon_ms``: from when on the next pass finds something to
    take in it (:data:`NO_HORIZON`: never)."""

    payload: Buffer | None
    records: int
    horizon_ms: int


def horizon_of(header: Header) -> int:
    """The batch's delete horizon (ms), :data:`NO_HORIZON` without one."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else NO_HORIZON


def keys(batch: Buffer, limit: int = DEFAULT_LIMIT) -> Generator[tuple[int, bytes | None] | None, None, None]:
    """(offset, key) of every record of a batch; None now and then, for sliced work. Raises BatchInvalid."""
    for number, one in enumerate(outlines(batch, limit)):
        if one is None or number % _RECORDS_AT_ONCE == 0:
            yield None
        if one is not None:
            yield one.offset, one.key


def compacted(
    batch: Buffer, is_latest: IsLatest, now_ms: int, horizon_ms: int, limit: int = DEFAULT_LIMIT
) -> Generator[None, None, Compacted]:
    """Sliced work: the batch with those of its records that are the latest of their keys.

    Of these, one without a value goes as well once the batch's horizon has passed; ``horizon_ms`` is what a batch gets
    that has such records and no horizon yet. Records without a key are no record's latest. Raises BatchInvalid.
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


def _kept(records: Iterator[R | None], kept: array[int]) -> Iterator[R | None]:
    """Those with these offsets, and None now and then."""
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
    """The records that stay as they lie there: all they are counted from stays."""
    builder = _builder(header, header.base_timestamp)
    for one in _kept(outlines(batch, limit, raw=True), kept):
        if one is None:
            yield None
        else:
            builder.add_raw(one)
    return (yield from builder.finish_in_slices(header.codec, header.attributes & ~CODEC_MASK))


def _rebuilt(
    batch: Buffer, header: Header, kept: array[int], horizon: int, limit: int
) -> Generator[None, None, Buffer]:
    """With another horizon, which takes the place of the time that all others are counted from."""
    builder = _builder(header, horizon)
    for raw in _kept(slices(batch, limit, kept[0] - header.base_offset), kept):
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
    """The batch without its records: it tells who wrote it, and with which numbers. It belongs to no transaction any
    more, so that none is taken to be open because of it."""
    header = parse_header(batch)
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON | TRANSACTIONAL)
    return _header_only(header._replace(attributes=attributes, base_timestamp=-1))


def gap(base_offset: int, end_offset: int, leader_epoch: int = -1) -> bytearray:
    """A batch of nobody's without records, in the place of many."""
    span = end_offset - base_offset - 1
    return _header_only(Header(base_offset, 0, leader_epoch, MAGIC, 0, 0, span, -1, -1, -1, -1, -1, 0))


def is_gap(header: Header) -> bool:
    """Whether a batch tells nothing at all."""
    return not header.record_count and header.producer_id < 0


def with_horizon(marker: Buffer, horizon_ms: int) -> Buffer:
    """A transaction's marker that may go from ``horizon_ms`` on. Raises BatchInvalid."""
    header = parse_header(marker)
    builder = _builder(header, horizon_ms)
    for raw in iterate(marker):
        builder.add(Record(raw.key, raw.value, raw.headers, raw.timestamp, raw.offset))
    return builder.finish(header.codec, header.attributes & ~CODEC_MASK | DELETE_HORIZON)
