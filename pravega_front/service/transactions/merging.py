"""Merges: a segment's bytes are appended to another atomically. Used for large events, and by tools.

The target's ledger knows the source as a writer, by a digest of its name. A source that fits into one batch is that
writer's only append, so a merge that is repeated, even after a crash, is recognised as a duplicate.

A larger source becomes a transaction of the log: pieces one after the other, without other appends in between because
an event may span pieces, and a marker that makes all of them visible at once. The decision is stored first
(:class:`pravega_front.service.state.Merging`); from then on the merge is carried out, if need be by the next start. An
interrupted attempt is aborted, and a new attempt gives its pieces other numbers. The last number in the ledger shows
whether an attempt has begun, and the log's open transactions whether it has ended.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.task_set import TaskSet
from bridges.catalog.database.sql import DatabaseError
from bridges.errors import LogDeleted, LogError, LogUnavailable, StorageFull, TooManyTransactions
from bridges.formats.producer import EventStamp, InTransaction, LedgerKind
from pravega_front.names import TRANSIENT
from pravega_front.service.pieces import EventCount, appended, marked
from pravega_front.service.segments import NotPossible, SegmentMissing
from pravega_front.service.state import Merging
from pravega_front.service.transactions.carrying_out import carry_out, fail_as_log_error

if TYPE_CHECKING:
    from bridges.log.partition.append_path import Hold
    from bridges.node.front import NodeServices
    from pravega_front.service.segment import Segment
    from pravega_front.service.segments import Segments
    from pravega_front.wire.fields import AttributeUpdate

log = structlog.get_logger(__name__)

_MERGED = 1
"""Number of the single append of a small source."""
_PLACE_BITS = 24
"""Bits of a piece's number for its place among the pieces, from 1 on; the higher bits are the attempt's number."""
_ONE_BATCH = 15 * 1024 * 1024
"""Largest source in bytes that becomes one batch: with its header it has to fit into a batch of the backend."""
_PIECE = 8 * 1024 * 1024
_AT_ONCE = 4
"""Most concurrent merges: each holds a piece, or all of a small source, and the batch encoded from it."""
_NONE = -1
"""Number that stands for no attempt."""

_Work = Callable[["_Large", "Hold"], Awaitable[int]]


def transient_name(parent: str, writer_id: bytes) -> str:
    """Return a unique name for the segment of a writer's large event."""
    return f"{parent}{TRANSIENT}{writer_id.hex()}.{secrets.token_hex(16)}"


def _writer_of(source_name: str) -> bytes:
    """Return the writer id of a source in the target's ledger."""
    return blake2b(source_name.encode("utf-8", "surrogateescape"), digest_size=16).digest()


class _Large(Struct):
    """Merge in pieces; ``decided`` is its stored decision, ``sealed`` whether the source was sealed before."""

    source: Segment
    target: Segment
    writer_id: bytes
    decided: Merging
    sealed: bool


class Merges:
    """Merges of this node. Call :meth:`load` first."""

    def __init__(self, node: NodeServices, segments: Segments) -> None:
        self._node = node
        self._segments = segments
        self._state = segments.state
        self._account = node.budget.account(lambda: None)
        self._few = asyncio.Semaphore(_AT_ONCE)
        self._running = segments.merges
        self._tasks = TaskSet()

    async def load(self) -> None:
        """Carry out decided merges and delete abandoned segments of large events, in the slots that this node owns or
        gains."""
        self._node.owners.on_gained.append(self._gained)
        self._node.owners.on_lost.append(self._lost)
        await self._take_up(self._loose_in(self._node.owners.mine))

    def _loose_in(self, slots: Collection[int]) -> list[tuple[str, Segment]]:
        return [(name, one) for name, one in self._segments.loose() if self._segments.slot_of(one) in slots]

    def _gained(self, slots: Collection[int]) -> None:
        # A snapshot: segments created from here on are not abandoned.
        some = self._loose_in(slots)
        if some:
            self._tasks.spawn(self._take_up_gained(some), "merges that another node has left")

    async def _take_up_gained(self, some: list[tuple[str, Segment]]) -> None:
        try:
            await carry_out(partial(self._take_up, some), asyncio.Semaphore(1), LogError, "taking up of merges")
        except Exception as error:  # noqa: BLE001 - logged and counted; the next start does it
            self._node.barrier.caught("taking up of merges", error)

    async def _lost(self, slots: Collection[int], in_order: bool) -> None:
        """Cancel merges into segments of lost slots: the next owner carries them out."""
        lost = set(slots)
        tasks = [task for target, task in self._running.with_targets() if self._segments.slot_of(target) in lost]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _take_up(self, some: list[tuple[str, Segment]]) -> None:
        decided = await self._state.merges()
        left: list[str] = []
        for name, source in some:
            if self._running.get(name) is not None or not self._segments.owners.is_mine(source.topic, source.partition):
                continue
            found = decided.get(source.topic)
            target = None if found is None else self._segments.in_topic(found.target, found.partition)
            if found is None or target is None or target.log.stream_id != found.stream_id:
                # Abandoned: the connection that would delete it is gone, or its target is.
                if found is not None or TRANSIENT in name:
                    left.append(name)
                continue
            merge = _Large(source, target, _writer_of(name), found, source.loose_sealed)
            self._start(name, target, partial(self._finish, name, merge))
            source.loose_sealed = True
        if left:
            self._tasks.spawn(self._delete(left), "deletion of transient segments")

    async def _delete(self, names: list[str]) -> None:
        for name in names:
            try:
                await self._segments.delete(name)
            except LogError as error:
                log.warning(
                    "could not delete a transient segment; the next start does", segment=name, reason=str(error)
                )
            except Exception as error:  # noqa: BLE001 - logged and counted; the others are deleted all the same
                self._node.barrier.caught("deletion of a transient segment", error, segment=name)

    async def close(self) -> None:
        """Stop; the next start continues merges under way."""
        tasks = self._running.tasks()
        for task in tasks:
            task.cancel()
        await asyncio.gather(self._tasks.close(), *tasks, return_exceptions=True)
        self._account.close()

    # --- for callers -----------------------------------------------------------------------------------------------

    async def merge(self, target: Segment, source_name: str, updates: Sequence[AttributeUpdate] = ()) -> int:
        """Append all of a segment to another, atomically, and delete it; return the target's length after it.

        ``updates`` of the target's attributes are part of the decision, if their conditions hold. From the decision on
        the merge is carried out, if need be by the next start. Raises SegmentMissing (the source never existed),
        NotPossible, ConditionFailed, TooManyAttributes, PartitionSealed, LogError.
        """
        await target.log.ready()
        running = self._running.get(source_name)
        if running is None:
            source = self._segments.find(source_name)
            if source is None or not source.loose:
                if target.log.last(LedgerKind.EVENT_NUMBER, _writer_of(source_name)) is None:
                    raise SegmentMissing(f"there is no segment {source_name!r} to merge")
                await self._state.update(target.topic, target.partition, updates)
                return await target.length()
            if not self._segments.owners.is_mine(source.topic, source.partition):
                raise NotPossible(f"{source_name} and {target.name} are not on one node")
            if self._segments.is_kept(source_name):
                raise NotPossible("segments of a transaction are merged by its commit, and watermarks stay")
            running = self._start(source_name, target, partial(self._begin, source_name, source, target, updates))
            updates = ()
        if running[0] is not target:
            raise NotPossible(f"{source_name} is being merged with another segment")
        length = await asyncio.shield(running[1])  # the caller may be cancelled; a decided merge is carried out
        await self._state.update(target.topic, target.partition, updates)  # if the call joined a running merge
        return length

    async def forget(self, name: str) -> None:
        """Delete a transient segment whose writer is gone, unless it is merged. Raises LogError."""
        running = self._running.get(name)
        if running is not None:
            await asyncio.wait([running[1]])
        with suppress(SegmentMissing):
            await self._segments.delete(name)

    def _start(
        self, name: str, target: Segment, work: Callable[[], Awaitable[int]]
    ) -> tuple[Segment, asyncio.Task[int]]:
        guarded = fail_as_log_error(work, self._node.barrier, "merge", segment=name)
        return self._running.begin(name, target, asyncio.create_task(guarded, name=f"merge of {name}"))

    # --- merging ---------------------------------------------------------------------------------------------------

    async def _begin(self, name: str, source: Segment, target: Segment, updates: Sequence[AttributeUpdate]) -> int:
        """Merge as one batch, or store the decision to merge in pieces and carry it out."""
        sealed, source.loose_sealed = source.loose_sealed, True
        decided: Merging | None = None
        length = -1
        appending = False
        try:
            await source.quiet()  # appends acknowledged from now on would be lost
            start = await source.start()
            size = await source.length() - start
            if size <= _ONE_BATCH and not updates:
                async with self._few:
                    appending = True
                    length = await self._append_one(target, _writer_of(name), source, start, size)
            else:
                decided = await self._decided(source, target, updates)
        except BaseException as error:
            # The append may have succeeded despite the error. Then the source must stay sealed: the ledger would take
            # the next merge for this one, and later appends to the source would be lost.
            if not (appending and isinstance(error, LogUnavailable | asyncio.CancelledError)):
                source.loose_sealed = sealed
            raise
        if decided is not None:
            return await self._finish(name, _Large(source, target, _writer_of(name), decided, sealed))
        await self._delete_source(name)
        return length

    async def _decided(self, source: Segment, target: Segment, updates: Sequence[AttributeUpdate]) -> Merging:
        attempt = await self._node.catalog.counters.allocate_producer_ids(1)
        wanted = Merging(target.topic, target.partition, target.log.stream_id, attempt, _NONE)
        # A merge that was carried out, but whose source could not be deleted, is not decided again.
        found = await self._state.decide_merge(source.topic, wanted, updates)
        if found.stream_id != target.log.stream_id:
            raise NotPossible(f"{source.name} was merged with another segment")
        return found

    async def _delete_source(self, name: str) -> None:
        self._running.deletes(name)
        with suppress(SegmentMissing):
            await self._segments.delete(name)

    async def _append_one(self, target: Segment, writer_id: bytes, source: Segment, start: int, size: int) -> int:
        self._account.take(Kind.READS, 2 * size)  # the bytes read, and the batch encoded from them
        try:
            parts = await source.read_all(start, size)
            events = await asyncio.to_thread(EventCount().feed, parts) if size else 0
            return await appended(target, parts, size, EventStamp(writer_id, _MERGED, events))
        finally:
            self._account.give(Kind.READS, 2 * size)

    # --- in pieces -------------------------------------------------------------------------------------------------

    async def _finish(self, name: str, merge: _Large) -> int:
        """Carry out a decided merge; a target that was sealed since gets its final end afterwards. If the merge is
        impossible it is aborted, so that nothing of it is ever visible, and the error is raised."""
        try:
            return await self._carry_out(name, merge)
        finally:
            self._node.catalog.seal_again(merge.target.log.stream_id)

    async def _carry_out(self, name: str, merge: _Large) -> int:
        target = merge.target
        try:
            end = await self._until_done(merge, self._attempt, _AGAIN)
        except LogDeleted:
            if target.log.is_deleted:
                await self._delete_source(name)  # its target is gone
            raise
        except LogError as error:
            log.warning("a segment cannot be merged", segment=name, target=target.name, reason=str(error))
            await self._until_done(merge, self._abort, (*_AGAIN, StorageFull))
            await self._state.give_up_merge(merge.source.topic)
            merge.source.loose_sealed = merge.sealed
            raise
        try:
            length = await target.position_behind(end)
        except LogError:
            length = -1  # the merge succeeded; the client can query the length
        # A sealed target's end is final only when the decision is gone with the source.
        await carry_out(partial(self._delete_source, name), self._few, _AGAIN, "deletion of a source", segment=name)
        return length

    async def _until_done(self, merge: _Large, work: _Work, again: tuple[type[LogError], ...]) -> int:
        """Run ``work`` with the target's log held exclusively; retry while errors are of the kinds ``again``."""

        async def alone() -> int:
            hold = await merge.target.log.hold()
            guarded = partial(work, merge, hold)
            try:
                return await fail_as_log_error(guarded, self._node.barrier, "merge", segment=merge.source.name)
            finally:
                hold.release()

        return await carry_out(alone, self._few, again, "merge", segment=merge.source.name)

    async def _attempt(self, merge: _Large, hold: Hold) -> int:
        """Append all pieces and the marker, unless they are there already; return an offset behind them."""
        source, target, decided = merge.source, merge.target, merge.decided
        target_log = target.log
        last = target_log.last(LedgerKind.EVENT_NUMBER, merge.writer_id)
        if last is not None and last.number >> _PLACE_BITS == decided.attempt:
            if decided.attempt not in target_log.state.transactions.open:
                return target_log.high_watermark
            # The attempt was interrupted. Other appends may follow its pieces, so it cannot be continued.
            attempt = await self._node.catalog.counters.allocate_producer_ids(1)
            decided = decided._replace(attempt=attempt, stale=decided.attempt)
            await self._state.set_attempt(source.topic, decided)
            merge.decided = decided
        if decided.stale in target_log.state.transactions.open:
            await marked(target, decided.stale, commit=False, hold=hold)
        part = InTransaction(decided.attempt, -1)
        number = decided.attempt << _PLACE_BITS
        events = EventCount()
        at, end = await source.start(), await source.length()
        if at == end:
            return target_log.high_watermark
        while at < end:
            size = min(_PIECE, end - at)
            number += 1
            await self._append_piece(merge, hold, part, number, events, at, size)
            at += size
        return await marked(target, decided.attempt, hold=hold)

    async def _append_piece(
        self, merge: _Large, hold: Hold, part: InTransaction, number: int, events: EventCount, at: int, size: int
    ) -> None:
        self._account.take(Kind.READS, 2 * size)
        try:
            parts = await merge.source.read_all(at, size)
            count = await asyncio.to_thread(events.feed, parts)
            await appended(
                merge.target, parts, size, EventStamp(merge.writer_id, number, count), part, hold, decided=True
            )
        finally:
            self._account.give(Kind.READS, 2 * size)

    async def _abort(self, merge: _Large, hold: Hold) -> int:
        opened = merge.target.log.state.transactions.open
        for attempt in (merge.decided.attempt, merge.decided.stale):
            if attempt in opened:
                await marked(merge.target, attempt, commit=False, hold=hold)
        return merge.target.log.high_watermark


_AGAIN: tuple[type[LogError], ...] = (LogUnavailable, DatabaseError, TooManyTransactions)
"""Transient errors."""
