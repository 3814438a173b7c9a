"""Coverage-guided fuzzing of the segment store's frames and of the stored format of its appends. Needs atheris:

    python -m pip install atheris
    python tests/fuzz/fuzz_pravega.py CORPUS_DIRECTORY

``python tests/fuzz/fuzz_pravega.py --seeds CORPUS_DIRECTORY`` writes one frame of every command, blocks and batches.
The first byte of an input chooses what the rest is taken for.
"""

from __future__ import annotations

import struct

import crc32c

from bridges.errors import BatchCorrupt, BatchInvalid
from bridges.formats.pravega import HEADER_SIZE, PravegaFormat, Shape, encode, segment_bytes
from bridges.formats.records import StoredBatch
from pravega_front.wire import fields
from pravega_front.wire import frames as wire
from pravega_front.wire.blocks import appended
from pravega_front.wire.commands import AppendBlockEnd, DataAppended, Padding, PartialEvent
from tests.fuzz.harness import run
from tests.pravega_front.examples import examples

FRAME, BLOCK, BATCH = range(3)
_EVENTS = b"".join(struct.pack(">ii", 0, len(one)) + one for one in (b"a", b"", b"three" * 9))
_END = struct.Struct(">iI")


def one_input(data: bytes) -> None:
    """Bytes are what they claim to be or raise the one typed error; what was read is written and read alike."""
    if data:
        (_frame, _block, _batch)[data[0] % 3](data[1:])


def _frame(data: bytes) -> None:
    try:
        command = wire.decode(data)
    except fields.WireError:
        return
    raw = b"".join(wire.encode(command))
    if not isinstance(command, DataAppended):  # whose fields may be missing, and are all written
        assert b"".join(wire.encode(wire.decode(raw))) == raw
    assert type(wire.decode(raw)) is type(command)


def _block(data: bytes) -> None:
    if len(data) < _END.size:
        return
    whole, cut = _END.unpack_from(data)
    block, rest = data[_END.size :][:cut], data[_END.size :][cut:]
    try:
        parts = appended(block, AppendBlockEnd(bytes(16), whole, rest, 1, 1, 1))
    except fields.WireError:
        return
    told = b"".join(parts)
    assert told[:whole] == block[:whole]
    assert len(told) <= len(block) + len(rest)
    assert all(len(one) for one in parts)


def _batch(data: bytes) -> None:
    plug = PravegaFormat()
    if len(data) >= HEADER_SIZE:  # a checksum that matches, or nothing behind it is ever reached
        data = struct.pack(">I", crc32c.crc32c(data[4:])) + data[4:]
    try:
        info = plug.describe(data)
        body = segment_bytes(data)
    except BatchInvalid:
        return
    count = max(1, struct.unpack_from(">I", data, HEADER_SIZE - 24)[0] % 1000)
    batch = StoredBatch(5, 5 + count, PravegaFormat.id, data, 7)
    try:
        records = [one for one in plug.records(batch) if one is not None]
    except (BatchInvalid, BatchCorrupt):
        return
    offsets = [one.offset for one in records]
    assert offsets == sorted(set(offsets)), "offsets grow"
    assert all(5 <= offset < 5 + count for offset in offsets), "within the batch"
    assert sum(len(one.value or b"") for one in records) <= len(body)
    assert plug.event_bytes(data) == len(body)
    assert info is not None
    again = [one for one in plug.records(batch, start=5 + count // 2) if one is not None]
    assert [one.offset for one in again] == [one for one in offsets if one >= 5 + count // 2]


def seeds() -> dict[str, bytes]:
    """Inputs by file name."""
    found = {}
    for command in examples():
        found[type(command).__name__] = bytes([FRAME]) + b"".join(wire.encode(command))
    partial = struct.pack(">ii", PartialEvent.code, 5) + b"begin"
    padding = struct.pack(">ii", Padding.code, 5) + bytes(5)
    for name, inner, rest in (("whole", b"", b""), ("partial", partial, b"and end"), ("padding", padding, b"")):
        block = _EVENTS + inner
        found[f"block-{name}"] = bytes([BLOCK]) + _END.pack(len(_EVENTS), len(block)) + block + rest
    places = struct.pack(">3I", 0, 2, 5)
    claims = struct.pack(">5I", 2, 3, len(_EVENTS), 3, len(_EVENTS))
    for shape, front, parts in (
        (Shape.EVENTS, b"", [_EVENTS]),
        (Shape.BYTES, b"", [b"bytes"]),
        (Shape.SCATTERED, places, [_EVENTS]),
        (Shape.GATHERED, claims, [_EVENTS, _EVENTS]),
    ):
        records = {Shape.BYTES: 1, Shape.GATHERED: 6}.get(shape, 3)
        size = sum(map(len, parts))
        batch = encode([front, *parts], size, shape, records, writer_id=bytes(range(16)), last_number=9, events=3)
        found[f"batch-{shape.name.lower()}"] = bytes([BATCH]) + batch
    return found


if __name__ == "__main__":
    run(one_input, seeds, ("pravega_front.wire.", "bridges.formats.pravega"))
