"""Variable-length numbers in arrays: many at once, wherever they lie in a buffer.

The buffer is seen as one word for each of its bytes, so that numbers are taken out by one gather and a few shifts for
all of them: words of 16 bits where none is of more than two bytes, which is nearly
always so and costs a third, else of 64. What does not fit is left to code that reads one number after the other:
:class:`Unusual`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from bridges.formats.records import Buffer

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_PAD = bytes(16)
"""Behind the last byte, so that a word can be read at each."""
_HIGH = np.uint64(0x8080_8080_8080_8080)
_SEVEN = np.uint64(0x7F7F_7F7F_7F7F_7F7F)
_ONE = np.uint64(1)
_BOTH, _LOW, _UPPER, _SEVENTH, _FIRST = map(np.uint16, (0x8080, 0x7F, 0x3F80, 7, 1))
_GROUPS = (
    (np.uint64(0x007F_007F_007F_007F), np.uint64(0x7F00_7F00_7F00_7F00), np.uint64(1)),
    (np.uint64(0x0000_3FFF_0000_3FFF), np.uint64(0x3FFF_0000_3FFF_0000), np.uint64(2)),
    (np.uint64(0x0000_0000_0FFF_FFFF), np.uint64(0x0FFF_FFFF_0000_0000), np.uint64(4)),
)
_RUN = 16
"""Pieces that are alike in a row that make it worth looking for more of them."""
_STEPS = 256
"""Pieces that are followed one by one before such that are alike are looked for again."""
_LARGEST = (1 << 31) - 1
"""Bytes of a buffer: Arrow's offsets are 32 bits."""


class Unusual(Exception):
    """Something that arrays do not take in: to be looked at one by one, which tells whether it is wrong."""


class Numbers:
    """Numbers that lie in the joined bytes of ``parts``, which ``data`` has, with some zeros behind them.

    Raises Unusual for more bytes than Arrow's offsets can tell.
    """

    __slots__ = ("_pairs", "_words", "data", "octets")

    def __init__(self, parts: Iterable[Buffer]) -> None:
        self.data = b"".join((*parts, _PAD))
        if len(self.data) > _LARGEST:
            raise Unusual
        self.octets: npt.NDArray[np.uint8] = np.frombuffer(self.data, np.uint8)
        self._pairs: npt.NDArray[np.uint16] = np.ndarray(
            (len(self.data) - 1,), np.dtype("<u2"), self.data, strides=(1,)
        )
        self._words: npt.NDArray[np.uint64] = np.ndarray(
            (len(self.data) - 7,), np.dtype("<u8"), self.data, strides=(1,)
        )

    def unsigned(self, at: Int64s) -> tuple[Int64s, Int64s]:
        """The numbers at the places ``at``, and the places behind them.

        Raises Unusual for one of more than eight bytes, IndexError for a place outside.
        """
        short = self._short(at)
        if short is not None:
            return short[0].astype(np.int64), at + short[1]
        words = self._words[at]
        stop = ~words & _HIGH
        if not stop.all():
            raise Unusual
        below = (stop & (~stop + _ONE)) - _ONE
        value = words & below & _SEVEN
        for low, high, shift in _GROUPS:
            value = (value & low) | ((value & high) >> shift)
        size = (np.bitwise_count(below).astype(np.int64) + 1) >> 3
        return value.view(np.int64), at + size

    def zigzag(self, at: Int64s) -> tuple[Int64s, Int64s]:
        """The same for signed numbers, whose lowest bit is the sign."""
        short = self._short(at)
        if short is not None:
            few = short[0]
            return ((few >> 1) ^ -(few & 1)).astype(np.int64), at + short[1]
        value, behind = self.unsigned(at)
        return (value >> 1) ^ -(value & 1), behind

    def _short(self, at: Int64s) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.uint16]] | None:
        """The numbers at ``at`` and their sizes, if none is of more than two bytes. Raises IndexError."""
        pairs = self._pairs[at]
        more = (pairs >> _SEVENTH) & _FIRST
        value = pairs & _LOW
        if more.any():
            if (pairs & _BOTH == _BOTH).any():
                return None
            value |= (pairs >> _FIRST) & _UPPER & -more
        return value.view(np.int16), more + _FIRST

    def repeats(self, at: Int64s, stride: int, times: int) -> int:
        """How many times in a row, at most ``times``, all numbers at ``at`` are there again, each time ``stride`` bytes
        further on; 0 if one is of more than two bytes. Raises IndexError."""
        pairs = self._pairs[at]
        if (pairs & _BOTH == _BOTH).any():
            return 0
        shifts = stride * np.arange(1, times + 1, dtype=np.int64)[:, None]
        same = (self._pairs[at + shifts] == pairs).all(1)
        return times if same.all() else int(np.argmin(same))

    def big_endian(self, at: Int64s) -> Int64s:
        """The 32-bit unsigned numbers, highest byte first, at the places ``at``. Raises IndexError."""
        words: Any = self._words[at]
        found: Int64s = (words.byteswap() >> np.uint64(32)).view(np.int64)
        return found


Head = Callable[[bytes, int], tuple[int, int]]
"""(data, position of a piece) -> (bytes of its head, where it ends). The same head means the same length. Raises
Unusual, or IndexError for bytes that end too early."""
Steps = Callable[[bytes, int, int], tuple[list[int], int]]
"""(data, position, number) -> where as many pieces from there on begin, and where the last one ends."""


def steps_by(head: Head) -> Steps:
    """Follows pieces by their heads."""

    def steps(data: bytes, position: int, number: int) -> tuple[list[int], int]:
        found = []
        for _ in range(number):
            found.append(position)
            position = head(data, position)[1]
        return found, position

    return steps


def chain(numbers: Numbers, begin: int, end: int, count: int, head: Head, steps: Steps) -> tuple[Int64s, int]:
    """Where each of ``count`` pieces begins that follow one another from ``begin`` on, and where the last one ends.

    This is the one thing about them that has to be done step by step, but for pieces that are alike: their heads lie
    at equal distances, as far as they do. Raises Unusual if they do not lie below ``end``.
    """
    parts: list[Int64s] = []
    position = begin
    left = count
    try:
        while left:
            run, position = _run(numbers, position, end, left, head)
            parts.append(run)
            left -= len(run)
            if left and len(run) < _RUN:
                found, position = steps(numbers.data, position, min(left, _STEPS))
                parts.append(np.array(found, np.int64))
                left -= len(found)
    except IndexError:
        raise Unusual from None
    if position > end:
        raise Unusual
    return np.concatenate(parts) if parts else np.empty(0, np.int64), position


def _run(numbers: Numbers, position: int, end: int, most: int, head: Head) -> tuple[Int64s, int]:
    """Where the piece at ``position`` begins and those behind it that are as long, at most ``most``; and their end."""
    size, behind = head(numbers.data, position)
    stride = behind - position
    number = min(most, max(1, (end - position) // stride))
    octets = numbers.octets
    for at in range(position, position + size):
        if number == 1:
            break
        same = octets[at : at + (number - 1) * stride + 1 : stride] == octets[at]
        if not same.all():
            number = int(np.argmin(same))
    return position + stride * np.arange(number, dtype=np.int64), position + stride * number


def walk(numbers: Numbers, at: Int64s, end: Int64s) -> Iterator[tuple[int, Int64s, Int64s, Int64s]]:
    """The fields of many messages of protocol buffers, message ``i`` in ``[at[i], end[i])``: the first fields of all,
    then the second ones, ...

    Gives (tag, numbers of messages that have such a field there, the fields' values, where the fields end), and for
    fields of bytes where these begin instead of a value. Nothing of it holds before all of it has been given. Raises
    Unusual for other kinds of fields, for long tags, and for a field that reaches over its message.
    """
    live = np.flatnonzero(at < end)
    at = at[live]
    try:
        while len(live):
            tags = numbers.octets[at]
            behind = np.empty_like(at)
            for tag in np.unique(tags).tolist():
                if tag >= 0x80 or tag & 7 not in (0, 2):
                    raise Unusual
                group = np.flatnonzero(tags == tag)
                value, past = numbers.unsigned(at[group] + 1)
                if tag & 7 == 2:
                    value, past = past, past + value
                behind[group] = past
                yield tag, live[group], value, past
            limit = end[live]
            if (behind > limit).any():
                raise Unusual
            going = behind < limit
            live, at = live[going], behind[going]
    except IndexError:
        raise Unusual from None
