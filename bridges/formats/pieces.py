"""Large bytes copied in steps: one copy of all of them would hold the interpreter for as long as it takes.

"In a thread" is not "off the event loop" for a call that keeps the interpreter to itself. Of what formats use, copies
do (slices of bytes, ``bytes(view)``, ``+=``, a bytearray of zeros, joins of anything but bytes): about a millisecond
for each mebibyte where memory is new. Others go on during checksums, the codecs of zlib, zstandard, lzallright and
cramjam, except for its lz4 compressor, and joins of bytes alone (measured with Python 3.11).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from io import BytesIO
from mmap import mmap

from bridges.formats.records import Buffer

STEP = 1024 * 1024
"""Bytes that are copied at once."""
LARGE = 64 * 1024
"""A value of so many bytes is not copied an additional time."""


def copied(data: Buffer) -> Generator[None, None, bytes]:
    """The same bytes, yielding between two steps."""
    if len(data) <= STEP:
        return bytes(data)
    whole = BytesIO()
    yield from written(whole, data)
    return whole.getvalue()


def written(whole: BytesIO, data: Buffer) -> Generator[None, None, int]:
    """Write ``data`` to the end of ``whole``, yielding between two steps; its size."""
    if len(data) <= STEP:
        return whole.write(data)
    view = memoryview(data)
    for at in range(0, len(view), STEP):
        whole.write(view[at : at + STEP])
        yield None
    return len(view)


def room(size: int) -> memoryview:
    """So many bytes to write to, zeros of which none is written before it is needed."""
    return memoryview(bytearray(size)) if size <= STEP else memoryview(mmap(-1, size))


class Layout:
    """Bytes in the making: short ones go to the end of :attr:`tail`, long ones stay where they are until the end."""

    __slots__ = ("_parts", "tail")

    def __init__(self, head: bytes) -> None:
        self.tail = bytearray(head)
        """What was put there behind the last long part."""
        self._parts: deque[Buffer] = deque()

    def __len__(self) -> int:
        return sum(map(len, self._parts)) + len(self.tail) if self._parts else len(self.tail)

    def put(self, part: Buffer) -> None:
        """Something that is not changed any more."""
        if len(part) < LARGE:
            self.tail += part
        else:
            self._parts += (self.tail, part)
            self.tail = bytearray()

    def take(self, other: Layout) -> None:
        """All of another one, of which nothing is left there."""
        tail = other.tail
        if not other._parts and len(tail) < LARGE:
            self.tail += tail
            tail.clear()
            return
        for part in other._parts:
            self.put(part)
        self.put(tail)
        other._parts.clear()
        other.tail = bytearray()

    def together(self) -> Generator[None, None, bytearray]:
        """All of it, yielding between two steps; afterwards nothing is left here. What was copied is let go of, so that
        it is there twice only as far as others hold it."""
        parts, whole = self._parts, self.tail
        self.tail = bytearray()
        if not parts:
            return whole
        parts.append(whole)
        first = parts.popleft()
        assert isinstance(first, bytearray)
        whole = first
        steps = 0
        while parts:
            view = memoryview(parts.popleft())
            for at in range(0, len(view), STEP):
                piece = view[at : at + STEP]
                whole += piece
                steps += len(piece)
                if steps >= STEP:
                    steps = 0
                    yield None
        return whole
