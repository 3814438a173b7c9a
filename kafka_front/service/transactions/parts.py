"""Where transactions write on a node among others, whoever coordinates them.

The owner of a partition appends a batch of a transaction once it knows that the transaction is open and that the
partition is part of it, durably; then it takes that for granted until the marker comes. Whoever asks for the marker has
decided how the transaction ends, durably. From there on nobody new is let in, and what is on its way arrives first: so
no batch lies behind the marker of its transaction. What was being asked about as a marker came is asked again, and so
is what was asked about in another epoch of the log: the partition may have been another node's meanwhile.
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
"""How often it is asked again whether a transaction has a partition, before its producer is told to come again."""

Key = tuple[int, int]
"""Stream of a partition, producer's id."""


class _Part(Struct, eq=False):
    """A transaction, by its producer's epoch, in a partition. ``open_in``: the epoch of the log in which it is known to
    be open; -1: it is not."""

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
    """Belongs to the event loop. Batches in waiting are counted by the requests that brought them."""

    def __init__(self, barrier: Barrier) -> None:
        self._barrier = barrier
        self._producers: dict[Key, _Producer] = {}
        self._tasks = TaskSet()

    def __len__(self) -> int:
        """Producers that have something open, or on its way, in a partition."""
        return len(self._producers)

    async def close(self) -> None:
        """Ask nothing more."""
        await self._tasks.close()

    # --- batches ----------------------------------------------------------------------------------------------------

    def append(self, to: PartitionLog, batch: Batch, require: Callable[[], Awaitable[None]], done: AppendDone) -> None:
        """Append a batch of a transaction once ``require`` says, by not raising a LogError, that it is open there."""
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
            self._tasks.spawn(self._ask(key, producer, of.epoch, part, to, require))

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
        epoch: int,
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
        """The epoch of the log in which the transaction is open there. Raises LogError."""
        for _ in range(_TRIES):
            part.outdated = False
            await to.ready()
            epoch = to.epoch
            await require()
            if not part.outdated and _is_same(to, epoch):
                return epoch
        raise LogUnavailable("the partition's transaction was being ended")

    # --- markers ----------------------------------------------------------------------------------------------------

    async def quiet(self, to: PartitionLog, producer_id: int) -> None:
        """Return when nothing of a producer is on its way into a partition, and nothing is taken for granted there: as
        whoever is about to write its marker asks, who knows that its end was decided."""
        producer = self._producers.get((to.stream_id, producer_id))
        if producer is not None:
            self._close(producer)
            self._tidy((to.stream_id, producer_id), producer)
            while producer.in_flight:
                await producer.quiet.wait()

    def lost(self, streams: Callable[[int], bool]) -> None:
        """Partitions whose streams these are are other nodes', or deleted: nothing is taken for granted there."""
        for key, producer in list(self._producers.items()):
            if streams(key[0]):
                self._close(producer)
                self._tidy(key, producer)

    def _close(self, producer: _Producer) -> None:
        """Nothing is taken for granted any more."""
        for part in producer.parts.values():
            part.open_in = -1
            part.outdated = True

    def _tidy(self, key: Key, producer: _Producer) -> None:
        for epoch in [epoch for epoch, part in producer.parts.items() if part.is_idle]:
            del producer.parts[epoch]
        if not producer.parts and self._producers.get(key) is producer:
            del self._producers[key]


def _is_same(to: PartitionLog, epoch: int) -> bool:
    """Whether a log is still what it was in an epoch of it: no other node has had the partition since."""
    return to.is_open and to.epoch == epoch
