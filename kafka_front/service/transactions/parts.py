"""The parts of transactions in the partitions that this node owns in a cluster, whichever node coordinates them.

The owner of a partition appends a batch of a transaction once it knows that, durably, the transaction is open and
includes the partition. It relies on that until the marker comes. The node that asks for the marker has made its
decision durable. From then on no new batch is admitted, and batches in flight are appended first, so no batch lies
behind the marker of its transaction. A question in progress when a marker comes is asked again. So is one from another
epoch of the log, since another node may have owned the partition meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from msgspec import Struct, field

from anabranch_kit.run.task_set import TaskSet
from bridges.errors import LogError, LogUnavailable
from bridges.log.interfaces import NOT_APPENDED

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier
    from bridges.log.interfaces import AppendDone, Appended, Batch
    from bridges.log.partition.partition_log import PartitionLog

_TRIES = 5
"""How often the question whether a transaction includes a partition is repeated, before its producer has to retry."""

Key = tuple[int, int]
"""Stream of a partition, producer id."""


class _Part(Struct, eq=False):
    """A transaction in a partition, by its producer's epoch. ``open_in``: the epoch of the log in which it is known to
    be open; -1: unknown."""

    open_in: int = -1
    asking: bool = False
    outdated: bool = False
    in_flight: int = 0
    waiting: deque[tuple[Batch, AppendDone]] = field(default_factory=deque)

    @property
    def is_idle(self) -> bool:
        return self.open_in < 0 and not (self.asking or self.in_flight or self.waiting)


class _Producer(Struct, eq=False):
    """A producer in a partition."""

    parts: dict[int, _Part] = field(default_factory=dict)
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    in_flight: int = 0


class Parts:
    """The transactions' parts; belongs to the event loop. Requests count the memory of their waiting batches."""

    def __init__(self, barrier: Barrier) -> None:
        self._barrier = barrier
        self._producers: dict[Key, _Producer] = {}
        self._tasks = TaskSet()

    def __len__(self) -> int:
        """Return the number of producers, per partition, with an open transaction or batches in flight."""
        return len(self._producers)

    async def close(self) -> None:
        """Stop asking coordinators."""
        await self._tasks.close()

    # --- batches ----------------------------------------------------------------------------------------------------

    def append(self, to: PartitionLog, batch: Batch, require: Callable[[], Awaitable[None]], done: AppendDone) -> None:
        """Append a batch of a transaction once ``require`` confirms, by not raising LogError, that the transaction is
        open there."""
        of = batch.transaction
        assert of is not None
        key = to.stream_id, of.producer_id
        producer = self._producers.get(key)
        if producer is None:
            producer = self._producers[key] = _Producer()
        part = producer.parts.get(of.epoch)
        if part is None:
            part = producer.parts[of.epoch] = _Part()
        if part.open_in == to.epoch and to.is_open and not part.asking:
            self._submit(key, producer, part, to, batch, done)
            return
        part.waiting.append((batch, done))
        if not part.asking:
            part.asking = True
            self._tasks.spawn(self._ask(key, producer, part, to, require))

    def _submit(
        self, key: Key, producer: _Producer, part: _Part, to: PartitionLog, batch: Batch, done: AppendDone
    ) -> None:
        part.in_flight += 1
        producer.in_flight += 1
        producer.quiet.clear()

        def settle(appended: Appended, error: LogError | None) -> None:
            part.in_flight -= 1
            producer.in_flight -= 1
            if not producer.in_flight:
                producer.quiet.set()
            self._tidy(key, producer)
            done(appended, error)

        to.append(batch, settle)

    async def _ask(
        self,
        key: Key,
        producer: _Producer,
        part: _Part,
        to: PartitionLog,
        require: Callable[[], Awaitable[None]],
    ) -> None:
        refused: LogError | None = None
        opened = -1
        try:
            opened = await self._opened(part, to, require)
        except LogError as error:
            refused = error
        except Exception as error:  # noqa: BLE001 - counted; it costs these batches
            self._barrier.caught("asking for a transaction", error)
            refused = LogUnavailable("the coordinator of transactions could not be asked")
        finally:
            part.asking = False
            part.open_in = opened
            waiting, part.waiting = part.waiting, deque()
            for batch, done in waiting:
                if opened >= 0:
                    self._submit(key, producer, part, to, batch, done)
                else:
                    why = refused or LogUnavailable("the node is stopping")
                    self._barrier.call("a batch of a transaction", done, NOT_APPENDED, why)
            self._tidy(key, producer)

    async def _opened(self, part: _Part, to: PartitionLog, require: Callable[[], Awaitable[None]]) -> int:
        """Return the epoch of the log in which the transaction is known to be open there. Raises LogError."""
        for _ in range(_TRIES):
            part.outdated = False
            await to.ready()
            epoch = to.epoch
            await require()
            if not part.outdated and to.is_open and to.epoch == epoch:  # no other node has owned it since
                return epoch
        raise LogUnavailable("the partition's transaction was being ended")

    # --- markers ----------------------------------------------------------------------------------------------------

    async def quiet(self, to: PartitionLog, producer_id: int) -> None:
        """Close the producer's parts in a partition and wait until none of its batches is in flight there. Called
        before its marker is written, when its end is decided."""
        producer = self._producers.get((to.stream_id, producer_id))
        if producer is not None:
            self._close(producer)
            self._tidy((to.stream_id, producer_id), producer)
            while producer.in_flight:
                await producer.quiet.wait()

    def lost(self, streams: Callable[[int], bool]) -> None:
        """Close the parts in partitions that were deleted or that another node owns now, given by their streams."""
        for key, producer in list(self._producers.items()):
            if streams(key[0]):
                self._close(producer)
                self._tidy(key, producer)

    def _close(self, producer: _Producer) -> None:
        """Forget that the producer's transactions are open."""
        for part in producer.parts.values():
            part.open_in = -1
            part.outdated = True

    def _tidy(self, key: Key, producer: _Producer) -> None:
        for epoch in [epoch for epoch, part in producer.parts.items() if part.is_idle]:
            del producer.parts[epoch]
        if not producer.parts and self._producers.get(key) is producer:
            del self._producers[key]
