"""Batches without records that tell the ledger of a number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.errors import BatchInvalid
from bridges.formats import FormatId, Translator, decode, format_of
from bridges.formats.kafka import parse_header
from bridges.formats.ledger_note import encode_note
from bridges.formats.producer import EventStamp, LedgerKind, SeqNoStamp
from bridges.formats.records import StoredBatch

NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
NOTE = int(FormatId.LEDGER_NOTE)


@given(st.binary(max_size=8192), NUMBERS)
def test_a_note_says_the_key_and_the_number(name: bytes, number: int) -> None:
    for stamp in (EventStamp(name, number), SeqNoStamp(name, [number])):
        told = format_of(NOTE).describe(encode_note(stamp)).producer
        assert told is not None
        assert (told.kind, told.key) == (stamp.kind, stamp.key)
        assert (told.number if isinstance(told, EventStamp) else told.seq_nos[-1]) == number  # type: ignore[attr-defined]


@given(st.binary(max_size=40))
def test_damaged_notes_raise_only_the_typed_error(data: bytes) -> None:
    try:
        told = format_of(NOTE).describe(data).producer
    except BatchInvalid:
        return
    assert told is not None
    assert told.kind in (LedgerKind.EVENT_NUMBER, LedgerKind.SEQ_NO)


def test_readers_find_a_gap() -> None:
    batch = StoredBatch(7, 8, NOTE, encode_note(EventStamp(bytes(16), 1)))
    assert decode(batch) == []
    payload = Translator(1 << 20).payload(1, batch, FormatId.KAFKA)
    assert payload is not None
    header = parse_header(payload)
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (7, 0, 0)
    with pytest.raises(BatchInvalid):
        format_of(NOTE).builder(7, 8)
