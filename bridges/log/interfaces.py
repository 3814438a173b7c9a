"""What a partition log and those around it say to one another: what is appended, what waits, what its owner offers."""

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
    from anabranch_kit.run.barrier import Barrier
    from anabranch_kit.run.task_set import TaskSet
    from bridges.log.byte_positions.search import ByteSearch
    from bridges.log.partition.admission import Admission
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.log.partition.refusals import Refusals
    from bridges.log.partition.time_search import TimeSearch
    from bridges.log.streams import Streams, Writer
    from bridges.log.transactions.aborted_blocks import AbortedBlocks


class Appended(NamedTuple):
    """What became of an append: its records lie from offset ``base`` to ``end``.

    ``skipped`` records in front of these were in the log already. ``duplicate``: all of it was; where only a writer's
    last number is remembered, ``base`` and ``end`` are of the batch that carried it.
    """

    base: int
    end: int
    skipped: int = 0
    duplicate: bool = False


NOT_APPENDED = Appended(-1, -1)

AppendDone = Callable[[Appended, LogError | None], None]
"""Called with (what became of it, None) or (NOT_APPENDED, error), exactly once."""
ReadDone = Callable[[list[StoredBatch], LogError | None], None]


class Guard(NamedTuple):
    """On what an append depends, decided as one step with it: the log must end at ``end_offset``, or in bytes, as
    Pravega counts them, at ``end_position``, batches in flight included (-1: anywhere).

    An append that depends on a position may wait until that is known (byte_positions/tail.py). Only a backend that
    fences makes sure of either: in the document's dialect another writer may come between.
    """

    end_offset: int = -1
    end_position: int = -1


class Batch(Struct):
    """A batch to append. ``payload`` must be writable if its format stamps it; ``max_timestamp`` in ms, -1 if none.

    ``rest`` makes the batch without its first records, for writers whose requests may be known in part; it may raise
    LogError. ``transaction`` must say what the format tells of the batch's bytes. ``import_epoch``: it comes from the
    run of a migration that has this number (bridges/catalog/imports.py): what its ``producer`` wrote was checked where
    it was written, and is only remembered here.

    What the topic demands is looked at when the batch is appended (bridges/log/partition/admission.py), unless it was
    ``admitted`` before. ``own``: the topic is the front's own, if it is internal to a protocol. ``lane``: whose batches
    must not overtake one another; without, those of one ``producer``. ``header`` may be that of Kafka's format where
    the front has parsed it. ``append_time_ms`` is told then: the timestamp that Kafka's records got, or -1.
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
    append_time_ms: int = -1


def note(stamp: EventStamp | SeqNoStamp, guard: Guard | None = None) -> Batch:
    """A batch without records, which only tells the ledger that a writer has used its numbers up to the stamp's last.

    It takes one offset (see :mod:`bridges.formats.ledger_note`).
    """
    return Batch(encode_note(stamp), 1, int(FormatId.LEDGER_NOTE), -1, stamp, guard, own=True)


class Rebuilt(Struct):
    """What a partition's log holds when it is opened: ``state`` describes everything durable.

    It was made from a snapshot at ``snapshot_offset`` (-1: from none) and what was read behind that, which counts
    ``cost`` (:func:`bridges.log.partition.upkeep.rebuild_cost`).
    """

    state: PartitionState
    snapshot_offset: int = -1
    cost: int = 0
    skipped: tuple[Span, ...] = ()


class Place(NamedTuple):
    """``batches`` whole batches from offset ``start`` to ``end``, ``size`` bytes of payload."""

    start: int
    end: int
    size: int
    batches: int


class Promised(Protocol):
    """An answer that will hold the batches of a span in the bytes that they had when it was made."""

    __slots__ = ("__weakref__",)

    def holds(self, start: int, end: int) -> bool:
        """Whether batches in ``[start, end)`` are still to be read for it."""


class Replacing(NamedTuple):
    """Compaction is about to replace what lies from ``start`` to ``end``; ``ended`` is done when it has."""

    start: int
    end: int
    ended: asyncio.Future[None]


class Waiter(Protocol):
    """Something that waits for a partition to move; called on the event loop and free to remove itself."""

    def log_moved(self, log: PartitionLog) -> None:
        """The high watermark or the log start moved, or the log became unusable."""


class Owner(Protocol):
    """What a partition log needs of the node that owns it."""

    @property
    def client(self) -> Streams: ...

    @property
    def barrier(self) -> Barrier: ...

    @property
    def finishing(self) -> TaskSet: ...

    @property
    def search(self) -> TimeSearch: ...

    @property
    def admission(self) -> Admission: ...

    @property
    def refusals(self) -> Refusals: ...

    @property
    def positions(self) -> ByteSearch: ...

    @property
    def aborted(self) -> AbortedBlocks: ...

    def leader_epoch(self, topic: str, partition: int) -> int:
        """The epoch that a partition is, or would be, written in."""

    @property
    def is_sure(self) -> bool:
        """Whether open logs are this node's for certain (:attr:`bridges.cluster.ownership.Ownership.is_sure`)."""

    def when_sure(self, callback: Callable[[LogError | None], None]) -> None:
        """Call back when they were so after this was asked, or with what keeps that from being known."""

    def opening(self, log: PartitionLog) -> None:
        """Take ownership: find an epoch, rebuild the state, then call ``opened`` or ``open_failed`` on the log."""

    async def trim(self, stream_id: int, offset: int) -> None:
        """Give up a stream's data below ``offset``. Raises ``SbpError``, or an error of the database."""

    def reclaimed(self, log: PartitionLog, offset: int) -> asyncio.Task[LogError | None]:
        """The backend says that it has given up ``offset``: find out where the log starts, and raise its start. The
        task's result is what prevented that."""

    def lost(self, log: PartitionLog, span: Span) -> asyncio.Task[LogError | None]:
        """The backend says that nobody has ``span`` any more: have readers pass over it, for good. The task's result is
        what prevented that."""

    def let_go(self, writer: Writer) -> None:
        """Close a writer the log has no more use for."""

    def want_snapshot(self, log: PartitionLog) -> None:
        """Have ``log.save_snapshot`` called soon."""

    async def snapshot(self, log: PartitionLog) -> LogError | None:
        """Have ``log.save_snapshot`` called; return what went wrong."""

    def schedule(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called in the next turn of the event loop."""

    def schedule_answer(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called when everything that is ready in this turn has been worked off, or soon after."""


class Phase(Enum):
    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"
    DELETED = "deleted"
