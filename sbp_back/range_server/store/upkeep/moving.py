"""Entries of a log that are written again at its tail: by others in their place (replacement), or unchanged, so that
their old segment can be deleted (evacuation). Also the bound on the size of a log.

All decisions are made on the event loop, one move at a time: a copy that was read before a replacement and written
behind it would bring back the replaced entry. A crash leaves the old place or the new one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from anabranch_kit.errors import StoreError
from sbp_back.range_server.store.gather import COALESCE_GAP_BYTES, Gather, Step
from sbp_back.range_server.store.index import StoredRange
from sbp_back.range_server.store.layout.format import RecordType
from sbp_back.range_server.store.log import Background, Log
from sbp_back.range_server.store.options import EVACUATE_KEEP
from sbp_back.range_server.store.segment import Segment
from sbp_back.range_server.store.upkeep.replacing import Replacement
from sbp_back.range_server.store.writing.wal_items import Control, Copies, Item
from sbp_back.wire.model import Entry


class Moving:
    """Work on a store's segments besides writing and reading, wherever the segments are. ``submit`` hands an item to
    the writer of ``log``. Owned by the event loop.
    """

    def __init__(self, log: Log, background: Background, submit: Callable[[Item], None]) -> None:
        self._log = log
        self.background = background
        self._submit = submit
        self.evacuating: Segment | None = None
        self._replacements: deque[Replacement] = deque()
        self._moving = False
        """Whether a move is in progress."""
        self._trimming = False
        self._closed = False

    def close(self) -> None:
        """Start no further move."""
        self._closed = True
        while self._replacements:
            self._replacements.popleft().done(StoreError("the store is closed"))

    def rolled(self) -> None:
        """React to a roll: a segment was sealed and nothing of the next one is applied yet."""
        raise NotImplementedError

    def tick(self) -> None:
        """Do periodic work."""
        raise NotImplementedError

    def start_chores(self) -> None:
        """Start what is needed to free space."""
        raise NotImplementedError

    def save_everything(self) -> None:
        """Save everything at the end of the store, so that the next start has nothing to do. Raises ``OSError``."""
        raise NotImplementedError

    def _list_settled(self) -> list[Segment]:
        """Return the sealed segments that may be evacuated: everything in them is where a start will find it."""
        raise NotImplementedError

    # --- replacement

    def replace(self, change: Replacement) -> None:
        """Carry out ``change``, and answer it; see :meth:`sbp_back.range_server.store.store.Store.replace`."""
        if self._closed:
            change.done(StoreError("the store is closed"))
            return
        self._replacements.append(change)
        self._move()

    def _move(self) -> None:
        """Start the next move, unless one runs: replacements first, then evacuation."""
        while not self._moving and self._replacements:
            change = self._replacements.popleft()
            try:
                stored = change.range_of(self._log.state)
            except StoreError as error:
                change.done(error)
                continue
            self._moving = True
            entries = list(change.new)
            copies = Copies([stored] * len(entries), entries, partial(self._replaced, change), replaces=True)
            copies.bytes = sum(entry.size for entry in entries)
            self._submit(copies)
        if not self._moving and self.evacuating is not None:
            self._copy_some()

    def _replaced(self, change: Replacement, error: StoreError | None) -> None:
        self._moving = False
        try:
            change.done(error)
        finally:
            self._move()

    # --- evacuation

    def _evacuate(self) -> None:
        if self.evacuating is not None:
            return
        options = self._log.options
        newest = set(self._log.segments[-EVACUATE_KEEP:])
        candidates = [
            segment
            for segment in self._list_settled()
            if segment not in newest
            and segment.runs
            and not segment.damaged
            and segment.live < options.evacuate_below * segment.size
        ]
        if candidates:
            self.evacuating = min(candidates, key=lambda segment: segment.live)
            self._move()

    def _copy_some(self) -> None:
        """Read the next survivors and write them to the tail; when they are durable there, go on."""
        log = self._log
        segment = self.evacuating
        assert segment is not None
        if self._closed or not segment.runs:
            self.evacuating = None
            if not self._closed:
                self.start_chores()
            return
        before = segment.live, len(segment.runs)
        self._moving = True
        options = log.options
        room = min(options.evacuate_batch_bytes, options.segment_bytes // 8)
        plan = Gather(log.files, log.state.ranges, COALESCE_GAP_BYTES)
        plan.whole = True
        for run in segment.runs:
            place = run.owner.find(run.first)
            assert place is not None, "a run is where its range finds it"
            if plan.size >= room or not plan.add_from(run.owner, place, run.end, room - plan.size, -1):
                break
        plan.divide()
        try:
            log.opened.pin(segment)
        except OSError as error:
            self._evacuation_failed(segment, error)
            return

        def got(result: Step | OSError) -> None:
            log.opened.unpin(segment)
            if isinstance(result, OSError):
                self._evacuation_failed(segment, result)
                return
            damage = next((part.error for part in plan.parts if part.error is not None), None)
            if damage is not None:
                log.stats.damaged_entries += plan.damaged
                segment.damaged = True
                self._evacuation_failed(segment, damage)
                return
            owners: list[StoredRange] = []
            entries: list[Entry] = []
            for part in plan.parts:
                entries += filter(None, part.entries)
                owners += [part.stored] * len(part.entries)
            copies = Copies(owners, entries, copied)
            copies.bytes = sum(entry.size for entry in entries)
            self._submit(copies)

        def copied(error: StoreError | None) -> None:
            self._moving = False
            if error is not None:
                self._evacuation_failed(segment, error)
            elif (segment.live, len(segment.runs)) == before:
                segment.damaged = True  # a repetition would never end
                self._evacuation_failed(segment, StoreError(f"segment {segment.path.name} cannot be evacuated"))
            else:
                self._move()

        self.background(lambda: plan.step(cached=False), got)

    def _evacuation_failed(self, segment: Segment, error: Exception) -> None:
        self.evacuating = None
        self._moving = False
        self._note(error)
        self._move()

    # --- retention by size

    def _retain(self) -> None:
        """Trim the oldest segment's data, of any stream, while the log is larger than allowed. What was moved comes
        first, in the order in which it was moved."""
        limit = self._log.options.retention_bytes
        if limit is None or self._trimming:
            return
        # Dead segments are being deleted; counting them would trim more than is needed.
        segments = [one for one in (*self._log.elsewhere, *self._log.segments[:-1]) if one.runs]
        total = self._log.active.used + sum(map(self._weight, segments))
        oldest = next(iter(segments), None)
        if total <= limit or oldest is None:
            return
        ends: dict[int, int] = {}
        for run in oldest.runs:
            ends[run.owner.stream_id] = max(ends.get(run.owner.stream_id, 0), run.end)
        left = len(ends)

        def trimmed(error: StoreError | None) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                self._note(error)
            if not left:
                self._trimming = False

        self._trimming = True
        for stream_id, end in ends.items():
            self._submit(Control(RecordType.TRIM_STREAM, stream_id, 0, 0, end, trimmed))

    @staticmethod
    def _weight(segment: Segment) -> int:
        """Return the bytes that retention counts of a segment."""
        return segment.used

    def _note(self, error: Exception) -> None:
        self._log.stats.maintenance_errors += 1
        self._log.stats.last_maintenance_error = str(error)
