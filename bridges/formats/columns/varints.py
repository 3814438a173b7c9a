"""Variable-length integers in arrays: many are decoded at once, from any positions in a buffer.

The buffer is viewed as one word for each of its bytes, so one gather and a few shifts decode all numbers: words of 16
bits if no number has more than two bytes, which is nearly always so and costs a third, else of 64. Input that does not
fit raises :class:`Unusual`, and is left to code that reads one number after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from bridges.formats.columns import Unusual
from bridges.formats.records import Buffer

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_PAD = bytes(16)
"""Padding behind the last byte, so that a word can be read at each byte."""
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
"""Length of a run of equal pieces from which on it pays to look for another run at once."""
_STEPS = 256
"""Pieces that are followed one by one before the next search for a run of equal ones."""
_MOST_FIELDS = 64
"""Most fields of one message: each is a pass over all messages."""
_LARGEST = (1 << 31) - 1
"""Most bytes of a buffer: Arrow's offsets are 32 bits."""


class Numbers:
    """Integers in the joined bytes of ``parts``; ``data`` is these bytes, with some zeros behind them.

    Raises Unusual for more bytes than Arrow's offsets can address.
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
        """Return the numbers at the positions ``at``, and the positions behind them.

        Raises Unusual for a number of more than eight bytes, IndexError for a position outside the buffer.
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
        """Return the same as :meth:`unsigned` for signed numbers, whose lowest bit is the sign."""
        short = self._short(at)
        if short is not None:
            few = short[0]
            return ((few >> 1) ^ -(few & 1)).astype(np.int64), at + short[1]
        value, behind = self.unsigned(at)
        return (value >> 1) ^ -(value & 1), behind

    def _short(self, at: Int64s) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.uint16]] | None:
        """Return the numbers at ``at`` and their sizes, or None if one has more than two bytes. Raises IndexError."""
        pairs = self._pairs[at]
        more = (pairs >> _SEVENTH) & _FIRST
        value = pairs & _LOW
        if more.any():
            if (pairs & _BOTH == _BOTH).any():
                return None
            value |= (pairs >> _FIRST) & _UPPER & -more
        return value.view(np.int16), more + _FIRST

    def repeats(self, at: Int64s, stride: int, times: int) -> int:
        """Count how many times in a row all numbers at ``at`` repeat, each time ``stride`` bytes further on.

        Returns at most ``times``, and 0 if a number has more than two bytes. Raises IndexError.
        """
        pairs = self._pairs[at]
        if (pairs & _BOTH == _BOTH).any():
            return 0
        shifts = stride * np.arange(1, times + 1, dtype=np.int64)[:, None]
        same = (self._pairs[at + shifts] == pairs).all(1)
        return times if same.all() else int(np.argmin(same))

    def big_endian(self, at: Int64s) -> Int64s:
        """Return the 32-bit unsigned big-endian numbers at the positions ``at``. Raises IndexError."""
        words: Any = self._words[at]
        found: Int64s = (words.byteswap() >> np.uint64(32)).view(np.int64)
        return found


Head = Callable[[bytes, int], tuple[int, int]]
"""(data, position of a piece) -> (bytes of its head, position behind it). The same head means the same length. Raises
Unusual, or IndexError for bytes that end too early."""
Steps = Callable[[bytes, int, int, int], tuple[list[int], int]]
"""(data, position, end, number) -> the starts of that many pieces from ``position`` on, or of those that begin before
``end``; and the end of the last one."""


def steps_by(head: Head) -> Steps:
    """Return a function that follows pieces by their heads."""

    def steps(data: bytes, position: int, end: int, number: int) -> tuple[list[int], int]:
        found = []
        for _ in range(number):
            if position >= end:
                break
            found.append(position)
            position = head(data, position)[1]
        return found, position

    return steps


def chain(
    numbers: Numbers, begin: int, end: int, count: int, head: Head, steps: Steps, partial: bool = False
) -> tuple[Int64s, int]:
    """Return the starts of ``count`` consecutive pieces from ``begin`` on, and the end of the last one. ``partial``:
    those that end by ``end``,
    at most ``count``.

    This is the only part of decoding that goes piece by piece. Equal pieces are the exception: their heads lie at equal
    distances, so a run of them is found at once. Raises Unusual if the pieces do not end by ``end``.
    """
    parts: list[Int64s] = []
    position = begin
    left = count
    try:
        while left and position < end:
            run, position = _run(numbers, position, end, left, head)
            parts.append(run)
            left -= len(run)
            if left and len(run) < _RUN:
                found, position = steps(numbers.data, position, end, min(left, _STEPS))
                parts.append(np.array(found, np.int64))
                left -= len(found)
    except IndexError:
        raise Unusual from None
    starts = np.concatenate(parts) if parts else np.empty(0, np.int64)
    if partial and position > end:
        return starts[:-1], int(starts[-1])
    if position > end or (left and not partial):
        raise Unusual
    return starts, position


def _run(numbers: Numbers, position: int, end: int, most: int, head: Head) -> tuple[Int64s, int]:
    """Return the starts of a piece and of the equally long ones behind it, at most ``most``; and their end."""
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
    """Yield the fields of many protocol buffer messages at once: the first field of each, then the second of each, ...

    Message ``i`` lies in ``[at[i], end[i])``. Each element is (tag, indices of the messages that have this tag there,
    the fields' values, the fields' ends); for a field of bytes the value is the position of its first byte. Nothing is
    reliable before the iterator is exhausted. Raises Unusual for other kinds of fields, for long tags, for a field that
    reaches over its message, and for a message of many fields.
    """
    live = np.flatnonzero(at < end)
    at = at[live]
    try:
        for _ in range(_MOST_FIELDS):
            if not len(live):
                return
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
    if len(live):
        raise Unusual


def sizes(values: Int64s) -> Int64s:
    """Return the bytes that each of ``values``, none of them negative, takes as an unsigned number."""
    found = np.ones(len(values), np.int64)
    most = int(values.max(initial=0)) >> 7
    shift = 7
    while most:
        found += values >= 1 << shift
        most >>= 7
        shift += 7
    return found


def zigzag(values: Int64s) -> Int64s:
    """Return signed numbers as the unsigned ones that stand for them."""
    return (values << 1) ^ (values >> 63)


def put(octets: npt.NDArray[np.uint8], at: Int64s, values: Int64s) -> None:
    """Write ``values``, none of them negative, at the positions ``at``, as unsigned numbers."""
    while len(values):
        rest = values >> 7
        live = np.flatnonzero(rest)
        if not len(live):
            octets[at] = values
            return
        octets[at] = values & 0x7F
        if len(live) < len(values):
            at, rest = at[live], rest[live]
        octets[at] |= 0x80
        at, values = at + 1, rest
