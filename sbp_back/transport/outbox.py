"""Frames on their way to a socket, without the copies that asyncio's transport would make.

Before Python 3.12 a transport keeps what the socket did not take in one bytearray: everything is copied into it, and
what remains is moved to its front after every send. So it gets one bounded piece at a time, and the next only when it
holds nothing; until then the parts of an answer stay what they are, slices of what was read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from sbp_back.wire.model import Buffer

_LONE = 16 * 1024
"""Parts at least this long are sent by themselves; shorter ones are worth joining."""
_PIECE = 256 * 1024
"""What the transport is given at once: bounds what it may have to copy."""


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
        """Bytes the socket has not taken yet."""
        return self._queued + self._transport.get_write_buffer_size()

    def send(self, parts: Sequence[Buffer]) -> None:
        """Append ``parts`` and send what the socket takes."""
        if sum(map(len, parts)) <= _PIECE:
            # One copy costs less than a system call for each long part, and its reader waking up for each.
            self._put(b"".join(parts))
            self._pump()
            return
        small: list[Buffer] = []
        small_bytes = 0
        for part in parts:
            size = len(part)
            if size < _LONE and small_bytes + size <= _PIECE:
                small.append(part)
                small_bytes += size
                continue
            if small:
                self._put(b"".join(small))
                small, small_bytes = [], 0
            if size <= _PIECE:
                self._put(part)
            else:
                view = memoryview(part)
                for start in range(0, size, _PIECE):
                    self._put(view[start : start + _PIECE])
        if small:
            self._put(b"".join(small))
        self._pump()

    def block(self) -> None:
        """The transport holds bytes (its ``pause_writing``)."""
        self._blocked = True

    def unblock(self) -> None:
        """The transport holds nothing any more (its ``resume_writing``): go on."""
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
            piece = pieces.popleft()
            self._queued -= len(piece)
            self._transport.write(piece)  # blocks us through pause_writing if the socket does not take all of it
