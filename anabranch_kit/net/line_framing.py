"""Reader of lines: splits a byte stream into lines, for protocols of text, as :mod:`anabranch_kit.net.framing` does by
lengths.

A short line that is not complete is kept as it is. A longer one needs a reservation of its largest possible size, and
is received into a buffer of its own. So a long line that arrives byte by byte is not copied again and again, and
half-received lines are bounded like half-received frames.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from anabranch_kit.memory.buffers import fresh
from anabranch_kit.net.framing import LARGE_FRAME, FrameError, ReceiveBuffer, Receiver

_AT_ONCE = 16 * 1024
"""Bytes that are received in one go: each may be a line of its own."""


class LineFraming(Struct, frozen=True):
    """A format of lines that end with ``end``, which is not handed out; ``most`` bounds their bytes."""

    most: int
    end: bytes = b"\n"

    def framer(self, shared: ReceiveBuffer, reserve: Callable[[int], bool] = lambda size: True) -> LineFramer:
        """Return the reader of one connection's lines."""
        return LineFramer(shared, self, reserve)


class LineFramer(Receiver):
    """One connection's reader, used like :class:`anabranch_kit.net.framing.Framer`."""

    __slots__ = ("_end",)

    def __init__(self, shared: ReceiveBuffer, framing: LineFraming, reserve: Callable[[int], bool]) -> None:
        super().__init__(shared, framing.most, reserve)
        self._end = framing.end

    @property
    def blocked_by(self) -> int:
        """Return the bytes whose reservation was refused; 0 if none was."""
        return self._room if self.blocked else 0

    @property
    def _room(self) -> int:
        return self._most + len(self._end)

    def retry(self) -> None:
        """Ask again for the memory that was refused."""
        if self.blocked and self._reserve(self._room):
            self.blocked = False
            self._start_long(self._stash)
            self._stash = b""

    def space(self) -> memoryview:
        """Return the buffer into which the next bytes must be received; never empty."""
        if self._large is not None:
            return memoryview(self._large)[self._filled : self._filled + _AT_ONCE]
        stash, view = self._stash, self._shared.view
        view[: len(stash)] = stash
        return view[len(stash) : len(stash) + _AT_ONCE]

    def received(self, count: int) -> list[bytes | bytearray]:
        """Return the lines completed by ``count`` bytes in the space given last. Raises FrameError."""
        held = self.partial
        data = self._shared.data if self._large is None else self._large
        end, mark = held + count, self._end
        # The earlier bytes contain no end, unless an end was cut in two.
        found = data.find(mark, max(0, held - len(mark) + 1), end)
        lines: list[bytes | bytearray] = []
        at = 0
        while found >= 0:
            if found - at > self._most:
                raise self._too_long
            lines.append(bytes(memoryview(data)[at:found]))
            at = found + len(mark)
            found = data.find(mark, at, end)
        rest = end - at
        if rest >= self._room:
            raise self._too_long
        if self._large is not None and not lines:
            self._filled = end
            return lines
        self._large = None
        tail = bytes(memoryview(data)[at:end])
        self._filled = 0
        self._stash = tail
        if rest > LARGE_FRAME:
            if not lines and self._reserve(self._room):
                self._start_long(tail)
                self._stash = b""
            else:
                self.blocked = True
        return lines

    @property
    def _too_long(self) -> FrameError:
        return FrameError(f"a line of more than {self._most} bytes")

    def _start_long(self, first: bytes) -> None:
        self._large = fresh(self._room)
        self._large[: len(first)] = first
        self._filled = len(first)
        self.reserved = self._room
