"""One transaction, and what a commit does with each of its segments (docs/protocols/pravega.md, "Transactions")."""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import TYPE_CHECKING

from msgspec import Struct, field

from anabranch_kit.memory.budget import Kind
from bridges.formats.producer import EventStamp, InTransaction, LedgerKind
from pravega_front.service.pieces import Piece, appended, appends_of, marked
from pravega_front.wire.controller import TxnState

if TYPE_CHECKING:
    from anabranch_kit.memory.budget import Account
    from pravega_front.service.segment import Segment

_PIECE = 8 * 1024 * 1024
"""Bytes of a transaction that are appended to a parent in one batch."""
ENDED = (TxnState.COMMITTED, TxnState.ABORTED)


class Transaction(Struct, eq=False):
    """One transaction; ``parents`` are the numbers of the segments it may write to. Times in ms."""

    topic: str
    high: int
    low: int
    state: TxnState
    lease_ms: int
    created_ms: int
    hidden: str
    parents: list[int]
    decided: int = 0
    """The place of its end among those of its stream, once that is decided."""
    merged: set[int] = field(default_factory=set)
    """Places among ``parents`` that a commit is known to have appended."""
    deadline: float = 0.0
    """Monotonic clock in seconds."""
    look_at: float = 0.0
    """When the database is asked whether it was pinged at another node (monotonic clock, s)."""
    pings: int = 0
    """Of other nodes, as far as that was asked for."""
    deciding: asyncio.Task[None] | None = None
    """While it is made durable how the transaction ends."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def epoch(self) -> int:
        """The stream's epoch in which it began."""
        return self.high >> 32

    @property
    def hex_id(self) -> str:
        """Its id as it stands in names of segments."""
        return f"{self.high & (1 << 64) - 1:016x}{self.low & (1 << 64) - 1:016x}"


async def append_to_parent(transaction: Transaction, segment: Segment, parent: Segment, account: Account) -> None:
    """Append a transaction's segment to its parent, or the part of it that is not there yet: as one batch where it fits
    into one, else as a transaction of the log. What is held meanwhile counts in ``account``. Raises LogError."""
    size = await segment.length()
    if not size:
        return
    writer_id = blake2b(segment.name.encode(), digest_size=16).digest()
    await parent.log.ready()
    last = parent.log.last(LedgerKind.EVENT_NUMBER, writer_id)
    # What is read at once, twice that where pieces meet, and the batch that is made of it.
    held = 3 * min(size, _PIECE)
    account.take(Kind.READS, held)
    try:
        if size <= _PIECE:
            whole = Piece()
            async for piece in appends_of(segment, 2 * _PIECE):
                whole.add(piece.parts, piece.claims)
            if whole.events <= segment.most_events:
                if last is None:
                    stamp = EventStamp(writer_id, 1, whole.events, -1)
                    await appended(parent, whole.parts, whole.size, stamp, claims=whole.claims, admitted=True)
                return
        part = InTransaction(transaction.low, -1)  # its parts are told apart by their numbers, not by epochs
        done = 0 if last is None else last.number
        number = 0
        async for piece in appends_of(segment, _PIECE):
            number += 1
            if number > done:
                stamp = EventStamp(writer_id, number, piece.events)
                await appended(parent, piece.parts, piece.size, stamp, part, claims=piece.claims, admitted=True)
    finally:
        account.give(Kind.READS, held)
    if done < number or transaction.low in parent.log.state.transactions.open:
        await marked(parent, transaction.low)
