"""Watermarks: how far writers are in time, for readers that ask for their time window.

A writer notes a time and the position it has written to: what it writes from then on is of that time or later. Once in
an interval, when all writers of a stream have come further in time than the last watermark, another one is written
behind it: the earliest and the latest of their times, and the positions that all of them have reached or are below. A
writer that notes nothing for longer than the stream's configuration allows is waited for no more.

Watermarks of ``scope/stream`` are events of the segment of ``scope/_MARKstream``, which is made with the first of them
and goes with the stream. What writers noted is in the node's database, so that one that is slow counts also after a
restart.
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
from bridges.catalog.sql import Connection, upsert
from bridges.catalog.topic import ChangeKind
from bridges.errors import LogError
from bridges.formats.producer import EventStamp, LedgerKind
from pravega_front.controller.streams import ranged
from pravega_front.names import partition_at, segment_of, split_id
from pravega_front.service.pieces import appended
from pravega_front.service.segments import SegmentMissing
from pravega_front.wire.watermark import Ranged, Watermark, decode, encode, places

if TYPE_CHECKING:
    from bridges.catalog.topic import Change, Topic
    from pravega_front.controller.core import Controller
    from pravega_front.service.segment import Segment

log = structlog.get_logger(__name__)

_NOTE = upsert("front_pravega_noted", "topic writer", "time position alive noted_ms")
_WRITERS = 1000
"""Writers of one stream that are waited for at most: how many there are is for clients to choose."""
_KEPT_BYTES = 1024 * 1024
"""Bytes of watermarks beyond which the older half is truncated."""
_MOST_BYTES = 4 * 1024 * 1024
"""Bytes beyond which what lies there is not ours: clients may append to such a segment, too."""
_SLICE_CHARACTERS = 256 * 1024
"""Characters of positions that are looked at while others wait for the database."""
_LARGE = 1000
"""Segments of a watermark that is made in a thread."""
_WRITER_ID = blake2b(b"watermarks", digest_size=16).digest()


class Noted(IntEnum):
    """Answers to a writer that notes a time; the controller's numbers."""

    SUCCESS = 0
    INVALID_TIME = 1
    INVALID_POSITION = 2
    INTERNAL_ERROR = 3


class _Marks(Struct):
    """The watermarks of one stream: the last one, and where some of those that are kept begin."""

    segment: Segment
    last: Watermark | None = None
    begins: deque[int] = field(default_factory=deque)
    number: int = 0
    """That of the last event, as their writer's."""

    def remember(self, begin: int) -> None:
        """One begins there. Few are remembered: there may be many streams."""
        if not self.begins or begin - self.begins[-1] >= _KEPT_BYTES // 16:
            self.begins.append(begin)


class _Writer(Struct):
    """What a writer noted last: a time of its own; ``noted_ms`` is when (wall clock)."""

    name: str
    time: int
    size: int
    """Characters of its position."""
    alive: bool
    noted_ms: int


class Watermarks:
    """The watermarks of a node's streams. Call :meth:`load` first; :meth:`look` is a chore."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._db = controller.node.db
        self._catalog = controller.catalog
        self._segments = controller.segments
        self._marks: dict[str, _Marks] = {}
        self._gone = TaskSet()
        self._rounds: Rounds[str] = controller.node.rounds("watermark")

    async def load(self) -> None:
        """Delete the watermarks of streams that are deleted, of what this node owns and comes to own."""
        self._catalog.on_change.append(self._changed)
        owners = self._controller.node.owners
        owners.on_gained.append(self._gained)
        self._gained(owners.mine)

    def _gained(self, slots: Collection[int]) -> None:
        """What was known of marks when this node had them before may not hold."""
        gained, owners = set(slots), self._segments.owners
        for topic in [topic for topic in self._marks if owners.slot_of(topic, 0) in gained]:
            del self._marks[topic]
        for name in self._segments.orphaned_marks():
            segment = self._segments.find(name)
            if segment is not None and self._segments.slot_of(segment) in gained:
                self._delete(name)

    async def close(self) -> None:
        """Leave the rest to the next start."""
        await self._gone.close()

    def _changed(self, change: Change) -> None:
        if change.kind is ChangeKind.DELETED and change.topic is not None:
            self._marks.pop(change.topic.name, None)
            if "pravega" in change.topic.names:  # others are hidden, and no streams
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
            log.warning("a stream's watermarks are deleted by the next start", segment=name, reason=str(error))

    # --- what writers say ------------------------------------------------------------------------------------------

    async def note(self, topic: Topic, writer: str, time: int, position: dict[int, int], now_ms: int) -> Noted:
        """A writer has come to ``time`` and written up to ``position``, by the ids of segments."""
        if not all(_has_segment(topic, number) for number in position):
            return Noted.INVALID_POSITION
        position = {number: max(0, offset) for number, offset in position.items()}  # of one that wrote nothing it is -1

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
        """A writer has ended: what it noted counts once more, and it is waited for no more."""
        change = "UPDATE front_pravega_noted SET alive = 0 WHERE topic = ? AND writer = ?"
        await self._db.run(lambda connection: connection.execute(change, (topic.name, writer)))

    # --- what readers get ------------------------------------------------------------------------------------------

    async def look(self, now_ms: int) -> None:
        """Write the watermarks that are due, of streams whose first segment is this node's."""
        query = "SELECT DISTINCT topic FROM front_pravega_noted"
        rows = await self._db.run(lambda connection: connection.execute(query).fetchall())
        mine = [topic for (topic,) in rows if self._segments.owners.is_mine(topic, 0)]
        await self._rounds.each(mine, lambda name: self._look_at(name, now_ms))

    async def _look_at(self, name: str, now_ms: int) -> None:
        topic = self._catalog.topics.get(name)
        if topic is None:
            return
        try:
            await self._write_due(topic, now_ms)
        except LogError as error:
            log.warning("a watermark is written later", topic=name, reason=str(error))

    async def _write_due(self, topic: Topic, now_ms: int) -> None:
        marks = await self._of(topic)
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
        if len(behind) == len(ended) and further:  # else until they come further, or are waited for no more
            reached: dict[int, int] = {} if last is None else {one.segment_id: at for one, at in last.cut.items()}
            upper = await self._reached(topic, further, reached)
            upper = upper if last is None else max(upper, last.upper)
            lower = min(one.time for one in further)
            await self._write(topic, marks, Watermark(lower, upper, _cut(topic, reached)))
            ended += [one for one in further if not one.alive]
        await self._forget(topic, ended)

    async def _reached(self, topic: Topic, writers: list[_Writer], reached: dict[int, int]) -> int:
        """Add to ``reached``, positions by the ids of segments, how far writers have come together; gives the latest of
        their times. A writer that has noted something meanwhile counts with that. A slice at a time: others need the
        database."""
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
        # Not those that have noted something since.
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

    async def _of(self, topic: Topic) -> _Marks | None:
        """The watermarks there are of a stream; None if there are none yet."""
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
            data = b""
            while start + len(data) < end:
                pieces = await segment.read(start + len(data), end - start - len(data))
                if not pieces:
                    raise LogError(f"{segment.name} has nothing at {start + len(data)}, below its end {end}")
                data += b"".join(pieces)
            begins = await asyncio.to_thread(places, data)
            if begins:
                marks.last = await asyncio.to_thread(decode, data[begins[-1] :])
            for one in begins:
                marks.remember(start + one)
        except ValueError as error:
            log.warning("what was appended to a stream's watermarks is none", topic=topic.name, reason=str(error))
            await segment.truncate(end)
        last = segment.log.last(LedgerKind.EVENT_NUMBER, _WRITER_ID)
        marks.number = 0 if last is None else last.number
        return self._marks.setdefault(topic.name, marks)


def _has_segment(topic: Topic, number: int) -> bool:
    return partition_at(topic, *split_id(number)) is not None


def _position(raw: str) -> dict[int, int]:
    return {int(number): offset for number, offset in json.loads(raw).items()}


def _add_reached(connection: Connection, topic: str, writers: list[str], reached: dict[int, int]) -> list[int]:
    """Add positions of writers to those that are reached; gives their times."""
    times = []
    query = "SELECT time, position FROM front_pravega_noted WHERE topic = ? AND writer = ?"
    for writer in writers:
        for time, raw in connection.execute(query, (topic, writer)):
            times.append(time)
            for number, offset in _position(raw).items():
                reached[number] = max(reached.get(number, 0), offset)
    return times


def _cut(topic: Topic, reached: dict[int, int]) -> dict[Ranged, int]:
    """The positions that all writers have reached or are below, over all keys: of the segments that there were in the
    latest epoch that any of them writes to. Of those before, all is below."""
    epoch = max((split_id(number)[1] for number in reached), default=topic.epoch)
    there = [one for one in topic.partitions if one.lived_in(epoch)]
    parts = [(segment_of(topic, part).segment_id, low, high) for part, low, high in ranged(there)]
    return {Ranged(number, low, high): reached.get(number, 0) for number, low, high in parts}
