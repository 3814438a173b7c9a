"""One transactional id: its durable row, and its coordinator's state in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct, field

from anabranch_kit.run.awaited import Settle
from bridges.log.transactions.open_transaction import OpenTransaction, Place

NO_ID = -1
"""Stands for no producer id."""
NO_EPOCH = -1
LAST_EPOCH = 2**15 - 1
"""Highest epoch. No producer gets it; markers that fence, or that end a last transaction, may have it."""


class TxnState(IntEnum):
    """States of a transactional id; stored, never renumber."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def kafka_name(self) -> str:
        """Return the state's name in Kafka's admin tools."""
        return "".join(word.capitalize() for word in self.name.split("_"))


DECIDED = (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT)
"""States whose decision is durable and being carried out."""


class Row(NamedTuple):
    """The database row of a transactional id. Times are Unix time in ms; ``started_ms`` is that of the open or last
    transaction, -1 before the first one of its producer.

    ``last_epoch``: the epoch before the last bump that a producer asked for, which may ask again (KIP-360).
    ``previous_id``: the producer id before the epochs ran out; ``next_id``: the one after the decided end.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    last_epoch: int = NO_EPOCH
    previous_id: int = NO_ID
    next_id: int = NO_ID
    timeout_ms: int = 0
    state: int = TxnState.EMPTY
    started_ms: int = -1
    updated_ms: int = -1

    @property
    def is_exhausted(self) -> bool:
        """Return whether a producer with this id can get no further epoch."""
        return self.epoch >= LAST_EPOCH - 1


class Pending(IntEnum):
    """The kind of save of a transactional id that is in flight."""

    NOTHING = 0
    ADDING = 1
    """Places or groups are being added; more may be added behind them."""
    CHANGING = 2
    """Any other change; all requests have to wait or retry."""


class Add(Struct):
    """Places and groups to add to a transaction."""

    places: Sequence[Place]
    groups: Sequence[str]
    reply: Settle[None]


class Transaction(OpenTransaction):
    """A transactional id, and its transaction if one is open or being ended. ``row`` is durable, except for the
    completion of an end, which can be repeated."""

    row: Row
    groups: set[str] = field(default_factory=set)
    """Consumer groups whose positions may be part of the transaction."""
    pending: Pending = Pending.NOTHING
    waiting: list[Add] = field(default_factory=list)
    kept: bool = True
    """Whether the database has the row: not from the completion of an end until that is stored."""

    @property
    def state(self) -> TxnState:
        return TxnState(self.row.state)

    @property
    def is_open(self) -> bool:
        """Return whether a transaction is open or being ended."""
        return self.row.state == TxnState.ONGOING or self.row.state in DECIDED

    @property
    def may_rest(self) -> bool:
        """Return whether memory can drop the id: the database has its row, and nothing is open or in flight."""
        return self.kept and self.pending is Pending.NOTHING and not self.is_open

    @property
    def producer_id(self) -> int:
        return self.row.producer_id

    @property
    def marker_epoch(self) -> int:
        return self.row.epoch

    @property
    def commits(self) -> bool:
        return self.row.state == TxnState.PREPARE_COMMIT

    @property
    def about(self) -> dict[str, object]:
        return {"transactional_id": self.row.transactional_id, "producer_id": self.row.producer_id}


def rebuild(row: Row, places: Iterable[Place], groups: Iterable[str]) -> Transaction:
    """Return a transactional id as the database has it, for display only."""
    transaction = Transaction(row=row)
    if transaction.is_open:
        for topic, number in places:
            transaction.places.setdefault(topic, set()).add(number)
        transaction.groups.update(groups)
    return transaction


def completed(row: Row, now_ms: int) -> Row:
    """Return the row after its decision is carried out."""
    state = TxnState.COMPLETE_COMMIT if row.state == TxnState.PREPARE_COMMIT else TxnState.COMPLETE_ABORT
    row = row._replace(state=state, updated_ms=now_ms)
    if row.next_id == NO_ID:
        return row
    return row._replace(producer_id=row.next_id, epoch=0, previous_id=row.producer_id, next_id=NO_ID)
