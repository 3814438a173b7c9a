"""Record batches of SBP's specification document (dialect sbp-v0.1) as a stored format.

Layout: docs/protocols/sbp.md, "Record batches of the document". A record has a body and text headers; there is no key.
The base offset is written into the batch when it is stored; the rest stays as its writer made it. Its claims about
offsets stay too, but are ignored: records are numbered in order.
"""

from __future__ import annotations

from collections.abc import Iterator

from bridges.errors import BatchInvalid
from bridges.formats import FORMAT_MASK, format_of
from bridges.formats.base import BatchInfo, FinishedAtOnce
from bridges.formats.codecs.compression import DEFAULT_LIMIT
from bridges.formats.records import Buffer, Record, StoredBatch, told_headers
from sbp_back.errors import DecodeError
from sbp_back.wire.entry import pack_entry
from sbp_document.wire.record_batch import (
    FORMAT_FLAG,
    MAX_TIMESTAMP_DELTA,
    BatchMeta,
    DocumentRecord,
    encode_batch,
    pack_head,
    parse_head,
    read_records,
    set_base_offset,
)
from sbp_document.wire.wrapped import unwrap

_LATEST = 1 << 53
"""Timestamps beyond this many milliseconds count as mistakes: other formats may be unable to hold them."""


_DESCRIBED = 100
"""Records examined in one step: each takes microseconds."""


def _timestamp(record: DocumentRecord) -> int:
    # A writer without timestamps leaves 0.
    return record.timestamp if 0 < record.timestamp < _LATEST else -1


def _records(payload: Buffer) -> Iterator[DocumentRecord]:
    # Leniently: the server does not check metas, and a malformed one must not hide the records behind it.
    try:
        yield from read_records(payload, lenient=True)
    except DecodeError as error:
        raise BatchInvalid(f"a record batch of sbp-v0.1 is malformed: {error}") from error


def _span(batch: StoredBatch) -> int:
    return batch.end_offset - batch.base_offset


class DocumentFormat:
    """The stored-format plug-in for record batches of sbp-v0.1 (see :class:`bridges.formats.base.StoredFormat`)."""

    id = FORMAT_FLAG
    name = "sbp-v0.1"

    def describe(self, payload: Buffer) -> BatchInfo:
        """Describe a batch. Timestamps are in the records: of a long batch only the first ones are read, and the
        highest possible time is reported as its maximum.
        """
        highest = -1
        for number, record in enumerate(_records(payload)):
            if number == _DESCRIBED:
                if highest >= 0:
                    _, meta, _ = parse_head(memoryview(payload), lenient=True)
                    highest = max(highest, min(meta.base_timestamp + MAX_TIMESTAMP_DELTA, _LATEST))
                return BatchInfo(highest, -1, None)
            highest = max(highest, _timestamp(record))
        return BatchInfo(highest, -1, None)

    def stamp(self, payload: Buffer, base_offset: int, epoch: int) -> None:
        set_base_offset(payload, base_offset)

    def records(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT, start: int = 0) -> Iterator[Record | None]:
        """Yield the records of a batch; of a batch that wraps batches of other formats
        (:mod:`sbp_document.wire.wrapped`), theirs.
        """
        held = unwrap(pack_entry(0, 0, batch.flags, batch.base_offset, _span(batch), batch.written_ms, batch.payload))
        if held[0].flags & FORMAT_MASK != self.id:
            for one in held:
                inner = StoredBatch(one.base_offset, one.end_offset, one.flags, one.payload, batch.written_ms)
                yield from format_of(one.flags).records(inner, limit, start)
            return
        offset = batch.base_offset
        for record in _records(batch.payload):
            if (offset - batch.base_offset) % _DESCRIBED == _DESCRIBED - 1:
                yield None
            if offset >= batch.end_offset:
                raise BatchInvalid(f"a record batch of sbp-v0.1 has more records than its {_span(batch)} offsets")
            if offset >= start:
                yield Record(
                    None,
                    bytes(record.body),
                    [(name, value.encode()) for name, value in record.headers],
                    _timestamp(record),
                    offset,
                    written=batch.written_ms,
                    attributes=tuple((name, value.encode()) for name, value in record.properties),
                )
            offset += 1
        if batch.base_offset < offset < batch.end_offset:
            raise BatchInvalid(f"a record batch of sbp-v0.1 has fewer records than its {_span(batch)} offsets")

    def event_bytes(self, payload: Buffer) -> int | None:
        return None

    def builder(self, base_offset: int, end_offset: int) -> DocumentBuilder:
        return DocumentBuilder(base_offset, end_offset)


class DocumentBuilder(FinishedAtOnce):
    """Builder of such batches. Headers and attributes become text; keys are lost, since this format has no place for
    them. Gaps between records close for the same reason, and times more than 24 days from the first are brought nearer.
    """

    __slots__ = ("_base_offset", "_end_offset", "_first", "_records")

    def __init__(self, base_offset: int, end_offset: int) -> None:
        self._base_offset = base_offset
        self._end_offset = end_offset
        self._first = 0
        self._records: list[DocumentRecord] = []

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Record) -> None:
        if not self._records:
            self._first = max(record.timestamp, 0)
        low, high = self._first - MAX_TIMESTAMP_DELTA, self._first + MAX_TIMESTAMP_DELTA
        self._records.append(
            DocumentRecord(
                record.value or b"",
                [(name, (value or b"").decode(errors="replace")) for name, value in told_headers(record)],
                [(name, value.decode(errors="replace")) for name, value in record.attributes],
                timestamp=min(max(record.timestamp, low), high),
            )
        )

    def finish(self) -> Buffer:
        if not self._records:
            meta = BatchMeta(last_offset_delta=self._end_offset - self._base_offset - 1)
            return pack_head(self._base_offset, meta)
        batch = encode_batch(self._records)
        set_base_offset(batch, self._base_offset)
        return batch
