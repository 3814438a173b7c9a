"""Frames: known answers, any split of the stream, bounds, bad bytes."""

from __future__ import annotations

import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch_kit.net.framing import ReceiveBuffer
from sbp_back.errors import DecodeError, ErrorCode, SbpError
from sbp_back.wire.frame import (
    FRAME_OVERHEAD,
    FRAMING,
    MAX_FRAME_LENGTH,
    RESPONSE_FLAGS,
    Frame,
    crc32,
    encode_frame,
    parse_frame,
)
from tests.kit.sbp_frames import Frames

Fields = tuple[int, int, int, bytes, bytes]

frames = st.tuples(
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFF),
    st.integers(0, 0xFFFFFFFF),
    st.binary(max_size=60),
    st.binary(max_size=300),
)


def fields(frame: Frame) -> Fields:
    return frame.opcode, frame.flags, frame.stream_id, frame.header, bytes(frame.payload)


def wire(frame: Fields) -> bytes:
    opcode, flags, stream_id, header, payload = frame
    return b"".join(encode_frame(opcode, flags, stream_id, header, [payload]))


def test_crc_known_answer() -> None:
    assert crc32(b"abcdef") == 1267612143


def test_golden_frame() -> None:
    encoded = b"".join(encode_frame(0x1001, 0x00, 7, b"HDR", [b"abc", b"def"]))
    assert encoded == bytes.fromhex("00000019 17 1001 00 00000007 01 000003") + b"HDRabcdef" + (1267612143).to_bytes(4)
    assert len(encoded) == FRAME_OVERHEAD + 3 + 6


def test_golden_empty_frame() -> None:
    encoded = b"".join(encode_frame(0x0002, 0x01, 0))
    assert encoded == bytes.fromhex("00000010 17 0002 01 00000000 01 000000 00000000")
    (frame,) = Frames().feed(encoded)
    assert fields(frame) == (2, 1, 0, b"", b"")


def test_payload_parts_are_not_copied() -> None:
    part = bytearray(b"abc")
    assert any(p is part for p in encode_frame(1, 0, 1, b"", [part]))


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_known_crc_gives_the_same_bytes(parts: list[bytes]) -> None:
    crc = zlib.crc32(b"".join(parts))
    assert b"".join(encode_frame(1, 0, 1, b"h", parts, crc)) == b"".join(encode_frame(1, 0, 1, b"h", parts))


@given(st.lists(frames, max_size=8), st.lists(st.integers(1, 200), min_size=1, max_size=30))
def test_any_split_gives_the_same_frames(sent: list[Fields], cuts: list[int]) -> None:
    stream = b"".join(wire(frame) for frame in sent)
    reader = Frames()
    got: list[Frame] = []
    at = turn = 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        got += reader.feed(stream[at : at + step])
        at += step
        turn += 1
    assert [fields(frame) for frame in got] == sent
    assert all(frame.crc == (zlib.crc32(frame.payload) if len(frame.payload) else 0) for frame in got)
    assert reader.partial == 0


@pytest.mark.parametrize("size", [60_000, 70_000, 131_000, 140_000, 400_000, 3_000_000])
@pytest.mark.parametrize("chunk", [1_000, 65_536, 1_000_000, 10_000_000])
def test_long_frames_between_short_ones(size: int, chunk: int) -> None:
    sent: list[Fields] = [
        (1, 0, 1, b"a", b"x"),
        (2, RESPONSE_FLAGS, 2, b"header", bytes(range(256)) * (size // 256)),
        (3, 0, 3, b"", b""),
        (4, 0, 4, b"", b"y" * size),
        (5, 0, 5, b"z", b"w" * 10),
    ]
    stream = b"".join(wire(frame) for frame in sent)
    reader = Frames()
    got: list[Frame] = []
    for at in range(0, len(stream), chunk):
        got += reader.feed(stream[at : at + chunk])
    assert [fields(frame) for frame in got] == sent


def test_long_frame_is_received_in_place() -> None:
    stream = wire((1, 0, 1, b"head", b"p" * 1_000_000))
    reader = FRAMING.framer(ReceiveBuffer())
    at = 0
    targets: list[object] = []
    received: list[bytes | bytearray] = []
    while not received:
        target = reader.space()
        targets.append(target.obj)
        count = min(len(target), len(stream) - at)
        target[:count] = stream[at : at + count]
        at += count
        received = reader.received(count)
    frame = parse_frame(received[0])
    assert isinstance(frame.payload, memoryview)
    assert frame.payload.obj is targets[-1], "the payload lies where the socket wrote it"


def test_kept_slices_survive_later_frames() -> None:
    reader = Frames()
    first = reader.feed(wire((1, 0, 1, b"h", b"first payload")))
    for k in range(20_000):
        reader.feed(wire((1, 0, k, b"h", b"another payload")))
    assert bytes(first[0].payload) == b"first payload"


def test_maximum_is_accepted_and_more_is_not() -> None:
    payload = bytes(MAX_FRAME_LENGTH - 16 - 4)
    (frame,) = Frames().feed(wire((1, 0, 1, b"head", payload)))
    assert len(frame.payload) == len(payload)
    with pytest.raises(SbpError) as caught:
        encode_frame(1, 0, 1, b"head!", [payload])
    assert caught.value.code == ErrorCode.PAYLOAD_TOO_LARGE
    with pytest.raises(DecodeError):
        Frames().feed((MAX_FRAME_LENGTH + 1).to_bytes(4) + bytes.fromhex("17 0001 00 00000001 01 000000"))


@pytest.mark.parametrize(
    "head",
    [
        "0000000f 17 0001 00 00000001 01 000000 00000000",  # shorter than the fixed part
        "00000010 18 0001 00 00000001 01 000000 00000000",  # magic
        "00000010 17 0001 00 00000001 01 000001 00000000",  # header longer than the frame
        "00000014 17 0001 00 00000001 02 000004 00000000 00000000",  # ProtoBuf
        "00000014 17 0001 00 00000001 00 000004 00000000 00000000",  # unknown format, yet a header
        "00000011 17 0001 00 00000001 01 000000 61 00000000",  # CRC of "a" is not 0
    ],
)
def test_malformed_heads_are_refused(head: str) -> None:
    with pytest.raises(DecodeError):
        Frames().feed(bytes.fromhex(head))


def test_crc_of_an_empty_payload_is_not_looked_at() -> None:
    assert len(Frames().feed(bytes.fromhex("00000010 17 0001 00 00000001 00 000000 deadbeef"))) == 1


@given(frames, st.data())
def test_one_flipped_payload_bit_is_noticed(frame: Fields, data: st.DataObject) -> None:
    encoded = bytearray(wire(frame))
    if not frame[4]:
        return
    at = data.draw(st.integers(16 + len(frame[3]), len(encoded) - 1))
    encoded[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DecodeError):
        Frames().feed(encoded)


@settings(max_examples=300)
@given(st.binary(max_size=400))
def test_random_bytes(noise: bytes) -> None:
    try:
        Frames().feed(noise)
    except DecodeError:
        return


def test_announced_but_unsent_bytes_get_no_memory() -> None:
    head = MAX_FRAME_LENGTH.to_bytes(4) + bytes.fromhex("17 1001 00 00000001 01 000000")
    shared = ReceiveBuffer()
    readers = [FRAMING.framer(shared) for _ in range(20)]
    tracemalloc.start()
    try:
        for reader in readers:
            reader.space()[: len(head)] = head
            reader.received(len(head))
            reader.space()
        current, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * 1100 * 1024
    assert current < 20 * 1100 * 1024


def test_a_tls_client_is_named() -> None:
    with pytest.raises(DecodeError, match="TLS client at a listener without TLS"):
        Frames().feed(bytes.fromhex("16030100fa010000f60303") + bytes(60))
