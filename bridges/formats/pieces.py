"""Copies of large byte strings in steps: one whole copy would hold the interpreter for its duration.

"In a thread" is not "off the event loop" for a call that holds the interpreter. Of the calls that formats use, copies
do (slices of bytes, ``bytes(view)``, ``+=``, a bytearray of zeros, joins of anything but bytes): about a millisecond
for each mebibyte where memory is new. Checksums, the codecs of zlib, zstandard, lzallright and cramjam, except for its
lz4 compressor, and joins of bytes alone release it (measured with Python 3.11).
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
"""Values of at least so many bytes are not copied an additional time."""


def copied(data: Buffer) -> Generator[None, None, bytes]:
    """Copy the bytes, yielding between two steps."""
    if len(data) <= STEP:
        return bytes(data)
    whole = BytesIO()
    yield from written(whole, data)
    return whole.getvalue()


def written(whole: BytesIO, data: Buffer) -> Generator[None, None, int]:
    """Write ``data`` to the end of ``whole``, yielding between two steps; return its size."""
    if len(data) <= STEP:
        return whole.write(data)
    view = memoryview(data)
    for at in range(0, len(view), STEP):
        whole.write(view[at : at + STEP])
        yield None
    return len(view)


def room(size: int) -> memoryview:
    """Return ``size`` writable zero bytes; the system provides a large room's pages only when they are written to."""
    return memoryview(bytearray(size)) if size <= STEP else memoryview(mmap(-1, size))


class Layout:
    """Bytes under construction. Short parts are appended to :attr:`tail`; long parts are kept aside until
    :meth:`together`."""

    __slots__ = ("_parts", "tail")

    def __init__(self, head: bytes) -> None:
        self.tail = bytearray(head)
        """The bytes after the last long part."""
        self._parts: deque[Buffer] = deque()

    def __len__(self) -> int:
        return sum(map(len, self._parts)) + len(self.tail) if self._parts else len(self.tail)

    def put(self, part: Buffer) -> None:
        """Append a part that will not change any more."""
        if len(part) < LARGE:
            self.tail += part
        else:
            self._parts += (self.tail, part)
            self.tail = bytearray()

    def take(self, other: Layout) -> None:
        """Move everything out of another layout to the end of this one."""
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
        """Return all bytes, yielding between two steps, and empty the layout. Each part is released once it is copied,
        so that only parts with other references exist twice."""
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
