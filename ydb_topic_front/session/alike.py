"""Column-wise parser for runs of messages with the same layout, instead of one message at a time.

Most messages of one client call differ in values only: each has the same fields, with the same number of bytes. The
bytes at one place of all messages are then a slice with a step. One comparison shows whether they are all the same tag,
or all continue or all end a varint. Messages with another layout are left to the general parser.

Fields (StreamWriteMessage.WriteRequest.MessageData) in the order in which every client writes them: seq_no 1,
created_at 2 (seconds 1, nanos 2), data 3, uncompressed_size 4.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import lt
from typing import NamedTuple

_MESSAGE, _SEQ_NO, _CREATED_AT, _DATA, _SIZE = 0x0A, 0x08, 0x12, 0x1A, 0x20
_SECONDS, _NANOS = 0x08, 0x10
_ONES = [bytes((value,)) for value in range(256)]
_HIGHS = bytes(range(0x80, 0x100))
_LOWS = bytes(range(0x80))
_NANOS_ENDS = bytes(range(4))
"""Possible values of the fifth byte of nanos, which are below 2^30."""
FIRST_WINDOW = 16
_GROWTH = 8
"""Factor by which the window grows while all messages are alike; bounds the work beyond the run's end."""


class Alike(NamedTuple):
    """A run of ``number`` messages of ``size`` bytes each, of which tag and length in front take ``head`` bytes.

    ``tags``: places of the fields' tags within a message, with the tags. ``seq_no``, ``seconds``, ``nanos``: place and
    length in bytes of these varints (length 0: absent).
    """

    start: int
    number: int
    size: int
    head: int
    tags: tuple[tuple[int, int], ...]
    seq_no: tuple[int, int]
    seconds: tuple[int, int]
    nanos: tuple[int, int]

    @property
    def end(self) -> int:
        """Return the position behind the last message."""
        return self.start + self.number * self.size

    def columns(self, data: bytes, place: tuple[int, int]) -> list[bytes]:
        """Return the bytes of one varint in all messages, one column per byte, the least significant first."""
        start, end, size = self.start + place[0], self.end, self.size
        return [data[start + at : end : size] for at in range(place[1])]

    def numbers(self, data: bytes) -> range | list[int]:
        """Return the seq_nos; a range if they have no gaps."""
        columns = self.columns(data, self.seq_no)
        first, last = (_number(column[at] for column in columns) for at in (0, -1))
        if last - first == self.number - 1:
            digits = list(zip(*columns[::-1], strict=True))
            if all(map(lt, digits, digits[1:])):
                return range(first, last + 1)
        numbers = [0] * self.number
        for digit, column in enumerate(columns):
            numbers = [number | (byte & 0x7F) << 7 * digit for number, byte in zip(numbers, column, strict=True)]
        return numbers

    def latest(self, data: bytes) -> tuple[int, int]:
        """Return the highest created_at as (seconds, nanoseconds); (-1, 0) if there is none."""
        seconds, nanos = self.columns(data, self.seconds), self.columns(data, self.nanos)
        if not seconds:
            return -1, 0
        # All varints of a column have the same length, so they compare byte by byte, the most significant first.
        found = max(zip(*seconds[::-1], *nanos[::-1], strict=True))
        split = len(seconds)
        return _number(found[split - 1 :: -1]), _number(found[: split - 1 : -1])


def _number(digits: Iterable[int]) -> int:
    """Decode a varint."""
    return sum((byte & 0x7F) << 7 * at for at, byte in enumerate(digits))


def find(data: bytes | bytearray, start: int, end: int, most: int, least: int) -> Alike | None:
    """Find the run of at most ``most`` messages with the same layout at ``start``; None if there are fewer than
    ``least``, or the layout is not supported."""
    try:
        return _find(data, start, end, most, least)
    except IndexError:
        return None


def _find(data: bytes | bytearray, start: int, end: int, most: int, least: int) -> Alike | None:
    if data[start] != _MESSAGE:
        return None
    begin = _behind(data, start + 1)
    stop = begin + _number(data[start + 1 : begin])
    size, head = stop - start, begin - start
    if start + least * size > end or (least > 1 and data[stop : stop + head] != data[start:begin]):
        return None
    if data[begin] != _SEQ_NO:
        return None
    fixed = [*range(head + 1)]
    at = _behind(data, begin + 1)
    seq_no = head + 1, at - begin - 1
    tags = [(head, _SEQ_NO)]
    seconds = nanos = (0, 0)
    sized = (0, 0)
    if at < stop and data[at] == _CREATED_AT:
        tags.append((at - start, _CREATED_AT))
        inner = at + 2 + data[at + 1]
        after = _behind(data, at + 3)
        seconds = at + 3 - start, after - at - 3
        fixed += (at - start, at + 1 - start, at + 2 - start)
        if data[at + 2] != _SECONDS:
            return None
        if after < inner:
            if data[after] != _NANOS:
                return None
            fixed.append(after - start)
            following = _behind(data, after + 1)
            nanos = after + 1 - start, following - after - 1
            after = following
        if after != inner or data[at + 1] >= 0x80:
            return None
        at = inner
    if at < stop and data[at] == _DATA:
        tags.append((at - start, _DATA))
        after = _behind(data, at + 1)
        fixed += range(at - start, after - start)
        at = after + _number(data[at + 1 : after])
    if at < stop and data[at] == _SIZE:
        tags.append((at - start, _SIZE))
        fixed.append(at - start)
        after = _behind(data, at + 1)
        sized = at + 1 - start, after - at - 1
        at = after
    if at != stop or seq_no[1] > 9 or seconds[1] > 9 or nanos[1] > 5 or sized[1] > 9:
        return None
    places = [place for place in (seq_no, seconds, nanos, sized) if place[1]]
    count = _count(data, start, end, most, size, fixed, places, nanos)
    if count < least:
        return None
    return Alike(start, count, size, head, tuple(tags), seq_no, seconds, nanos)


def _behind(data: bytes | bytearray, at: int) -> int:
    """Return the position behind a varint."""
    while data[at] >= 0x80:
        at += 1
    return at + 1


def _count(
    data: bytes | bytearray,
    start: int,
    end: int,
    most: int,
    size: int,
    fixed: list[int],
    places: list[tuple[int, int]],
    nanos: tuple[int, int],
) -> int:
    """Count the messages from ``start`` on that have the layout of the first."""
    most = min(most, (end - start) // size)
    count, window = 0, FIRST_WINDOW
    while count < most:
        n = wanted = min(window, most - count)
        base = start + count * size
        stop = base + n * size
        for place in fixed:
            column = data[base + place : stop : size]
            value = _ONES[data[start + place]]
            if column != value * n:
                n -= len(column.lstrip(value))
                stop = base + n * size
        for first, length in places:
            last = first + length - 1
            for place in range(first, last):
                column = data[base + place : stop : size]
                n -= len(column.lstrip(_HIGHS))
                stop = base + n * size
            column = data[base + last : stop : size]
            if not column.isascii() or (first == nanos[0] and length == 5):
                n -= len(column.lstrip(_NANOS_ENDS if first == nanos[0] and length == 5 else _LOWS))
                stop = base + n * size
        count += n
        if n < wanted:
            break
        window *= _GROWTH
    return count
