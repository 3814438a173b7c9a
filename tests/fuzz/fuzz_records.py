"""Coverage-guided fuzzing of what reads the records of stored batches. Needs atheris, which is not part of the set-up:

    python -m pip install atheris
    python tests/fuzz/fuzz_records.py CORPUS_DIRECTORY

``python tests/fuzz/fuzz_records.py --seeds CORPUS_DIRECTORY`` writes a batch of every codec and format.
"""

from __future__ import annotations

import struct

import crc32c

from anabranch_kit.run.sliced import at_once
from bridges.errors import BatchInvalid
from bridges.formats import FORMATS, FormatId, format_of, pravega, translate_one
from bridges.formats.codecs.compression import Compression
from bridges.formats.codecs.ydb import FIRST_CUSTOM, Codec, codec_name
from bridges.formats.columns import Unusual
from bridges.formats.columns.translation import translate
from bridges.formats.kafka import HEADER_SIZE, LOG_OVERHEAD, encode
from bridges.formats.records import Record, StoredBatch
from bridges.formats.ydb import Head
from bridges.formats.ydb import encode_batch as encode_ydb
from sbp_document.wire.record_batch import FORMAT_FLAG, DocumentRecord, encode_batch
from tests.fuzz.harness import run

LIMIT = 1 << 20
MOST_RECORDS = 1000


def one_input(data: bytes) -> None:
    """Any bytes in any format are records or BatchInvalid; reading times, or what lies behind, finds the same."""
    if not data:
        return
    try:
        form = format_of(data[0] & 7)
    except BatchInvalid:
        return
    payload = bytearray(data[1:])
    if form.id is FormatId.KAFKA and len(payload) >= HEADER_SIZE:
        struct.pack_into(">i", payload, 8, len(payload) - LOG_OVERHEAD)  # the log has no others
        struct.pack_into(">I", payload, 17, crc32c.crc32c(bytes(payload[21:])))
    if form.id is FormatId.PRAVEGA:
        make_whole(payload)
    if form.id is FormatId.YDB and len(payload) >= 4:
        struct.pack_into(">I", payload, 0, crc32c.crc32c(bytes(payload[4:])))
    batch = StoredBatch(7, 7 + 1 + data[0] // 8 * 5, int(form.id), bytes(payload))
    compare_columns(batch)
    records = []
    try:
        for record in form.records(batch, LIMIT):
            if record is not None:
                assert 7 <= record.offset < batch.end_offset
                records.append((record.offset, record.timestamp))
            if len(records) > MOST_RECORDS:
                return
    except BatchInvalid:
        return
    behind = [one.offset for one in form.records(batch, LIMIT, 9) if one is not None]
    assert behind == [offset for offset, _ in records if offset >= 9]


def compare_columns(batch: StoredBatch) -> None:
    """What columns give in another format is what reading record by record gives."""
    for target in {FormatId.KAFKA, FormatId.PRAVEGA, FormatId.YDB} - {batch.flags}:
        try:
            (made,) = at_once(translate([batch], FORMATS[target], LIMIT))
        except (Unusual, BatchInvalid):
            continue
        long = at_once(translate_one(format_of(batch.flags), batch, FORMATS[target], LIMIT))
        both = (StoredBatch(7, batch.end_offset, int(target), one) for one in (made, long))
        first, second = (list(FORMATS[target].records(one)) for one in both)
        assert first == second, (target, first, second)


def make_whole(payload: bytearray) -> None:
    """Have a batch of Pravega's the length and the checksum it says, without which nothing else is looked at."""
    if len(payload) >= pravega.HEADER_SIZE:
        front = 4 * int.from_bytes(payload[36:40]) if payload[5] == pravega.Shape.SCATTERED else 0
        if payload[5] == pravega.Shape.GATHERED:
            front = 4 + 8 * int.from_bytes(payload[pravega.HEADER_SIZE : pravega.HEADER_SIZE + 4])
        struct.pack_into(">I", payload, 40, max(0, len(payload) - pravega.HEADER_SIZE - front))
        struct.pack_into(">I", payload, 0, crc32c.crc32c(bytes(payload[4:])))


def seeds() -> dict[str, bytes]:
    """A batch of every codec and format, by file name."""
    records = [Record(b"key", b"value" * 10, [("name", b"x"), ("none", None)], 1000 + n) for n in range(6)]
    document = encode_batch([DocumentRecord(b"body", [("name", "x")], timestamp=1000) for _ in range(6)])
    events = b"".join(struct.pack(">ii", 0, 5) + b"event" for _ in range(6))
    scattered = FORMATS[FormatId.PRAVEGA].builder(0, 20)
    for number, record in enumerate(records):
        record.offset = 3 * number
        scattered.add(record)
    found = {
        "pravega": bytes([8 + FormatId.PRAVEGA]) + pravega.encode([events], len(events), pravega.Shape.EVENTS, 6),
        "pravega-scattered": bytes([32 + FormatId.PRAVEGA]) + bytes(scattered.finish()),
    }
    shape, count, front = pravega.gathered([(3, len(events)), (9, len(events))], 100)
    both = pravega.encode([front, events, events], 2 * len(events), shape, count)
    found["pravega-gathered"] = bytes([16 + FormatId.PRAVEGA]) + both
    found |= {"raw": b"\x00anything", "document": bytes([8 + FORMAT_FLAG]) + document}
    messages = b"".join(b"\x0a\x12\x08%c\x12\x02\x08\x05\x3a\x05\x0a\x01k\x12\x00\x1a\x03abc" % n for n in range(1, 7))
    for codec in (*Codec, FIRST_CUSTOM):
        batch = encode_ydb(Head(False, codec, 6, 1, 6, 5000, b"producer", b""), messages)
        found[f"ydb-{codec_name(codec)}"] = bytes([8 + FormatId.YDB]) + batch
    sparse = FORMATS[FormatId.YDB].builder(0, 20)
    for record in records:
        sparse.add(record)
    found["ydb-sparse"] = bytes([24 + FormatId.YDB]) + sparse.finish()
    for codec in Compression:
        found[f"kafka-{codec.name.lower()}"] = bytes([8 + FormatId.KAFKA]) + encode(records, codec=codec)
    return found


if __name__ == "__main__":
    run(one_input, seeds, ("bridges.formats.", "sbp_document."))
