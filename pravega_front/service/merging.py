"""A segment's bytes appended to another, all of them together or none: large events, and what tools merge.

The source is known to the target's ledger as a writer, by a digest of its name. What fits into one batch is that
writer's one append, so a merge that is repeated, also after a crash, finds it there already.

A larger source becomes a transaction of the log: pieces one behind another, with nobody else's appends between them,
since an event may go over many, and a marker that shows all of them at once. Before it begins it is written down
(:class:`pravega_front.service.state.Merging`), and from then on it is carried out, also by the next start. An attempt
that was interrupted is aborted, and another one made whose pieces have other numbers: by the last number the ledger
tells whether an attempt has begun, and the log's open transactions tell whether it has ended.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.task_set import TaskSet
from bridges.catalog.sql import DatabaseError
from bridges.errors import LogDeleted, LogError, LogUnavailable, StorageFull, TooManyTransactions
from bridges.formats.producer import EventStamp, InTransaction, LedgerKind
from pravega_front.names import TRANSIENT
from pravega_front.service.carrying_out import carry_out
from pravega_front.service.pieces import EventCount, appended, marked
from pravega_front.service.segments import NotPossible, SegmentMissing
from pravega_front.service.state import Merging, require_none_merged

if TYPE_CHECKING:
    from bridges.catalog.topics import Also
    from bridges.formats.records import Buffer
    from bridges.log.partition.append_path import Hold
    from bridges.node.front import NodeServices
    from pravega_front.service.segment import Segment
    from pravega_front.service.segments import Segments
    from pravega_front.wire.fields import AttributeUpdate

log = structlog.get_logger(__name__)

_MERGED = 1
"""The number of the one append that a small source is."""
_PLACE_BITS = 24
"""The number of a piece is that of its attempt, and in so many bits its place among the pieces, from 1 on."""
_ONE_BATCH = 15 * 1024 * 1024
"""Bytes of a source that are one batch: with its header it has to fit into one of the backend's."""
_PIECE = 8 * 1024 * 1024
_AT_ONCE = 4
"""Merges at the same time: each holds a piece, or all of a small source, and the batch that is made of it."""
_PATIENCE_S = 30.0
_LOOK_S = 0.2
"""How long, and how often, it is looked whether another node has ended its merges."""
_NONE = -1
"""No attempt."""

_Work = Callable[["_Large", "Hold"], Awaitable[int]]


def transient_name(parent: str, writer_id: bytes) -> str:
    """A name for a segment that takes a large event of a writer, which nobody else has."""
    return f"{parent}{TRANSIENT}{writer_id.hex()}.{secrets.token_hex(16)}"


def _writer_of(source_name: str) -> bytes:
    """By what the target's ledger knows a source."""
    return blake2b(source_name.encode("utf-8", "surrogateescape"), digest_size=16).digest()


class _Large(Struct):
    """A merge in pieces; ``decided`` is what is written down of it, ``sealed`` whether its source was sealed before."""

    source: Segment
    target: Segment
    writer_id: bytes
    decided: Merging
    sealed: bool


class Merges:
    """The merges of a node. Call :meth:`load` first."""

    def __init__(self, node: NodeServices, segments: Segments) -> None:
        self._node = node
        self._segments = segments
        self._state = segments.state
        self._account = node.budget.account(lambda: None)
        self._few = asyncio.Semaphore(_AT_ONCE)
        self._running = segments.merges
        self._changing: dict[str, int] = {}
        self._tasks = TaskSet()

    async def load(self) -> None:
        """Carry out what was decided, and delete what writers of large events have left behind, of what this node owns
        and comes to own."""
        self._node.catalog.before_sealing.append(self._settled)
        self._node.owners.on_gained.append(self._gained)
        self._node.owners.on_lost.append(self._lost)
        await self._take_up(self._loose_in(self._node.owners.mine))

    def _loose_in(self, slots: Collection[int]) -> list[tuple[str, Segment]]:
        return [(name, one) for name, one in self._segments.loose() if self._segments.slot_of(one) in slots]

    def _gained(self, slots: Collection[int]) -> None:
        # As they are now: what is made from here on is not left behind.
        some = self._loose_in(slots)
        if some:
            self._tasks.spawn(self._take_up_gained(some), "merges that another node has left")

    async def _take_up_gained(self, some: list[tuple[str, Segment]]) -> None:
        try:
            await carry_out(partial(self._take_up, some), asyncio.Semaphore(1), LogError, "taking up of merges")
        except Exception as error:  # noqa: BLE001 - logged and counted; the next start does it
            self._node.barrier.caught("taking up of merges", error)

    async def _lost(self, slots: Collection[int], in_order: bool) -> None:
        """Their next owner carries out what was decided."""
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
                # The connection is gone that would delete it, or the segment that it would be part of.
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
                log.warning("a transient segment is deleted by the next start", segment=name, reason=str(error))
            except Exception as error:  # noqa: BLE001 - logged and counted; the others are deleted all the same
                self._node.barrier.caught("deletion of a transient segment", error, segment=name)

    async def close(self) -> None:
        """Leave what is under way to the next start."""
        with suppress(ValueError):  # it may not have been loaded
            self._node.catalog.before_sealing.remove(self._settled)
        tasks = self._running.tasks()
        for task in tasks:
            task.cancel()
        await asyncio.gather(self._tasks.close(), *tasks, return_exceptions=True)
        self._account.close()

    # --- for callers -----------------------------------------------------------------------------------------------

    async def merge(self, target: Segment, source_name: str, updates: Sequence[AttributeUpdate] = ()) -> int:
        """Append all of a segment to another, atomically, and delete it; gives the target's length behind it.

        ``updates`` of the target's attributes are made in the one step that decides it, if their conditions hold: from
        then on it is carried out, also by the next start. Raises SegmentMissing (there never was one), NotPossible,
        ConditionFailed, TooManyAttributes, PartitionSealed, LogError.
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
        length = await asyncio.shield(running[1])  # whoever asked may go away; what is decided is carried out
        await self._state.update(target.topic, target.partition, updates)  # of one who comes while another's goes on
        return length

    async def forget(self, name: str) -> None:
        """Delete a transient segment whose writer is gone, unless it is merged. Raises LogError."""
        running = self._running.get(name)
        if running is not None:
            await asyncio.wait([running[1]])
        with suppress(SegmentMissing):
            await self._segments.delete(name)

    @asynccontextmanager
    async def _settled(self, topic: str) -> AsyncIterator[Also | None]:
        """Nothing is merged with segments of a stream in here: what was decided is carried out before, and nothing
        begins. Whoever seals segments, through whichever protocol, does it in here."""
        self._changing[topic] = self._changing.get(topic, 0) + 1
        try:
            await self._running.ended_with(topic)
            end = asyncio.get_running_loop().time() + _PATIENCE_S
            while topic in {one.target for one in (await self._state.merges()).values()}:
                if asyncio.get_running_loop().time() > end:
                    raise LogUnavailable(f"something is being merged with a segment of {topic}")
                await asyncio.sleep(_LOOK_S)
            yield partial(require_none_merged, topic=topic)
        finally:
            self._changing[topic] -= 1
            if not self._changing[topic]:
                del self._changing[topic]

    def _start(
        self, name: str, target: Segment, work: Callable[[], Awaitable[int]]
    ) -> tuple[Segment, asyncio.Task[int]]:
        task = asyncio.create_task(self._run(name, work), name=f"merge of {name}")
        return self._running.begin(name, target, task)

    async def _run(self, name: str, work: Callable[[], Awaitable[int]]) -> int:
        try:
            return await work()
        except LogError:
            raise
        except Exception as error:
            self._node.barrier.caught("merge", error, segment=name)
            raise LogError("a merge failed unexpectedly") from error

    # --- merging ---------------------------------------------------------------------------------------------------

    async def _begin(self, name: str, source: Segment, target: Segment, updates: Sequence[AttributeUpdate]) -> int:
        """Merge as one batch, or decide that it is done in pieces, and do it."""
        if target.topic in self._changing:
            raise LogUnavailable(f"the segments of {target.topic} are being changed")
        sealed, source.loose_sealed = source.loose_sealed, True
        decided: Merging | None = None
        length = -1
        appending = False
        try:
            await source.quiet()  # what is acknowledged from now on would be part of nothing
            start = await source.start()
            size = await source.length() - start
            if size <= _ONE_BATCH and not updates:
                async with self._few:
                    appending = True
                    length = await self._append_one(target, _writer_of(name), source, start, size)
            else:
                decided = await self._decided(source, target, updates)
        except BaseException as error:
            # It may have been appended for all that. What the source took from now on would be lost: the ledger would
            # take the next merge for this one.
            if not (appending and isinstance(error, LogUnavailable | asyncio.CancelledError)):
                source.loose_sealed = sealed
            raise
        if decided is not None:
            return await self._finish(name, _Large(source, target, _writer_of(name), decided, sealed))
        await self._delete_source(name)
        return length

    async def _decided(self, source: Segment, target: Segment, updates: Sequence[AttributeUpdate]) -> Merging:
        attempt = await self._node.catalog.allocate_producer_ids(1)
        wanted = Merging(target.topic, target.partition, target.log.stream_id, attempt, _NONE)
        # One that was carried out, and whose source could not be deleted, is not decided again.
        found = await self._state.decide_merge(source.topic, wanted, updates)
        if found.stream_id != target.log.stream_id:
            raise NotPossible(f"{source.name} was merged with another segment")
        return found

    async def _delete_source(self, name: str) -> None:
        self._running.deletes(name)
        with suppress(SegmentMissing):
            await self._segments.delete(name)

    async def _append_one(self, target: Segment, writer_id: bytes, source: Segment, start: int, size: int) -> int:
        self._account.take(Kind.READS, 2 * size)  # what is read, and the batch that is made of it
        try:
            parts = await _read(source, start, size)
            events = await asyncio.to_thread(EventCount().feed, parts) if size else 0
            return await appended(target, parts, size, EventStamp(writer_id, _MERGED, events))
        finally:
            self._account.give(Kind.READS, 2 * size)

    # --- in pieces -------------------------------------------------------------------------------------------------

    async def _finish(self, name: str, merge: _Large) -> int:
        """Carry out what was decided; raises the error for which it cannot be: then nothing of it is ever seen."""
        target = merge.target
        try:
            end = await self._until_done(merge, self._attempt, _AGAIN)
        except LogDeleted:
            if target.log.is_deleted:
                await self._delete_source(name)  # with what it was to be part of
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
            length = -1  # it is merged, which is what was asked; where it ends can be asked for
        await self._delete_source(name)
        return length

    async def _until_done(self, merge: _Large, work: _Work, again: tuple[type[LogError], ...]) -> int:
        """Do something alone with the target's log, as often as it takes while errors are of these kinds."""

        async def alone() -> int:
            hold = await merge.target.log.hold()
            try:
                return await work(merge, hold)
            except LogError:
                raise
            except Exception as error:
                self._node.barrier.caught("merge", error, segment=merge.source.name)
                raise LogError("a merge failed unexpectedly") from error
            finally:
                hold.release()

        return await carry_out(alone, self._few, again, "merge", segment=merge.source.name)

    async def _attempt(self, merge: _Large, hold: Hold) -> int:
        """Append all pieces and the marker, unless they are there; gives an offset behind them."""
        source, target, decided = merge.source, merge.target, merge.decided
        target_log = target.log
        last = target_log.last(LedgerKind.EVENT_NUMBER, merge.writer_id)
        if last is not None and last.number >> _PLACE_BITS == decided.attempt:
            if decided.attempt not in target_log.state.transactions.open:
                return target_log.high_watermark
            # Somebody else's appends may lie behind what there is of it.
            attempt = await self._node.catalog.allocate_producer_ids(1)
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
            parts = await _read(merge.source, at, size)
            count = await asyncio.to_thread(events.feed, parts)
            await appended(merge.target, parts, size, EventStamp(merge.writer_id, number, count), part, hold)
        finally:
            self._account.give(Kind.READS, 2 * size)

    async def _abort(self, merge: _Large, hold: Hold) -> int:
        opened = merge.target.log.state.transactions.open
        for attempt in (merge.decided.attempt, merge.decided.stale):
            if attempt in opened:
                await marked(merge.target, attempt, commit=False, hold=hold)
        return merge.target.log.high_watermark


_AGAIN: tuple[type[LogError], ...] = (LogUnavailable, DatabaseError, TooManyTransactions)
"""Errors that pass."""


async def _read(source: Segment, start: int, size: int) -> list[Buffer]:
    parts: list[Buffer] = []
    at, end = start, start + size
    while at < end:
        pieces = await source.read(at, end - at)
        if not pieces:
            raise LogError(f"{source.name} has nothing at {at}, below its end {end}")
        parts += pieces
        at += sum(map(len, pieces))
    return parts
