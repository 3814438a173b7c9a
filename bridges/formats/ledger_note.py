"""Notes: batches without records that carry a writer's number for the ledger.

A backend takes no batch without an offset, so a note takes one. Readers of every protocol skip it like a gap, and it
takes no bytes of a Pravega position. The number becomes durable like any batch, and in its order.

Layout: kind of the writer (1 byte), its number (8), bytes of its name (2), its name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from bridges.errors import BatchInvalid
from bridges.formats.base import BatchInfo, Builder, FormatId
from bridges.formats.codecs.compression import DEFAULT_LIMIT
from bridges.formats.producer import EventStamp, LedgerKind, SeqNoStamp
from bridges.formats.records import Buffer, Record, StoredBatch

_HEAD = struct.Struct(">BqH")


def encode_note(stamp: EventStamp | SeqNoStamp) -> bytes:
    """Return the payload of a note that its writer has used all numbers up to the stamp's last."""
    if isinstance(stamp, EventStamp):
        name, number = stamp.writer_id, stamp.number
    else:
        name, number = stamp.producer_id, stamp.seq_nos[-1]
    return _HEAD.pack(stamp.kind, number, len(name)) + name


class LedgerNoteFormat:
    """The stored format of notes (see :class:`bridges.formats.base.StoredFormat`)."""

    id = FormatId.LEDGER_NOTE
    name = "ledger note"

    def describe(self, payload: Buffer) -> BatchInfo:
        try:
            kind, number, size = _HEAD.unpack_from(payload)
        except struct.error as error:
            raise BatchInvalid("a note for the ledger is cut short") from error
        name = bytes(payload[_HEAD.size :])
        if len(name) != size:
            raise BatchInvalid("a note for the ledger has another length than it says")
        if kind == LedgerKind.EVENT_NUMBER:
            return BatchInfo(-1, -1, EventStamp(name, number, 0))
        if kind == LedgerKind.SEQ_NO:
            return BatchInfo(-1, -1, SeqNoStamp(name, (number,)))
        raise BatchInvalid(f"a note for the ledger is of an unknown kind {kind}")

    def stamp(self, payload: Buffer, base_offset: int, epoch: int) -> None:
        return None

    def records(self, batch: StoredBatch, limit: int = DEFAULT_LIMIT, start: int = 0) -> Iterator[Record | None]:
        return iter(())

    def event_bytes(self, payload: Buffer) -> int | None:
        return 0

    def builder(self, base_offset: int, end_offset: int) -> Builder:
        raise BatchInvalid("a note for the ledger holds no records")
