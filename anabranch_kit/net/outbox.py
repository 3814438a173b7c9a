"""Responses on their way to a socket, with little of them in memory.

Before Python 3.12 a transport keeps what the socket did not take in one bytearray: everything is copied into it, and
what remains is moved to its front after every send, which for responses of megabytes costs more than sending them. So
the transport gets one bounded piece at a time, and the next only when it holds nothing.

Of a large response only the place is known where its bytes lie (:class:`Source`). They are read a chunk at a time,
as the socket takes them and as the memory budget grants; a peer that takes nothing can be made to give its chunk back.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from anabranch_kit.memory.budget import Account, Kind
from anabranch_kit.memory.buffers import Buffer
from anabranch_kit.net.plain_outbox import PIECE
from anabranch_kit.net.plain_outbox import joined as joined_bytes
from anabranch_kit.net.turn import Turn
from anabranch_kit.run.barrier import Barrier

__all__ = ["CHUNK", "Buffer", "Outbox", "Source", "Turns", "joined"]

#: What the transport is given at once when a quarter, and when three quarters of the memory are held.
_SMALLER_PIECE = 64 * 1024
_SMALLEST_PIECE = 16 * 1024
#: What is read of a source at once.
CHUNK = 1024 * 1024
_LEAST_CHUNK = 64 * 1024
#: What the socket is offered at once, in bytes and pieces, by a call that keeps nothing of it.
_OFFERED = 1024 * 1024
_OFFERED_PIECES = 128
#: Bytes of a piece, on average, from which on it costs less to offer it than to copy it to its neighbours.
_WORTH_A_PIECE = 4096
#: What the transport is given of what the socket did not take, so that it tells when there is room again.
_LEFT_OVER = 16 * 1024
_TURNS_AT_ONCE = 2
#: Asked of each piece: a union of types would be made anew each time.
_BYTES = (bytes, memoryview, bytearray)
#: What each piece behind the first takes of memory besides its bytes (measured): a client may have them come singly.
_PIECE_BYTES = 64


class Source(Protocol):
    """Bytes that are read when they are wanted."""

    left: int
    """Bytes not read yet."""

    def __len__(self) -> int: ...

    def least(self) -> int:
        """Bytes that the shortest read possible takes."""

    def read(self, max_bytes: int, done: Callable[[list[Buffer], Exception | None], None]) -> None:
        """The next bytes: ``max_bytes`` at most, but as many as :meth:`least` says. ``done`` may be called at once."""

    def rewind(self, size: int) -> None:
        """The last ``size`` bytes of the last read are wanted again."""


class Turns(Turn):
    """Whose turn it is to read, or to go on with what is long: a few in each turn of the loop, so that everything else
    goes on between them.

    However many connections read large answers, or are sent one at the same time, a request of another waits for no
    more than a few chunks.
    """

    __slots__ = ("_readers",)

    def __init__(self, loop: asyncio.AbstractEventLoop, barrier: Barrier) -> None:
        super().__init__(loop, barrier)
        self._readers: deque[Callable[[], None]] = deque()

    @property
    def busy(self) -> bool:
        """Whether somebody waits to read."""
        return bool(self._readers)

    def ask(self, turn: Callable[[], None]) -> None:
        """Have ``turn`` called in a later turn of the loop."""
        self._readers.append(turn)
        self._schedule()

    def _next(self) -> None:
        super()._next()
        if len(self._readers) > _TURNS_AT_ONCE:
            self._schedule()
        for _ in range(min(len(self._readers), _TURNS_AT_ONCE)):
            self._barrier.call("answer that is read", self._readers.popleft())


class Outbox:
    """Unsent bytes of one connection, in order. The transport's buffer limits must be zero.

    ``moved`` is called when something was sent although the transport did not call. ``failed`` is called with a
    sentence when a source cannot give what it promised: nothing more is sent then, and the connection must be cut.
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
        "_turn_taken",
        "_turns",
        "blocked_since",
        "starved",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        turns: Turns,
        account: Account,
        moved: Callable[[], None],
        failed: Callable[[str], None],
        *,
        tls: bool = False,
    ) -> None:
        self._transport = transport
        # With TLS what was written is kept once more, encrypted.
        self._most = _SMALLER_PIECE if tls else PIECE
        # What goes past the transport to the socket: where there is no TLS, and while the transport holds nothing.
        self._direct = None if tls else transport.get_extra_info("socket")
        self._turns = turns
        self._account = account
        self._moved = moved
        self._failed = failed
        self._pieces: deque[Buffer | Source] = deque()
        self._queued = 0
        self._promised = 0
        self._counted = 0
        self._turn_taken = False
        # Bytes granted for the read under way.
        self._reading = 0
        self._chunk = CHUNK
        # The source whose bytes are the first pieces, and how many of them are left.
        self._chunk_source: Source | None = None
        self._chunk_left = 0
        self._finished: Callable[[], None] | None = None
        self.starved = False
        """Whether a source waits for memory: :meth:`go_on` when there is some."""
        self.blocked_since: float | None = None
        """Time of the loop since which the socket has taken less than one piece; None while it takes everything."""

    @property
    def unsent(self) -> int:
        """Bytes the socket has not taken yet, in memory or not."""
        return self._queued + self._promised + self._transport.get_write_buffer_size()

    def send(self, parts: Sequence[Buffer | Source]) -> bool:
        """Append ``parts`` and send what the socket takes; whether that was all of them, and all before them."""
        if not self._pieces and self.blocked_since is None and len(parts) == 1:
            alone = parts[0]
            if type(alone) is bytes and len(alone) <= _SMALLEST_PIECE:
                self._transport.write(alone)  # what nearly every answer is, and nearly every socket takes
                if not self._counted and not self._transport.get_write_buffer_size():
                    return True
                self._count()
                return False
        # What goes past the transport goes in one call whatever its pieces are, unless they are very small.
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
        """The transport holds bytes (its ``pause_writing``)."""
        self.blocked_since = self._turns.loop.time()

    def unblock(self) -> None:
        """The transport holds nothing any more (its ``resume_writing``): go on."""
        self.blocked_since = None
        self._pump()

    def go_on(self) -> None:
        """There may be memory again for a source that had to wait."""
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
        """Send what the socket takes, as much as fits into this turn of the loop. A source is read at a turn of ours
        only, one chunk each time."""
        pieces, turns = self._pieces, self._turns
        level = self._account.level
        most = self._most if level < 1 / 4 else _SMALLER_PIECE if level < 3 / 4 else _SMALLEST_PIECE
        while pieces and self.blocked_since is None:
            if self._transport.is_closing():
                self.drop()  # nothing goes out any more: the transport would drop it a piece at a time, and log each
                return
            if turns.is_over:
                turns.wait(self, self._go_on)
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
            self._sent(size)
            self._transport.write(piece)  # blocks us through pause_writing if the socket does not take all of it
        self._count()
        if self._finished is not None and not pieces:
            finished, self._finished = self._finished, None
            finished()

    def _offer(self, direct: Any) -> bool:
        """Have the socket take as much as it does of the first pieces, without a copy of what it does not take; False
        when the next piece is the transport's."""
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
            taken = left = 0  # there is no room, or whatever else the transport finds out
        for piece in offered:
            if left < len(piece):
                if left:
                    pieces[0] = memoryview(piece)[left:]
                break
            left -= len(piece)
            pieces.popleft()
        self._sent(taken)
        if taken == size:
            return True
        first = pieces[0]
        assert isinstance(first, _BYTES)
        if len(first) > _LEFT_OVER:
            view = memoryview(first)
            pieces[0] = view[_LEFT_OVER:]
            pieces.appendleft(view[:_LEFT_OVER])
        return False

    def _sent(self, size: int) -> None:
        """So many bytes are queued no more."""
        self._queued -= size
        self._turns.spend(size)
        if self._chunk_left:
            self._chunk_left = max(0, self._chunk_left - size)

    def _ask_turn(self) -> None:
        if not self._turn_taken:
            self._turn_taken = True
            self._turns.ask(self._take_turn)

    def _count(self) -> None:
        held = self._queued + self._transport.get_write_buffer_size()
        if len(self._pieces) > 1:
            held += _PIECE_BYTES * (len(self._pieces) - 1)
        self._account.count(Kind.RESPONSES, held - self._counted)
        self._counted = held

    # --- sources ----------------------------------------------------------------------------------------------------

    def _pull(self, source: Source) -> bool:
        """Have the next chunk read; False when it is not there yet."""
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
        self._pieces.extendleft(reversed(joined_bytes(pieces)))
        self._count()
        if self._chunk < CHUNK:
            self._chunk *= 2
        self._ask_turn()  # also to send what was read, if that took a while

    def shed(self) -> None:
        """Give the memory of a chunk back that the socket does not take; it is read again when it does."""
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
        """Call ``then`` when the transport has been given everything; it may be closed then and sends what it has."""
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
    """The same bytes and sources in fewer pieces."""
    if len(parts) == 1:
        return list(parts)
    pieces: list[Any] = []
    run: list[Buffer] = []
    for part in parts:
        if isinstance(part, _BYTES):
            run.append(part)
            continue
        pieces += joined_bytes(run)
        run = []
        pieces.append(part)
    pieces += joined_bytes(run)
    return pieces
