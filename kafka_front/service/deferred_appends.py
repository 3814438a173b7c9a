"""Batches whose records are still looked at, and what came behind them on the same connection.

Nearly every batch is appended while its request is read. One that takes longer holds up what its connection sends to
the same partition, so that nothing overtakes it (reference/kafka.md, rule 33); other partitions and other connections
do not wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

from bridges.barrier import Barrier
from bridges.errors import LogError
from bridges.log.partition_log import Appended, Batch, PartitionLog
from bridges.sliced import SlicedWorks
from kafka_front.service.batch_check import Refusal, Unchecked
from kafka_front.wire.errors import ErrorCode

if TYPE_CHECKING:
    from kafka_front.context import Client


class Answer(Protocol):
    """Who is told what became of a batch."""

    def __call__(self, appended: Appended, error: LogError | None) -> None: ...

    def refused(self, refusal: Refusal) -> None: ...


_Queue = deque[tuple[Batch | Unchecked, Answer]]


class DeferredAppends:
    """The queues of one front, by connection and partition; a queue exists while something in it is looked at."""

    __slots__ = ("_barrier", "_tasks", "_works", "queues")

    def __init__(self, works: SlicedWorks, barrier: Barrier) -> None:
        self._works = works
        self._barrier = barrier
        #: Empty when whatever comes may be appended at once.
        self.queues: dict[tuple[Client, PartitionLog], _Queue] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def append(self, connection: Client, log: PartitionLog, taken: Batch | Unchecked, answer: Answer) -> None:
        """Append ``taken`` once it is checked and everything before it is appended; at once if it can be."""
        queue = self.queues.get((connection, log))
        if queue is None:
            if isinstance(taken, Batch):
                log.append(taken, answer)
                return
            queue = self.queues[connection, log] = deque()
            task = asyncio.get_running_loop().create_task(self._drain(connection, log, queue))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        queue.append((taken, answer))

    async def _drain(self, connection: Client, log: PartitionLog, queue: _Queue) -> None:
        try:
            while queue:
                taken, answer = queue[0]
                refusal = None
                if isinstance(taken, Unchecked):
                    refusal = await self._refusal(taken)
                    taken = taken.batch
                queue.popleft()
                if refusal is None:
                    log.append(taken, answer)
                else:
                    answer.refused(refusal)
        finally:
            del self.queues[connection, log]
            for _, answer in queue:  # the node ends without having drained
                answer.refused(Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the node is stopping"))

    async def _refusal(self, unchecked: Unchecked) -> Refusal | None:
        try:
            await unchecked.finish(self._works)
        except Refusal as refusal:
            return refusal
        except Exception as error:  # noqa: BLE001 - logged and counted; the client gets an answer
            self._barrier.caught("batch check", error)
            return Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "the batch could not be checked")
        return None
