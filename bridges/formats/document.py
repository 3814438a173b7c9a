"""Record batches of SBP's specification document (dialect sbp-v0.1) as a stored format.

Layout: reference/sbp.md, section 1.3. A record has a body and text headers; there is no key. The base offset is written
into the batch when it is stored; the rest stays as its writer made it, claims about offsets included, which nobody
believes: records are numbered in order.
"""

from __future__ import annotations

from collections.abc import Sequence

from bridges.errors import BatchInvalid
from bridges.formats.base import BatchInfo, FormatId
from bridges.records import Buffer, Record, StoredBatch
from sbp_back.document.batch import (
    MAX_TIMESTAMP_DELTA,
    DocumentRecord,
    RecordBatch,
    encode_batch,
    parse_batch,
    set_base_offset,
)
from sbp_back.errors import DecodeError

_LATEST = 1 << 53
"""Timestamps beyond this many milliseconds are taken for mistakes: no other format is sure to hold them."""


def _timestamp(record: DocumentRecord) -> int:
    # A writer that says nothing of time leaves 0.
    return record.timestamp if 0 < record.timestamp < _LATEST else -1


def _parse(payload: Buffer) -> RecordBatch:
    # Leniently: the server does not look at metas, and one that is no table must not hide the records behind it.
    try:
        parsed = parse_batch(payload, lenient=True)
    except DecodeError as error:
        raise BatchInvalid(f"a record batch of sbp-v0.1 is malformed: {error}") from error
    if not parsed.records:
        raise BatchInvalid("a record batch of sbp-v0.1 without records")
    return parsed


class DocumentFormat:
    """The stored-format plug of record batches of sbp-v0.1 (see :class:`bridges.formats.base.StoredFormat`)."""

    id = FormatId.SBP_V01
    name = "sbp-v0.1"

    def describe(self, payload: Buffer) -> BatchInfo:
        """The timestamps are with the records, so this looks at them all: nobody calls it on a hot path."""
        return BatchInfo(max(_timestamp(record) for record in _parse(payload).records), -1, None)

    def stamp(self, payload: Buffer, base_offset: int, epoch: int) -> None:
        set_base_offset(payload, base_offset)

    def place(self, payload: Buffer, base_offset: int) -> Buffer:
        return payload  # the server has written it there

    def decode(self, batch: StoredBatch) -> list[Record]:
        parsed = _parse(batch.payload)
        if len(parsed.records) != batch.end_offset - batch.base_offset:
            span = batch.end_offset - batch.base_offset
            raise BatchInvalid(f"a record batch of sbp-v0.1 has {len(parsed.records)} records for {span} offsets")
        return [
            Record(
                None,
                bytes(record.body),
                [(name, value.encode()) for name, value in record.headers],
                _timestamp(record),
                batch.base_offset + number,
            )
            for number, record in enumerate(parsed.records)
        ]

    def encode(self, records: Sequence[Record], base_offset: int, end_offset: int) -> Buffer:
        """Headers become text, keys are lost: this format has no place for them. Gaps close, as it has none either, and
        times more than 24 days from the first are brought nearer."""
        if not records:
            raise BatchInvalid("a record batch of sbp-v0.1 cannot be empty")
        first = max(records[0].timestamp, 0)
        batch = encode_batch(
            [
                DocumentRecord(
                    record.value or b"",
                    [(name, (value or b"").decode(errors="replace")) for name, value in record.headers],
                    timestamp=min(max(record.timestamp, first - MAX_TIMESTAMP_DELTA), first + MAX_TIMESTAMP_DELTA),
                )
                for record in records
            ]
        )
        set_base_offset(batch, base_offset)
        return batch
