"""Watermarks as Java's client makes them: recorded from `io.pravega.shared.watermarks.Watermark` of 0.13.0."""

from __future__ import annotations

import struct

import pytest

from pravega_front.wire.watermark import Ranged, Watermark, decode, encode, places

EMPTY = "00000100000000110000018bcfe568000000018bcfe5680100"
TWO = (
    "0000010000000061000000000000000100000000000000020200000100000000180000000000000000"
    "00000000000000003fe0000000000000000000000000003f"
    "000001000000001800000000000000013fe00000000000003ff00000000000000000000000000040"
)


def test_watermarks_are_those_of_the_client() -> None:
    empty = Watermark(1_700_000_000_000, 1_700_000_000_001, {})
    two = Watermark(1, 2, {Ranged(0, 0.0, 0.5): 63, Ranged(1, 0.5, 1.0): 64})
    for watermark, recorded in ((empty, EMPTY), (two, TWO)):
        data = bytes.fromhex(recorded)
        assert encode(watermark) == struct.pack(">ii", 0, len(data)) + data
        assert decode(encode(watermark)) == watermark


@pytest.mark.parametrize(
    ("segments", "head"),
    [
        (127, "00000100000013e9000000000000000100000000000000027f00000100000000"),
        (128, "0000010000001412000000000000000100000000000000028080000001000000"),
        (16383, "000001000009ffea00000000000000010000000000000002bfff000001000000"),
        (16384, "00000100000a001400000000000000010000000000000002c000400000000100"),
    ],
)
def test_counts_take_as_many_bytes_as_they_need(segments: int, head: str) -> None:
    cut = {Ranged(number, number / segments, (number + 1) / segments): number for number in range(segments)}
    event = encode(Watermark(1, 2, cut))
    assert event[8:40].hex() == head
    assert decode(event).cut == cut


def test_places_of_events() -> None:
    events = [encode(Watermark(number, number, {Ranged(0, 0.0, 1.0): number})) for number in range(3)]
    assert places(b"".join(events)) == [0, len(events[0]), 2 * len(events[0])]


@pytest.mark.parametrize(
    "event", [b"", b"\0\0\0\0\0\0\0\4none", encode(Watermark(1, 2, {Ranged(0, 0.0, 1.0): 3}))[:-1]]
)
def test_what_is_no_watermark(event: bytes) -> None:
    with pytest.raises(ValueError, match="unreadable watermark"):
        decode(event)
