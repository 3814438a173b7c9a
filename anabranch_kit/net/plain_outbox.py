"""Outbox of frames in flight to a socket, without the copies that asyncio's transport would make.

Before Python 3.12 a transport keeps what the socket did not take in one bytearray: everything is copied into it, and
what remains is moved to its front after every send. So it gets one bounded piece at a time, and the next only when it
holds nothing; until then the parts of an answer stay slices of what was read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from anabranch_kit.memory.buffers import Buffer

LONE = 16 * 1024
"""Parts at least this long are sent by themselves; shorter ones are worth joining."""
PIECE = 256 * 1024
"""Bytes that the transport gets at once: bounds what it may have to copy, and what a stalled peer makes it keep."""


def joined(parts: Sequence[Buffer]) -> list[Buffer]:
    """Return the same bytes in fewer pieces, where that is worth a copy."""
    pieces: list[Buffer] = []
    small: list[Buffer] = []
    size = 0
    for part in parts:
        length = len(part)
        if length < LONE and size + length <= PIECE:
            small.append(part)
            size += length
            continue
        if small:
            pieces.append(b"".join(small) if len(small) > 1 else small[0])
            small, size = [], 0
        if length < LONE:
            small, size = [part], length
        else:
            pieces.append(part)
    if small:
        pieces.append(b"".join(small) if len(small) > 1 else small[0])
    return pieces


class Outbox:
    """Unsent bytes of one connection, in order. The transport's buffer limits must be zero."""

    __slots__ = ("_blocked", "_pieces", "_queued", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._pieces: deque[Buffer] = deque()
        self._queued = 0
        self._blocked = False

    @property
    def unsent(self) -> int:
        """Return the bytes the socket has not taken yet."""
        return self._queued + self._transport.get_write_buffer_size()

    def send(self, parts: Sequence[Buffer]) -> None:
        """Append ``parts`` and send what the socket takes."""
        if sum(map(len, parts)) <= PIECE:
            # One copy costs less than a system call for each long part, and a wake-up of the reader for each.
            self._put(b"".join(parts))
        else:
            for piece in joined(parts):
                if len(piece) <= PIECE:
                    self._put(piece)
                else:
                    view = memoryview(piece)
                    for start in range(0, len(piece), PIECE):
                        self._put(view[start : start + PIECE])
        self._pump()

    def block(self) -> None:
        """Wait: the transport holds bytes (its ``pause_writing``)."""
        self._blocked = True

    def unblock(self) -> None:
        """Go on: the transport holds nothing any more (its ``resume_writing``)."""
        self._blocked = False
        self._pump()

    def finish(self) -> None:
        """Hand over everything at once: the transport is about to be closed and sends what it has."""
        pieces, self._pieces = self._pieces, deque()
        self._queued = 0
        for piece in pieces:
            self._transport.write(piece)

    def _put(self, piece: Buffer) -> None:
        if len(piece):
            self._pieces.append(piece)
            self._queued += len(piece)

    def _pump(self) -> None:
        pieces = self._pieces
        while pieces and not self._blocked:
            if self._transport.is_closing():  # the transport would drop them one by one, and log each
                pieces.clear()
                self._queued = 0
                return
            piece = pieces.popleft()
            self._queued -= len(piece)
            self._transport.write(piece)  # blocks us through pause_writing if the socket does not take all of it
