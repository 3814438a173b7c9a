"""Payloads of other formats inside record batches of sbp-v0.1, marked by the batch property ``WRAPPED``.

Two kinds of batches carry them, and one reader reads both:

* The server sends clients of the document what a writer of sbp-0.2 has stored: one entry, one batch, one record, whose
  offset delta gives its place (:func:`as_batch`).
* A node whose backend speaks only the document stores its batches so (:func:`wrap`). The server gives every record of a
  batch an offset and ignores claims about their number, so a payload of n records is stored as n records: n - 1 empty
  ones, eight zero bytes each, and the payload as the body of the last.

Either way a payload stands at the last of its offsets: a reader that goes on behind the record goes on behind the
payload.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from anabranch_kit.memory.buffers import Buffer
from sbp_back.errors import DecodeError
from sbp_back.wire.entry import pack_entry
from sbp_back.wire.model import Entry
from sbp_document.wire.record_batch import (
    BATCH_MAGIC,
    EMPTY_RECORD_BYTES,
    FORMAT_FLAG,
    FORMAT_MASK,
    MAX_TIMESTAMP_DELTA,
    WRAPPED,
    BatchMeta,
    KeyValue,
    RecordMeta,
    base_offset_of,
    count_records,
    end_of_empty_records,
    next_record,
    pack_head,
    pack_record_head,
    parse_head,
    parse_record_meta,
    split_batches,
    wrapped_format,
)

TOKEN = "anabranch.batch"
"""Key of the batch property by which a writer knows its batch again when the answer to its APPEND was lost."""

OVERHEAD_BYTES = 384
"""Most bytes that :func:`wrap` adds to one payload besides its empty records."""

_OTHER_FLAGS = 0x7FFF & ~FORMAT_MASK


class Payload(Struct, frozen=True):
    """``count`` records in a format of their own; ``timestamp`` in ms."""

    data: Buffer
    count: int
    timestamp: int


def _mark(flags: int) -> KeyValue:
    return KeyValue(WRAPPED, str(flags & FORMAT_MASK))


# --- of the server --------------------------------------------------------------------------------------------------


def _is_batch_at(payload: Buffer, base_offset: int) -> bool:
    """Return whether the payload is a batch at ``base_offset``. Any writer may set flags, so the bytes are checked."""
    return len(payload) > 0 and payload[0] == BATCH_MAGIC and base_offset_of(payload) == base_offset


def as_batch(entry: Entry) -> list[Buffer]:
    """Return an entry of any format as the parts of one batch with the same offsets.

    An entry that was written as a batch is that batch. Any other becomes the body of a single record, which stands at
    the entry's *last* offset.
    """
    if entry.flags & FORMAT_MASK == FORMAT_FLAG and _is_batch_at(entry.payload, entry.base_offset):
        return [entry.payload]
    delta = entry.count - 1
    meta = BatchMeta(entry.stream_id, entry.flags, entry.base_offset, delta, entry.timestamp, [_mark(entry.flags)])
    head = pack_head(entry.base_offset, meta) + pack_record_head(RecordMeta(delta), len(entry.payload))
    return [head, entry.payload]


# --- of a writer ----------------------------------------------------------------------------------------------------


def wrapped_bytes(data: Buffer, count: int) -> int:
    """Return the most bytes that a payload of ``count`` records takes in a batch."""
    return len(data) + EMPTY_RECORD_BYTES * (count - 1) + OVERHEAD_BYTES


def wrap(stream_id: int, flags: int, payloads: Sequence[Payload], token: str = "") -> bytearray:
    """Wrap ``payloads``, at least one, all of the format and with the flags of ``flags``, in one batch: stored as a
    whole or not at all. :func:`token_of` reads ``token``, of 40 characters at most, back.
    """
    first = payloads[0].timestamp
    total = sum(payload.count for payload in payloads)
    properties = [_mark(flags), KeyValue(TOKEN, token)] if token else [_mark(flags)]
    out = bytearray(pack_head(0, BatchMeta(stream_id, flags, 0, total - 1, first, properties)))
    delta = -1
    for payload in payloads:
        out += bytes(EMPTY_RECORD_BYTES * (payload.count - 1))
        delta += payload.count
        since = max(-MAX_TIMESTAMP_DELTA, min(payload.timestamp - first, MAX_TIMESTAMP_DELTA))
        out += pack_record_head(RecordMeta(delta, since), len(payload.data))
        out += payload.data
    return out


# --- of a reader ----------------------------------------------------------------------------------------------------


def _payloads(batch: memoryview, at: int) -> Iterator[tuple[int, RecordMeta, memoryview]]:
    """Yield the delta of the last offset, the record's meta and the bytes of each payload; ``at``: where records begin.

    A claim about offsets counts only in a record that is alone in its batch: only the server makes such records.
    """
    first = at
    delta = 0
    while at < len(batch):
        after = end_of_empty_records(batch, at)
        if after > at:
            delta += (after - at) // EMPTY_RECORD_BYTES
            at = after
            continue
        body, after = next_record(batch, at)
        meta = parse_record_meta(batch[at + EMPTY_RECORD_BYTES : body], lenient=True)
        if at == first and after == len(batch):
            delta = max(delta, meta.offset_delta)
        yield delta, meta, batch[body:after]
        delta += 1
        at = after


def entries_of(data: Buffer, stream_id: int) -> list[Entry]:
    """Return the batches that fill ``data``, the result of a FETCH, each as the entry its server has stored or could
    have. Raises ``DecodeError``.
    """
    entries = []
    for batch in split_batches(data):
        base, meta, at = parse_head(batch, lenient=True)
        count = count_records(batch)
        if count == 1 and wrapped_format(meta) >= 0:
            count += max((delta for delta, _, _ in _payloads(batch, at)), default=0)
        entries.append(pack_entry(stream_id, 0, FORMAT_FLAG, base, count, max(meta.base_timestamp, 0), batch))
    return entries


def token_of(entry: Entry) -> str:
    """Return the token of the batch in an entry, empty for a batch without one. Raises ``DecodeError``."""
    _, meta, _ = parse_head(memoryview(entry.payload), lenient=True)
    return next((pair.value for pair in meta.properties if pair.key == TOKEN), "")


def unwrap(entry: Entry) -> list[Entry]:
    """Return the payloads in an entry, each as an entry of its own; the entry itself if it holds none.

    The writer of a batch sets its mark: a batch whose mark does not fit its content is taken for an ordinary one.
    """
    if entry.flags & FORMAT_MASK != FORMAT_FLAG:
        return [entry]
    batch = memoryview(entry.payload)
    try:
        _, meta, at = parse_head(batch, lenient=True)
        number = wrapped_format(meta)
        if not 0 <= number <= FORMAT_MASK:
            return [entry]
        flags = meta.flags & _OTHER_FLAGS | number
        entries: list[Entry] = []
        start = 0
        for delta, of_record, data in _payloads(batch, at):
            timestamp = max(0, meta.base_timestamp + of_record.timestamp_delta)
            count = delta + 1 - start
            entries.append(
                pack_entry(entry.stream_id, entry.range_index, flags, entry.base_offset + start, count, timestamp, data)
            )
            start = delta + 1
    except DecodeError:
        return [entry]
    return entries if start == entry.count else [entry]
