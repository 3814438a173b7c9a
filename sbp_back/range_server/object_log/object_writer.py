"""The thread that writes a range server's log into an object store: :class:`~.writer.LogWriter` decides what is put and
what counts, this thread puts it.

An entry or control record is checked when it joins a group, in the order of submission. Other threads put the groups,
several at once, and the groups come back in the order of their numbers.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty
from typing import cast

from msgspec import Struct

from anabranch_kit.errors import StoreError, StoreFailed
from anabranch_kit.memory.buffers import Buffer
from sbp_back.range_server.object_log.objects.bucket import Bucket, pauses
from sbp_back.range_server.object_log.objects.cache import Cache, source_of
from sbp_back.range_server.object_log.objects.content import HEAD_BYTES, UNIQUE_BYTES, ObjectHead, ObjectKind
from sbp_back.range_server.object_log.objects.group import BEFORE_RECORDS, encode_object, group_bytes
from sbp_back.range_server.object_log.writer import Group as Numbered
from sbp_back.range_server.object_log.writer import LogWriter, Put
from sbp_back.range_server.store.index import StoredRange
from sbp_back.range_server.store.layout.format import RECORD, RECORD_BYTES
from sbp_back.range_server.store.options import StoreOptions
from sbp_back.range_server.store.segment import Segment
from sbp_back.range_server.store.writing.interface import STOP, Writing
from sbp_back.range_server.store.writing.tails import Tails
from sbp_back.range_server.store.writing.wal_items import Append, Control, Copies, Group, Item, Roll

logger = logging.getLogger(__name__)

_UNDER_WAY = 4
"""Objects of a log that are put at the same time."""
_TRIES = 4
"""Puts of one object that wait for an answer at the same time: the first has timed out before a fifth is due."""
_STOP_SECONDS = 30.0
"""Seconds that an orderly end waits for a store that does not answer."""


_TAKEN_OVER = (
    "somebody else has taken over this range server's log: it acknowledges nothing more and ends, and whether what is "
    "not acknowledged counts is decided there"
)


class _Building:
    """A group under construction: its items and their positions."""

    __slots__ = ("bodies", "body_bytes", "content", "group", "placed", "position", "records", "started")

    def __init__(self, segment: Segment, position: int) -> None:
        self.group = Group(segment)
        self.position = position
        self.records: list[bytes] = []
        self.bodies: list[Buffer] = []
        self.body_bytes = 0
        self.content: bytearray | None = None
        """The whole object, once it is made."""
        self.placed = False
        self.started = 0.0

    @property
    def size(self) -> int:
        return group_bytes(len(self.records), self.body_bytes)


class _PutEnded(Struct):
    """Message in the queue: a put has ended. ``why``: the error with ``Put.UNKNOWN``."""

    of: Numbered[_Building]
    outcome: Put
    there: ObjectHead | None = None
    why: Exception | None = None


class ObjectWriter(Writing):
    """Writes the log of ``incarnation``. ``deliver`` is called on the thread with every group; see :class:`Writing`."""

    def __init__(
        self,
        options: StoreOptions,
        bucket: Bucket,
        cache: Cache,
        incarnation: int,
        name: str,
        space: int,
        segment: Segment,
        ranges: list[StoredRange],
        deliver: Callable[[Group], None],
        failed: Callable[[StoreFailed], None],
    ) -> None:
        super().__init__("anabranch-objects", failed)
        self._bucket = bucket
        self._cache = cache
        self._deliver = deliver
        self._log: LogWriter[_Building] = LogWriter(
            incarnation,
            lambda: os.urandom(UNIQUE_BYTES),
            linger=options.object_linger_seconds,
            most_bytes=options.group_max_bytes,
            most_under_way=_UNDER_WAY,
        )
        self._ends = Tails()
        for stored in ranges:
            self._ends.add(stored)
        self._name = name
        self._space = space
        """Where its positions begin among those of other logs in this process."""
        self._segment = segment
        self._shown = segment
        """Segment of the last group that was delivered."""
        self._position = segment.used
        self._seq = 1
        self._last: _Building | None = None
        """The newest group, while it is pending."""
        self._pool = ThreadPoolExecutor(_UNDER_WAY * _TRIES, "anabranch-put")
        self._waits = pauses()
        self._again_at = 0.0
        """No puts before this time: the store did not answer. 0: puts have been made since, or none had to wait."""
        self._stop_at: float | None = None

    def close(self) -> None:
        """Stop the thread. Puts in flight may still take effect, as those of a process that dies."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def is_fenced(self) -> bool:
        """Ask the objects whether another process has ended the log: its fence lies directly behind the acknowledged
        objects and our own later ones. Blocks, on any thread. Raises ``OSError`` when that cannot be known now.
        """
        number = self._log.acknowledged
        try:
            while self._bucket.head(self._log.incarnation, number).kind is not ObjectKind.FENCE:
                number += 1  # one of our own, put meanwhile
        except FileNotFoundError:
            return False
        return True

    # --- the thread

    def _run(self) -> None:
        item: object = None
        try:
            while not self._is_done():
                item = self._next()
                while item is not None and self.failure is None:
                    self._take(item)
                    item = self._at_once()
                self._put()
        except BaseException as error:  # noqa: BLE001 - logged, and the end of the store
            self.fail(error)
        if self.failure is not None:
            self._refuse_all(item)

    def _is_done(self) -> bool:
        if self.failure is not None:
            return True
        if self._stop_at is None:
            return False
        if self._log.pending and time.monotonic() > self._stop_at:
            waiting = f"the object store has not answered for {_STOP_SECONDS:.0f} seconds"
            self.fail(StoreFailed(f"{waiting}: what was appended last may be there or not"))
            return True
        return not self._log.pending

    def _next(self) -> object:
        """Return the next item of the queue, or None when it is time for other work."""
        now = time.monotonic()
        closes_at = self._log.closes_at()
        times = [] if self._stop_at is None else [self._stop_at]
        if closes_at is not None:
            times.append(max(closes_at, self._again_at))
        elif self._log.pending and self._again_at:
            times.append(self._again_at)
        late_at = self._log.late_at()
        if late_at is not None:
            times.append(max(late_at, self._again_at))
        try:
            return self.queue.get(timeout=max(0.0, min(times) - now) if times else None)
        except Empty:
            return None

    def _at_once(self) -> object:
        try:
            return self.queue.get_nowait()
        except Empty:
            return None

    def _take(self, item: object) -> None:
        if type(item) is _PutEnded:
            self._put_ended(item)
        elif item is STOP:
            self._stop_at = time.monotonic() + _STOP_SECONDS
            self._log.close_group(time.monotonic())
        elif isinstance(item, Append | Copies):
            self._add_entries(item)
        elif isinstance(item, Control):
            self._add_control(item)
        elif type(item) is Roll:
            self._roll(item)
        else:
            self._follow(cast("Item", item))  # a flush: everything is durable already

    def _refuse_all(self, item: object) -> None:
        """Refuse all items, waiting and future ones: the log is ended, or an unexpected error occurred."""
        failure = self.failure
        assert failure is not None
        for building in self._log.abandon():
            self._deliver(self.refused(building.group.items, failure, self._segment))
            if item in building.group.items:
                item = None
        while item is not STOP and self._stop_at is None:
            if item is not None and type(item) is not _PutEnded:
                self._deliver(self.refused([cast("Item", item)], failure, self._segment))
            item = self.queue.get()

    # --- groups

    def _building(self, more: int) -> _Building:
        """Return the open group, with room for ``more`` bytes."""
        now = time.monotonic()
        last = self._last
        if last is not None and not self._log.fresh:
            if last.position + last.size + more <= self._segment.size:
                return last
            self._log.close_group(now)
        if last is not None and last.group.segment is self._segment:
            self._position = last.position + last.size
        if self._position + BEFORE_RECORDS + more > self._segment.size:
            self._next_segment()
        return _Building(self._segment, self._position)

    def _joined(self, building: _Building, item: Item, before: int) -> None:
        """Account for ``item``, which has joined the group; the group had ``before`` bytes."""
        building.group.items.append(item)
        self._last = building
        self._log.append(building.size - before, building, time.monotonic())

    def _add_entries(self, item: Append | Copies) -> None:
        if group_bytes(len(item.entries), item.bytes) > self._segment.size:
            item.error = StoreError(
                f"{item.bytes} bytes at once do not fit into a segment of {self._segment.size} bytes"
            )
            self._follow(item)
            return
        building = self._building(RECORD_BYTES * len(item.entries) + item.bytes)
        before = building.size
        if isinstance(item, Append):
            item.error = self._ends.place(item, building.records, building.bodies)
        else:
            self._ends.place_copies(item, building.records, building.bodies)
        if item.error is not None:
            self._follow(item)
            return
        building.body_bytes += item.bytes
        self._joined(building, item, before)

    def _add_control(self, item: Control) -> None:
        building = self._building(RECORD_BYTES)
        before = building.size
        item.lsn = self._segment.origin + building.position + len(building.records)
        item.error = self._ends.apply(item)
        if item.error is not None or not item.written:
            self._follow(item)
            return
        building.records.append(
            RECORD.pack(int(item.kind), 0, item.stream_id, item.epoch, item.base, 0, item.index, 0, 0)
        )
        self._joined(building, item, before)

    def _roll(self, item: Roll) -> None:
        if item.segment is self._segment:
            self._log.close_group(time.monotonic())
            self._next_segment()
            if self._last is None:
                self._shown = self._segment
        self._follow(item)

    def _next_segment(self) -> None:
        base, size = self._segment.end, self._segment.size
        self._segment = self._cache.segment(base, size, self._bucket, self._name, self._space)
        self._position = 0

    def _follow(self, item: Item) -> None:
        """Answer ``item``, which needs no record, behind the items before it."""
        if self._last is not None:
            self._last.group.items.append(item)
            return
        group = Group(self._shown)
        group.items.append(item)
        self._deliver(group)

    # --- putting

    def _put(self) -> None:
        now = time.monotonic()
        if now < self._again_at:
            return
        self._again_at = 0.0
        for numbered in self._log.puts(now):
            (building,) = numbered.tokens
            if not building.placed:
                building.placed = True
                source = source_of(building.group.segment)
                source.add(building.position, self._log.incarnation, numbered.number, building.size)
            elif building.content is None:
                continue  # it has no thread yet: one more would wait behind it
            self._pool.submit(self._put_one, numbered)

    def _put_one(self, numbered: Numbered[_Building]) -> None:
        """Put a group. Runs on a thread of the pool."""
        (building,) = numbered.tokens
        segment = building.group.segment
        try:
            if building.content is None:
                building.started = time.perf_counter()
                content = encode_object(
                    segment.origin, segment.size, building.position, building.records, building.bodies
                )
                with memoryview(content) as view:
                    (head, _body) = self._log.content(numbered, view[HEAD_BYTES:])
                    view[:HEAD_BYTES] = head
                building.content = content
                source_of(segment).store(building.position, [building.content])
            outcome, there = self._bucket.put_object(self._log.incarnation, numbered.number, building.content)
            self.queue.put(_PutEnded(numbered, outcome, there))
        except Exception as error:  # noqa: BLE001 - told to the thread that writes
            self.queue.put(_PutEnded(numbered, Put.UNKNOWN, None, error))

    def _put_ended(self, ended: _PutEnded) -> None:
        if ended.why is not None and not isinstance(ended.why, OSError):
            raise ended.why
        if ended.outcome is Put.UNKNOWN:
            pause = next(self._waits)
            self._again_at = time.monotonic() + pause
            logger.warning("object %d is put again: %s", ended.of.number, ended.why)
        else:
            self._waits = pauses()
        unique = b"" if ended.there is None else ended.there.unique
        for building in self._log.put_ended(ended.of, ended.outcome, unique):
            self._acknowledge(building)
        if self._log.fenced:
            self.fail(StoreFailed(_TAKEN_OVER))

    def _acknowledge(self, building: _Building) -> None:
        group = building.group
        content = building.content
        assert content is not None
        group.seq = self._seq
        self._seq += 1
        group.bytes = len(content)
        group.end = building.position + len(content)
        group.records = len(building.records)
        group.body_at = building.position + BEFORE_RECORDS + RECORD_BYTES * group.records
        group.flush_seconds = time.perf_counter() - building.started
        self._shown = group.segment
        if self._last is building:
            self._last = None
            if group.segment is self._segment:
                self._position = group.end
        self._deliver(group)
