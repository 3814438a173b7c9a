"""YDB's stored format: what foreign readers see of a WriteRequest, and what YDB's readers get of other batches."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_kit.run.sliced import advance
from bridges.errors import BatchCorrupt, BatchInvalid
from bridges.formats import FORMATS, FormatId, Translator, decode, pieces
from bridges.formats.codecs.ydb import Codec
from bridges.formats.kafka import encode, iterate
from bridges.formats.producer import InTransaction, ProducerStamp, SeqNoStamp
from bridges.formats.records import CODEC_HEADER, Record, StoredBatch
from bridges.formats.ydb import (
    KEY_ITEM,
    TOMBSTONE_ITEM,
    Head,
    created_ms,
    encode_batch,
    encode_in_slices,
    next_message,
    parse_head,
    without_first,
)
from tests.bridges.formats.ydb_messages import encoded, message, request, stored

FORM = FORMATS[FormatId.YDB]
BODIES = st.binary(max_size=50)
ITEMS = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3)


def test_a_message_is_a_record() -> None:
    batch = stored(
        message(7, b"body", [("a", b"1"), (KEY_ITEM, b"key"), (KEY_ITEM, b"second"), ("a", b"")], (12, 345_678_901)),
        message(9, b""),
        base=50,
        first=7,
        last=9,
    )
    assert decode(batch) == [
        Record(b"key", b"body", [("a", b"1"), (KEY_ITEM, b"second"), ("a", b"")], 12_345, 50, "producer", 7, 77),
        Record(None, b"", [], -1, 51, "producer", 9, 77),
    ]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZOP, Codec.ZSTD])
@given(st.lists(BODIES, min_size=1, max_size=5))
def test_bodies_are_decoded_for_readers_of_other_protocols(codec: Codec, bodies: list[bytes]) -> None:
    batch = stored(*(message(n, encoded(codec, body)) for n, body in enumerate(bodies, 1)), codec=codec)
    assert [(one.value, one.codec) for one in decode(batch)] == [(body, None) for body in bodies]


def test_what_only_its_reader_decodes_is_passed_on_with_its_codec() -> None:
    (custom,) = decode(stored(message(1, b"?"), codec=10_007))
    assert (custom.value, custom.codec) == (b"?", "custom-10007")
    kafka = Translator(1 << 20).payload(1, stored(message(1, b"?", [("a", b"b")]), codec=10_007), FormatId.KAFKA)
    assert kafka is not None
    (record,) = iterate(kafka)
    assert (record.value, record.headers) == (b"?", [("a", b"b"), (CODEC_HEADER, b"custom-10007")])


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZOP, Codec.ZSTD])
def test_a_body_that_does_not_decode_hides_nothing_behind_it(codec: Codec) -> None:
    good = encoded(codec, b"good")
    bodies = [good, good[:-6], b"garbage", b"", good]
    batch = stored(*(message(n, body) for n, body in enumerate(bodies, 1)), codec=codec)
    name = codec.name.lower()
    assert [(one.value, one.codec) for one in decode(batch)] == [
        (b"good", None),
        (good[:-6], name),
        (b"garbage", name),
        (b"", name),
        (b"good", None),
    ]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZOP, Codec.ZSTD])
def test_a_bomb_is_passed_on_as_it_is(codec: Codec) -> None:
    bomb = encoded(codec, bytes(8 << 20))
    small = encoded(codec, b"small")
    batch = stored(message(1, small), message(2, bomb), message(3, small), message(4, bomb), codec=codec)
    found = [one for one in FORM.records(batch, 1 << 20) if one is not None]
    assert [(one.value, one.codec) for one in found] == [
        (b"small", None),
        (bomb, codec.name.lower()),
        (b"small", None),
        (bomb, codec.name.lower()),
    ]
    assert decode(batch)[1].value == bytes(8 << 20)


async def test_what_decompresses_to_much_is_not_translated_on_the_event_loop() -> None:
    for codec in (Codec.GZIP, Codec.LZOP, Codec.ZSTD):
        batch = stored(message(1, encoded(codec, bytes(4 << 20))), codec=codec)
        translator = Translator(64 << 20)
        assert translator.payload(1, batch, FormatId.KAFKA) is None
        (record,) = iterate(await translator.translate(1, batch, FormatId.KAFKA))
        assert record.value == bytes(4 << 20)


def test_the_header_tells_the_ledger() -> None:
    info = FORM.describe(stored(message(3, b""), message(9, b""), first=3, last=9).payload)
    assert isinstance(info.producer, SeqNoStamp)
    assert (info.producer.producer_id, info.producer.seq_nos[-1], len(info.producer.seq_nos)) == (b"producer", 9, 2)
    assert (info.max_timestamp, info.control, info.transaction) == (5, False, None)
    assert FORM.describe(stored(message(1, b""), producer=b"").payload).producer is None


def test_a_batch_of_a_transaction_is_known_by_the_transaction_s_producer_alone() -> None:
    part = ProducerStamp(77, 3, 10, 2)
    body = request(message(8, b"a"), message(9, b"b"))
    payload = encode_batch(Head(False, 1, 2, 8, 9, 5, b"p", b"meta", part=part), body)
    head = parse_head(payload)
    assert (head.part, head.producer_id, head.session_meta, payload[head.body :]) == (part, b"p", b"meta", body)
    info = FORM.describe(payload)
    assert (info.producer, info.transaction) == (part, InTransaction(77, 3))
    records = decode(StoredBatch(0, 2, int(FormatId.YDB), payload))
    assert [(record.value, record.producer, record.sequence) for record in records] == [(b"a", "p", 8), (b"b", "p", 9)]
    with pytest.raises(BatchInvalid, match="producer -1"):
        parse_head(encode_batch(Head(False, 1, 2, 8, 9, 5, b"p", b"", part=ProducerStamp(-1, 0, 0, 2)), body))


@given(st.binary(max_size=20), st.binary(max_size=20), st.binary(max_size=200), st.integers(1, 50))
def test_a_batch_made_in_slices_is_the_same(producer: bytes, meta: bytes, messages: bytes, at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "STEP", at_once)
        patch.setattr(pieces, "LARGE", 1)
        head = Head(False, 2, 3, 4, 9, 77, producer, meta)
        work = encode_in_slices(head, memoryview(messages))
        steps = 0
        while not (made := advance(work))[0]:
            steps += 1
    assert bytes(made[1]) == encode_batch(head, messages)
    assert steps >= len(messages) // at_once


def test_times_that_no_other_format_holds_are_unknown() -> None:
    assert created_ms(12, 345_678_901) == 12_345
    assert created_ms(0, 0) == 0
    assert created_ms(-1, 1_000_000) == -999
    for seconds in (1 << 62, -(1 << 63)):
        assert created_ms(seconds, 0) == -1
    batch = stored(message(1, b"", created=(-5, 0)), message(2, b"", created=(3, 0)), message(3, b""))
    assert [one.timestamp for one in decode(batch)] == [-5000, 3000, -1]


def test_unknown_fields_are_passed_over() -> None:
    strange = b"\x2a\x02id" + b"\x30\x05" + b"\x42\x02\x08\x01" + b"\x9a\x06\x01x" + b"\xa1\x06" + bytes(8)
    strange += b"\xad\x06" + bytes(4) + b"\xb3\x06\x08\x01\xb3\x06\xb4\x06\xb4\x06"
    payload = encode_batch(
        Head(False, 1, 2, 1, 2, -1, b"p", b""),
        request(strange + message(1, b"one")) + b"\x10\x02" + request(message(2, b"two")),
    )
    assert [one.value for one in decode(StoredBatch(0, 2, int(FormatId.YDB), payload))] == [b"one", b"two"]


def test_the_first_messages_can_be_left_out() -> None:
    messages = [message(n, b"x" * n) for n in range(1, 6)]
    body = request(*messages)
    for count in range(6):
        assert bytes(without_first(body, count)) == request(*messages[count:])
    with pytest.raises(BatchInvalid):
        without_first(body, 6)
    with pytest.raises(BatchInvalid):
        without_first(body[:-1], 5)
    assert next_message(body, len(body), len(body)) is None


@pytest.mark.parametrize("at", [0, 4, 7, 20, 45, 55, 60])
def test_a_flipped_bit_is_found(at: int) -> None:
    batch = stored(message(1, b"some body"), message(2, b"another body"))
    torn = bytearray(batch.payload)
    torn[at] ^= 0x10
    with pytest.raises(BatchInvalid):
        decode(batch._replace(payload=bytes(torn)))
    torn = bytearray(batch.payload)
    torn[-1] ^= 1
    with pytest.raises(BatchCorrupt):
        decode(batch._replace(payload=bytes(torn)))


def test_counts_and_lengths_are_claims() -> None:
    body = request(message(1, b"one"), message(2, b"two"))
    for count, span in ((1, 1), (3, 3), (2, 3), (2, 1), (1 << 31, 1 << 31)):
        payload = encode_batch(Head(False, 1, count, 1, 2, -1, b"p", b""), body)
        with pytest.raises(BatchInvalid):
            decode(StoredBatch(0, span, int(FormatId.YDB), payload))
    whole = encode_batch(Head(False, 1, 2, 1, 2, -1, b"producer", b"meta"), body)
    for end in range(len(whole)):
        with pytest.raises(BatchInvalid):
            decode(StoredBatch(0, 2, int(FormatId.YDB), whole[:end]))
    head = parse_head(whole)
    assert (head.producer_id, head.session_meta, whole[head.body :]) == (b"producer", b"meta", body)


@given(
    st.lists(
        st.builds(
            Record,
            key=st.none() | st.binary(max_size=5),
            value=st.none() | BODIES,
            headers=ITEMS.map(lambda items: [item for item in items if item[0] not in (KEY_ITEM, TOMBSTONE_ITEM)]),
            timestamp=st.integers(-1, 1 << 42),
            producer=st.just("7"),
            sequence=st.integers(0, 1 << 31),
        ),
        max_size=6,
    ),
    st.lists(st.integers(0, 300), max_size=6, unique=True).map(sorted),
)
def test_records_of_others_come_back_from_a_batch_with_gaps(records: list[Record], offsets: list[int]) -> None:
    builder = FORM.builder(1000, 1301)
    expected = records[: len(offsets)]
    for record, offset in zip(expected, offsets, strict=False):
        record.offset = 1000 + offset
        record.written = 77
        builder.add(record)
    batch = StoredBatch(1000, 1301, int(FormatId.YDB), builder.finish(), 77)
    assert decode(batch) == expected[: len(offsets)]
    info = FORM.describe(batch.payload)
    assert info.max_timestamp == max((one.timestamp for one in expected[: len(offsets)]), default=-1)


def test_what_kafka_wrote() -> None:
    records = [
        Record(b"k", None, [("h", None)], 1234),
        Record(b"", b"", [], 1234),
        Record(None, b"v", [("h", b"x")], 1234),
    ]
    batch = StoredBatch(10, 13, int(FormatId.KAFKA), encode(records, 10), 77)
    payload = Translator(1 << 20).payload(1, batch, FormatId.YDB)
    assert payload is not None
    found = decode(StoredBatch(10, 13, int(FormatId.YDB), payload, 77))
    assert [(one.key, one.value, one.headers) for one in found] == [
        (b"k", None, [("h", None)]),
        (b"", b"", []),
        (None, b"v", [("h", b"x")]),
    ]
    assert [(one.sequence, one.producer, one.timestamp, one.written) for one in found] == [
        (offset + 1, None, 1234, 77) for offset in (10, 11, 12)
    ]
    numbered = StoredBatch(
        10, 13, int(FormatId.KAFKA), encode(records, 10, producer_id=7, producer_epoch=0, base_sequence=40), 77
    )
    payload = Translator(1 << 20).payload(1, numbered, FormatId.YDB)
    assert payload is not None
    assert [(one.sequence, one.producer) for one in decode(StoredBatch(10, 13, int(FormatId.YDB), payload))] == [
        (40, "7"),
        (41, "7"),
        (42, "7"),
    ]


def test_long_batches_are_read_in_slices() -> None:
    many = stored(*(message(n, b"x") for n in range(1, 5001)))
    assert list(FORM.records(many)).count(None) >= 40
    assert list(FORM.records(many, start=4999)).count(None) >= 2
    large = stored(*(message(n, gzip.compress(bytes(60_000))) for n in range(1, 11)), codec=Codec.GZIP)
    assert list(FORM.records(large)).count(None) >= 5
