"""Watermarks: how far a stream's writers are in time, for readers that ask for their time window.

A writer notes a time and its position: events it writes from then on have that time or a later one. Once per interval,
if all writers of a stream are past the time of the last watermark, another watermark is written: the earliest and the
latest of their times, and for each segment the furthest of their positions. A writer that notes nothing for longer than
the stream's configuration allows no longer holds watermarks back.

Watermarks of ``scope/stream`` are events in the segment of ``scope/_MARKstream``, which is created with the first
watermark and deleted with the stream. The notes of writers are in the node's database, so that a slow writer still
counts after a restart.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Collection
from enum import IntEnum
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct, field

from anabranch_kit.run.rounds import Rounds
from anabranch_kit.run.task_set import TaskSet
from bridges.catalog.database.sql import Connection, upsert
from bridges.catalog.topics.topic import ChangeKind
from bridges.errors import LogError
from bridges.formats.producer import EventStamp, LedgerKind
from pravega_front.controller.streams import ranged
from pravega_front.names import partition_at, segment_of, split_id
from pravega_front.service.pieces import appended
from pravega_front.service.segments import SegmentMissing
from pravega_front.wire.watermark import Ranged, Watermark, decode, encode, places

if TYPE_CHECKING:
    from bridges.catalog.topics.topic import Change, Topic
    from pravega_front.controller.core import Controller
    from pravega_front.service.segment import Segment

log = structlog.get_logger(__name__)

_NOTE = upsert("front_pravega_noted", "topic writer", "time position alive noted_ms")
_WRITERS = 1000
"""Most writers of one stream whose notes are kept: clients choose their number."""
_KEPT_BYTES = 1024 * 1024
"""Size of a watermark segment in bytes at which its older half is truncated."""
_MOST_BYTES = 4 * 1024 * 1024
"""Size beyond which a watermark segment must contain foreign bytes: clients may append to it, too."""
_SLICE_CHARACTERS = 256 * 1024
"""Characters of positions parsed in one transaction, which blocks the database for others."""
_LARGE = 1000
"""Number of segments above which a watermark is encoded in a thread."""
_WRITER_ID = blake2b(b"watermarks", digest_size=16).digest()


class Noted(IntEnum):
    """Answers to a writer's note, with the controller's numbers."""

    SUCCESS = 0
    INVALID_TIME = 1
    INVALID_POSITION = 2
    INTERNAL_ERROR = 3


class _Marks(Struct):
    """Watermarks of one stream: the last one, and the positions where some of the stored ones begin."""

    segment: Segment
    last: Watermark | None = None
    begins: deque[int] = field(default_factory=deque)
    number: int = 0
    """Event number of the last watermark."""

    def remember(self, begin: int) -> None:
        """Note where a watermark begins. Keeps few positions per stream, since there may be many streams."""
        if not self.begins or begin - self.begins[-1] >= _KEPT_BYTES // 16:
            self.begins.append(begin)


class _Writer(Struct):
    """Last note of a writer: ``time`` is the writer's own, ``noted_ms`` the wall clock at the note."""

    name: str
    time: int
    size: int
    """Characters of its encoded position."""
    alive: bool
    noted_ms: int


class Watermarks:
    """Watermarks of the streams. Call :meth:`load` first; :meth:`check_all` is a chore."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._db = controller.node.db
        self._catalog = controller.catalog
        self._segments = controller.segments
        self._marks: dict[str, _Marks] = {}
        self._gone = TaskSet()
        self._rounds: Rounds[str] = controller.node.rounds("watermark")

    async def load(self) -> None:
        """Delete the watermarks of deleted streams in the slots that this node owns or gains."""
        self._catalog.on_change.append(self._changed)
        owners = self._controller.node.owners
        owners.on_gained.append(self._gained)
        self._gained(owners.mine)

    def _gained(self, slots: Collection[int]) -> None:
        """Forget cached watermarks of gained slots, which another node may have changed, and delete those of deleted
        streams."""
        gained, owners = set(slots), self._segments.owners
        for topic in [topic for topic in self._marks if owners.slot_of(topic, 0) in gained]:
            del self._marks[topic]
        for name in self._segments.orphaned_marks():
            segment = self._segments.find(name)
            if segment is not None and self._segments.slot_of(segment) in gained:
                self._delete(name)

    async def close(self) -> None:
        """Leave unfinished deletions to the next start."""
        await self._gone.close()

    def _changed(self, change: Change) -> None:
        if change.kind is ChangeKind.DELETED and change.topic is not None:
            self._marks.pop(change.topic.name, None)
            if "pravega" in change.topic.names:  # topics without such a name are hidden, and no streams
                name = self._segments.mark_of(change.topic)
                segment = self._segments.find(name)
                if segment is not None and self._segments.owners.is_mine(segment.topic, 0):
                    self._delete(name)

    def _delete(self, name: str) -> None:
        self._gone.spawn(self._deleted(name))

    async def _deleted(self, name: str) -> None:
        try:
            await self._segments.delete(name, mark=True)
        except SegmentMissing:
            return
        except LogError as error:
            log.warning("could not delete a stream's watermarks; the next start does", segment=name, reason=str(error))

    # --- what writers say ------------------------------------------------------------------------------------------

    async def note(self, topic: Topic, writer: str, time: int, position: dict[int, int], now_ms: int) -> Noted:
        """Record that a writer has reached ``time`` at ``position``, which maps segment ids to offsets."""
        if any(partition_at(topic, *split_id(number)) is None for number in position):
            return Noted.INVALID_POSITION
        position = {number: max(0, offset) for number, offset in position.items()}  # -1: nothing written there

        def change(connection: Connection) -> Noted:
            query = "SELECT time, position FROM front_pravega_noted WHERE topic = ? AND writer = ?"
            row = connection.execute(query, (topic.name, writer)).fetchone()
            if row is None:
                query = "SELECT count(*) FROM front_pravega_noted WHERE topic = ?"
                if connection.execute(query, (topic.name,)).fetchone()[0] >= _WRITERS:
                    return Noted.INTERNAL_ERROR
            elif row[0] > time:
                return Noted.INVALID_TIME
            elif any(position.get(number, offset) < offset for number, offset in _position(row[1]).items()):
                return Noted.INVALID_POSITION
            values = (topic.name, writer, time, json.dumps(position), 1, now_ms)
            connection.execute(_NOTE, values)
            return Noted.SUCCESS

        return await self._db.run(change)

    async def remove(self, topic: Topic, writer: str) -> None:
        """Note that a writer has ended: its last note counts for one more watermark and then no longer holds them
        back."""
        change = "UPDATE front_pravega_noted SET alive = 0 WHERE topic = ? AND writer = ?"
        await self._db.run(lambda connection: connection.execute(change, (topic.name, writer)))

    # --- what readers get ------------------------------------------------------------------------------------------

    async def check_all(self, now_ms: int) -> None:
        """Write the due watermarks of streams whose first segment this node owns."""
        query = "SELECT DISTINCT topic FROM front_pravega_noted"
        rows = await self._db.run(lambda connection: connection.execute(query).fetchall())
        mine = [topic for (topic,) in rows if self._segments.owners.is_mine(topic, 0)]
        await self._rounds.each(mine, lambda name: self._check(name, now_ms))

    async def _check(self, name: str, now_ms: int) -> None:
        topic = self._catalog.topics.get(name)
        if topic is None:
            return
        try:
            await self._write_due(topic, now_ms)
        except LogError as error:
            log.warning("could not write a watermark; trying again", topic=name, reason=str(error))

    async def _write_due(self, topic: Topic, now_ms: int) -> None:
        marks = await self._load(topic)
        last = None if marks is None else marks.last
        query = "SELECT writer, time, length(position), alive, noted_ms FROM front_pravega_noted WHERE topic = ?"
        rows = await self._db.run(lambda connection: connection.execute(query, (topic.name,)).fetchall())
        writers = [_Writer(name, time, size, bool(alive), ms) for name, time, size, alive, ms in rows]
        settings = self._controller.settings
        patience = self._controller.streams.config(topic).timestampAggregationTimeout
        oldest = now_ms - max(patience, settings.watermark_interval_ms)
        behind = [one for one in writers if last is not None and one.time <= last.lower]
        ended = [one for one in behind if not one.alive or one.noted_ms < oldest]
        further = [one for one in writers if last is None or one.time > last.lower]
        if len(behind) == len(ended) and further:  # else wait until the writers behind advance or time out
            reached: dict[int, int] = {} if last is None else {one.segment_id: at for one, at in last.cut.items()}
            upper = await self._reached(topic, further, reached)
            upper = upper if last is None else max(upper, last.upper)
            lower = min(one.time for one in further)
            await self._write(topic, marks, Watermark(lower, upper, _cut(topic, reached)))
            ended += [one for one in further if not one.alive]
        await self._forget(topic, ended)

    async def _reached(self, topic: Topic, writers: list[_Writer], reached: dict[int, int]) -> int:
        """Raise ``reached``, positions by segment id, to the furthest of the writers' positions; return the latest of
        their times. Uses a writer's newest note. Reads a slice per transaction, since others need the database."""
        latest = max(one.time for one in writers)
        at = 0
        while at < len(writers):
            begin, size = at, 0
            while at < len(writers) and (at == begin or size + writers[at].size <= _SLICE_CHARACTERS):
                size += writers[at].size
                at += 1
            names = [one.name for one in writers[begin:at]]
            times = await self._db.run(partial(_add_reached, topic=topic.name, writers=names, reached=reached))
            latest = max([latest, *times])
        return latest

    async def _forget(self, topic: Topic, ended: list[_Writer]) -> None:
        if not ended:
            return
        # Keeps writers that have noted something since.
        query = "DELETE FROM front_pravega_noted WHERE topic = ? AND writer = ? AND time = ? AND noted_ms = ?"
        keys = [(topic.name, one.name, one.time, one.noted_ms) for one in ended]
        await self._db.run(lambda connection: connection.executemany(query, keys))

    async def _write(self, topic: Topic, marks: _Marks | None, watermark: Watermark) -> None:
        event = await asyncio.to_thread(encode, watermark) if len(watermark.cut) > _LARGE else encode(watermark)
        if marks is None:
            marks = self._marks[topic.name] = _Marks(await self._segments.make_mark(topic))
        begin = await marks.segment.length()
        marks.number += 1
        stamp = EventStamp(_WRITER_ID, marks.number, 1)
        end = await appended(marks.segment, [event], len(event), stamp)
        marks.last = watermark
        marks.remember(begin)
        if end - marks.begins[0] > _KEPT_BYTES:
            while len(marks.begins) > 1 and end - marks.begins[0] > _KEPT_BYTES // 2:
                marks.begins.popleft()
            await marks.segment.truncate(marks.begins[0])

    async def _load(self, topic: Topic) -> _Marks | None:
        """Return the cached or stored watermarks of a stream; None if there are none yet."""
        marks = self._marks.get(topic.name)
        if marks is not None:
            return marks
        segment = self._segments.find(self._segments.mark_of(topic))
        if segment is None:
            return None
        marks = _Marks(segment)
        start, end = await segment.start(), await segment.length()
        try:
            if end - start > _MOST_BYTES:
                raise ValueError(f"{end - start} bytes are too many")
            data = b"".join(await segment.read_all(start, end - start))
            begins = await asyncio.to_thread(places, data)
            if begins:
                marks.last = await asyncio.to_thread(decode, data[begins[-1] :])
            for one in begins:
                marks.remember(start + one)
        except ValueError as error:
            log.warning("invalid bytes after a stream's watermarks are cut off", topic=topic.name, reason=str(error))
            await segment.truncate(end)
        last = segment.log.last(LedgerKind.EVENT_NUMBER, _WRITER_ID)
        marks.number = 0 if last is None else last.number
        return self._marks.setdefault(topic.name, marks)


def _position(raw: str) -> dict[int, int]:
    return {int(number): offset for number, offset in json.loads(raw).items()}


def _add_reached(connection: Connection, topic: str, writers: list[str], reached: dict[int, int]) -> list[int]:
    """Raise ``reached`` to the positions of some writers; return their times."""
    times = []
    query = "SELECT time, position FROM front_pravega_noted WHERE topic = ? AND writer = ?"
    for writer in writers:
        for time, raw in connection.execute(query, (topic, writer)):
            times.append(time)
            for number, offset in _position(raw).items():
                reached[number] = max(reached.get(number, 0), offset)
    return times


def _cut(topic: Topic, reached: dict[int, int]) -> dict[Ranged, int]:
    """Return a position for each segment of the latest epoch that any writer has reached; together they cover the key
    range. Writers are at these positions or below. Everything in earlier epochs is below the cut."""
    epoch = max((split_id(number)[1] for number in reached), default=topic.epoch)
    there = [one for one in topic.partitions if one.lived_in(epoch)]
    parts = [(segment_of(topic, part).segment_id, low, high) for part, low, high in ranged(there)]
    return {Ranged(number, low, high): reached.get(number, 0) for number, low, high in parts}
