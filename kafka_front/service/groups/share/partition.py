"""One share partition as a pure state machine: the records of a partition that a share group has not finished.

It has no clock, no sockets and no disk: calls carry ``now_ms`` of a clock that never goes back. Between ``start`` (the
share-partition start offset: nothing below it is delivered again) and ``end`` (nothing from it on has been delivered)
each offset is in one :class:`Span`. The rules are KIP-932's:

* AVAILABLE -> ACQUIRED by a member, for as long as the lock lasts; each time counts as one delivery;
* ACQUIRED -> ACKNOWLEDGED (accept), ARCHIVED (reject, or an offset without a record), AVAILABLE (release, or the lock
  expires); after the last allowed delivery ARCHIVED instead of AVAILABLE;
* in a group with a dead letter topic (KIP-1191), rejected records and those of the last delivery are ARCHIVING, and one
  of the ``letters`` to write, until :meth:`SharePartition.archive`;
* ``start`` moves over offsets that are ACKNOWLEDGED or ARCHIVED.

The work of a call is proportional to the spans, of which there are never more than records may be in flight.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from bridges.catalog.views.groups import SharedPlace


class RecordState(IntEnum):
    """States of records, with KIP-932's numbers, which are stored."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class AckType(IntEnum):
    """Types of acknowledgements, with the protocol's numbers."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class InvalidState(Exception):
    """A member acknowledges records that it has not acquired."""


class Span(Struct):
    """Offsets ``first`` to ``last`` in the same state. ``member`` and ``until_ms`` apply to ACQUIRED ones."""

    first: int
    last: int
    state: RecordState
    count: int
    """Number of deliveries."""
    member: str = ""
    until_ms: int = 0
    """When the lock expires."""

    @property
    def size(self) -> int:
        return self.last - self.first + 1


class Acquired(Struct, frozen=True):
    """Offsets ``first`` to ``last``, acquired by the member in their ``count``-th delivery."""

    first: int
    last: int
    count: int


class Ack(Struct, frozen=True):
    """The acknowledgement of the offsets ``first`` to ``last``."""

    first: int
    last: int
    kind: AckType


class Letter(Struct, frozen=True):
    """Offsets ``first`` to ``last`` whose dead letters are to be written: after ``count`` deliveries, the last of which
    a member rejected, or which were the most."""

    first: int
    last: int
    count: int
    rejected: bool


StoredSpan = tuple[int, int, int, int]
"""First and last offset, state, deliveries."""

_LAST = attrgetter("last")
_OVER = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


class SharePartition:
    """The share partition; see the module. ``version`` rises with every change to be stored. ``has_letters``: whether
    the group has a dead letter topic; ``letters`` are taken by who writes them."""

    __slots__ = ("end", "has_letters", "letters", "most_deliveries", "spans", "start", "version")

    def __init__(self, start: int, most_deliveries: int, stored: Iterable[StoredSpan] = ()) -> None:
        self.start = self.end = start
        self.most_deliveries = most_deliveries
        self.has_letters = False
        self.letters: list[Letter] = []
        self.spans: list[Span] = []
        self.version = 0
        for first, last, state, count in stored:
            if first < self.end:
                raise ValueError(f"offset {first} of a share partition is in two states")
            if first > self.end:
                self._add(self.end, first - 1, RecordState.AVAILABLE, 0)
            self._add(first, last, RecordState(state), count)
            if state == RecordState.ARCHIVING:
                # As at a broker, the number of deliveries tells the reason.
                self.letters.append(Letter(first, last, count, count < most_deliveries))
        self._settle()

    # --- what there is ----------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Return the number of offsets from start to end: acquired, released, or finished behind an unfinished one."""
        return self.end - self.start

    def next_offset(self) -> int:
        """Return the first offset that can be acquired, whether or not its record exists yet."""
        for span in self.spans:
            if span.state is RecordState.AVAILABLE:
                return span.first
        return self.end

    @property
    def next_deadline_ms(self) -> int | None:
        """Return when the first lock expires; None without locks."""
        return min((span.until_ms for span in self.spans if span.state is RecordState.ACQUIRED), default=None)

    @property
    def is_busy(self) -> bool:
        """Return whether a member has acquired any record, or a dead letter is not written yet."""
        return any(span.state in (RecordState.ACQUIRED, RecordState.ARCHIVING) for span in self.spans)

    def stored(self) -> list[StoredSpan]:
        """Return the spans to store. An acquired record is stored as available, without its present delivery."""
        told: list[StoredSpan] = []
        for span in self.spans:
            state, count = span.state, span.count
            if state is RecordState.ACQUIRED:
                state, count = RecordState.AVAILABLE, count - 1
            if told and told[-1][2:] == (state, count):
                told[-1] = (told[-1][0], span.last, int(state), count)
            else:
                told.append((span.first, span.last, int(state), count))
        while told and told[-1][2:] == (RecordState.AVAILABLE, 0):
            told.pop()
        return told

    def lag(self, high_watermark: int) -> int:
        """Return the number of unfinished records."""
        done = sum(span.size for span in self.spans if span.state in _OVER)
        return max(high_watermark - self.start - done, 0)

    def place(self, topic: str, partition: int) -> SharedPlace:
        """Return the partition as people see it."""
        acquired = done = 0
        deliveries: Counter[int] = Counter()
        for span in self.spans:
            if span.state in _OVER:
                done += span.size
                continue
            acquired += span.size * (span.state is RecordState.ACQUIRED)
            if span.count:
                deliveries[span.count] += span.size
        return SharedPlace(topic, partition, self.start, acquired, done, dict(sorted(deliveries.items())))

    # --- changes ----------------------------------------------------------------------------------------------------

    def acquire(
        self,
        now_ms: int,
        member: str,
        lock_ms: int,
        offset: int,
        batches: Iterable[tuple[int, int, bool]],
        max_records: int,
        *,
        whole_batches: bool,
        most_in_flight: int,
    ) -> list[Acquired]:
        """Acquire available records of ``batches`` for a member. Each batch is its first and last offset, and whether
        it has records for readers, as read from ``offset`` on. Offsets between the batches have no records.

        The member gets ``max_records``, or with ``whole_batches`` somewhat more, to the end of a batch. New records are
        acquired only while no more than ``most_in_flight`` are in flight; released ones in flight can always be
        acquired again.
        """
        got: list[Acquired] = []
        left = max_records
        ceiling = self.start + most_in_flight
        for first, last, has_records in batches:
            if left <= 0:
                break
            self._pass_over(offset, first - 1)
            offset = last + 1
            if not has_records:
                self._pass_over(first, last)
                continue
            if first <= self.end:
                self._add(self.end, min(last, ceiling - 1), RecordState.AVAILABLE, 0)
            left = self._take(now_ms + lock_ms, member, first, last, left, whole_batches, got)
            if last >= self.end:
                break
        self._settle()
        return got

    def _pass_over(self, first: int, last: int) -> None:
        """Archive available offsets that have nothing to deliver."""
        if first <= self.end <= last:
            self._add(self.end, last, RecordState.AVAILABLE, 0)
        for span in self._within(first, last):
            if span.state is RecordState.AVAILABLE:
                span.state = RecordState.ARCHIVED
                self.version += 1

    def _take(
        self, until_ms: int, member: str, first: int, last: int, left: int, whole: bool, got: list[Acquired]
    ) -> int:
        """Acquire the available records of one batch; return how many more may be acquired."""
        for span in self._within(first, last):
            if span.state is not RecordState.AVAILABLE:
                continue
            if left <= 0 and not whole:
                break
            if not whole and span.size > left:
                self._cut(span.first + left)
            left -= span.size
            span.state, span.member, span.until_ms = RecordState.ACQUIRED, member, until_ms
            span.count += 1
            got.append(Acquired(span.first, span.last, span.count))
        return left

    def acknowledge(self, now_ms: int, member: str, acks: Sequence[Ack], lock_ms: int) -> None:
        """Apply a member's acknowledgements, all or none. Offsets below ``start`` are finished already.

        Raises InvalidState if the member has not acquired one of the offsets.
        """
        self.expire(now_ms)
        for ack in acks:
            first = max(ack.first, self.start)
            if first <= ack.last and not self._holds(member, first, ack.last):
                raise InvalidState(f"offsets {ack.first}-{ack.last} are not the member's to acknowledge")
        for ack in acks:
            first = max(ack.first, self.start)
            if first > ack.last:
                continue
            for span in self._within(first, ack.last):
                if ack.kind is AckType.RENEW:
                    span.until_ms = now_ms + lock_ms
                elif ack.kind is AckType.RELEASE:
                    self._release(span)
                elif ack.kind is AckType.REJECT:
                    self._archive(span, rejected=True)
                else:
                    accepted = ack.kind is AckType.ACCEPT
                    span.state = RecordState.ACKNOWLEDGED if accepted else RecordState.ARCHIVED
                    self.version += 1
        self._settle()

    def archive(self, letter: Letter) -> None:
        """Finish the records of a letter, which is written, or will never be."""
        for span in self._within(letter.first, letter.last):
            if span.state is RecordState.ARCHIVING:
                span.state = RecordState.ARCHIVED
                self.version += 1
        self._settle()

    def release(self, member: str) -> bool:
        """Release the records of a leaving member; return whether it had any."""
        return self._release_all([span for span in self.spans if span.member == member])

    def expire(self, now_ms: int) -> bool:
        """Release the records whose lock has expired; return whether there were any."""
        return self._release_all([span for span in self.spans if span.until_ms <= now_ms])

    def trimmed(self, log_start: int) -> None:
        """Drop the offsets below ``log_start``: the log was trimmed."""
        if log_start <= self.start:
            return
        self._cut(log_start)
        self.spans = [span for span in self.spans if span.first >= log_start]
        self.start = log_start
        self.end = max(self.end, log_start)
        self.version += 1
        self._settle()

    def _release_all(self, spans: list[Span]) -> bool:
        acquired = [span for span in spans if span.state is RecordState.ACQUIRED]
        for span in acquired:
            self._release(span)
        if acquired:
            self._settle()
        return bool(acquired)

    def _release(self, span: Span) -> None:
        if span.count >= self.most_deliveries:
            self._archive(span, rejected=False)
        else:
            span.state = RecordState.AVAILABLE
            self.version += 1

    def _archive(self, span: Span, *, rejected: bool) -> None:
        span.state = RecordState.ARCHIVED
        if self.has_letters:
            span.state = RecordState.ARCHIVING
            self.letters.append(Letter(span.first, span.last, span.count, rejected))
        self.version += 1

    # --- spans ------------------------------------------------------------------------------------------------------

    def _holds(self, member: str, first: int, last: int) -> bool:
        """Return whether the member has acquired all of these offsets."""
        if last >= self.end:
            return False
        for number in range(self._at(first), len(self.spans)):
            span = self.spans[number]
            if span.first > last:
                break
            if span.state is not RecordState.ACQUIRED or span.member != member:
                return False
        return True

    def _add(self, first: int, last: int, state: RecordState, count: int) -> None:
        if last >= first:
            self.spans.append(Span(first, last, state, count))
            self.end = last + 1

    def _at(self, offset: int) -> int:
        """Return the index of the span that contains ``offset``, or of the next one."""
        return bisect_left(self.spans, offset, key=_LAST)

    def _cut(self, offset: int) -> None:
        """Split the span that contains ``offset``, so that one begins there."""
        number = self._at(offset)
        if number < len(self.spans) and self.spans[number].first < offset:
            span = self.spans[number]
            self.spans.insert(number + 1, replace(span, first=offset))
            span.last = offset - 1

    def _within(self, first: int, last: int) -> list[Span]:
        """Return the spans of exactly these offsets, as far as they are in flight."""
        if last < first:
            return []
        self._cut(first)
        self._cut(last + 1)
        return self.spans[self._at(first) : self._at(last + 1)]

    def _settle(self) -> None:
        """Move the start over finished offsets, and merge equal neighbours."""
        passed = 0
        for span in self.spans:
            if span.state not in _OVER:
                break
            self.start = span.last + 1
            passed += 1
        if passed:
            self.version += 1
        spans = self.spans[passed:]
        merged: list[Span] = []
        for span in spans:
            if span.state is not RecordState.ACQUIRED:
                span.member, span.until_ms = "", 0
            before = merged[-1] if merged else None
            if before is not None and (before.state, before.count, before.member, before.until_ms) == (
                span.state,
                span.count,
                span.member,
                span.until_ms,
            ):
                before.last = span.last
            else:
                merged.append(span)
        self.spans = merged
