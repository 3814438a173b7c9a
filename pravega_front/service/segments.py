"""Registry of segments: partitions of streams, and loose segments, which belong to no stream.

A loose segment lies in a hidden topic of its own. Tools create them by command, writers of large events create
transient ones, and transactions have their own.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from bridges.catalog.database.sql import Connection
from bridges.catalog.topics.topic import FOLLOWED, Beside, Change, ChangeKind, TopicExists, TopicKind, TopicNotFound
from bridges.errors import LogError
from pravega_front.names import (
    LONGEST_NAME,
    MARK,
    SegmentName,
    is_transactions,
    parse_segment,
    partition_at,
    segment_of,
)
from pravega_front.service.owners import Owners
from pravega_front.service.segment import Cursors, Segment
from pravega_front.service.state import Loose, SegmentState, add_loose, read_loose
from pravega_front.service.tables.life import table_count

if TYPE_CHECKING:
    from bridges.catalog.topics.topic import Topic
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.node.front import NodeServices
    from pravega_front.service.transactions.running import OpenTransactions, RunningMerges
    from pravega_front.settings import PravegaSettings

_HIDDEN = "_pravega.segment-"
_OF = "#of."
"""Suffix after the name of a watermark segment, followed by the backend's stream id of the stream's first partition."""
#: Configuration of a hidden topic: no retention.
KEEP = {"retention.ms": "-1", "retention.bytes": "-1"}


class SegmentExists(LogError):
    """The segment exists already."""


class SegmentMissing(LogError):
    """The segment does not exist."""


class NotPossible(LogError):
    """The operation is not possible for this segment."""


class Segments:
    """Segments by name. Call :meth:`load` first."""

    def __init__(
        self, node: NodeServices, settings: PravegaSettings, transactions: OpenTransactions, merges: RunningMerges
    ) -> None:
        self.state = SegmentState(node.db, settings.attributes_per_segment)
        self.transactions = transactions
        self.merges = merges
        self.owners = Owners(node.owners, node.node_id, node.peers)
        self._node = node
        self._max_events = settings.append_events
        self._max_loose = settings.segments
        self._cursors = Cursors()
        # Loose segments: topic by name, and name by topic.
        self._loose: dict[str, str] = {}
        self._in: dict[str, str] = {}
        self._sealed: set[str] = set()
        self._mark_waiters: dict[str, dict[Callable[[], None], None]] = {}
        self._making: set[str] = set()
        self._making_mark = asyncio.Lock()
        self._open: dict[PartitionLog, Segment] = {}

    async def load(self) -> None:
        """Read the loose segments from the database, and follow the catalog."""
        self._node.db.changes.mirror(FOLLOWED, read_loose, self._follow)
        for topic, found in (await self.state.loose()).items():
            if topic in self._node.catalog.hidden:
                self._know(topic, found)
        self._node.catalog.on_change.append(self._changed)
        self._node.owners.on_lost.append(self._lost)

    async def _lost(self, slots: Collection[int], in_order: bool) -> None:
        for mark in list(self._mark_waiters):
            self._wake(mark)  # waiting reads find out that this node is no longer the owner

    def _follow(self, found: dict[str, Loose], names: Collection[str] | None) -> None:
        """Update memory with other nodes' changes of loose segments."""
        for topic in set(self._in if names is None else names) - found.keys():
            self._forget(topic)
        for topic, one in found.items():
            self._know(topic, one)

    def _know(self, topic: str, found: Loose) -> None:
        self._loose[found.name] = topic
        self._in[topic] = found.name
        if found.sealed:
            self._sealed.add(topic)
            log = self._node.logs.hidden(topic, 0) if topic in self._node.catalog.hidden else None
            if log is not None and log in self._open:
                self._open[log].loose_sealed = True
                log.moved()

    def _forget(self, topic: str) -> None:
        name = self._in.pop(topic, None)
        self._sealed.discard(topic)
        if name is not None and self._loose.get(name) == topic:
            del self._loose[name]

    def close(self) -> None:
        """Stop following the catalog."""
        self._node.catalog.on_change.remove(self._changed)

    def _changed(self, change: Change) -> None:
        if change.kind is ChangeKind.DELETED and change.topic is not None:
            name = change.topic.name
            self._forget(name)
            for log in [log for log in self._open if log.topic == name]:
                del self._open[log]
            if "pravega" in change.topic.names:
                self._wake(self.mark_of(change.topic))  # waiting reads of its watermarks find out that they are gone

    # --- looking up ------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Segment | None:
        """Return the segment called ``name``, or None."""
        if is_transactions(name):
            place = self.transactions.place(name)
            if place is None:
                return None
            log = self._node.logs.hidden(*place)
            return None if log is None else self._segment(name, log, loose=True)
        parsed = parse_segment(name)
        if parsed is None or parsed.suffix:
            return self._find_loose(name)
        found = self._node.catalog.by_name("pravega", f"{parsed.scope}/{parsed.stream}")
        if found is None:
            # A watermark segment takes precedence over a loose one of the same name, created before the stream.
            marked = self.marked(name)
            return self._find_loose(name if marked is None else self.mark_of(marked))
        partition = partition_at(found, parsed.number, parsed.epoch)
        log = None if partition is None else self._node.logs.get(found.name, partition.index)
        return None if log is None else self._segment(str(parsed), log)

    async def here(self, name: str) -> Segment | None:
        """Return the segment called ``name`` if this node owns it, None if it does not exist. Raises NotOwner for a
        segment of another node, including a watermark segment that does not exist yet; an error of the database."""
        segment = self.find(name)
        if segment is None:
            await self._node.db.changes.catch_up()  # another node may have created it a moment ago
            segment = self.find(name)
        if segment is None:
            stream = self.marked(name)
            if stream is not None:
                await self.owners.require(self.owners.slot_of(stream.name, 0), name)
            return self.find(name)
        await self.owners.require(self.slot_of(segment), name)
        return segment if not segment.log.is_deleted else self.find(name)

    def slot_of(self, segment: Segment) -> int:
        return self.owners.slot_of(segment.topic, segment.partition)

    def slot_of_name(self, name: str) -> int:
        """Return the slot of the segment called ``name``; -1 for tables and unknown names, which any node answers."""
        segment = self.find(name)
        if segment is not None:
            return self.slot_of(segment)
        stream = self.marked(name)
        return -1 if stream is None else self.owners.slot_of(stream.name, 0)

    def _find_loose(self, name: str) -> Segment | None:
        topic = self._loose.get(name)
        log = None if topic is None else self._node.logs.hidden(topic, 0)
        return None if log is None else self._segment(name, log, loose=True)

    # --- watermarks ------------------------------------------------------------------------------------------------

    def is_mark(self, name: str) -> bool:
        """Return whether ``name`` is a stream's watermark segment, which may not exist yet."""
        return self.marked(name) is not None

    def marked(self, name: str) -> Topic | None:
        """Return the stream whose watermark segment is called ``name``, or None."""
        parsed = parse_segment(name)
        if parsed is None or parsed.suffix or not parsed.stream.startswith(MARK):
            return None
        stream = parsed.stream.removeprefix(MARK)
        found = self._node.catalog.by_name("pravega", f"{parsed.scope}/{stream}")
        # Its number is the stream's first number: readers of a former stream's watermarks learn that they are gone.
        return found if found is not None and (parsed.number, parsed.epoch) == (found.first_number, 0) else None

    def mark_of(self, topic: Topic) -> str:
        """Return the stored name of a stream's watermark segment. A recreated stream has another one."""
        scope, _, stream = topic.names["pravega"].partition("/")
        return f"{SegmentName(scope, MARK + stream, 0, 0)}{_OF}{topic.partitions[0].stream_id}"

    async def make_mark(self, topic: Topic) -> Segment:
        """Return a stream's watermark segment, creating it if missing. Raises NotPossible (too many segments),
        SegmentMissing (the stream was deleted), LogError."""
        name = self.mark_of(topic)
        async with self._making_mark:
            segment = self._find_loose(name)
            if segment is None:
                segment = await self.create(name, beside=Beside(topic.topic_id.bytes, (0,)))
                if self._node.catalog.topics.get(topic.name) is not topic:
                    await self.delete(name, mark=True)
                    raise SegmentMissing(f"stream {topic.name} was deleted")
                self._wake(name)
        return segment

    def orphaned_marks(self) -> list[str]:
        """Return the watermark segments of deleted streams."""
        found = [name for name in self._loose if _OF in name]
        if not found:
            return []
        topics = self._node.catalog.topics.values()
        known = {self.mark_of(topic) for topic in topics if "pravega" in topic.names}
        return [name for name in found if name not in known]

    def wait_for_mark(self, name: str, made: Callable[[], None]) -> Callable[[], None]:
        """Call ``made`` when a stream gets its watermark segment ``name``. Returns a function that cancels this."""
        topic = self.marked(name)
        own = name if topic is None else self.mark_of(topic)
        self._mark_waiters.setdefault(own, {})[made] = None

        def forget() -> None:
            waiters = self._mark_waiters.get(own, {})
            waiters.pop(made, None)
            if not waiters:
                self._mark_waiters.pop(own, None)

        return forget

    def _wake(self, mark: str) -> None:
        for made in list(self._mark_waiters.pop(mark, ())):
            self._node.barrier.call("first watermark", made)

    def _segment(self, name: str, log: PartitionLog, *, loose: bool = False) -> Segment:
        segment = self._open.get(log)
        if segment is None:
            segment = Segment(name, log, self._node.translator, self._max_events, self._cursors, loose=loose)
            segment.loose_sealed = loose and log.topic in self._sealed
            self._open[log] = segment
        return segment

    def loose(self) -> list[tuple[str, Segment]]:
        """Return the segments of no stream and no transaction, with their names."""
        found = [(name, self.find(name)) for name in self._loose]
        return [(name, segment) for name, segment in found if segment is not None]

    def in_topic(self, topic: str, partition: int) -> Segment | None:
        """Return the segment in a partition of a topic, hidden or not; None if there is none."""
        if topic in self._node.catalog.hidden:
            name = self._in.get(topic) or self.transactions.at(topic, partition)
            return None if name is None else self.find(name)
        found = self._node.catalog.topics.get(topic)
        if found is None or not partition < len(found.partitions):
            return None
        return self.find(str(segment_of(found, found.partitions[partition])))

    # --- changing --------------------------------------------------------------------------------------------------

    def beside(self, segment: Segment) -> Beside | None:
        """Return a placement that always has the same owner as ``segment``."""
        place = self._node.catalog.place_of(segment.topic, segment.partition)
        return None if place is None else Beside(place[0], (place[1],))

    async def create(self, name: str, kind: TopicKind = TopicKind.TRANSIENT, beside: Beside | None = None) -> Segment:
        """Create a loose segment, ``beside`` others, or at this node. Raises SegmentExists, NotPossible (too many
        segments, or too long a name), LogError."""
        if len(name) > LONGEST_NAME:
            raise NotPossible(f"a name of {len(name)} characters, of {LONGEST_NAME} at most")
        if name in self._making or self.find(name) is not None:
            raise SegmentExists(f"there is a segment {name!r}")
        if self.room_for_tables() <= 0:
            raise self._too_many()
        self._making.add(name)
        topic = f"{_HIDDEN}{uuid.uuid4().hex}"
        room = self.room_for_tables()

        def also(connection: Connection) -> None:
            if table_count(connection) > room:
                raise self._too_many()
            add_loose(connection, name, topic)

        try:
            await self._node.catalog.create_topic(
                topic,
                1,
                KEEP,
                kind=kind,
                also=also,
                then=lambda: self._know(topic, Loose(name, False)),
                beside=beside or self.owners.beside_own(),
            )
        except TopicExists as error:
            raise SegmentExists(str(error)) from error
        finally:
            self._making.discard(name)
        found = self.find(name)
        assert found is not None, name
        return found

    def room_for_tables(self) -> int:
        """Return how many table segments there may be besides the present loose segments."""
        return self._max_loose - len(self._loose) - len(self._making)

    def _too_many(self) -> NotPossible:
        return NotPossible(f"there are {self._max_loose} segments that belong to no stream: no more can be made")

    def is_kept(self, name: str) -> bool:
        """Return whether a loose segment can only be deleted with its stream or transaction, not by clients."""
        return is_transactions(name) or _OF in name or self.is_mark(name)

    async def delete(self, name: str, *, mark: bool = False) -> None:
        """Delete a loose segment with its data; ``mark``: allow a watermark segment. Raises SegmentMissing, NotPossible
        (a stream's segment), LogError."""
        segment = self.find(name)
        if segment is None:
            raise SegmentMissing(f"there is no segment {name!r}")
        if not segment.loose or self.merges.keeps(name) or (self.is_kept(name) and not mark):
            raise NotPossible("segments of a stream or a transaction are deleted with it, and merged ones by that")
        self._forget(segment.topic)
        try:
            await self._node.catalog.delete_topic(segment.topic)
        except TopicNotFound:
            raise SegmentMissing(f"there is no segment {name!r}") from None
        except BaseException:
            self._know(segment.topic, Loose(name, segment.loose_sealed))
            raise

    async def seal(self, segment: Segment) -> None:
        """Seal a segment. Raises NotPossible, LogError.

        A stream's segment can be sealed alone only if it is the stream's only active one; that ends the stream.
        """
        if segment.loose:
            if self.is_kept(segment.name):
                raise NotPossible("a transaction's segments end with it, and watermarks with their stream")
            segment.loose_sealed = True
            self._sealed.add(segment.topic)
            await self.state.seal_loose(segment.topic)
            segment.log.moved()
            return
        catalog = self._node.catalog
        topic = catalog.topic(segment.topic)
        if self.transactions.in_topic(segment.topic):
            raise NotPossible("the stream has open transactions, which the controller would abort")
        if [one.index for one in topic.active] != [segment.partition]:
            raise NotPossible("a stream's segment is sealed by the controller, which makes others in its place")
        await self.end_stream(segment.topic)

    async def end_stream(self, topic: str) -> None:
        """Seal all segments of a stream. Raises LogError."""
        catalog = self._node.catalog
        active = [one.index for one in catalog.topic(topic).active]
        if active:
            await catalog.change_partitions(topic, active, ())
