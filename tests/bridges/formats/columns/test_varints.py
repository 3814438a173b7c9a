"""Numbers taken out of a buffer by arrays, compared with the same read one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.formats.columns import Unusual
from bridges.formats.columns.varints import Numbers

NUMBERS = st.one_of(*(st.integers(0, (1 << 7 * size) - 1) for size in (1, 2, 3, 8)))


def written(numbers: Sequence[int], least: int = 1) -> tuple[bytes, list[int]]:
    """The numbers, each in at least so many bytes, and where each begins; the last entry is the end."""
    out, at = bytearray(), []
    for number in numbers:
        at.append(len(out))
        size = max(least, (number.bit_length() + 6) // 7)
        out += bytes((number >> 7 * byte & 0x7F) | (0x80 if byte < size - 1 else 0) for byte in range(size))
    return bytes(out), [*at, len(out)]


@given(st.lists(st.integers(0, 127)) | st.lists(st.integers(0, 16383)) | st.lists(NUMBERS), st.integers(1, 3))
def test_the_same_numbers(numbers: list[int], least: int) -> None:
    data, places = written(numbers, least)
    read = Numbers([data])
    at = np.array(places[:-1], np.int64)
    found, behind = read.unsigned(at)
    assert found.tolist() == numbers
    assert behind.tolist() == places[1:]
    found, behind = read.zigzag(at)
    assert found.tolist() == [number >> 1 ^ -(number & 1) for number in numbers]
    assert behind.tolist() == places[1:]
    assert found.dtype == behind.dtype == np.int64


def test_a_number_of_nine_bytes_is_unusual_and_a_place_outside_an_error() -> None:
    read = Numbers([b"\x80" * 8 + b"\x01"])
    for take in (read.unsigned, read.zigzag):
        with pytest.raises(Unusual):
            take(np.array([0]))
        with pytest.raises(IndexError):
            take(np.array([8, 1000]))


def test_numbers_that_are_there_again() -> None:
    data, places = written([5, 300, 9])
    other, _ = written([5, 301, 9])
    at = np.array(places[:-1])
    for times, found in ((1, 1), (2, 2), (4, 2), (5, 2)):
        assert Numbers([data, data, data, other, data, data]).repeats(at, len(data), times) == found
    assert Numbers([other, data, data]).repeats(at, len(data), 2) == 0
    long, places = written([5, 1 << 14])
    assert Numbers([long, long]).repeats(np.array(places[:-1]), len(long), 1) == 0
