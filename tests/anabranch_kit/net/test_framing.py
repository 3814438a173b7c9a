"""Splitting a byte stream into frames, whatever way it is cut."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch_kit.net.framing import FIRST_ALLOCATION, LARGE_FRAME, FrameError, Framer, Framing, ReceiveBuffer

LIMIT = 100 * 1024 * 1024
KAFKA = Framing(struct.Struct(">i"), 8, LIMIT, mutable=(b"\0\0",))
TYPED = Framing(struct.Struct(">4xi"), 0, LIMIT, head=8)
"""A type before the length, both of which are handed out with the frame."""


def feed(framer: Framer, data: bytes, cuts: list[int], tries: int = 1) -> list[bytes | bytearray]:
    """Deliver ``data`` in pieces of at most the sizes ``cuts`` (repeated), as recv_into would."""
    frames: list[bytes | bytearray] = []
    pos = turn = 0
    while pos < len(data):
        space = framer.space()
        count = min(len(space), cuts[turn % len(cuts)], len(data) - pos)
        turn += 1
        space[:count] = data[pos : pos + count]
        frames += framer.received(count)
        for _ in range(tries):
            framer.retry()
        pos += count
    return frames


def framed(*payloads: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(p)) + p for p in payloads)


PAYLOADS = st.lists(
    st.builds(lambda head, n: head + bytes([n % 251]) * n, st.binary(min_size=8, max_size=12), st.integers(0, 3000)),
    max_size=12,
)


@given(PAYLOADS, st.lists(st.integers(1, 4000), min_size=1, max_size=6))
def test_small_frames_survive_any_cut(payloads: list[bytes], cuts: list[int]) -> None:
    framer = Framer(ReceiveBuffer(), KAFKA)
    frames = feed(framer, framed(*payloads), cuts)
    assert frames == payloads
    assert framer.partial == 0


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from([8, 100, LARGE_FRAME, LARGE_FRAME + 1, 300_000, FIRST_ALLOCATION * 5 + 3]), max_size=6),
    st.lists(st.integers(1, 400_000), min_size=1, max_size=4).filter(lambda cuts: max(cuts) > 3000),
)
def test_large_frames_survive_any_cut(sizes: list[int], cuts: list[int]) -> None:
    payloads = [(bytes([0, n]) * (size // 2 + 1))[:size] for n, size in enumerate(sizes)]
    assert feed(Framer(ReceiveBuffer(), KAFKA), framed(*payloads), cuts) == payloads


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 100, LARGE_FRAME - 8, LARGE_FRAME - 7, 300_000, FIRST_ALLOCATION + 3]), max_size=6),
    st.lists(st.integers(1, 400_000), min_size=1, max_size=4).filter(lambda cuts: max(cuts) > 3000),
    st.booleans(),
)
def test_what_stands_before_the_length_is_part_of_the_frame(sizes: list[int], cuts: list[int], patient: bool) -> None:
    frames = [struct.pack(">ii", n - 3, size) + bytes([n]) * size for n, size in enumerate(sizes)]
    refused: list[int] = []

    def reserve(size: int) -> bool:
        """Refuses each size once, if patience is asked for."""
        if patient and size not in refused:
            refused.append(size)
            return False
        return True

    framer = Framer(ReceiveBuffer(), TYPED, reserve)
    assert feed(framer, b"".join(frames), cuts, tries=2) == frames
    assert set(refused) <= {len(frame) for frame in frames}


def test_two_connections_share_the_buffer() -> None:
    shared = ReceiveBuffer()
    one, two = Framer(shared, KAFKA), Framer(shared, KAFKA)
    a, b = framed(b"a" * 20), framed(b"b" * 20)
    assert feed(one, a[:10], [10]) == []
    assert feed(two, b[:7], [7]) == []
    assert feed(one, a[10:], [99]) == [b"a" * 20]
    assert feed(two, b[7:], [99]) == [b"b" * 20]


def test_frames_that_begin_as_said_are_mutable_and_others_owned() -> None:
    framer = Framer(ReceiveBuffer(), KAFKA)
    produce, other = feed(framer, framed(b"\0\0produce!", b"\0\1fetching"), [1000])
    assert type(produce) is bytearray
    assert type(other) is bytes


@pytest.mark.parametrize("size", [-1, 0, 7, LIMIT + 1, 2**31 - 1, -(2**31)])
def test_a_frame_of_an_unacceptable_length_is_refused(size: int) -> None:
    framer = Framer(ReceiveBuffer(), KAFKA)
    with pytest.raises(FrameError):
        feed(framer, struct.pack(">i", size) + b"x" * 20, [1000])


@pytest.mark.parametrize("framing", [KAFKA, TYPED])
@pytest.mark.parametrize("cut", [0, 1, 3])
def test_a_tls_client_is_named(framing: Framing, cut: int) -> None:
    hello = bytes.fromhex("16030100fa010000f60303") + bytes(60)
    framer = framing.framer(ReceiveBuffer())
    assert feed(framer, hello[:cut], [60]) == []
    with pytest.raises(FrameError, match="TLS client at a listener without TLS"):
        feed(framer, hello[cut:], [100])


def test_a_length_alone_allocates_little() -> None:
    framer = Framer(ReceiveBuffer(), KAFKA)
    tracemalloc.start()
    try:
        assert feed(framer, struct.pack(">i", LIMIT) + b"x" * 100, [1000]) == []
        assert tracemalloc.get_traced_memory()[1] < 2 * FIRST_ALLOCATION
    finally:
        tracemalloc.stop()
    assert framer.partial == 100


def test_a_large_frame_waits_for_its_reservation() -> None:
    granted = [False, False, True]
    asked: list[int] = []

    def reserve(size: int) -> bool:
        asked.append(size)
        return granted.pop(0)

    framer = Framer(ReceiveBuffer(), KAFKA, reserve)
    payload = bytes(range(250)) * 1000
    data = framed(b"small frame", payload)
    assert feed(framer, data[:5000], [5000]) == [b"small frame"]
    assert framer.blocked
    framer.retry()
    assert framer.blocked
    framer.retry()
    assert not framer.blocked
    assert framer.reserved == len(payload)
    assert asked == [len(payload)] * 3
    assert feed(framer, data[5000:], [70_000]) == [payload]


def test_only_the_beginning_of_a_large_frame_is_ever_copied() -> None:
    framer = Framer(ReceiveBuffer(), KAFKA)
    size = 64 * FIRST_ALLOCATION
    feed(framer, struct.pack(">i", size) + bytes(FIRST_ALLOCATION), [300_000])
    whole = framer.space()
    assert len(whole) == size - FIRST_ALLOCATION, "there is room for all of it when a mebibyte has come"
    whole[:5] = b"later"
    assert framer.received(len(whole) - 1) == []
    assert framer.space().obj is whole.obj
