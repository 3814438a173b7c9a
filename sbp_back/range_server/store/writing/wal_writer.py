"""The writer: turns queued items into groups, one write and one flush each (docs/storage.md, "Formats").

While one group is being flushed the next one accumulates in the queue, so groups grow with the load and no item waits
for a timer. The WAL thread owns the write position and its own view of where every range ends (``tails.py``).

Without flushes a small write only copies into the page cache, which takes no longer than the two hand-overs between
threads around it, and mostly a tenth of that. So while the thread is idle, the event loop may write a small group
itself with :meth:`WalWriter.write_here`. The two never touch the state at the same time: the thread does so only
between taking an item from the queue and delivering the group with it, the loop only when every item it queued has come
back.

Where writers ask for more than the disk takes, a group holds what is written in :data:`GROUP_SECONDS`, and each stream
has a fair turn in it (``fair_queue.py``): no item waits long for the group in flight, and a stream with few appends
goes with the next group, however much others have queued.

The requester of a seal keeps the answer elsewhere, on the disk (the placement driver does). So a group with a seal is
flushed also without flushes, after all that was written before it: after a loss of power no range may end behind its
remaining data.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from queue import Empty
from typing import cast

from anabranch_kit.disk.files import Files, is_disk_full
from anabranch_kit.errors import DiskFull, StoreError, StoreFailed
from anabranch_kit.memory.buffers import Buffer
from sbp_back.range_server.store.index import StoredRange
from sbp_back.range_server.store.layout.format import (
    BLOCK,
    FLAG_NOT_FLUSHED,
    GROUP_HEADER_BYTES,
    RECORD,
    RECORD_BYTES,
    ZEROS,
    RecordType,
    align,
    encode_group,
)
from sbp_back.range_server.store.options import StoreOptions
from sbp_back.range_server.store.segment import Segment, flush_segment
from sbp_back.range_server.store.writing.fair_queue import FairQueue
from sbp_back.range_server.store.writing.interface import STOP, Writing
from sbp_back.range_server.store.writing.prepare import Preparer, SegmentFactory
from sbp_back.range_server.store.writing.tails import Tails
from sbp_back.range_server.store.writing.wal_items import Append, Control, Copies, Flush, Group, Item, Roll

_MAX_PARTS = 1000
"""Most buffers in one write: the kernel takes 1024."""
_SMALL_PART = 4096
"""Buffers smaller than this on average are cheaper to copy together than to hand over one by one."""

SMALL_BYTES = 512 * 1024
"""Bytes that the event loop may write itself in one group: these take it some 100 us, as the two hand-overs do."""
_SLOW_SECONDS = 0.001
"""A write into the page cache that takes longer had to wait for the kernel, and with it everything on the event
loop.
"""
_SLOW_PAUSE = 32
"""After a slow write the thread does the writing for so many times as long as that write took."""

_LEAST_SHARE = 64
"""Records that a group takes whatever the loop's speed: with fewer, the write's own cost dominates."""
_LATELY = 1 / 8
"""Weight of the newest number in an average."""

GROUP_SECONDS = 0.03
"""A group is full with the bytes that the disk writes in this time; later items wait for the next group."""
_LEAST_BYTES = 1024 * 1024
"""Bytes that a group takes whatever the disk's speed, so that the fixed cost of a flush does not dominate."""


class WalWriter(Writing):
    """The writer of a log on disk. ``deliver`` is called on the WAL thread with every group; ``failed`` once, if a
    write or flush fails, or a defect leaves the log or the state in doubt.

    The loop queues items and counts those that came back; see the module for when it may call :meth:`write_here`.
    """

    def __init__(
        self,
        options: StoreOptions,
        factory: SegmentFactory,
        preparer: Preparer,
        deliver: Callable[[Group], None],
        failed: Callable[[StoreFailed], None],
    ) -> None:
        super().__init__("anabranch-wal", failed)
        self._options = options
        self._files: Files = options.files
        self._factory = factory
        self._preparer = preparer
        self._deliver = deliver
        self._ends = Tails()
        self._durable = options.durable
        self._lasting = options.durable
        """Whether the current group has to be on the disk when it comes back."""
        self._loose: list[Segment] = []
        """Segments, besides the one being written, with groups that were not flushed."""
        self._reserve = options.control_reserve
        self._segment: Segment | None = None
        self._segment_size = 0
        self._fd = -1
        self._position = 0
        self._allocated = 0
        self._free_end = 0
        """Position up to which appends may use the allocated part of the segment."""
        self._seq = 1
        self._group: Group
        """The newest group: the current one, if there is one."""
        self._records: list[bytes] = []
        self._bodies: list[Buffer] = []
        self._body_bytes = 0
        self._room_bytes = 0
        self.handling_seconds = 0.0
        """Average seconds that the loop takes for each record of a completed group; set by the store."""
        self._flush_seconds = 0.0
        """Average seconds of a flush."""
        self._large_bytes = self._large_seconds = 0.0
        """Averages of large groups: bytes written, and the seconds that took."""
        self._stopping = False
        """The thread has received STOP, behind all waiting items."""
        self._waiting = FairQueue(options.group_max_bytes)
        """The thread's own queue: items taken out of ``queue`` and not begun."""
        self._quick_from = 0.0
        """Until this time (of ``perf_counter``) the loop leaves the writing to the thread."""

    # --- called by the store

    def load(self, segment: Segment | None, next_base: int, seq: int, ranges: list[StoredRange]) -> None:
        """Take over the recovered state. Raises ``OSError``."""
        for stored in ranges:
            self._ends.add(stored)
        self._seq = seq
        if segment is not None:
            fd = self._files.open(segment.path, os.O_RDWR)
            self._enter(segment, fd, segment.used)
        else:
            self._enter(*self._factory.create(next_base), BLOCK)
        self._group = Group(self.segment)

    @property
    def segment(self) -> Segment:
        assert self._segment is not None
        return self._segment

    def close(self) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1

    @property
    def position(self) -> tuple[int, int]:
        """Return (log position, number) of the next group; only while the thread does not run."""
        return self.segment.base + self._position, self._seq

    def handled(self, records: int, seconds: float) -> None:
        """Note that the loop has completed a group of ``records`` records in ``seconds``."""
        self.handling_seconds += _LATELY * (seconds / records - self.handling_seconds)

    # --- called by the event loop, while nothing is queued or being written

    def quick(self, entries: int, size: int) -> bool:
        """Return whether a group of this size can probably be written without a wait for space, a segment or the
        disk.
        """
        end = self._position + align(GROUP_HEADER_BYTES + RECORD_BYTES * entries + size)
        return (
            not self._durable
            and size <= SMALL_BYTES
            and end <= self._free_end
            and self.refuse_appends is None
            and self.failure is None
            and time.perf_counter() >= self._quick_from
        )

    def write_here(self, items: Sequence[Append]) -> Group:
        """Write ``items``, which :meth:`quick` has accepted, as one group. Failures are in the items, as always."""
        group = self._begin()
        try:
            for item in items:
                if not self._add_append(item):
                    raise AssertionError("a group that fits has to be written in parts")
            if self._records:
                self._flush(group)
        except Exception as error:  # noqa: BLE001 - logged, and the end of the store
            # The writer's view may be ahead of the log now, so nothing may be written after this.
            return self.refused(items, self.fail(error), group.segment)
        if group.flush_seconds > _SLOW_SECONDS:
            self._quick_from = time.perf_counter() + _SLOW_PAUSE * group.flush_seconds
        return group

    # --- the thread

    def _run(self) -> None:
        item: object = None
        carried: object | None = None
        items: list[Item] = []
        try:
            while True:
                item = self._next() if carried is None else carried
                carried = None
                if item is STOP:
                    return
                group = self._begin()
                items = group.items
                limit_records = self._share()
                limit_bytes = self._most_bytes()
                while True:
                    if not self._add(item):
                        carried = item
                        break
                    if self._body_bytes >= limit_bytes or len(self._records) >= limit_records:
                        break
                    try:
                        item = self._waiting.take() if self._waiting else self.queue.get_nowait()
                    except Empty:
                        break
                    if item is STOP:
                        carried = item
                        break
                if self._records or self._lasting:
                    self._flush(group)
                if items:
                    item, items = carried, []
                    self._deliver(group)
        except BaseException as error:  # noqa: BLE001 - logged, and the end of the store
            failure = self.fail(error)
        # The writer's view may be ahead of the log and cannot be used any more, but every item needs an answer.
        for waiting in items:
            self._deliver(self.refused([waiting], failure, self._group.segment))
        if item is None or item in items:
            item = self._next()
        while item is not STOP:
            self._deliver(self.refused([cast("Item", item)], failure, self._group.segment))
            item = self._next()

    def _next(self) -> object:
        """Return the first item of the next group. Waits when there is none."""
        waiting = self._waiting
        queue = self.queue
        if not waiting and (self._stopping or queue.qsize() < 2):
            return STOP if self._stopping else queue.get()
        waiting.few = self._most_bytes()
        while not queue.empty():
            item = queue.get_nowait()
            if item is STOP:
                self._stopping = True
                break
            waiting.put(cast("Item", item))
        return waiting.take()

    def _most_bytes(self) -> int:
        """Return the bytes after which a group takes no further item."""
        most = self._options.group_max_bytes
        if self._large_seconds <= 0:
            return most
        return min(most, max(_LEAST_BYTES, int(GROUP_SECONDS * self._large_bytes / self._large_seconds)))

    def _share(self) -> int:
        """Return the records after which a group takes no further item: as many as the event loop completes while
        another group is flushed. Where the disk is faster than the loop, each works on its half while the other does
        the same; where it is slower, groups are as large as may be.
        """
        most = self._options.group_max_records
        if not self._durable or self.handling_seconds <= 0:
            return most
        return min(most, max(_LEAST_SHARE, int(self._flush_seconds / self.handling_seconds)))

    def _begin(self) -> Group:
        """Return an empty group at the write position."""
        assert self._segment is not None
        group = self._group = Group(self._segment)
        self._records = []
        self._bodies = []
        self._body_bytes = 0
        self._lasting = self._durable
        self._room_bytes = self._free_end - self._position - GROUP_HEADER_BYTES
        return group

    def _add(self, item: object) -> bool:
        """Put an item into the group, or refuse it; return False when the group must be written first."""
        if type(item) is Append:
            return self._add_append(item)
        if type(item) is Control:
            return self._add_control(item)
        if type(item) is Copies:
            return self._add_copies(item)
        if type(item) is Flush:
            item.error = self.failure
            self._lasting = True
            self._group.items.append(item)
            return True
        assert type(item) is Roll
        return self._add_roll(item)

    def _measure_room(self) -> None:
        """Compute how much a group may hold without rolling or allocating, for a quick comparison."""
        self._free_end = min(self._segment_size, self._allocated) - self._reserve
        self._room_bytes = self._free_end - self._position - GROUP_HEADER_BYTES

    def _add_append(self, item: Append) -> bool:
        error: StoreError | None = self.failure or self.refuse_appends
        entries = item.entries
        size = item.bytes
        more = size + RECORD_BYTES * (len(self._records) + len(entries))
        if error is None and self._body_bytes + more > self._room_bytes:
            room = self._room(len(entries), size, self._reserve)
            if not room:
                return False
            error = room if room is not True else None
        if error is None:
            error = self._ends.place(item, self._records, self._bodies)
        if error is None:
            self._body_bytes += size
        else:
            item.error = error
            if isinstance(error, DiskFull):
                self._ends.mark_short(entries)
        self._group.items.append(item)
        return True

    def _add_copies(self, item: Copies) -> bool:
        error: StoreError | None = self.failure
        if error is None:
            room = self._room(len(item.entries), item.bytes, self._reserve)
            if not room:
                return False
            error = room if room is not True else None
        if error is None:
            self._ends.place_copies(item, self._records, self._bodies)
            self._body_bytes += item.bytes
        item.error = error
        self._group.items.append(item)
        return True

    def _add_control(self, item: Control) -> bool:
        error: StoreError | None = self.failure
        if error is None:
            # The reserve is for records that free space. New ranges may use half of it: without one nobody could open,
            # and so read, a partition whose node died on a full disk.
            room = self._room(1, 0, self._reserve // 2 if item.kind == RecordType.CREATE else 0)
            if not room:
                return False
            error = room if room is not True else None
        # The record's own position: unique, because a record header alone is longer than one byte.
        item.lsn = self.segment.base + self._position + len(self._records)
        if error is None:
            error = self._ends.apply(item)
        if error is None and item.kind == RecordType.SEAL:
            self._lasting = True
        if error is None and item.written:
            self._records.append(
                RECORD.pack(int(item.kind), 0, item.stream_id, item.epoch, item.base, 0, item.index, 0, 0)
            )
        item.error = error
        self._group.items.append(item)
        return True

    def _add_roll(self, item: Roll) -> bool:
        if self._records:
            return False
        item.error = self.failure
        if item.error is None and item.segment is self._segment:
            item.error = self._roll()
        self._group.segment = self.segment
        self._measure_room()
        self._group.items.append(item)
        return True

    # --- space

    def _room(self, records: int, size: int, reserve: int) -> bool | StoreError:
        """Return whether ``records`` and ``size`` bytes more fit into the group; False when the group must be written
        first. Rolls or allocates if needed; returns the error if that fails.
        """
        need = align(GROUP_HEADER_BYTES + RECORD_BYTES * (len(self._records) + records) + self._body_bytes + size)
        segment = self.segment
        if self._position + need + reserve > segment.size:
            if self._records:
                return False
            if need + reserve > self._options.segment_bytes - BLOCK:
                return StoreError(
                    f"{size} bytes in one append do not fit into a segment of {self._options.segment_bytes} bytes"
                )
            error = self._roll()
            if error is not None:
                return error
            self._group.segment = self.segment
            self._measure_room()
        end = self._position + need
        if end + reserve > self._allocated:
            return self._allocate(end, reserve)
        return True

    def _allocate(self, end: int, reserve: int) -> bool | StoreError:
        """Reserve disk space up to ``end`` and the control reserve behind it."""
        size = self.segment.size
        # Without room for a whole step try the least. After a start that may be reserved already, which is not known.
        for wanted in (max(end + self._reserve, self._allocated + self._options.allocate_step_bytes), end + reserve):
            target = min(size, wanted)
            if target <= self._allocated:
                return True
            try:
                self._files.allocate(self._fd, self._allocated, target - self._allocated)
            except OSError as error:
                if not is_disk_full(error):
                    self.fail(error)
                    assert self.failure is not None
                    return self.failure
                continue
            self._allocated = target
            self._measure_room()
            return True
        return self._no_room()

    def _no_room(self) -> DiskFull:
        error = DiskFull("the disk is full: appends are refused until there is room, reads go on")
        self.refuse(error)
        return error

    def _roll(self) -> StoreError | None:
        """Go on in the next segment; between groups only."""
        segment = self.segment
        base = segment.end
        try:
            prepared = self._preparer.take_next(base) or self._factory.create(base)
        except OSError as error:
            if is_disk_full(error):
                self._preparer.follow(segment, self._fd, self._position)
                return self._no_room()
            self.fail(error)
            return self.failure
        self._files.close(self._fd)
        if not self._durable:
            self._loose.append(segment)
        self._enter(*prepared, BLOCK)
        return None

    def _enter(self, segment: Segment, fd: int, position: int) -> None:
        self._segment = segment
        self._segment_size = segment.size
        self._fd = fd
        self._position = self._allocated = position
        self._measure_room()
        self._preparer.follow(segment, fd, position)

    # --- writing

    def _flush(self, group: Group) -> None:
        segment = self.segment
        group.segment = segment
        if self._lasting and not self._durable:
            self._flush_before(group)
        if not self._records:
            return
        lsn = segment.base + self._position
        flags = 0 if self._lasting else FLAG_NOT_FLUSHED
        parts = encode_group(self._seq, segment.salt, lsn, self._records, self._bodies, flags)
        size = align(GROUP_HEADER_BYTES + RECORD_BYTES * len(self._records) + self._body_bytes)
        if len(parts) > _MAX_PARTS or (len(parts) > 16 and size < _SMALL_PART * len(parts)):
            parts = [b"".join(parts)]
        end = self._position + size
        self._preparer.claim(self._position, end)
        started = time.perf_counter()
        error = self._write(parts, size)
        if error is not None:
            for item in group.items:
                if item.error is None:
                    item.error = error
            if isinstance(error, DiskFull):
                self._undo(group)
            return
        group.flush_seconds = time.perf_counter() - started
        self._flush_seconds += _LATELY * (group.flush_seconds - self._flush_seconds)
        if size >= _LEAST_BYTES:
            self._large_bytes += _LATELY * (size - self._large_bytes)
            self._large_seconds += _LATELY * (group.flush_seconds - self._large_seconds)
        group.seq = self._seq
        group.body_at = self._position + GROUP_HEADER_BYTES + RECORD_BYTES * len(self._records)
        group.end = self._position = end
        group.bytes = size
        group.records = len(self._records)
        self._seq += 1

    def _flush_before(self, group: Group) -> None:
        """Flush all groups before this one. A failure is final, as in :meth:`_write`, which reports it next."""
        if self.failure is not None:
            return
        try:
            for segment in self._loose:
                flush_segment(self._files, segment)
            self._files.sync(self._fd)
            self._loose.clear()
        except OSError as error:
            failure = self.fail(error)
            for item in group.items:
                item.error = item.error or failure

    def _write(self, parts: list[Buffer], size: int) -> StoreError | None:
        """Write once, durably if that is promised. A failure is final: after a failed flush the kernel may have dropped
        the pages, so that a later flush that succeeds proves nothing.
        """
        if self.failure is not None:
            return self.failure
        try:
            written = self._files.write(self._fd, parts, self._position, self._lasting)
            if written != size:
                # File systems that cannot reserve space stop in the middle when they are full. Write the rest to see
                # the error.
                rest = memoryview(b"".join(parts))[written:]
                self._files.write(self._fd, [rest], self._position + written, self._lasting)
                raise OSError(f"only {written} of {size} bytes were taken")
        except OSError as error:
            if is_disk_full(error) and self._void():
                return self._no_room()
            self.fail(error)
            return self.failure
        return None

    def _void(self) -> bool:
        """Make sure that a refused group cannot come back after a crash; return False when the disk is failing."""
        try:
            self._files.write(self._fd, [ZEROS], self._position, self._lasting)
        except OSError as error:
            # Without room for one block not even the header of the refused group is there.
            return is_disk_full(error)
        return True

    def _undo(self, group: Group) -> None:
        """Take back the effect of a group that found no room on the writer's view of the ranges."""
        for item in reversed(group.items):
            if type(item) is Append and item.owners:
                self._ends.take_back(item.entries)
            elif type(item) is Control and item.written:
                # Unreachable on a file system that reserves space. A control record that is half applied cannot be
                # taken back, so the log ends here.
                self.fail(OSError("the disk is full and a control record could not be written"))
