"""The store of a range server: one log on disk for all ranges, with an index in memory.

Files, formats and promises: docs/storage.md. All methods of a running store belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, Self, TypeVar

from anabranch_kit.disk.files import ending, is_disk_full, make_directories
from anabranch_kit.errors import DiskFull, StoreCorrupt, StoreError, StoreFailed, StoreVersionError
from anabranch_kit.run.cycle import cycle_of
from sbp_back.range_server.store.gather import Gather, GatherDone, Gathers
from sbp_back.range_server.store.index import StoredRange, StoredStream
from sbp_back.range_server.store.layout.format import BLOCK, RecordType, group_size
from sbp_back.range_server.store.layout.idxfile import host_is_supported
from sbp_back.range_server.store.layout.lock import DirectoryLock
from sbp_back.range_server.store.log import Log
from sbp_back.range_server.store.opening.recovery import Recovered, Recovery
from sbp_back.range_server.store.opening.replay import CopiedRows, apply_control, restart_empty
from sbp_back.range_server.store.options import MOVED, OBJECTS, READ_THREADS, StoreOptions
from sbp_back.range_server.store.stats import StoreStats
from sbp_back.range_server.store.upkeep.maintenance import Maintenance, save_checkpoint
from sbp_back.range_server.store.upkeep.moving import Moving
from sbp_back.range_server.store.upkeep.replacing import Replacement
from sbp_back.range_server.store.writing.inbox import Inbox
from sbp_back.range_server.store.writing.interface import Writing
from sbp_back.range_server.store.writing.prepare import Preparer, SegmentFactory
from sbp_back.range_server.store.writing.wal_items import Append, Control, Copies, Done, Flush, Group, Item, Roll
from sbp_back.range_server.store.writing.wal_writer import SMALL_BYTES, WalWriter
from sbp_back.wire.entry import entry_crc
from sbp_back.wire.model import Entry, ObjectInfo, ObjectMetadata

logger = logging.getLogger(__name__)

_MUCH_BYTES = 8 * 1024 * 1024

T = TypeVar("T")
ReadDone = Callable[[list[Entry] | StoreError], None]


class Store:
    """The store of a range server. Opened with :meth:`open`, usable after :meth:`start`, ended with :meth:`close`.

    ``ranges`` is the durable state. ``on_failed`` is called once, on the loop, when the log could not be written or a
    defect leaves the store in doubt: nothing is accepted afterwards and the process should end. ``messages`` tell what
    recovery had to do.
    """

    cannot_replace: ClassVar[str] = ""
    """Why :meth:`replace` is of no use, in a sentence; empty if it is."""

    def __init__(self, log: Log, lock: DirectoryLock, recovered: Recovered) -> None:
        """Use :meth:`open` instead."""
        self.log = log
        self._lock = lock
        self._options = log.options
        self._durable = log.options.durable
        self.on_failed: Callable[[StoreFailed], None] | None = None
        self.messages = recovered.messages
        self.writer = self._make_writer(recovered)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.inbox: Inbox[Group | Callable[[], None]] = Inbox(self._receive)
        self.in_flight = 0
        """Number of items that the writer has and that have not come back."""
        self._moved_at = 0.0
        """When the oldest item in flight was queued, or the last item came back, whichever is later."""
        self._small: list[Append] = []
        """Items submitted in this turn of the loop, while they are so few that the loop will write them itself."""
        self._small_bytes = 0
        self._small_entries = 0
        self._gathered: list[Item] = []
        """Items gathered in this cycle of the loop for the thread."""
        self._writes_here = False
        self._scheduled = False
        """Whether a write of ``_small`` is scheduled at the end of this turn."""
        self._pool = ThreadPoolExecutor(READ_THREADS, "anabranch-read")
        self._gathers = self._make_gathers()
        self.background_thread = ThreadPoolExecutor(1, "anabranch-store")
        self.maintenance = self._make_maintenance()
        self._timer: asyncio.TimerHandle | None = None
        self._largest_append = log.options.segment_bytes - BLOCK - log.options.control_reserve
        self.largest_entry = log.options.largest_entry
        """Bytes of the longest entry that can be appended."""
        self._closed = False
        self._behind = False
        """A group in the log could not be applied to the state."""

    def _make_writer(self, recovered: Recovered) -> Writing:
        log = self.log
        factory = SegmentFactory(log.wal, log.options, self._lock.cluster_id, self._lock.server_id)
        self.preparer = Preparer(factory, self.disk_failing)
        writer = WalWriter(log.options, factory, self.preparer, self._hand_over, self._writer_failed)
        active = log.segments[-1] if log.segments and not log.segments[-1].sealed else None
        try:
            writer.load(active, recovered.next_base, recovered.seq, list(log.state.ranges.values()))
        except OSError as error:
            if active is None and error.errno is not None:
                raise DiskFull(f"no segment could be created: {os.strerror(error.errno)}") from error
            raise
        if active is None:
            log.segments.append(writer.segment)
        self._spare = recovered.spare
        return writer

    def _make_maintenance(self) -> Moving:
        return Maintenance(self.log, self._background, self._submit, self._space_is, self.disk_failing)

    def _make_gathers(self) -> Gathers:
        return Gathers(self.log, self._pool, self._hand_over, self._report)

    # --- life

    @classmethod
    def _recover(cls, path: Path, options: StoreOptions, lock: DirectoryLock) -> Recovered:
        if (path / MOVED).is_dir() and ending(path / MOVED, ".idx"):
            raise StoreVersionError(f"old data of {path} is in object storage: sbp.objects has to say where")
        return Recovery(path / "wal", path / "ckpt", options, lock.cluster_id).run()

    @classmethod
    def open(cls, path: Path, options: StoreOptions) -> Self:
        """Lock the directory and recover the store in it, or make a new one. Blocks; run it in a thread.

        Raises ``StoreLocked``, ``StoreVersionError``, ``StoreCorrupt``, ``DiskFull``, ``OSError``, and ``ValueError``
        for invalid options.
        """
        options.validate()
        if not host_is_supported():
            raise StoreVersionError("the store's files are little-endian, this machine is not")
        started = time.perf_counter()
        if (path / OBJECTS).is_dir():
            raise StoreVersionError(f"the log of {path} is in object storage: a log on disk needs another directory")
        wal = path / "wal"
        ckpt = path / "ckpt"
        for directory in (wal, ckpt):
            make_directories(options.files, directory)
        lock = DirectoryLock(path, wal, options)
        try:
            lacking = options.files.probe(wal)
            recovered = cls._recover(path, options, lock)
            log = Log(path, options, recovered.state, recovered.segments)
            log.next_seq = recovered.seq
            log.newest = recovered.newest
            log.fallback = recovered.fallback
            recovered.messages += lacking
            store = cls(log, lock, recovered)
            log.active.sealed = False
            store._space_is(log.files.free_bytes(path))
            if recovered.replayed:
                store._settle()
        except BaseException:
            lock.release()
            raise
        stats = log.stats
        stats.recovery_seconds = time.perf_counter() - started
        stats.recovery_scanned_bytes = recovered.scanned_bytes
        stats.recovery_cut_bytes = recovered.cut_bytes
        return store

    def _settle(self) -> None:
        """Write a checkpoint of the replayed state: all of it is on the disk, and later groups may have another
        durability.
        """
        try:
            save_checkpoint(self.log)
        except OSError as error:
            if not is_disk_full(error):
                raise
            self.log.stats.maintenance_errors += 1
            self.log.stats.last_maintenance_error = str(error)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the threads; from now on everything happens on ``loop``."""
        self._loop = loop
        self._cycle = cycle_of(loop)
        self.inbox.start(loop)
        self._gathers.start(loop)
        self._start_writing()
        self._writes_here = not self._options.durable
        self._timer = loop.call_later(self._options.maintenance_seconds, self._tick)
        loop.call_soon(self._guarded, self.maintenance.tick)

    def _start_writing(self) -> None:
        self.preparer.start(self._spare)
        self.writer.start()

    def close(self) -> None:
        """Finish what was submitted (calling its callbacks), write a checkpoint and release the directory. Blocks."""
        if self._closed:
            return
        self.maintenance.close()
        self._gathers.close()
        if self._timer is not None:
            self._timer.cancel()
        self._writes_here = False
        self._queue_small()
        self._queue_gathered()
        self.writer.stop()
        self.inbox.drain()
        self._closed = True
        self.background_thread.shutdown()
        self._pool.shutdown()
        self.inbox.drain()
        self._end_writing()
        self.inbox.close()
        try:
            if self.writer.failure is None:
                self.maintenance.save_everything()
        except OSError as error:
            # The next start scans the log instead; nothing is lost.
            self.log.stats.maintenance_errors += 1
            self.log.stats.last_maintenance_error = str(error)
        finally:
            self.log.opened.close_all()
            self._lock.release()

    def _end_writing(self) -> None:
        self.preparer.stop()
        self.writer.close()

    # --- facts

    @property
    def ranges(self) -> dict[tuple[int, int], StoredRange]:
        return self.log.state.ranges

    @property
    def streams(self) -> dict[int, StoredStream]:
        """Return the facts about streams that outlive their ranges: trimmed offsets."""
        return self.log.state.streams

    def is_held(self) -> bool:
        """Return whether the directory is still the one that was locked: it may have been removed."""
        return self._lock.is_held()

    @property
    def cluster_id(self) -> str:
        return self._lock.cluster_id

    @property
    def server_id(self) -> int:
        """Return the range server's id; -1 until it has one."""
        return self._lock.server_id

    def assign_server_id(self, server_id: int) -> None:
        """Record durably which range server this is. Raises ``StoreVersionError`` when it is another, ``OSError``."""
        self._lock.assign(server_id)

    @property
    def placement_driver(self) -> str:
        """Return the identity of the placement driver that knows the ranges; empty until one is known."""
        return self._lock.placement_driver

    def assign_placement_driver(self, identity: str) -> None:
        """Record the identity of the placement driver, durably once there is a server id. Raises ``StoreVersionError``
        when a store with a server id belongs to another, ``OSError``.
        """
        self._lock.belong(identity)

    @property
    def adopted(self) -> list[int]:
        """Return the range servers that were adopted by :meth:`adopt`, so that their ranges are served here."""
        return []

    async def adopt(self, server_id: int) -> list[StoredRange]:
        """Fence a range server and serve its ranges, which end where they are; return the ranges that are new here,
        none when this was done before. Raises ``StoreError``: its log cannot be reached, or belongs to another server.
        """
        raise StoreError("a log on a disk is read by its own range server only")

    def is_fenced(self) -> bool:
        """Return whether another process has ended the log, as far as can be seen now. Blocks, on any thread. Raises
        ``OSError`` when that cannot be known.
        """
        return False

    @property
    def failed(self) -> StoreFailed | None:
        return self.writer.failure

    @property
    def stats(self) -> StoreStats:
        log = self.log
        stats = log.stats
        stats.segments = len(log.segments)
        stats.log_bytes = sum(segment.used for segment in log.segments)
        stats.live_bytes = sum(segment.live for segment in log.segments)
        stats.disk_full = self.writer.refuse_appends is not None
        stats.zeroed_bytes = self._zeroed_bytes()
        stats.stuck_seconds = self.stuck_seconds
        return stats

    @property
    def stuck_seconds(self) -> float:
        """Return for how many seconds nothing has become durable while submissions wait for that; 0 without such."""
        return time.perf_counter() - self._moved_at if self.in_flight else 0.0

    def _zeroed_bytes(self) -> int:
        return self.preparer.zeroed_bytes

    @property
    def behind(self) -> bool:
        """Return whether so much waits to be written that streams take turns. Appends to several streams should then be
        submitted one stream at a time.
        """
        return self.log.stats.pending_bytes > _MUCH_BYTES

    # --- writing

    def append(self, entries: list[Entry], done: Done) -> None:
        """Store entries, each of which must begin where its range ends. ``done`` is called when they are durable.

        All or none of them are stored, unless together they are larger than a segment; then they are stored one part
        after the other and an error may concern the later parts only. Errors: ``DiskFull`` (may be tried again),
        ``StoreFailed`` (final), ``StoreError`` (range unknown, sealed or elsewhere; entry larger than a segment).
        """
        size = 0
        for entry in entries:
            if entry.crc < 0:
                entry_crc(entry)
            size += len(entry.prefix) + len(entry.payload)
        self.append_gathered(entries, size, done, False)

    def append_gathered(self, entries: list[Entry], size: int, done: Done, gathered: bool = True) -> None:
        """Append as :meth:`append` does entries that have their checksums and are ``size`` bytes. ``gathered``: the
        caller gathers the entries of a cycle, and calls :meth:`write_gathered` in the end.
        """
        if len(entries) > 1 and group_size(len(entries), size) > self._largest_append:
            self._append_parts(entries, done)
            return
        self.log.stats.pending_bytes += size
        self._submit(Append(entries, size, done), gathered)

    def _append_parts(self, entries: list[Entry], done: Done) -> None:
        parts: list[list[Entry]] = []
        size = 0
        for entry in entries:
            size += entry.size
            if not parts or group_size(len(parts[-1]) + 1, size) > self._largest_append:
                parts.append([])
                size = entry.size
            parts[-1].append(entry)
        left = len(parts)
        first_error: StoreError | None = None

        def part_done(error: StoreError | None) -> None:
            nonlocal left, first_error
            left -= 1
            first_error = first_error or error
            if not left:
                done(first_error)

        for part in parts:
            self.append(part, part_done)

    def create_range(self, stream_id: int, index: int, epoch: int, start: int, done: Done) -> None:
        """Open a range at ``start``. Repeating it is fine; so is a higher epoch while the range has no entries."""
        stream = self.log.state.streams.get(stream_id)
        if stream is not None and index < stream.first_index:
            error = StoreError(f"range {index} of stream {stream_id} was trimmed away")
            self._require_loop().call_soon(done, error)
            return
        self._submit(Control(RecordType.CREATE, stream_id, index, epoch, start, done))

    def seal_range(self, stream_id: int, index: int, epoch: int, end: int, done: Done) -> None:
        """Close a range for good at ``end`` (-1: behind everything submitted so far), hiding what lies behind it. The
        seal survives loss of power with all that was submitted before, whatever the durability.
        """
        self._submit(Control(RecordType.SEAL, stream_id, index, epoch, end, done))

    def flush(self, done: Done) -> None:
        """Call ``done`` when everything answered so far survives loss of power, whatever the durability."""
        if self._durable:
            done(self.failed)
        else:
            self._submit(Flush(done))

    def trim_stream(self, stream_id: int, min_offset: int, done: Done) -> None:
        """Give up everything below ``min_offset``. Of an open range only durable entries are trimmed."""
        self._submit(Control(RecordType.TRIM_STREAM, stream_id, 0, 0, min_offset, done))

    def delete_stream(self, stream_id: int, done: Done) -> None:
        """Forget a stream and free its space; fine when it does not exist."""
        self._submit(Control(RecordType.DELETE_STREAM, stream_id, 0, 0, 0, done))

    def replace(self, epoch: int, old: Sequence[Entry], new: Sequence[Entry], done: Done) -> None:
        """Have ``new`` take the place of exactly ``old``, entries as they were read that follow one another in one
        range: the offsets from the first to the last stay covered as they were.

        Until ``new`` is durable readers find ``old``, then ``new``; after a crash either of the two, whole. No range of
        the stream may have a later epoch than ``epoch``. Errors: ``StoreError`` where any of ``old`` is not what is
        stored there (any more), or a later epoch is; ``DiskFull``; ``StoreFailed``. ``done`` may be called before this
        returns.
        """
        refusal = self.writer.refuse_appends
        if refusal is not None:
            done(refusal)
            return
        self.maintenance.replace(Replacement(epoch, old, new, done))

    def bytes_between(self, stream_id: int, offsets: Sequence[int]) -> list[int]:
        """Return the bytes of payload of the entries that begin from each of ``offsets``, ascending, up to the next
        one; one number fewer than there are offsets.
        """
        return self.log.state.bytes_between(stream_id, offsets)

    def count_memory(self, counted: Callable[[int], None]) -> None:
        """Have ``counted`` called on the loop, once the store is started, with the change in bytes that the store holds
        on its own account, besides requests.
        """

    def range_objects(self, stream_id: int, index: int, first: int, end: int, most: int) -> list[ObjectMetadata]:
        """Return the objects of a range, in order, that have some of the offsets ``[first, end)`` and none beyond; at
        most ``most``.
        """
        return []

    def untold_objects(self, most: int) -> list[ObjectInfo]:
        """Return at most ``most`` objects of ranges to report to the placement driver, each once per start."""
        return []

    def write_gathered(self) -> None:
        """Write all appends of this cycle: a small amount at once, otherwise on the thread."""
        if self._small:
            self._write_small()
        if self._gathered:
            self._cycle.hand_over(self._queue_gathered)

    def _submit(self, item: Item, gathered: bool = False) -> None:
        if self._closed:
            item.done(StoreError("the store is closed"))
            return
        if self._writes_here and not self.in_flight:
            if type(item) is Append and self._small_bytes + item.bytes <= SMALL_BYTES:
                if not gathered and not self._scheduled:
                    # Write at the end of this turn: everything submitted until then belongs into the same group.
                    self._scheduled = True
                    self._require_loop().call_soon(self._write_scheduled)
                self._small.append(item)
                self._small_bytes += item.bytes
                self._small_entries += len(item.entries)
                return
            self._queue_small()
        if not self.in_flight:
            self._moved_at = time.perf_counter()
        self.in_flight += 1
        self._gathered.append(item)
        if not gathered:
            self._queue_gathered()

    def _queue_gathered(self) -> None:
        items, self._gathered = self._gathered, []
        for item in items:
            self.writer.queue.put(item)

    def _write_scheduled(self) -> None:
        self._scheduled = False
        if self._small:
            self._write_small()

    def _write_small(self) -> None:
        """Write the waiting items on the loop, unless they turned out to be work for the thread."""
        assert not self.in_flight, "the writer belongs to the thread while it has anything to do"
        if not self.writer.quick(self._small_entries, self._small_bytes):
            self._queue_small()
            return
        items = self._take_small()
        self.in_flight += len(items)
        group = self.writer.write_here(items)
        if self.inbox.is_empty:
            self._complete(group)
        else:
            # Complete it behind groups that are there already, and before any that the thread finishes from now on.
            self.inbox.receive_next(group)

    def _queue_small(self) -> None:
        items = self._take_small()
        if not self.in_flight:
            self._moved_at = time.perf_counter()
        self.in_flight += len(items)
        for item in items:
            self.writer.queue.put(item)

    def _take_small(self) -> list[Append]:
        items, self._small = self._small, []
        self._small_bytes = self._small_entries = 0
        return items

    # --- completion

    def _hand_over(self, finished: Group | Callable[[], None]) -> None:
        """Pass a finished group or function to the loop. Called by other threads."""
        self.inbox.put(finished)

    def _require_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("the store is not started")
        return self._loop

    def _receive(self, finished: Group | Callable[[], None]) -> None:
        if isinstance(finished, Group):
            self._complete(finished)
            return
        try:
            finished()
        except Exception as error:  # noqa: BLE001 - a caller's bug must not keep others from their answers
            self._report(error)

    def _complete(self, group: Group) -> None:
        """Apply a durable group to the state, then answer its items in the order in which they were written."""
        self._moved_at = time.perf_counter()
        began = self._moved_at if self._durable else 0.0
        freed = False
        try:
            if not self._behind:
                freed = self._apply(group)
        except Exception as error:  # noqa: BLE001 - logged, and the end of the store
            self._behind = True
            self.writer.fail(error)
        if self._behind:
            # The state lacks something that the log has, so no later group can be applied.
            for item in group.items:
                item.error = item.error or self.failed
                if type(item) is Append:
                    self.log.stats.pending_bytes -= item.bytes
        self.in_flight -= len(group.items)
        for item in group.items:
            try:
                item.done(item.error)
            except Exception as error:  # noqa: BLE001 - a caller's bug must not keep others from their answers
                if type(item) is Copies:
                    self.writer.fail(error)
                else:
                    self._report(error)
        if began and group.records:
            self.writer.handled(group.records, time.perf_counter() - began)
        if freed:
            self._guarded(self._freed)

    def _report(self, error: Exception) -> None:
        if self._loop is None:
            logger.error("a callback of the store failed", exc_info=error)
            return
        self._loop.call_exception_handler({"message": "a callback of the store failed", "exception": error})

    def _apply(self, group: Group) -> bool:
        """Apply a durable group to the state; return whether space may have become free."""
        log = self.log
        segment = group.segment
        if segment is not log.active:
            log.active.sealed = True
            log.segments.append(segment)
            self.maintenance.rolled()
        stats = log.stats
        position = group.body_at
        freed = False
        finished = stored_bytes = stored_entries = 0
        for item in group.items:
            if type(item) is Append:
                finished += item.bytes
                if item.error is not None:
                    stats.refused_appends += 1
                    continue
                entries = item.entries
                for stored, entry in zip(item.owners, entries, strict=True):
                    overhead = len(entry.prefix)
                    length = overhead + len(entry.payload)
                    if overhead != stored.overhead:
                        stored.saw(overhead)
                    base = entry.base_offset
                    stored.append(segment, base, base + entry.count, position, length, entry.crc)
                    position += length
                stored_entries += len(entries)
                stored_bytes += item.bytes
            elif isinstance(item, Control):
                if item.error is None and item.written:
                    self._apply_control(item)
                    freed = freed or item.kind in (RecordType.TRIM_STREAM, RecordType.DELETE_STREAM, RecordType.SEAL)
            elif isinstance(item, Copies) and item.error is None:
                copies = CopiedRows(segment)
                for stored, entry in zip(item.owners, item.entries, strict=True):
                    length = len(entry.prefix) + len(entry.payload)
                    if not stored.dropped:
                        base = entry.base_offset
                        stored.saw(len(entry.prefix))
                        copies.add(stored, base, base + entry.count, position, length, entry.crc)
                    position += length
                copies.apply()
                if item.replaces:
                    stats.replacing_bytes += item.bytes
                    freed = True
                else:
                    stats.evacuated_bytes += item.bytes
        stats.pending_bytes -= finished
        if stored_entries:
            segment.live += stored_bytes
            stats.append_bytes += stored_bytes
            stats.appends += stored_entries
        if group.records and group.seq:
            segment.used = group.end
            log.next_seq = group.seq + 1
            stats.groups += 1
            stats.group_bytes += group.bytes
            seconds = group.flush_seconds
            stats.flush_seconds += seconds
            if seconds > stats.flush_seconds_max:
                stats.flush_seconds_max = seconds
        return freed

    def _apply_control(self, item: Control) -> None:
        state = self.log.state
        if item.created is not None:
            state.add(item.created)
        elif item.kind == RecordType.CREATE:
            restart_empty(state.ranges[item.stream_id, item.index], item.epoch, item.base)
        else:
            apply_control(state, item.kind, item.stream_id, item.index, item.epoch, item.base, item.lsn)

    def _freed(self) -> None:
        """React to space that may have become free, also in the segment being written if it holds nothing any more."""
        log = self.log
        active = log.active
        if not active.live and active.used > active.size // 4 and not self._closed:
            self._submit(Roll(active, lambda _error: None))
        self.maintenance.start_chores()

    def _tick(self) -> None:
        self._timer = self._require_loop().call_later(self._options.maintenance_seconds, self._tick)
        self._guarded(self.maintenance.tick)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run the store's own work on the loop; an exception ends the store, since work that broke off is never
        resumed.
        """
        try:
            work()
        except Exception as error:  # noqa: BLE001 - logged, and the end of the store
            self.writer.fail(error)

    def _space_is(self, free: int) -> None:
        """Refuse or accept appends depending on the free space of the disk."""
        self.log.stats.disk_free = free
        if free < self._options.low_water:
            self.writer.refuse(
                DiskFull(f"only {free} bytes are free on the disk: appends are refused below {self._options.low_water}")
            )
        else:
            self.writer.accept()

    def disk_failing(self, error: BaseException) -> None:
        self.writer.fail(error)

    def _writer_failed(self, failure: StoreFailed) -> None:
        self._hand_over(lambda: self._tell_failed(failure))

    def _tell_failed(self, failure: StoreFailed) -> None:
        self.maintenance.close()
        if self.on_failed is not None:
            self.on_failed(failure)

    def _background(self, work: Callable[[], T], then: Callable[[T | OSError], None]) -> None:
        self._on_thread(self.background_thread, work, then)

    def _on_thread(self, pool: Executor, work: Callable[[], T], then: Callable[[T | OSError], None]) -> None:
        def run() -> None:
            result: T | OSError
            try:
                result = work()
            except OSError as error:
                result = error
            except BaseException as error:  # noqa: BLE001 - logged, and the end of the store
                self.writer.fail(error)
                return
            self._hand_over(lambda: self._guarded(lambda: then(result)))

        if not self._closed:
            pool.submit(run)

    # --- reading

    def batch_bounds(self, stream_id: int, index: int, offset: int) -> tuple[int, int] | None:
        """Return (base, end) of the stored batch that contains ``offset``; None when there is none."""
        stored = self.log.state.ranges.get((stream_id, index))
        found = None if stored is None else stored.find(offset)
        if stored is None or found is None:
            return None
        run = stored.runs[found[0]]
        return int(run.bases[found[1]]), run.row_end(found[1])

    def locate(
        self, stream_id: int, index: int, offset: int, limit: int, max_bytes: int
    ) -> tuple[int, int, int, int] | None:
        """Return (start, end, bytes of payload, entries) of what :meth:`read` would find, by the index; None if
        nothing.

        Also None while no entry of the range was written or read since the start.
        """
        stored = self.log.state.ranges.get((stream_id, index))
        if stored is None or offset < stored.min_offset:
            return None
        return stored.locate(offset, min(limit, stored.visible_end), max_bytes)

    def read(self, stream_id: int, index: int, offset: int, limit: int, max_bytes: int, done: ReadDone) -> None:
        """Read entries from the one that contains ``offset``, as many as ``max_bytes`` holds, but at least one.

        Only entries that begin before ``limit`` (-1: all that are durable); an empty list when there are none. ``done``
        is called before this returns when they are few and in the page cache, else later on the loop. Errors:
        ``StoreCorrupt`` when the first entry is damaged (a later one ends the list), ``StoreError`` when the range is
        unknown, the offset is trimmed, or the disk cannot be read.
        """
        stored = self.log.state.ranges.get((stream_id, index))
        if stored is None:
            done(StoreError(f"range {index} of stream {stream_id} does not exist"))
            return
        if offset < stored.min_offset:
            done(StoreError(f"range {index} of stream {stream_id} begins at {stored.min_offset}, not at {offset}"))
            return
        end = stored.visible_end if limit < 0 else min(limit, stored.visible_end)
        if offset >= end:
            done([])
            return
        place = stored.find(offset)
        if place is None:
            done(StoreCorrupt(f"offset {offset} of range {index} of stream {stream_id} is lost"))
            return
        plan = self._gathers.begin()
        plan.add_from(stored, place, end, max_bytes, -1)
        plan.whole = True
        self._gathers.run(plan, lambda found: done(found[0]))

    def gathering(self) -> Gather:
        """Return an empty plan for a read of several ranges at once, which :meth:`gather` carries out."""
        return self._gathers.begin()

    def gather(self, plan: Gather, done: GatherDone) -> None:
        """Carry out a plan, in few reads of the log.

        ``done`` is called with the entries of each range, before this returns when they are few and in the page cache.
        An error, ``StoreCorrupt`` or ``StoreError``, stands in the place of the range that has it.
        """
        self._gathers.run(plan, done)
