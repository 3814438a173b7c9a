"""Coverage-guided fuzzing of what reads the records of stored batches. Needs atheris, which is not part of the set-up:

    python -m pip install atheris
    python tests/fuzz/fuzz_records.py CORPUS_DIRECTORY

``python tests/fuzz/fuzz_records.py --seeds CORPUS_DIRECTORY`` writes a batch of every codec and format.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from bridges.errors import BatchInvalid
from bridges.formats import FORMATS, FormatId
from bridges.formats.compression import Compression
from bridges.formats.kafka import HEADER_SIZE, LOG_OVERHEAD, encode
from bridges.formats.records import Record, StoredBatch
from sbp_back.document.batch import DocumentRecord, encode_batch

LIMIT = 1 << 20
MOST_RECORDS = 1000


def one_input(data: bytes) -> None:
    """Any bytes in any format are records or BatchInvalid; reading times, or what lies behind, finds the same."""
    if not data:
        return
    form = FORMATS.get(data[0] & 7)
    if form is None:
        return
    payload = bytearray(data[1:])
    if form.id is FormatId.KAFKA and len(payload) >= HEADER_SIZE:
        struct.pack_into(">i", payload, 8, len(payload) - LOG_OVERHEAD)  # the log has no others
    batch = StoredBatch(7, 7 + 1 + data[0] // 8 * 5, int(form.id), bytes(payload))
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
    assert [item for item in form.times(batch, LIMIT) if item is not None] == records
    behind = [one.offset for one in form.records(batch, LIMIT, 9) if one is not None]
    assert behind == [offset for offset, _ in records if offset >= 9]


def seeds() -> dict[str, bytes]:
    """A batch of every codec and format, by file name."""
    records = [Record(b"key", b"value" * 10, [("name", b"x"), ("none", None)], 1000 + n) for n in range(6)]
    document = encode_batch([DocumentRecord(b"body", [("name", "x")], timestamp=1000) for _ in range(6)])
    found = {"raw": b"\x00anything", "document": bytes([8 + FormatId.SBP_V01]) + document}
    for codec in Compression:
        found[f"kafka-{codec.name.lower()}"] = bytes([8 + FormatId.KAFKA]) + encode(records, codec=codec)
    return found


def main() -> None:
    if sys.argv[1:2] == ["--seeds"]:
        directory = Path(sys.argv[2])
        directory.mkdir(parents=True, exist_ok=True)
        for name, frame in seeds().items():
            (directory / name).write_bytes(frame)
        return
    import atheris

    atheris.instrument_all()
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
