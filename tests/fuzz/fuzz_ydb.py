"""Coverage-guided fuzzing of what YDB's clients write, and of how readers get it. Needs atheris:

    python -m pip install atheris
    python tests/fuzz/fuzz_ydb.py CORPUS_DIRECTORY

``python tests/fuzz/fuzz_ydb.py --seeds CORPUS_DIRECTORY`` writes messages of StreamWrite, stored batches, and a request
of every method. The first byte of an input chooses what the rest is taken for.
"""

from __future__ import annotations

import struct
from typing import Any

import crc32c
from google.protobuf.message import DecodeError

from anabranch_kit.run.sliced import Sliced
from bridges.errors import BatchInvalid
from bridges.formats.codecs.ydb import Codec
from bridges.formats.ydb import Head, encode_batch, parse_head
from tests.fuzz.harness import run
from ydb_topic_front.session.read_data import BatchReader, Place
from ydb_topic_front.session.write_batches import Batches, joined
from ydb_topic_front.session.write_request import (
    WriteParts,
    parse_other,
    parts_at_once,
    parts_in_slices,
    write_body,
)
from ydb_topic_front.wire.messages import StreamWriteFromClient, WriteRequest, messages
from ydb_topic_front.wire.methods import METHODS
from ydb_topic_front.wire.statuses import YdbError

WRITE, BATCH, MESSAGE = range(3)
PACKAGES = ("ydb_topic_front.session.", "ydb_topic_front.wire.", "bridges.formats.ydb", "bridges.formats.protobuf")
_ReadBatch = messages["Ydb.Topic.StreamReadMessage.ReadResponse.Batch"]
_REQUESTS = sorted({method.request for method in METHODS.values()})
_MOST_MESSAGES = 1000
_BASE = 7


def one_input(data: bytes) -> None:
    """Bytes are what they claim to be or raise the one typed error; what was written is read as protobuf reads it."""
    if data:
        (_write, _batch, _message)[data[0] % 3](data[1:])


def _write(raw: bytes) -> None:
    body = write_body(raw)
    try:
        if body is None:
            parse_other(raw)
            return
        whole = parts_at_once(raw, body, _MOST_MESSAGES) or _whole(parts_in_slices(body, _MOST_MESSAGES))
    except YdbError:
        return
    written = WriteRequest.FromString(bytes(body)).messages
    read: list[Any] = []
    for part in whole.parts:
        batch = Batches(b"producer", b"").batch(part, whole.codec)
        alone = _read(bytes(batch.payload), _BASE + len(part.seq_nos), 1 << 20, 100)
        shared = Batches(b"producer", b"").batch(joined([part]), whole.codec)
        assert _read(bytes(shared.payload), _BASE + len(part.seq_nos), 1 << 20, 100) == alone
        read += alone
    assert [(one.seq_no, one.data) for one in read] == [(one.seq_no, one.data) for one in written]
    assert [one.seq_no for one in read] == [number for part in whole.parts for number in part.seq_nos]
    try:
        sliced = _whole(parts_in_slices(body, 3))
    except YdbError:
        return
    assert [number for part in sliced.parts for number in part.seq_nos] == [one.seq_no for one in written]
    assert all(len(part.seq_nos) <= 3 for part in sliced.parts)


def _whole(work: Sliced[WriteParts]) -> WriteParts:
    while True:
        try:
            next(work)
        except StopIteration as end:
            parts: WriteParts = end.value
            return parts


def _batch(payload: bytes) -> None:
    payload = struct.pack(">I", crc32c.crc32c(payload[4:])) + payload[4:]
    try:
        head = parse_head(payload)
    except BatchInvalid:
        return
    end = _BASE + (head.messages if not head.sparse else _MOST_MESSAGES)
    try:
        together = _read(payload, end, 1 << 20, _MOST_MESSAGES)
    except (BatchInvalid, DecodeError):  # what a message has within its length nobody looked at
        return
    assert _read(payload, end, 1, 1) == together, "in whatever steps"


def _read(payload: bytes, end: int, most_bytes: int, most_messages: int) -> list[Any]:
    """The messages of a batch as a reader's client gets them. Raises BatchInvalid, DecodeError."""
    found: list[Any] = []
    place = Place(_BASE)
    while True:
        reader = BatchReader(payload, _BASE, end, 1000, place)
        parts: list[Any] = []
        size = reader.take(parts, most_bytes, most_messages)
        told = b"".join(parts)
        assert size >= 0
        found += _ReadBatch.FromString(told + reader.tail).message_data
        place = reader.place
        if reader.ended or len(found) > _MOST_MESSAGES:
            return found


def _message(data: bytes) -> None:
    if not data:
        return
    kind = messages[_REQUESTS[data[0] % len(_REQUESTS)]]
    try:
        found = kind.FromString(data[1:])
    except DecodeError:
        return
    raw = found.SerializeToString(deterministic=True)
    assert kind.FromString(raw).SerializeToString(deterministic=True) == raw


def seeds() -> dict[str, bytes]:
    """Inputs by file name."""
    item = {"key": "name", "value": b"x"}
    plain = [{"seq_no": number, "data": b"data" * number, "uncompressed_size": 4 * number} for number in range(1, 6)]
    full = [{**one, "created_at": {"seconds": 1000, "nanos": 5_000_000}, "metadata_items": [item]} for one in plain]
    found = {}
    for name, some in (("plain", plain), ("full", full), ("gaps", plain[::2])):
        request = WriteRequest(messages=some, codec=1)
        found[f"write-{name}"] = bytes([WRITE]) + StreamWriteFromClient(write_request=request).SerializeToString()
        body = WriteRequest(messages=some).SerializeToString()
        numbers = [int(str(one["seq_no"])) for one in some]
        for codec in Codec:
            batch = encode_batch(Head(False, codec, len(some), numbers[0], numbers[-1], 5000, b"producer", b""), body)
            found[f"batch-{name}-{codec}"] = bytes([BATCH]) + bytes(batch)
    init = StreamWriteFromClient(init_request={"path": "topic", "producer_id": "p"})
    found["write-init"] = bytes([WRITE]) + init.SerializeToString()
    for number, name in enumerate(_REQUESTS):
        found[f"message-{name}"] = bytes([MESSAGE, number]) + messages[name]().SerializeToString()
    return found


if __name__ == "__main__":
    run(one_input, seeds, PACKAGES)
