"""Reader of frames: splits a byte stream into frames, each with its length in front, without sockets.

Bytes are received into a buffer that all connections of a listener share. A small frame is copied out of it; a large
one gets a bytearray of its own, into which the rest is received directly.

A large frame that is not complete yet needs a reservation of its whole size, made before it gets a buffer. So the
memory of half-received frames is bounded, and a connection with a reservation can always finish.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from msgspec import Struct

from anabranch_kit.memory.buffers import fresh

#: Frames above this many bytes that do not come at once are received into their own buffer.
LARGE_FRAME = 16 * 1024
#: Size of the shared buffer: a partial small frame at its front always leaves room.
RECEIVE_BUFFER = 256 * 1024
#: First size of a large frame's buffer, so that a mere length allocates little. When it is full, a buffer for the whole
#: frame replaces it; its pages are untouched until bytes arrive, so only the first buffer is ever copied.
FIRST_ALLOCATION = 1024 * 1024


_TLS = b"\x16\x03"
"""First bytes of a TLS client (RFC 8446, section 5.1). No frame begins so: it would be 369 MB long, or of an unknown
type.
"""


class Framing(Struct, frozen=True):
    """The frame format of a protocol.

    ``length`` unpacks the one number of bytes that follow it from the bytes in front of every frame: ``">i"``, or
    ``">4xi"`` where four other bytes come before the length. ``head`` bytes of that belong to the frame as it is handed
    out, counted from the length backwards: 8 would be all of the latter. ``least`` and ``most`` bound the number. A
    small frame that begins with one of ``mutable`` is handed out as a bytearray; large ones always are.
    """

    length: struct.Struct
    least: int
    most: int
    head: int = 0
    mutable: tuple[bytes, ...] = ()

    def framer(self, shared: ReceiveBuffer, reserve: Callable[[int], bool] = lambda size: True) -> Framer:
        """Return the reader of one connection's frames."""
        return Framer(shared, self, reserve)


class FrameError(Exception):
    """The length in front of a frame is not acceptable; the stream cannot be read any further."""


class ReceiveBuffer:
    """The buffer into which all connections of one event loop receive, one after the other."""

    __slots__ = ("data", "view")

    def __init__(self, size: int = RECEIVE_BUFFER) -> None:
        self.data = bytearray(size)
        self.view = memoryview(self.data)


class Receiver:
    """Base of the readers of frames and of lines: it holds what is not complete, and asks ``reserve`` for the memory of
    a large frame or line.
    """

    __slots__ = ("_filled", "_large", "_most", "_reserve", "_shared", "_stash", "blocked", "reserved")

    def __init__(self, shared: ReceiveBuffer, most: int, reserve: Callable[[int], bool]) -> None:
        self._shared = shared
        self._most = most
        self._reserve = reserve
        self._stash = b""
        self._large: bytearray | None = None
        self._filled = 0
        self.blocked = False
        #: Bytes reserved for what is being received; their grantor takes them back when it is complete or lost.
        self.reserved = 0

    def allow(self, most: int) -> None:
        """Bound frames or lines that begin from now on, or turn out to be large, to ``most`` bytes."""
        self._most = most

    @property
    def receiving(self) -> bool:
        """Return whether something large with a reservation is being received: it must be received to its end."""
        return self._large is not None

    @property
    def stashed(self) -> int:
        """Return the bytes held of what is not complete and has no reservation."""
        return len(self._stash)

    @property
    def partial(self) -> int:
        """Return the bytes held of what is not complete yet."""
        return self._filled if self._large is not None else len(self._stash)

    def close(self) -> None:
        """Drop everything, and call ``reserve`` no more: the connection is gone."""
        self._stash = b""
        self._large = None
        self.blocked = False
        self.reserved = 0
        self._reserve = _refuse


class Framer(Receiver):
    """One connection's reader: :meth:`space`, receive into it, :meth:`received`.

    Between the two calls no other framer may use the same :class:`ReceiveBuffer`. ``reserve`` is asked for the memory
    of a large frame; while it refuses, the framer is :attr:`blocked` and must not receive until :meth:`retry` helps.
    It is blocked as well when complete frames came before the large one, which may decide whether there is room.
    """

    __slots__ = ("_framing", "_front", "_head", "_need")

    def __init__(
        self, shared: ReceiveBuffer, framing: Framing, reserve: Callable[[int], bool] = lambda size: True
    ) -> None:
        super().__init__(shared, framing.most, reserve)
        self._framing = framing
        self._front = framing.length.size
        self._head = framing.head
        self._need = 0

    @property
    def blocked_by(self) -> int:
        """Return the bytes of the frame whose reservation was refused; 0 if none was."""
        return int(self._framing.length.unpack_from(self._stash)[0]) + self._head if self.blocked else 0

    def retry(self) -> None:
        """Ask again for the memory that was refused."""
        if self.blocked:
            size = self.blocked_by
            if self._reserve(size):
                self.blocked = False
                self._start_large(size, memoryview(self._stash)[self._front - self._head :])
                self._stash = b""

    def space(self) -> memoryview:
        """Return the buffer into which the next bytes must be received; never empty."""
        frame = self._large
        if frame is not None:
            if self._filled == len(frame):
                # A new buffer: a resize fails while a view of the old one exists.
                grown = fresh(self._need)
                grown[: self._filled] = frame
                self._large = frame = grown
            return memoryview(frame)[self._filled :]
        stash = self._stash
        if stash:
            view = self._shared.view
            view[: len(stash)] = stash
            return view[len(stash) :]
        return self._shared.view

    def received(self, count: int) -> list[bytes | bytearray]:
        """Return the frames completed by ``count`` bytes in the space given last. Raises FrameError."""
        frame = self._large
        if frame is not None:
            self._filled += count
            if self._filled < self._need:
                return []
            self._large = None
            self._filled = 0
            return [frame]
        data, view = self._shared.data, self._shared.view
        framing, front, head = self._framing, self._front, self._head
        unpack, least, most, mutable = framing.length.unpack_from, framing.least, self._most, framing.mutable
        pos, end = 0, len(self._stash) + count
        if end > front:
            (size,) = unpack(data)
            if front + size == end and least <= size <= most:  # one frame and nothing else, as nearly always
                self._stash = b""
                start = front - head
                alone = view[start:end]
                return [bytearray(alone) if data.startswith(mutable, start, end) else bytes(alone)]
        if end >= front and data.startswith(_TLS):
            raise FrameError("a TLS client at a listener without TLS: set tls.LISTENER.cert and tls.LISTENER.key")
        frames: list[bytes | bytearray] = []
        while end - pos >= front:
            (size,) = unpack(data, pos)
            if size < least or size > most:
                raise FrameError(f"frame of {size} bytes, allowed are {least} to {most}")
            start = pos + front - head
            size += head
            if end - start >= size:
                pos = start + size
                part = view[start:pos]
                frames.append(bytearray(part) if data.startswith(mutable, start, pos) else bytes(part))
            elif size > LARGE_FRAME and not frames and self._reserve(size):
                self._start_large(size, view[start:end])
                pos = end
            else:
                self.blocked = size > LARGE_FRAME
                break
        self._stash = bytes(view[pos:end]) if pos < end else b""
        return frames

    def _start_large(self, size: int, first: memoryview) -> None:
        # Not zeroed: a frame is handed out only when it is full.
        frame = fresh(min(size, FIRST_ALLOCATION))
        frame[: len(first)] = first
        self._large = frame
        self._filled = len(first)
        self._need = size
        self.reserved = size


def _refuse(size: int) -> bool:
    """Refuse: the connection is closed."""
    return False
