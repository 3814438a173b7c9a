"""Segment: a partition's log, seen as a log of bytes.

The log's offsets count records, Pravega's positions bytes. The log knows the positions of records
(bridges/log/byte_positions/search.py); this module only caches them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from anabranch_kit.run import clock
from anabranch_kit.run.task_set import TaskSet
from bridges.errors import (
    AppendConditionFailed,
    BatchInvalid,
    DataCorrupt,
    LogError,
    OffsetOutOfRange,
    PositionLost,
    RecordInvalid,
)
from bridges.formats import FormatId, Translator
from bridges.formats.pravega import encode, gathered, segment_bytes
from bridges.formats.producer import EventStamp, InTransaction
from bridges.formats.records import Buffer
from bridges.log.byte_positions.column import BytePlace
from bridges.log.interfaces import Appended, Batch, Guard, note

if TYPE_CHECKING:
    from bridges.formats.records import StoredBatch
    from bridges.log.partition.append_path import Hold
    from bridges.log.partition.partition_log import PartitionLog

_CURSORS = 16_384
"""Most cached places of readers, over all segments."""
_JOINED = 1024
"""Pieces of a batch below this size are joined with the pieces of other batches when they are read."""
_AHEAD = 64 * 1024
"""Bytes read from the log beyond those requested: headers, and records before the position."""


class Truncated(LogError):
    """A position below the segment's ``start``, or above its end."""

    def __init__(self, start: int) -> None:
        super().__init__(f"the segment starts at {start}")
        self.start = start


SegmentDone = Callable[[int, LogError | None], None]
"""Called with (length of the segment after an append, None) or (-1, error)."""


def _add(pieces: list[Buffer], piece: memoryview, whole: int) -> None:
    """Append a piece of a batch that has ``whole`` bytes. Small pieces are joined, since a view itself takes 300 bytes.
    A piece that is a small part of its batch is copied, since a view would keep the whole batch in memory."""
    if len(piece) >= _JOINED and 4 * len(piece) >= whole:
        pieces.append(piece)
    elif pieces and type(last := pieces[-1]) is bytearray:
        last += piece
    else:
        pieces.append(bytearray(piece))


Cursor = tuple[BytePlace, int]
"""Place of a batch, and the log's count of replacements by compaction at that time."""


class Cursors:
    """Cache of the places where readers of any segment continue; the least recently used are evicted."""

    __slots__ = ("_most", "_places")

    def __init__(self, most: int = _CURSORS) -> None:
        self._most = most
        self._places: OrderedDict[tuple[object, int], Cursor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def take(self, of: object, position: int) -> Cursor | None:
        """Remove and return the place of the batch that continues at a position."""
        return self._places.pop((of, position), None)

    def keep(self, of: object, position: int, cursor: Cursor) -> None:
        """Cache a place."""
        self._places[of, position] = cursor
        if len(self._places) > self._most:
            self._places.popitem(last=False)


class Segment:
    """A segment's bytes. A ``loose`` segment belongs to no stream, and only this front appends to it."""

    __slots__ = (
        "_cursors",
        "_life",
        "_tasks",
        "_translator",
        "log",
        "loose",
        "loose_sealed",
        "most_events",
        "name",
        "partition",
        "topic",
    )

    def __init__(
        self,
        name: str,
        log: PartitionLog,
        translator: Translator,
        max_events: int,
        cursors: Cursors,
        *,
        loose: bool = False,
    ) -> None:
        self.name = name
        self.topic = log.topic
        self.partition = log.partition
        self.log = log
        self.loose = loose
        self.loose_sealed = False
        self._translator = translator
        self.most_events = max_events
        """Most events of one append that get offsets of their own."""
        # Keyed by _life, which changes with each truncation and so invalidates the cached places.
        self._cursors = cursors
        self._life = object()
        self._tasks = TaskSet()

    def __repr__(self) -> str:
        return f"Segment({self.name})"

    @property
    def sealed(self) -> bool:
        """Return whether the segment takes no more appends."""
        return self.loose_sealed or self.log.successors is not None

    @property
    def ended(self) -> bool:
        """Return whether the segment's present end is final."""
        if not self.loose:
            return self.log.final_offset is not None
        # Appends in flight at the seal still come.
        return self.loose_sealed and self.log.next_offset == self.log.high_watermark

    async def passed(self, offset: int) -> None:
        """Wait until the append at ``offset`` is durable, or the log has failed. Raises LogDeleted."""
        log = self.log
        await log.until(lambda: not log.is_open or offset < log.high_watermark)

    async def quiet(self) -> None:
        """Wait until no append is in flight; the caller must prevent new ones. Raises LogError."""
        log = self.log
        await log.ready()
        while log.next_offset != log.high_watermark:
            await log.until(lambda: not log.is_open or log.next_offset == log.high_watermark)
            await log.ready()  # after a failure the log is opened again at its end, without the failed appends

    # --- what is known of it ---------------------------------------------------------------------------------------

    @property
    def is_counted(self) -> bool:
        """Return whether :meth:`length` is known without waiting: records of other protocols may have to be
        decompressed for it."""
        return self.log.is_open and self.log.byte_length is not None

    async def length(self) -> int:
        """Return the segment's end for readers. Raises LogError."""
        known = self.log.byte_length if self.log.is_open else None
        return (await self.log.byte_end()).position if known is None else known

    async def start(self) -> int:
        """Return the segment's start for readers. Raises LogError."""
        return await self.log.byte_start()

    async def start_for(self, position: int) -> int:
        """Return the segment's start, or without waiting ``position`` if that is certainly readable. Raises
        LogError."""
        return position if self.log.is_open and self.log.is_readable_byte(position) else await self.start()

    async def start_at(self, timestamp: int) -> int:
        """Return the position at which the first event of ``timestamp`` (ms) or later begins, or may come to lie; the
        end if there is none yet, the segment's start for 0 or less. Raises LogError."""
        start = await self.start()
        if timestamp <= 0:
            return start
        found = await self.log.find_timestamp(timestamp)
        if found is None:
            return await self.length()
        try:
            # Records of an open transaction have no position yet, and neither have those after them.
            return max(start, await self.log.byte_position(min(found[0], self.log.last_stable_offset)))
        except OffsetOutOfRange:
            return await self.start()  # the segment was truncated meanwhile

    async def truncate(self, position: int) -> None:
        """Hide all bytes below ``position``, durably. Raises Truncated, LogError."""
        start = await self.start()
        if not start <= position <= await self.length():
            raise Truncated(start)
        if position > start:
            await self.log.trim_bytes(position)
            self._life = object()

    # --- appending -------------------------------------------------------------------------------------------------

    def append(
        self,
        parts: list[Buffer],
        size: int,
        stamp: EventStamp,
        expected: int | None,
        done: SegmentDone,
        part: InTransaction | None = None,
        hold: Hold | None = None,
        claims: Sequence[tuple[int, int]] = (),
        *,
        admitted: bool = False,
        decided: bool = False,
    ) -> None:
        """Append ``size`` bytes; with ``expected`` only if the segment ends there.

        ``claims``: (events, bytes) per append, if these are several appends. ``part``: the transaction of the log that
        the bytes belong to; they are visible after its end. ``hold``: the caller's exclusive hold on the log.
        ``admitted``: the topic's demands were checked when the bytes were written to another segment. ``decided``: a
        sealed segment takes the bytes as well, because the front has promised them. ``done`` gets the errors of
        :meth:`bridges.log.partition.append_path.AppendPath.append`.
        """
        guard = None if expected is None else Guard(end_position=expected)
        if expected is not None and expected < 0:
            done(-1, AppendConditionFailed(f"{self.name} never ends at {expected}", -1))
            return
        if size:
            now = clock.now_ms()
            shape, records, front = gathered(claims or ((stamp.events, size),), self.most_events)
            payload = encode(
                [front, *parts] if front else parts,
                size,
                shape,
                records,
                writer_id=stamp.writer_id,
                last_number=stamp.number,
                events=stamp.events,
                time_ms=now,
                part=part,
            )
            batch = Batch(payload, records, int(FormatId.PRAVEGA), now, stamp, guard, transaction=part)
            batch.own, batch.admitted, batch.decided = True, admitted, decided
        else:
            batch = note(stamp, guard)

        def stored(appended: Appended, error: LogError | None) -> None:
            if error is not None:
                done(-1, error)
                return
            length = self.log.byte_length
            if length is None:
                self._tasks.spawn(self._tell_end(appended.end, done))
            else:
                done(length, None)

        append = self.log.append if hold is None else hold.append
        append(batch, stored)

    async def _tell_end(self, end: int, done: SegmentDone) -> None:
        try:
            position = await self.position_behind(end)
        except LogError:
            # The bytes are durable, which is what matters to the writer; it can query the length.
            position = -1
        done(position, None)

    async def position_behind(self, end: int) -> int:
        """Return the end position of the bytes below the offset ``end``. Counts bytes if records of other protocols
        come before it. While a transaction is open, returns the position where it begins. Raises LogError."""
        place = await self.log.byte_end()
        return place.position if place.offset <= end else await self.log.byte_position(end)

    # --- reading ---------------------------------------------------------------------------------------------------

    async def read_all(self, position: int, size: int) -> list[Buffer]:
        """Read exactly ``size`` bytes from ``position`` on. Raises the errors of :meth:`read`."""
        parts: list[Buffer] = []
        end = position + size
        while position < end:
            pieces = await self.read(position, end - position)
            if not pieces:
                raise LogError(f"{self.name} has nothing at {position}, below its end {end}")
            parts += pieces
            position += sum(map(len, pieces))
        return parts

    async def read(self, position: int, most: int) -> list[Buffer]:
        """Read at most ``most`` bytes, and at least one, from ``position`` on, which must lie below the end.

        Raises OffsetOutOfRange for a position that is trimmed meanwhile, PositionLost, DataCorrupt for damage,
        LogError.
        """
        log = self.log
        cursor = self._cursors.take(self._life, position)
        while True:
            replacements, known = log.replacements, None
            if cursor is not None:
                place, then = cursor
                if then == replacements or log.keeps_bytes(place.offset):
                    known = place
                elif place.position != position:
                    # The client may hold the first part of an event, which must not be joined with another event's.
                    lost = f"position {position} of {self.name} was told before compaction took records"
                    raise PositionLost(lost, log.log_start_offset, await self.start())
            try:
                first, pieces = await self._read(position, most, known)
                if log.is_same(replacements) or log.keeps_bytes(first):
                    return pieces
            except (OffsetOutOfRange, DataCorrupt):
                if log.is_same(replacements):
                    raise
            await log.trimmed()  # compaction has moved records during the read

    async def _read(self, position: int, most: int, known: BytePlace | None) -> tuple[int, list[Buffer]]:
        """Read like :meth:`read`, provided that compaction replaces nothing meanwhile; also return the first offset.
        ``known``: the batch that continues at the position."""
        log, life, replacements = self.log, self._life, self.log.replacements
        place = known or await log.find_byte_batch(position)
        log.reads_bytes(place.offset)
        pieces: list[Buffer] = []
        left = most
        first = offset = max(place.offset, log.log_start_offset)
        at = place.position
        while left:
            batches = await log.read_committed(offset, left + _AHEAD)
            if not batches:
                break
            if offset == first and batches[0].base_offset > place.offset:
                if known is not None:
                    return await self._read(position, most, None)  # without the cached place
                raise OffsetOutOfRange(f"position {position} of {self.name} was trimmed")
            for number, batch in enumerate(batches):
                if batch.base_offset > offset and pieces:
                    return first, pieces  # there is a gap of skipped damage: the next read finds its end
                data, wrong = await self._segment_bytes(batches[number:])
                skip = max(0, position - at)
                piece = data[skip : skip + left]
                if len(piece):
                    _add(pieces, piece, len(data))
                    left -= len(piece)
                if skip + len(piece) < len(data) or (wrong is not None and pieces):
                    self._cursors.keep(life, position + most - left, (BytePlace(batch.base_offset, at), replacements))
                    return first, pieces
                if wrong is not None:
                    where = wrong.offset if isinstance(wrong, RecordInvalid) else batch.base_offset
                    raise DataCorrupt(f"the batch at offset {where} of {log.topic}-{log.partition}: {wrong}") from wrong
                at += len(data)
                offset = batch.end_offset
        self._cursors.keep(life, position + most - left, (BytePlace(offset, at), replacements))
        return first, pieces

    async def _segment_bytes(self, batches: Sequence[StoredBatch]) -> tuple[memoryview, BatchInvalid | None]:
        """Return the bytes of the first batch, up to the first invalid record, and the error if there is one."""
        try:
            translated = await self._translator.translate(
                self.log.stream_id, batches[0], int(FormatId.PRAVEGA), batches[1:]
            )
            return segment_bytes(translated), None
        except RecordInvalid as error:
            return segment_bytes(error.before), error
        except BatchInvalid as error:
            return memoryview(b""), error
