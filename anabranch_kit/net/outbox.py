"""Outbox of a connection: responses in flight to a socket, with little of them in memory.

Before Python 3.12 a transport keeps what the socket did not take in one bytearray: everything is copied into it, and
what remains is moved to its front after every send, which for responses of megabytes costs more than sending them. So
the transport gets one bounded piece at a time, and the next only when it holds nothing.

Of a large response only the place of its bytes is known (:class:`Source`). They are read a chunk at a time, as the
socket takes them and as the memory budget grants; a chunk can be given back when the peer takes nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from anabranch_kit.memory.budget import Account, Kind
from anabranch_kit.memory.buffers import Buffer
from anabranch_kit.net.turn import Turn

__all__ = ["CHUNK", "Buffer", "Outbox", "Source", "joined"]

#: Parts at least this long are sent by themselves; shorter ones are worth joining.
_LONE = 16 * 1024
#: Bytes that the transport gets at once: bounds what it may have to copy, and what a stalled peer makes it keep.
_PIECE = 256 * 1024
#: The same when a quarter, and when three quarters of the memory are held.
_SMALLER_PIECE = 64 * 1024
_SMALLEST_PIECE = 16 * 1024
#: Bytes read of a source at once.
CHUNK = 1024 * 1024
_LEAST_CHUNK = 64 * 1024
#: Bytes and pieces that the socket is offered at once, by a call that keeps nothing of them.
_OFFERED = 1024 * 1024
_OFFERED_PIECES = 128
#: Average bytes of a piece above which it is cheaper to offer it by itself than to copy it to its neighbours.
_WORTH_A_PIECE = 4096
#: Bytes of the rest that the transport gets, so that it reports when the socket has room again.
_LEFT_OVER = 16 * 1024
#: A constant, since it is used for each piece: a union of types would be made anew each time.
_BYTES = (bytes, memoryview, bytearray)
#: Memory that each piece behind the first takes besides its bytes (measured): a client may cause many small pieces.
_PIECE_BYTES = 64


class Source(Protocol):
    """Bytes that are read when they are to be sent."""

    left: int
    """Bytes not read yet."""

    def __len__(self) -> int: ...

    def least(self) -> int:
        """Return the bytes that the shortest possible read takes."""

    def read(self, max_bytes: int, done: Callable[[list[Buffer], Exception | None], None]) -> None:
        """Read the next bytes: ``max_bytes`` at most, but as many as :meth:`least` says. ``done`` may be called at
        once.
        """

    def rewind(self, size: int) -> None:
        """Step back: the last ``size`` bytes of the last read will be read again."""


class Outbox:
    """Unsent bytes of one connection, in order. The transport's buffer limits must be zero.

    ``moved`` is called when something was sent although the transport did not call. ``failed`` is called with a
    sentence when a source cannot deliver: nothing more is sent then, and the connection must be cut.
    """

    __slots__ = (
        "_account",
        "_chunk",
        "_chunk_left",
        "_chunk_source",
        "_counted",
        "_direct",
        "_failed",
        "_finished",
        "_most",
        "_moved",
        "_pieces",
        "_promised",
        "_queued",
        "_reading",
        "_transport",
        "_turn",
        "_turn_taken",
        "blocked_since",
        "starved",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        turn: Turn,
        account: Account,
        moved: Callable[[], None],
        failed: Callable[[str], None],
        *,
        tls: bool = False,
    ) -> None:
        self._transport = transport
        # With TLS the written bytes are kept a second time, encrypted.
        self._most = _SMALLER_PIECE if tls else _PIECE
        # The socket, to send past the transport: without TLS, and while the transport holds nothing.
        self._direct = None if tls else transport.get_extra_info("socket")
        self._turn = turn
        self._account = account
        self._moved = moved
        self._failed = failed
        self._pieces: deque[Buffer | Source] = deque()
        self._queued = 0
        self._promised = 0
        self._counted = 0
        self._turn_taken = False
        # Bytes granted for the read in flight.
        self._reading = 0
        self._chunk = CHUNK
        # The source whose bytes are the first pieces, and how many of them are left.
        self._chunk_source: Source | None = None
        self._chunk_left = 0
        self._finished: Callable[[], None] | None = None
        self.starved = False
        """Whether a source waits for memory: call :meth:`go_on` when there is some."""
        self.blocked_since: float | None = None
        """Time of the loop since which the socket has taken less than one piece; None while it takes everything."""

    @property
    def unsent(self) -> int:
        """Return the bytes the socket has not taken yet, in memory or not."""
        return self._queued + self._promised + self._transport.get_write_buffer_size()

    def send(self, parts: Sequence[Buffer | Source]) -> bool:
        """Append ``parts`` and send what the socket takes; return whether everything is sent."""
        if not self._pieces and self.blocked_since is None and len(parts) == 1:
            alone = parts[0]
            if type(alone) is bytes and len(alone) <= _SMALLEST_PIECE:
                self._transport.write(alone)  # true for nearly every answer, and nearly every socket
                if not self._counted and not self._transport.get_write_buffer_size():
                    return True
                self._count()
                return False
        # Past the transport all pieces go in one call, unless they are very small.
        whole = self._direct is not None and sum(map(len, parts)) > len(parts) * _WORTH_A_PIECE
        for piece in parts if whole else joined(parts):
            self._pieces.append(piece)
            if isinstance(piece, _BYTES):
                self._queued += len(piece)
            else:
                self._promised += piece.left
        self._pump()
        return False

    def block(self) -> None:
        """Wait: the transport holds bytes (its ``pause_writing``)."""
        self.blocked_since = self._turn.loop.time()

    def unblock(self) -> None:
        """Go on: the transport holds nothing any more (its ``resume_writing``)."""
        self.blocked_since = None
        self._pump()

    def go_on(self) -> None:
        """Go on with a source that had to wait for memory."""
        self.starved = False
        self._pump()

    def _take_turn(self) -> None:
        self._turn_taken = False
        self._pump(reads=True)
        self._moved()

    def _go_on(self) -> None:
        self._pump()
        self._moved()

    def _pump(self, reads: bool = False) -> None:
        """Send what the socket takes and fits into this turn of the loop. Sources are read only in a turn of ours, one
        chunk each time.
        """
        pieces, turn = self._pieces, self._turn
        level = self._account.level
        most = self._most if level < 1 / 4 else _SMALLER_PIECE if level < 3 / 4 else _SMALLEST_PIECE
        while pieces and self.blocked_since is None:
            if self._transport.is_closing():
                self.drop()  # nothing goes out any more: the transport would drop it a piece at a time, and log each
                return
            if turn.is_over:
                turn.wait(self, self._go_on)
                break
            piece = pieces[0]
            if not isinstance(piece, _BYTES):
                if self._reading or self.starved:
                    break
                if not reads:
                    self._ask_turn()
                    break
                reads = False
                if not self._pull(piece):
                    break
                continue
            if self._direct is not None:
                if self._offer(self._direct):
                    continue
                piece = pieces[0]
                assert isinstance(piece, _BYTES)
            size = len(piece)
            if size > most:
                view = memoryview(piece)
                pieces[0] = view[most:]
                piece, size = view[:most], most
            else:
                pieces.popleft()
            self._remove_sent(size)
            self._transport.write(piece)  # blocks us through pause_writing if the socket does not take all of it
        self._count()
        if self._finished is not None and not pieces:
            finished, self._finished = self._finished, None
            finished()

    def _offer(self, direct: Any) -> bool:
        """Offer the first pieces to the socket, without copying the rest; return False when the next piece is the
        transport's.
        """
        pieces = self._pieces
        offered: list[Buffer] = []
        size = 0
        for piece in pieces:
            if not isinstance(piece, _BYTES):
                break
            offered.append(piece)
            size += len(piece)
            if size >= _OFFERED or len(offered) == _OFFERED_PIECES:
                break
        if size <= _LEFT_OVER:
            return False
        try:
            taken = left = os.writev(direct.fileno(), offered)
        except OSError:
            taken = left = 0  # no room, or an error that the transport will report
        for piece in offered:
            if left < len(piece):
                if left:
                    pieces[0] = memoryview(piece)[left:]
                break
            left -= len(piece)
            pieces.popleft()
        self._remove_sent(taken)
        if taken == size:
            return True
        first = pieces[0]
        assert isinstance(first, _BYTES)
        if len(first) > _LEFT_OVER:
            view = memoryview(first)
            pieces[0] = view[_LEFT_OVER:]
            pieces.appendleft(view[:_LEFT_OVER])
        return False

    def _remove_sent(self, size: int) -> None:
        """Remove ``size`` bytes that were sent."""
        self._queued -= size
        self._turn.spend(size)
        if self._chunk_left:
            self._chunk_left = max(0, self._chunk_left - size)

    def _ask_turn(self) -> None:
        if not self._turn_taken:
            self._turn_taken = True
            self._turn.ask_to_read(self._take_turn)

    def _count(self) -> None:
        held = self._queued + self._transport.get_write_buffer_size()
        if len(self._pieces) > 1:
            held += _PIECE_BYTES * (len(self._pieces) - 1)
        self._account.count(Kind.RESPONSES, held - self._counted)
        self._counted = held

    # --- sources ----------------------------------------------------------------------------------------------------

    def _pull(self, source: Source) -> bool:
        """Start reading the next chunk; return False when it is not there yet."""
        least = source.least()
        size = self._account.grant(Kind.READS, max(least, min(source.left, self._chunk)), least)
        if not size:
            self.starved = True
            self._account.wait(least)
            return False
        self._reading = size
        source.read(size, self._read_done)
        return not self._reading

    def _read_done(self, pieces: list[Buffer], error: Exception | None) -> None:
        granted, self._reading = self._reading, 0
        self._account.give(Kind.READS, granted)
        if not self._pieces:
            return  # the connection is gone
        if error is not None:
            self.drop()
            self._failed(f"what a response promised cannot be read: {error}")
            return
        source = self._pieces[0]
        assert not isinstance(source, _BYTES), "a source stays first until it is read"
        if not source.left:
            self._pieces.popleft()
        size = sum(map(len, pieces))
        self._promised -= size
        self._queued += size
        self._chunk_source, self._chunk_left = source, size
        self._pieces.extendleft(reversed(_joined_bytes(pieces)))
        self._count()
        if self._chunk < CHUNK:
            self._chunk *= 2
        self._ask_turn()  # also to send what was read, if that took a while

    def shed(self) -> None:
        """Give the memory of a chunk back that the socket does not take; it is read again later."""
        left = self._chunk_left
        source = self._chunk_source
        if not left or source is None or self._reading:
            return
        dropped = 0
        while dropped < left:
            piece = self._pieces.popleft()
            assert isinstance(piece, _BYTES)
            dropped += len(piece)
        assert dropped == left, "a chunk's pieces are not joined with others"
        if not source.left:
            self._pieces.appendleft(source)
        source.rewind(left)
        self._chunk_left = 0
        self._chunk_source = None
        self._queued -= left
        self._promised += left
        self._chunk = _LEAST_CHUNK
        self._count()

    # --- the end ----------------------------------------------------------------------------------------------------

    def finish(self, then: Callable[[], None]) -> None:
        """Call ``then`` when the transport has been given everything; closing it then still sends what it has."""
        if self._promised or self._reading or self._queued > CHUNK:
            self._finished = then
            self._pump()
            return
        pieces, self._pieces = self._pieces, deque()
        self._queued = 0
        for piece in pieces:
            assert isinstance(piece, _BYTES)
            self._transport.write(piece)
        self._count()
        then()

    def drop(self) -> None:
        """Forget everything: the connection is gone, or is about to be cut."""
        self._pieces.clear()
        self._queued = self._promised = self._chunk_left = 0
        self._chunk_source = self._finished = None
        self.starved = False
        if self._counted:
            self._account.give(Kind.RESPONSES, self._counted)
            self._counted = 0


def joined(parts: Sequence[Buffer | Source]) -> list[Any]:
    """Return the same bytes and sources in fewer pieces."""
    if len(parts) == 1:
        return list(parts)
    pieces: list[Any] = []
    run: list[Buffer] = []
    for part in parts:
        if isinstance(part, _BYTES):
            run.append(part)
            continue
        pieces += _joined_bytes(run)
        run = []
        pieces.append(part)
    pieces += _joined_bytes(run)
    return pieces


def _joined_bytes(parts: Sequence[Buffer]) -> list[Buffer]:
    """Return the same bytes in fewer pieces, where that is worth a copy."""
    pieces: list[Buffer] = []
    small: list[Buffer] = []
    size = 0
    for part in parts:
        length = len(part)
        if length < _LONE and size + length <= _PIECE:
            small.append(part)
            size += length
            continue
        if small:
            pieces.append(b"".join(small) if len(small) > 1 else small[0])
            small, size = [], 0
        if length < _LONE:
            small, size = [part], length
        else:
            pieces.append(part)
    if small:
        pieces.append(b"".join(small) if len(small) > 1 else small[0])
    return pieces
