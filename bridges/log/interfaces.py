"""Types between a partition log and its surroundings: batches, answers, waiters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import Struct

from bridges.errors import LogError
from bridges.formats.base import FormatId
from bridges.formats.ledger_note import encode_note
from bridges.formats.producer import EventStamp, InTransaction, SeqNoStamp, Stamp
from bridges.formats.records import Buffer, StoredBatch
from bridges.log.damage.skips import Span
from bridges.log.state.partition_state import PartitionState

if TYPE_CHECKING:
    from bridges.log.partition.partition_log import PartitionLog


class Appended(NamedTuple):
    """The outcome of an append: its records lie from offset ``base`` to ``end``.

    The log already had the ``skipped`` first records of the batch. ``duplicate``: it had all of them; where the ledger
    remembers only a writer's last number, ``base`` and ``end`` are those of the batch with that number.
    """

    base: int
    end: int
    skipped: int = 0
    duplicate: bool = False


NOT_APPENDED = Appended(-1, -1)

AppendDone = Callable[[Appended, LogError | None], None]
"""Called with (outcome, None) or (NOT_APPENDED, error), exactly once."""
ReadDone = Callable[[list[StoredBatch], LogError | None], None]


class Guard(NamedTuple):
    """A condition of an append, decided in one step with it. The log must end at ``end_offset``, or at ``end_position``
    in bytes, as Pravega counts them, batches in flight included (-1: anywhere).

    An append with ``end_position`` may wait until the position is known (byte_positions/tail.py). Only a backend that
    fences guarantees either: in the document's dialect of SBP another writer may come between.
    """

    end_offset: int = -1
    end_position: int = -1


class Batch(Struct):
    """A batch to append. ``payload`` must be writable if its format stamps it; ``max_timestamp`` in ms, -1 if none.

    ``rest`` makes the batch without its first records, for writers that may repeat a part of a request; it may raise
    LogError. ``transaction`` must agree with the batch's bytes. ``import_epoch`` is the run of the migration that
    copies the batch (bridges/catalog/topics/topic.py). Its ``producer`` was checked in the original cluster; here the
    ledger only remembers it.

    The topic's rules are checked at the append (bridges/log/partition/admission.py), unless the batch was ``admitted``
    before. ``decided``: its front has promised the append (:attr:`bridges.node.front.Front.promises`), so a sealed
    partition takes it as well. ``own``: the front writes to a topic that is internal to its own protocol. ``lane``:
    batches of one lane must not overtake one another; without a lane, batches of one ``producer``. ``header`` may be
    the header of Kafka's format if the front has parsed it. ``append_time_ms`` is set at the append: the timestamp that
    Kafka's records got, or -1.
    """

    payload: Buffer
    count: int
    flags: int
    max_timestamp: int = -1
    producer: Stamp | None = None
    guard: Guard | None = None
    rest: Callable[[int], Batch] | None = None
    transaction: InTransaction | None = None
    import_epoch: int = -1
    own: bool = False
    lane: Hashable = None
    header: object = None
    admitted: bool = False
    decided: bool = False
    append_time_ms: int = -1


def note(stamp: EventStamp | SeqNoStamp, guard: Guard | None = None) -> Batch:
    """Return a batch without records, which tells the ledger that a writer has used its numbers up to the stamp's last.

    It takes one offset (see :mod:`bridges.formats.ledger_note`).
    """
    return Batch(encode_note(stamp), 1, int(FormatId.LEDGER_NOTE), -1, stamp, guard, own=True)


class Rebuilt(Struct):
    """The contents of a partition's log when it is opened: ``state`` describes everything durable.

    It was rebuilt from a snapshot at ``snapshot_offset`` (-1: none) and the batches after that, which cost ``cost``
    (:func:`bridges.log.partition.upkeep.rebuild_cost`).
    """

    state: PartitionState
    snapshot_offset: int = -1
    cost: int = 0
    skipped: tuple[Span, ...] = ()


class Place(NamedTuple):
    """A run of ``batches`` whole batches from offset ``start`` to ``end``, with ``size`` bytes of payload."""

    start: int
    end: int
    size: int
    batches: int


class Promised(Protocol):
    """An answer that will contain the batches of a span, with the bytes that they had when the answer was begun."""

    __slots__ = ("__weakref__",)

    def holds(self, start: int, end: int) -> bool:
        """Return whether the answer still has to read batches in ``[start, end)``."""


class Replacing(NamedTuple):
    """A replacement by compaction, from ``start`` to ``end``, that is about to happen; ``ended`` is set when it is
    over."""

    start: int
    end: int
    ended: asyncio.Future[None]


class Waiter(Protocol):
    """An object that waits for a partition to move; called on the event loop and free to remove itself."""

    def log_moved(self, log: PartitionLog) -> None:
        """Handle a move: the high watermark or the log start moved, or the log became unusable."""


class Phase(Enum):
    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"
    DELETED = "deleted"
