"""Sealing of partitions at their logs, after the catalog has decided it: retried until each log has confirmed its end.

The queue is durable: a partition that the catalog has sealed, and whose end it does not know, must still be sealed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import structlog

from anabranch_kit.run.rounds import Rounds
from bridges.catalog.topics.topic import FOLLOWED
from bridges.errors import LogError, NotOwner, TransactionsOpen

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier
    from bridges.catalog.database.sql import Connection, Database
    from bridges.catalog.topics.lineage import PartitionInfo
    from bridges.catalog.topics.topic import Topic

_log = structlog.get_logger("anabranch.catalog")

Sealer = Callable[[str, int], Awaitable[int]]
"""Makes the end of a partition (topic, number) final and returns it. Raises LogError; may be called again."""

Promise = Callable[["Connection", str, int], bool]
"""Whether an append to a partition (topic, number) was decided that the partition has not got yet."""

_CONCURRENCY = 32
PATIENCE_S = 1.0
"""Seconds after which a seal that waits, for its server or an open transaction, no longer holds up others."""
RETRY_FIRST_S = 1.0
_RETRY_LAST_S = 60.0


class Seals:
    """The queue of seals to carry out. ``confirmed`` is called when a partition's end is known durably. ``promises``
    keep an end from becoming final."""

    def __init__(
        self,
        db: Database,
        barrier: Barrier,
        confirmed: Callable[[Topic, int, int], None],
        promises: Sequence[Promise] = (),
    ) -> None:
        self._promises = promises
        self._db = db
        self._barrier = barrier
        self._confirmed = confirmed
        # By stream, because a recreated topic has the same partition numbers.
        self._waiting: dict[int, tuple[Topic, int]] = {}
        # The back-off of failed seals, and the monotonic time of the next attempt.
        self._put_off: dict[int, tuple[float, float]] = {}
        # How often retry() was called: a seal that fails has to see what happened while it was carried out.
        self._retries = 0
        self._rounds: Rounds[int] = Rounds(barrier, "sealing", at_once=_CONCURRENCY, patience=PATIENCE_S)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Return the number of partitions whose end is not final yet."""
        return len(self._waiting)

    def want(self, topic: Topic, partition: PartitionInfo) -> None:
        """Queue a partition whose seal is durable in the catalog."""
        self._waiting[partition.stream_id] = (topic, partition.index)
        self._wake.set()

    def forget(self, partition: PartitionInfo) -> None:
        """Remove a partition whose topic was deleted, or whose end is known."""
        self._waiting.pop(partition.stream_id, None)
        self._put_off.pop(partition.stream_id, None)

    def retry(self, stream: int | None = None) -> None:
        """Retry failed seals at once: all, or that of one stream."""
        self._retries += 1
        if stream is None:
            self._put_off.clear()
        else:
            self._put_off.pop(stream, None)
        self._wake.set()

    def start(self, seal: Sealer) -> None:
        """Begin to seal, once the logs exist."""
        self._task = asyncio.create_task(self._run(seal), name="catalog-sealer")

    async def close(self) -> None:
        """Stop; the next start carries out the rest."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self._rounds.close()

    async def _run(self, seal: Sealer) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            self._wake.clear()
            now = clock()
            await self._rounds.each(
                [stream for stream in self._waiting if self._put_off.get(stream, (0.0, 0.0))[1] <= now],
                partial(self._seal_one, seal),
            )
            next_at = min((at for _, at in self._put_off.values()), default=None)
            with suppress(TimeoutError):  # new seals do not wait for failed ones
                async with asyncio.timeout_at(next_at):
                    await self._wake.wait()

    async def _seal_one(self, seal: Sealer, stream: int) -> None:
        wanted = self._waiting.get(stream)
        if wanted is None:
            return
        topic, number = wanted
        delay, _ = self._put_off.pop(stream, (0.0, 0.0))
        later = partial(self._later, stream, delay, self._retries)
        try:
            if await self._is_promised(topic.name, number):
                later()  # Catalog.seal_again has it retried once the append is durable
                return
            end = await seal(topic.name, number)
            # Store the end before anyone learns it, whatever the durability: a reader that goes on to the children
            # never returns.
            await self._db.changes.settle(lambda: self._confirm(topic, number, stream, end))
        except NotOwner:
            later()  # the owner seals it, and every node follows the change
        except TransactionsOpen as error:  # Logs.seal has it retried once they have ended
            if not delay:
                _log.info(
                    "could not seal a partition yet; trying again",
                    topic=topic.name,
                    partition=number,
                    reason=str(error),
                )
            later()
        except LogError as error:
            if stream in self._waiting:
                _log.warning("a partition is not sealed yet", topic=topic.name, partition=number, error=str(error))
                later()
        except Exception as error:  # noqa: BLE001 - logged, counted and tried again; the others must go on
            self._barrier.caught("sealing", error, topic=topic.name, partition=number)
            later()

    async def _is_promised(self, topic: str, number: int) -> bool:
        promises = self._promises
        if not promises:
            return False
        return await self._db.run(lambda connection: any(promise(connection, topic, number) for promise in promises))

    async def _confirm(self, topic: Topic, number: int, stream: int, end: int) -> None:
        mark = self._db.changes.mark(FOLLOWED, [topic.name])

        def write(connection: Connection) -> None:
            mark(connection)
            connection.execute("UPDATE partitions SET sealed_end = ? WHERE stream_id = ?", (end, stream))

        def confirm(_: None) -> None:
            if self._waiting.pop(stream, None) is not None:
                self._confirmed(topic, number, end)

        await self._db.run(write, flush=True, then=confirm)

    def _later(self, stream: int, delay: float, retries: int) -> None:
        """Try again: at once if :meth:`retry` was called since ``retries`` was read, else after twice the last
        back-off."""
        if retries != self._retries:
            self._wake.set()
        elif stream in self._waiting:
            delay = min(2 * delay, _RETRY_LAST_S) or RETRY_FIRST_S
            self._put_off[stream] = delay, asyncio.get_running_loop().time() + delay
            self._wake.set()
