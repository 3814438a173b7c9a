"""One transaction, and the commit of each of its segments (docs/protocols/pravega.md, "Transactions")."""

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
"""Most bytes of a transaction that are appended to a parent in one batch."""
ENDED = (TxnState.COMMITTED, TxnState.ABORTED)


class Transaction(Struct, eq=False):
    """A stream's transaction; ``parents`` are the numbers of the segments it may write to. Times are in ms unless
    stated."""

    topic: str
    high: int
    low: int
    state: TxnState
    lease_ms: int
    created_ms: int
    hidden: str
    parents: list[int]
    decided: int = 0
    """Sequence number of the decision among those of its stream; 0 before it."""
    targets: list[int] = field(default_factory=list)
    """Numbers of the segments to which the commit appends, by place in ``parents``; empty: the parents themselves."""
    merged: set[int] = field(default_factory=set)
    """Indexes into ``parents`` of the segments that the commit has appended."""
    deadline: float = 0.0
    """End of the lease (monotonic clock, s)."""
    look_at: float = 0.0
    """When to ask the database whether it was pinged at another node (monotonic clock, s)."""
    pings: int = 0
    """Pings at other nodes, as of the last look into the database."""
    deciding: asyncio.Task[None] | None = None
    """Task that makes the decision durable, while it runs."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def epoch(self) -> int:
        """Return the epoch of the stream in which the transaction began."""
        return self.high >> 32

    def target(self, place: int) -> int:
        """Return the number of the segment to which the commit appends that of ``parents[place]``."""
        return (self.targets or self.parents)[place]

    @property
    def hex_id(self) -> str:
        """Return the transaction's id as in its segments' names."""
        return f"{self.high & (1 << 64) - 1:016x}{self.low & (1 << 64) - 1:016x}"


async def append_to_parent(transaction: Transaction, segment: Segment, parent: Segment, account: Account) -> None:
    """Append a transaction's segment, or the part of it that is missing there, to its parent: as one batch if it fits
    into one, else as a transaction of the log. Memory counts in ``account`` meanwhile. Raises LogError."""
    size = await segment.length()
    if not size:
        return
    writer_id = blake2b(segment.name.encode(), digest_size=16).digest()
    await parent.log.ready()
    last = parent.log.last(LedgerKind.EVENT_NUMBER, writer_id)
    # One read, a second one where pieces meet, and the batch encoded from them.
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
                    await appended(
                        parent, whole.parts, whole.size, stamp, claims=whole.claims, admitted=True, decided=True
                    )
                return
        part = InTransaction(transaction.low, -1)  # the epoch is unused: parts differ by their numbers
        done = 0 if last is None else last.number
        number = 0
        async for piece in appends_of(segment, _PIECE):
            number += 1
            if number > done:
                stamp = EventStamp(writer_id, number, piece.events)
                await appended(
                    parent, piece.parts, piece.size, stamp, part, claims=piece.claims, admitted=True, decided=True
                )
    finally:
        account.give(Kind.READS, held)
    if done < number or transaction.low in parent.log.state.transactions.open:
        await marked(parent, transaction.low)
