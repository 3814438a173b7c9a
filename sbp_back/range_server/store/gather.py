"""Reads of one range, or of several as one (a gathering), with few system calls and every entry checked against its
row.

A client that reads many ranges at about the same speed needs entries of them that lie close together in the log. So the
entries of all of them are read in the order in which they lie in the files, with few and long reads, each of which the
kernel scatters into the buffers of its ranges: a view of an entry keeps alive only what was read of its own range.

Reading and checking go in steps of bounded length, two for all in one turn of the event loop. A read of one range alone
is answered at once when it is short and in the page cache; else a thread reads all of it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

from anabranch_kit.disk.files import Files
from anabranch_kit.errors import StoreCorrupt, StoreError
from anabranch_kit.memory.buffers import fresh
from sbp_back.errors import DecodeError
from sbp_back.range_server.store.index import META, StoredRange
from sbp_back.wire.entry import parse_entry
from sbp_back.wire.frame import crc32
from sbp_back.wire.model import Entry

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor

    from sbp_back.range_server.store.log import Log
    from sbp_back.range_server.store.segment import Segment

logger = logging.getLogger(__name__)

STEP_BYTES = 1024 * 1024
"""Bytes of one step. An entry that is longer makes a step of its own, which a thread takes."""
STEP_ROWS = 400
"""Entries of one step: the cost of small entries depends on their number. (The kernel takes 1,024 buffers in one
read.)
"""
COALESCE_GAP_BYTES = 16 * 1024
"""Two entries that are this close in a segment are fetched with one read."""
MAX_ENTRIES = 2048
"""Entries of one plan: planning, and handing out the result, take one turn of the event loop each."""
_STEPS_AT_ONCE = 2
_LONG_BYTES = STEP_BYTES + 64 * 1024
_SHORT_ROWS = 1100
_SHORT_SPANS = 64

Found = list[Entry] | StoreError
"""The entries of one range, or why there are none."""
GatherDone = Callable[[list[Found]], None]

Row = tuple[int, int, int, int, int, int, int, int]
"""An entry: log position; number of its part, its own number there, its place in the part's buffer; length, base, CRC,
position in its segment. Sorted rows are in the order of the log.
"""


class Part:
    """The part of a gathering that belongs to one range. ``entries`` are in the order of their offsets; None: not read
    yet, or damaged.
    """

    __slots__ = ("buffer", "entries", "error", "index", "stored", "stream_id", "view")

    def __init__(self, stored: StoredRange, size: int, rows: int) -> None:
        self.stored = stored
        self.stream_id = stored.stream_id
        self.index = stored.index
        self.buffer = memoryview(fresh(size))
        # Read-only, like everything else that may be handed to several readers.
        self.view = self.buffer.toreadonly()
        self.entries: list[Entry | None] = [None] * rows
        self.error: StoreError | None = None

    def take_found(self) -> Found:
        """Return the entries up to the first that could not be read; its error if there are none."""
        entries: list[Entry] = self.entries  # type: ignore[assignment]  # complete unless there was an error
        if self.error is not None:
            entries = []
            for entry in self.entries:
                if entry is None:
                    break
                entries.append(entry)
            if not entries:
                return self.error
        self.stored.saw(len(entries[0].prefix))
        self.stored.saw(len(entries[-1].prefix))
        return entries


class _Span:
    """Rows that lie close together in one segment and are read at once."""

    __slots__ = ("begin", "end", "rows", "segment")

    def __init__(self, segment: Segment, begin: int) -> None:
        self.segment = segment
        self.begin = begin
        self.end = begin
        self.rows: list[Row] = []


class Step(Enum):
    """Outcome of a step."""

    MORE = 1
    DONE = 2
    COLD = 3
    """The next bytes need a thread: they are not in the page cache, or too many."""


class Gather:
    """A gathering: its plan and its progress.

    It is planned with :meth:`add`, range after range, and carried out by :meth:`Gathers.run`.
    """

    __slots__ = (
        "_at",
        "_files",
        "_gap",
        "_ranges",
        "_rows",
        "_spans",
        "_unreachable",
        "damaged",
        "parts",
        "segments",
        "size",
        "whole",
    )

    def __init__(self, files: Files, ranges: Mapping[tuple[int, int], StoredRange], gap_bytes: int) -> None:
        self._files = files
        self._ranges = ranges
        self._gap = gap_bytes
        self.parts: list[Part] = []
        """One for each range, in the order in which they were added."""
        self._rows: list[Row] = []
        self._spans: list[_Span] = []
        self._at = 0
        self._unreachable: OSError | None = None
        """Why data that is not on this disk cannot be read for now."""
        self.size = 0
        """Bytes of all entries."""
        self.damaged = 0
        self.whole = False
        """Whether everything is left to a single step."""
        self.segments: dict[int, Segment] = {}
        """Segments that are read, by their bases. Their files must stay open meanwhile."""

    @property
    def steps(self) -> int:
        """Return the number of steps that are left, after :meth:`divide`."""
        return len(self._spans) - self._at

    @property
    def short(self) -> bool:
        """Return whether all of it may be read on the event loop at once."""
        spans = self._spans
        if len(spans) > _SHORT_SPANS or len(self._rows) > _SHORT_ROWS:
            return False
        return sum([span.end - span.begin for span in spans]) <= _LONG_BYTES

    @property
    def far(self) -> bool:
        """Return whether the next step reads data that is not on this disk."""
        spans = self._spans[self._at :] if self.whole else self._spans[self._at : self._at + 1]
        return any(span.segment.lacks(span.begin, span.end) for span in spans)

    # --- planning

    def add(self, stream_id: int, index: int, offset: int, limit: int, most: int, first: int) -> int:
        """Add the entries of a range from the one that contains ``offset`` on that begin below ``limit``: ``most``
        bytes, but one entry at least if it is not longer than ``first`` (-1: however long it is).

        Return their bytes; 0 when that first one is longer, or there is no room for another entry; -1 when no entry is
        known.
        """
        stored = self._ranges.get((stream_id, index))
        if stored is None or offset < stored.min_offset:
            return -1
        limit = min(limit, stored.visible_end)
        place = stored.find(offset) if offset < limit else None
        return -1 if place is None else self.add_from(stored, place, limit, most, first)

    def add_from(self, stored: StoredRange, place: tuple[int, int], limit: int, most: int, first: int) -> int:
        """Add entries from a place that :meth:`StoredRange.find` has returned, even if the range is trimmed by now."""
        before = len(self._rows)
        size = self._add_rows(stored, place, limit, most, first) if before < MAX_ENTRIES else 0
        if size:
            self.size += size
            self.parts.append(Part(stored, size, len(self._rows) - before))
        return size

    def _add_rows(self, stored: StoredRange, place: tuple[int, int], limit: int, most: int, first: int) -> int:
        runs = stored.runs
        number, row = place
        rows = self._rows
        part = len(self.parts)
        count = size = 0
        left = MAX_ENTRIES - len(rows)
        while True:
            run = runs[number]
            base_lsn = run.segment.base
            meta = run.meta
            bases = run.bases
            for at in range(row, len(bases)):
                base = bases[at]
                if base >= limit or count == left:
                    return size
                cell = at * META
                length = meta[cell + 1]
                if size + length > most and (count or 0 <= first < length):
                    return size
                position = meta[cell]
                rows.append((base_lsn + position, part, count, size, length, base, meta[cell + 2], position))
                if at == row:
                    self.segments[base_lsn] = run.segment
                count += 1
                size += length
            number += 1
            row = 0
            if number == len(runs) or runs[number].first != run.end or run.end >= limit:
                return size

    def divide(self) -> None:
        """Divide the plan into spans that are read at once. Nothing can be added afterwards."""
        rows = self._rows
        rows.sort()
        gap = self._gap
        segments = sorted(self.segments.values(), key=lambda segment: segment.base, reverse=True)
        span: _Span | None = None
        for row in rows:
            lsn, length, position = row[0], row[4], row[7]
            if (
                span is None
                or lsn >= span.segment.end
                or position - span.end > gap
                or position + length - span.begin > STEP_BYTES
                or len(span.rows) >= STEP_ROWS
                or position < span.end
            ):
                while lsn >= segments[-1].end:
                    segments.pop()
                span = _Span(segments[-1], position)
                self._spans.append(span)
            span.end = position + length
            span.rows.append(row)

    # --- reading

    def step(self, cached: bool) -> Step:
        """Read and check the next span; ``cached``: unless that needs a thread. Raises ``OSError``."""
        while self._at < len(self._spans):
            span = self._spans[self._at]
            size = span.end - span.begin
            buffers = self._buffers(span)
            if not cached:
                size = self._read_far(span, buffers) if span.segment.source is not None else self._read(span, buffers)
            elif size > _LONG_BYTES or not self._read_cached(span, buffers):
                return Step.COLD
            if size >= 0:
                self._check(span, size)
            self._at += 1
            if not self.whole:
                break
        return Step.MORE if self._at < len(self._spans) else Step.DONE

    def _buffers(self, span: _Span) -> list[memoryview]:
        """Return the buffers that the bytes of a span are read into; gaps get buffers that are thrown away."""
        parts = self.parts
        buffers: list[memoryview] = []
        end = span.begin
        into = begins = ends = -1
        for _, part, _, at, length, _, _, position in span.rows:
            if position == end and part == into and at == ends:
                ends += length
            else:
                if into >= 0:
                    buffers.append(parts[into].buffer[begins:ends])
                if position > end:
                    buffers.append(memoryview(fresh(position - end)))
                into, begins, ends = part, at, at + length
            end = position + length
        buffers.append(parts[into].buffer[begins:ends])
        return buffers

    def _read_cached(self, span: _Span, buffers: list[memoryview]) -> bool:
        if span.segment.lacks(span.begin, span.end):
            return False
        try:
            return self._files.scatter_cached(span.segment.fd, buffers, span.begin) == span.end - span.begin
        except BlockingIOError:
            return False

    def _read_far(self, span: _Span, buffers: list[memoryview]) -> int:
        """Read a span whose bytes may have to be fetched. Return -1 if that fails: only the ranges in this span get the
        error.
        """
        try:
            if self._unreachable is not None and span.segment.lacks(span.begin, span.end):
                raise self._unreachable
            span.segment.bring(span.begin, span.end)
        except OSError as error:
            self._unreachable = error
            for row in span.rows:
                self._fail(self.parts[row[1]], error)
            return -1
        return self._read(span, buffers)

    def _read(self, span: _Span, buffers: list[memoryview]) -> int:
        """Return the bytes read: fewer than those of the span only at the end of the file."""
        got = 0
        while buffers:
            more = self._files.scatter(span.segment.fd, buffers, span.begin + got)
            if more <= 0:
                break
            got += more
            while buffers and more >= len(buffers[0]):
                more -= len(buffers.pop(0))
            if more:
                buffers[0] = buffers[0][more:]
        return got

    def _check(self, span: _Span, got: int) -> None:
        """Check the entries in the ``got`` bytes that were read; only those that match their rows are handed out."""
        parts = self.parts
        readable = span.begin + got
        for _, number, place, at, length, base, crc, position in span.rows:
            part = parts[number]
            body = part.view[at : at + length]
            if position + length > readable or crc32(body) != crc:
                wrong = "its checksum is wrong"
            else:
                try:
                    entry = parse_entry(body)
                except (DecodeError, ValueError):
                    wrong = "it is not an entry"
                else:
                    if (
                        entry.base_offset == base
                        and entry.stream_id == part.stream_id
                        and entry.range_index == part.index
                    ):
                        entry.crc = crc
                        part.entries[place] = entry
                        continue
                    wrong = "it is another entry"
            self.damaged += 1
            if part.error is None or not place:
                part.error = StoreCorrupt(
                    f"the entry at offset {base} of range {part.index} of stream {part.stream_id} "
                    f"({span.segment.place(position)}) is damaged: {wrong}"
                )

    # --- the end

    def fail(self, why: object) -> None:
        """Fail all entries that are not read yet."""
        for part in self.parts:
            self._fail(part, why)

    @staticmethod
    def _fail(part: Part, why: object) -> None:
        name = f"range {part.index} of stream {part.stream_id}"
        part.error = part.error or StoreError(f"{name} cannot be read: {why}")


class Gathers:
    """All gatherings in flight. Owned by the event loop.

    ``hand_over`` has a function called on the loop, from any thread; ``report`` gets the exceptions of callbacks.
    ``far`` reads data that is not on this disk, where other reads do not wait for it.
    """

    __slots__ = ("_closed", "_far", "_hand_over", "_log", "_loop", "_pool", "_report", "_running", "_waiting")

    def __init__(
        self,
        log: Log,
        pool: Executor,
        hand_over: Callable[[Callable[[], None]], None],
        report: Callable[[Exception], None],
        far: Executor | None = None,
    ) -> None:
        self._log = log
        self._pool = pool
        self._far = far
        self._hand_over = hand_over
        self._report = report
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[tuple[Gather, GatherDone]] = deque()
        self._running = False
        self._closed = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def close(self) -> None:
        """Stop reading; gatherings that are not finished end with an error."""
        self._closed = True
        while self._waiting:
            gather, done = self._waiting.popleft()
            self._close(gather, done)

    def _close(self, gather: Gather, done: GatherDone) -> None:
        gather.fail("the store is being closed")
        self._answer(gather, done)

    def begin(self) -> Gather:
        """Return an empty plan."""
        log = self._log
        return Gather(log.files, log.state.ranges, COALESCE_GAP_BYTES)

    def run(self, gather: Gather, done: GatherDone) -> None:
        """Carry out a gathering; see :meth:`sbp_back.range_server.store.store.Store.gather`."""
        log = self._log
        gather.divide()
        pinned: dict[int, Segment] = {}
        try:
            for base, segment in gather.segments.items():
                log.opened.pin(segment)
                pinned[base] = segment
        except OSError as error:
            gather.segments = pinned
            gather.fail(error)
            self._answer(gather, done)
            return
        log.stats.reads += 1
        if gather.whole:
            if gather.short:
                self._step(gather, done)
            else:
                self._to_thread(gather, done)
        elif gather.steps > 1 or self._waiting:
            self._waiting.append((gather, done))
            self._go_on()
        else:
            self._step(gather, done)

    def _go_on(self) -> None:
        if not self._running and self._waiting and self._loop is not None:
            self._running = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Take a step of each waiting gathering in turn, so that a short one does not wait for all of a long one."""
        self._running = False
        for _ in range(min(len(self._waiting), _STEPS_AT_ONCE)):
            self._step(*self._waiting.popleft())
        self._go_on()

    def _step(self, gather: Gather, done: GatherDone) -> None:
        try:
            step = gather.step(cached=True)
        except OSError as error:
            gather.fail(error)
            step = Step.DONE
        if step is Step.DONE:
            self._answer(gather, done)
        elif step is Step.MORE:
            self._waiting.append((gather, done))
            self._go_on()
        else:
            self._to_thread(gather, done)

    def _to_thread(self, gather: Gather, done: GatherDone) -> None:
        self._log.stats.reads_from_disk += 1
        pool = self._far if self._far is not None and gather.far else self._pool
        pool.submit(self._read_on, gather, done)

    def _read_on(self, gather: Gather, done: GatherDone) -> None:
        """Take the next step on a thread of the pool, which other work shares."""
        step = Step.DONE
        try:
            step = gather.step(cached=False)
        except OSError as error:
            gather.fail(error)
        except BaseException as error:
            logger.exception("the store: a read failed")
            gather.fail(f"{type(error).__name__}: {error}")
        self._hand_over(lambda: self._go_on_with(gather, done, step))

    def _go_on_with(self, gather: Gather, done: GatherDone, step: Step) -> None:
        """Go on after a thread has taken a step."""
        if step is not Step.MORE:
            self._answer(gather, done)
        elif self._closed:
            self._close(gather, done)
        else:
            self._waiting.append((gather, done))
            self._go_on()

    def _answer(self, gather: Gather, done: GatherDone) -> None:
        for segment in gather.segments.values():
            self._log.opened.unpin(segment)
        gather.segments = {}
        stats = self._log.stats
        stats.damaged_entries += gather.damaged
        found = [part.take_found() for part in gather.parts]
        stats.read_bytes += gather.size
        try:
            done(found)
        except Exception as error:  # noqa: BLE001 - a caller's bug must not keep others from their answers
            self._report(error)
