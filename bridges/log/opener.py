"""The way from a partition's stream, and its rows in the database, to an open log; and back, when its slot moves.

An opening takes the stream in an epoch, which fences the earlier writer, and rebuilds the partition's state
(:mod:`bridges.log.rebuilding`). ``open_concurrency`` logs are opened at a time; one that waits for a slow server gives
its place to the next. The first use after a failed opening tries again at once, later ones back off.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import structlog

from bridges.errors import LogDeleted, LogError, LogUnavailable, NotOwner
from bridges.log.rebuilding import Rebuilder
from bridges.log.state.stream_rows import Gathered
from sbp_back.errors import ErrorCode, FencedError, SbpError

if TYPE_CHECKING:
    from bridges.cluster.ownership import Ownership
    from bridges.log.logs import Logs
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.log.streams import Writer

_log = structlog.get_logger("anabranch.logs")

BeforeOpening = Callable[["PartitionLog", int], Awaitable[None]]
"""Awaited with a log and its end before any append to it."""

SLOW_S = 0.25
"""Seconds after which an opening that waits for its server gives its place to the next: a failed server holds up only
its own partitions."""
SLOW_MOST = 2_000
"""Most openings that wait like that."""
_ATTEMPTS = 5
"""Epochs tried for one opening, when other writers fence it."""
RETRY_FIRST_S = 0.5
_RETRY_LAST_S = 10.0
_LOGS_AT_ONCE = 200
"""Logs given up at the same time."""
_OPENED_S = 1.0
"""Seconds that openings in flight may take when their slot is handed over."""
_GIVEN_UP_S = 5.0
"""Seconds that work in flight may take for a log that moves to another node."""


class Opener:
    """Opens one node's logs, and gives them up when their slots are lost."""

    def __init__(self, logs: Logs, owners: Ownership, before_opening: BeforeOpening | None) -> None:
        self._client = logs.client
        self._owners = owners
        self._stores = logs.stores
        self._reloads = Gathered(logs.stores.reload)
        self._rebuilder = Rebuilder(logs)
        self._concurrency = logs.options.open_concurrency
        self._tasks = logs.finishing
        self._barrier = logs.barrier
        self._before_opening = before_opening
        self._loop = asyncio.get_running_loop()
        self._wanted: deque[PartitionLog] = deque()
        self.openers = 0  # without slow openings
        self.slow = 0
        # By the set of servers that are read: a hanging server takes no places from partitions on other servers.
        self._rebuilds: WeakValueDictionary[frozenset[int], asyncio.Semaphore] = WeakValueDictionary()
        self._in_flight: dict[PartitionLog, asyncio.Future[None]] = {}
        self._taken = _Taken()
        # Logs that failed to open: the number of failures in a row, and the loop's time of the next attempt.
        self._failures: dict[PartitionLog, tuple[int, float]] = {}
        self.put_off: dict[PartitionLog, asyncio.TimerHandle] = {}
        owners.on_lost.append(self._give_up_slots)
        owners.on_gone.append(self._retry_now)

    # --- opening ------------------------------------------------------------------------------------------------

    def want(self, log: PartitionLog) -> None:
        """Open ``log`` once its back-off has passed: then ``opened`` or ``open_failed`` is called on it."""
        _, not_before = self._failures.get(log, (0, 0.0))
        wait = not_before - self._loop.time()
        if wait > 0:
            self.put_off[log] = self._loop.call_later(wait, self._want_now, log)
        else:
            self._want_now(log)

    def has_failed(self, log: PartitionLog) -> bool:
        """Return whether the last attempt to open ``log`` failed."""
        return log in self._failures

    def forget(self, log: PartitionLog) -> None:
        """Forget a log whose topic was deleted."""
        self._failures.pop(log, None)
        self._taken.discard(log)
        timer = self.put_off.pop(log, None)
        if timer is not None:
            timer.cancel()

    def let_go(self, writer: Writer) -> None:
        """Close a writer that its log no longer uses, soon."""
        self._tasks.spawn(self._close_writer(writer))

    def refuse_put_off(self) -> None:
        """Refuse the openings that wait for their back-off, because the node is stopping."""
        for log, timer in list(self.put_off.items()):
            timer.cancel()
            log.open_failed(LogUnavailable(f"{log.topic}-{log.partition}: the node is stopping"))
        self.put_off.clear()

    def _want_now(self, log: PartitionLog) -> None:
        self.put_off.pop(log, None)
        self._wanted.append(log)
        self._fill_places()

    def _retry_now(self) -> None:
        """Retry failed openings, because a member is gone for good: their streams may have another server now."""
        self._failures.clear()
        for log, timer in list(self.put_off.items()):
            timer.cancel()
            self._want_now(log)

    def _fill_places(self) -> None:
        if self._wanted and self.openers < self._concurrency:
            self.openers += 1
            self._tasks.spawn(self._open_wanted())

    async def _open_wanted(self) -> None:
        """Open one log after the other: for a consumer of ten thousand, a task for each would cost more than the
        opening."""
        try:
            while self._wanted and self.openers <= self._concurrency:
                log = self._wanted.popleft()
                done = self._in_flight[log] = self._loop.create_future()
                try:
                    await self._open(log)
                except Exception as error:  # noqa: BLE001 - logged and counted; others wait behind it
                    self._barrier.caught("opening", error, topic=log.topic, partition=log.partition)
                finally:
                    del self._in_flight[log]
                    done.set_result(None)
        finally:
            self.openers -= 1

    async def _open(self, log: PartitionLog) -> None:
        writer: Writer | None = None
        try:
            self._require_mine(log)
            with self._yield_place_when_slow():
                writer = await self._take(log)
                self._taken.add(self._slot(log), log, writer.epoch)
                if self._stores.shared:
                    # No other node can append any more, so no other node changes the stream's rows in the database
                    # either.
                    await self._reloads.read(log.stream_id)
                async with self._rebuilds_from(writer.servers):
                    rebuilt = await self._rebuilder.rebuild(log, writer)
                    if self._before_opening is not None:
                        await self._before_opening(log, writer.next_offset)
            self._failures.pop(log, None)
            self._require_mine(log)  # the slot may have been lost meanwhile
            if not log.is_deleted:
                self._taken.add(self._slot(log), log, writer.epoch)  # or lost and regained
                log.opened(writer, rebuilt)
                return
            failure: LogError = LogDeleted(f"{log.topic}-{log.partition} was deleted")  # while it was opened
        except NotOwner as error:
            failure = error
            if writer is not None:
                await self._seal(log, writer.epoch)
        except (SbpError, LogError) as error:
            failure = self._back_off(log, str(error))
            _log.error("partition not opened", topic=log.topic, partition=log.partition, error=str(error))
        except Exception as error:  # noqa: BLE001 - logged, counted and answered: the log must not remain in OPENING
            failure = self._back_off(log, f"unexpectedly, {type(error).__name__}")
            self._barrier.caught("opening", error, topic=log.topic, partition=log.partition)
        if writer is not None:
            await self._close_writer(writer)
        # Answer last: a refused caller opens the log again at once, and no log is opened twice at the same time.
        if log.is_deleted:
            self._taken.discard(log)
        else:
            log.open_failed(failure)

    async def _take(self, log: PartitionLog) -> Writer:
        # A first opening uses the run's own epoch; only an opening after a failure needs a new one. Only the owner
        # gets one: a node that has lost the partition cannot take it back.
        slot = self._slot(log)
        epoch = self._owners.epoch(slot)
        if epoch <= log.epoch:
            epoch = await self._owners.raise_epoch(slot)
        for _ in range(_ATTEMPTS - 1):
            try:
                return await self._client.open(log.stream_id, epoch)
            except FencedError:
                epoch = await self._owners.raise_epoch(slot)
        return await self._client.open(log.stream_id, epoch)

    def _back_off(self, log: PartitionLog, reason: str) -> LogUnavailable:
        """Put off the attempts after the next one; return the error of this one."""
        if not log.is_deleted:
            times, _ = self._failures.get(log, (0, 0.0))
            # One failure may be a coincidence, so retry at once. Later attempts back off: a failed server must not be
            # asked as fast as clients retry.
            wait = 0.0 if not times else min(RETRY_FIRST_S * 2 ** min(times - 1, 10), _RETRY_LAST_S)
            self._failures[log] = times + 1, self._loop.time() + wait
        return LogUnavailable(f"{log.topic}-{log.partition} cannot be opened: {reason}")

    def _rebuilds_from(self, servers: frozenset[int]) -> asyncio.Semaphore:
        """Return a semaphore that limits the rebuilds from these servers, which hold memory."""
        places = self._rebuilds.get(servers)
        if places is None:
            places = self._rebuilds[servers] = asyncio.Semaphore(self._concurrency)
        return places

    @contextmanager
    def _yield_place_when_slow(self) -> Iterator[None]:
        """Let another log be opened meanwhile if the block takes long."""
        slow = False

        def yield_place() -> None:
            nonlocal slow
            if self.slow < SLOW_MOST:
                slow = True
                self.slow += 1
                self.openers -= 1
                self._fill_places()

        timer = self._loop.call_later(SLOW_S, yield_place)
        try:
            yield
        finally:
            timer.cancel()
            if slow:
                self.slow -= 1
                self.openers += 1

    async def _close_writer(self, writer: Writer) -> None:
        try:
            await writer.close()
        except Exception as error:  # noqa: BLE001 - logged and counted; the next opening of the stream fences it
            self._barrier.caught("closing a writer", error)

    # --- giving up ----------------------------------------------------------------------------------------------

    def count_taken(self, slot: int) -> int:
        """Return how many logs of a slot would be given up."""
        return self._taken.count(slot)

    async def _give_up_slots(self, slots: Collection[int], in_order: bool) -> None:
        """Give up the logs of these slots. With ``in_order``, return when everything in flight is decided and answered,
        and no range of theirs takes appends here. Then the next owner need not ask a node that may be gone by then."""
        gone = frozenset(slots)
        opening = [done for log, done in self._in_flight.items() if self._slot(log) in gone]
        if in_order and opening:
            # These openings notice that the slot is lost. A hanging one seals its stream itself, if it ever continues.
            await asyncio.wait(opening, timeout=_OPENED_S)
        while taken := self._taken.pop(gone, _LOGS_AT_ONCE):
            await asyncio.gather(*(self._give_up(log, epoch, in_order) for log, epoch in taken))

    async def _give_up(self, log: PartitionLog, epoch: int, in_order: bool) -> None:
        sealed = False
        try:
            if in_order and log.is_open:
                async with asyncio.timeout(_GIVEN_UP_S):
                    await log.come_to_rest()
                sealed = True
        except (TimeoutError, LogError) as error:
            _log.warning(
                "a partition moves to another node before its last appends are decided: their writers ask the next "
                "owner",
                topic=log.topic,
                partition=log.partition,
                error=str(error),
            )
        except Exception as error:  # noqa: BLE001 - logged and counted; the others are given up nevertheless
            self._barrier.caught("giving up a log", error, topic=log.topic, partition=log.partition)
        if not log.is_deleted:
            log.give_up(self._not_mine(log))
        if in_order and not sealed:  # the log could not be opened, or has failed since
            await self._seal(log, epoch)

    async def _seal(self, log: PartitionLog, epoch: int) -> None:
        """End a stream that this node has opened and will not write to. If that fails, the next owner has to end it."""
        self._taken.discard(log)
        try:
            async with asyncio.timeout(_GIVEN_UP_S):
                await self._client.seal(log.stream_id, epoch)
        except (TimeoutError, SbpError) as error:
            if isinstance(error, SbpError) and error.code == ErrorCode.NOT_FOUND:
                return  # the stream was deleted meanwhile, as those of transactions are
            _log.warning(
                "a range of a lost partition is left open: its next owner ends it",
                stream_id=log.stream_id,
                error=str(error),
            )

    def _slot(self, log: PartitionLog) -> int:
        return self._owners.slot_of(log.topic, log.partition)

    def _require_mine(self, log: PartitionLog) -> None:
        if not self._owners.is_mine(self._slot(log)):
            raise self._not_mine(log)

    def _not_mine(self, log: PartitionLog) -> NotOwner:
        slot, owners = self._slot(log), self._owners
        owner = None if owners.is_mine(slot) else owners.owner(slot)
        return NotOwner(f"{log.topic}-{log.partition}", -1 if owner is None else owner.node_id)


class _Taken:
    """Logs whose streams this node has taken for writing and not ended since, with their epochs: by slot, because
    ownership is lost by slots."""

    __slots__ = ("_by_slot", "_slots")

    def __init__(self) -> None:
        self._by_slot: dict[int, dict[PartitionLog, int]] = {}
        # A deleted log's slot follows from the id of its topic, which is gone.
        self._slots: dict[PartitionLog, int] = {}

    def add(self, slot: int, log: PartitionLog, epoch: int) -> None:
        self._slots[log] = slot
        self._by_slot.setdefault(slot, {})[log] = epoch

    def discard(self, log: PartitionLog) -> None:
        slot = self._slots.pop(log, None)
        if slot is not None:
            self._by_slot[slot].pop(log)

    def pop(self, slots: Collection[int], most: int) -> list[tuple[PartitionLog, int]]:
        """Remove and return up to ``most`` logs of these slots, with their epochs."""
        found: list[tuple[PartitionLog, int]] = []
        for slot in slots:
            logs = self._by_slot.get(slot, {})
            while logs and len(found) < most:
                log, epoch = logs.popitem()
                del self._slots[log]
                found.append((log, epoch))
        return found

    def count(self, slot: int) -> int:
        return len(self._by_slot.get(slot, ()))
