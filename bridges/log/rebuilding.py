"""The rebuild of a partition's state when its log is opened: from the latest snapshot and the batches behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.turns import Turns, worked_off
from bridges.errors import LogError, LogUnavailable
from bridges.formats import COMPACTED
from bridges.log.compaction.cleaned_logs import correct_index
from bridges.log.damage.skips import before, next_after, past
from bridges.log.interfaces import Rebuilt
from bridges.log.partition.upkeep import rebuild_cost
from bridges.log.state.log_starts import first_readable
from bridges.log.state.partition_state import PartitionState
from bridges.log.transactions.partition_transactions import Transactions
from sbp_back.errors import DecodeError, ErrorCode, Lost, Reclaimed, SbpError

if TYPE_CHECKING:
    from bridges.log.logs import Logs
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.log.streams import Writer
    from sbp_back.wire.model import Entry

_log = structlog.get_logger("anabranch.logs")

_READ_BYTES = 1024 * 1024
_SNAPSHOTS = 4
"""A long rebuild saves a snapshot every so many snapshot intervals, so that it need not start over."""


class Rebuilder:
    """Rebuilds the state of one node's partitions."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._client = logs.client
        self._stores = logs.stores
        self._ledger = logs.options.ledger()

    async def rebuild(self, log: PartitionLog, writer: Writer) -> Rebuilt:
        """Return the state of the log that ``writer`` has opened, from the first offset on that the backend still has:
        sets the writer's start to that. Raises SbpError, LogError."""
        starts = self._stores.starts
        remembered = starts.start_of(log.stream_id)
        if remembered > writer.next_offset:
            await starts.lost(log.stream_id, writer.next_offset)
            remembered = writer.next_offset
        writer.start_offset = max(writer.start_offset, remembered)
        while True:
            try:
                return await self._rebuild(log, writer)
            except Reclaimed as error:
                start = max(writer.start_offset, error.offset)
                first = await first_readable(self._client, log.stream_id, start, writer.next_offset)
                if first == start:
                    raise  # it is readable after all: the next opening finds out
                await self._logs.missing.give_up_below(log, writer.start_offset, first)
                writer.start_offset = first

    async def _rebuild(self, log: PartitionLog, writer: Writer) -> Rebuilt:
        await self._logs.snapshotter.wait(log)
        state, snapshot_offset = await self._restore(log, writer)
        start, end, skips = writer.start_offset, writer.next_offset, self._stores.skips
        skipped = await skips.within(log.stream_id, start, end)
        position = past(skipped, max(start, snapshot_offset))
        cost = 0
        turns = Turns()
        save_at = step = self._logs.options.snapshot_bytes * _SNAPSHOTS
        while position < end:
            try:
                entries: list[Entry] = await self._client.fetch_entries(
                    log.stream_id, position, _READ_BYTES, limit=next_after(skipped, position, end)
                )
            except Lost as error:
                await self._logs.missing.pass_over(log, (max(error.offset, start), min(error.end, end)))
                skipped = await skips.within(log.stream_id, start, end)
                position = past(skipped, position)
                continue
            if not entries:
                raise LogUnavailable(f"the backend has nothing at offset {position}, below its own end {end}")
            for entry in entries:
                if entry.end_offset > position:
                    # Compaction may have replaced several batches around the snapshot's offset by one.
                    first = max(entry.base_offset, snapshot_offset) if entry.flags & COMPACTED else entry.base_offset
                    state.observe(first, entry.payload, entry.flags, entry.timestamp)
                    position = entry.end_offset
                    cost += rebuild_cost(len(entry.payload))
                    if turns.is_over:
                        await turns.end()  # a long rebuild must not hold up other partitions
            position = past(skipped, position)
            await self._keep_aborted(log, writer, state)
            if cost >= save_at and position < end and state.unread < 0:
                try:
                    await self._logs.snapshotter.save(log.stream_id, state.capture(position))
                    snapshot_offset, cost = position, 0
                except LogError as error:
                    _log.warning("snapshot not saved", topic=log.topic, partition=log.partition, error=str(error))
                save_at = cost + step
        state.drop_before(start)
        await self._keep_aborted(log, writer, state)
        if state.unread >= 0:
            _log.warning(
                "a front that is not installed wrote to a partition: it is opened without snapshots from there on",
                topic=log.topic,
                partition=log.partition,
                first_unread=state.unread,
                read_from=max(start, snapshot_offset),
            )
        state.index.not_after(now_ms())
        if self._stores.cleaned.find(log.stream_id) is not None:
            await correct_index(self._client, log.stream_id, state, lambda: end)
        return Rebuilt(state, snapshot_offset, cost, skipped)

    async def _keep_aborted(self, log: PartitionLog, writer: Writer, state: PartitionState) -> None:
        """Write the aborted ranges of a rebuild that exceed memory's share."""
        if state.transactions.full:
            try:
                await self._stores.aborted.keep(log.stream_id, writer.epoch, state.transactions, writer.start_offset)
            except LogError as error:
                state.transactions.put_off()
                _log.warning("aborted ranges not saved", topic=log.topic, partition=log.partition, error=str(error))

    async def _restore(self, log: PartitionLog, writer: Writer) -> tuple[PartitionState, int]:
        """Return the state of the partition's snapshot and its offset; an empty state and -1 without a valid
        snapshot."""
        snapshots, aborted = self._stores.snapshots, self._stores.aborted
        aborted.drop(log.stream_id)
        saved = await snapshots.load(log.stream_id)
        if saved is None:
            return self._new_state(), -1
        offset, data = saved
        state = self._new_state()
        try:
            if offset > writer.next_offset:
                raise DecodeError(f"it is ahead of the log, which ends at {writer.next_offset}")
            await worked_off(state.restoring(data, stale=offset < writer.start_offset))
            # Batches that were declared lost before the node read them were not seen by the state.
            below = before(self._stores.skips.spans_of(log.stream_id), offset)
            if not await self._ends_at(log, writer, offset, state) and not (
                below < offset and await self._ends_at(log, writer, below, state)
            ):
                raise DecodeError("it belongs to another history of the log")
            if not await aborted.hold(log.stream_id, state.transactions, writer.start_offset):
                raise DecodeError("it names blocks of aborted transactions that are missing")
        except DecodeError as error:
            _log.warning("snapshot not used", topic=log.topic, partition=log.partition, offset=offset, error=str(error))
            # Delete it before anything is appended: it must not be used once the log has grown past its offset.
            await snapshots.forget(log.stream_id)
            return self._new_state(), -1
        return state, offset

    def _new_state(self) -> PartitionState:
        return PartitionState(self._ledger, Transactions(self._logs.options.transactions_per_partition))

    async def _ends_at(self, log: PartitionLog, writer: Writer, offset: int, state: PartitionState) -> bool:
        """Return whether the log has, just below ``offset``, the batch that ``state`` saw there."""
        if offset <= writer.start_offset:
            return True  # it was trimmed, and nothing is left to compare: an older history was forgotten above
        try:
            entries = await self._client.fetch_entries(log.stream_id, offset - 1, 1, limit=writer.next_offset)
        except SbpError as error:
            if error.code == ErrorCode.RS_DATA_CORRUPTED:
                return True  # a damaged batch does not invalidate the snapshot
            raise
        for entry in entries:
            if entry.base_offset < offset <= entry.end_offset:
                if entry.flags & COMPACTED:
                    return True  # it belongs to the snapshot's history: another one would have been detected before
                found = (entry.base_offset, len(entry.payload), entry.timestamp)
                return entry.end_offset == offset and found == state.last
        return False
