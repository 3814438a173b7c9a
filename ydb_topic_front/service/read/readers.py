"""All reading sessions of the front: who shares a consumer's partitions, and who must hear of changes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bridges.catalog.group_view import CONSUMERS, GroupMemberView, GroupSummary, GroupView
from bridges.catalog.progress import Committed
from bridges.catalog.topic import Change, ChangeKind, Topic
from ydb_topic_front.service.read.balancer import Member, Share
from ydb_topic_front.service.read.coordination import Coordination

if TYPE_CHECKING:
    from bridges.catalog.lineage import PartitionInfo
    from ydb_topic_front.service.core import Client, YdbService
    from ydb_topic_front.service.read.coordination import Coordination
    from ydb_topic_front.session.partition_reading import PartitionReading
    from ydb_topic_front.wire.statuses import YdbError

_KIND = "consumer"
_STABLE = "Stable"
_SEARCHES = 4
_TOLD_AT_ONCE = 200
"""Sessions that are told of a change in one turn of the event loop."""
_REST = 9
"""However many partitions are shared, sharing them out takes at most a tenth of the event loop's time."""


class ReadSession(Member, Protocol):
    """A stream that reads, as others see it."""

    @property
    def session_id(self) -> str: ...
    @property
    def consumer(self) -> str: ...
    @property
    def reader_name(self) -> str: ...
    @property
    def client(self) -> Client: ...
    def end(self, error: YdbError) -> None:
        """End with ``error``."""

    def position_moved(self, topic: str, partition: int, offset: int) -> None:
        """Somebody has stored a position on behalf of this session."""

    def unanswered(self, reading: PartitionReading) -> None:
        """Its client did not answer in time what it was asked about a partition."""

    def topic_changed(self, topic: Topic, change: ChangeKind) -> None:
        """Something is different with a topic that is read."""

    def reading(self, topic: str, partition: int) -> PartitionReading | None:
        """What it does with a partition; None if it is not its own."""

    def cut_if_stuck(self, since: float) -> None:
        """End if the client has taken nothing since then, by the monotonic clock."""

    @property
    def readings(self) -> Iterable[PartitionReading]: ...


class Reader(NamedTuple):
    """Who reads a partition for a consumer: times in ms since the epoch, ``last_read_offset`` -1 before the first."""

    session_id: str
    reader_name: str
    began_ms: int
    last_read_offset: int = -1
    last_read_ms: int = 0


class Readers:
    """The sessions by topic, and by what they share."""

    def __init__(self, service: YdbService) -> None:
        self._service = service
        self._progress = service.node.progress
        self._shares: dict[tuple[str, str], Share[ReadSession]] = {}
        self._by_topic: dict[str, dict[ReadSession, None]] = {}
        self._by_id: dict[str, ReadSession] = {}
        self._topics: dict[ReadSession, tuple[str, ...]] = {}
        self._by_consumer: dict[str, dict[ReadSession, None]] = {}
        self.coordination = Coordination(service, self, service.node.owners, service.node.peers)
        """Which consumers are this node's."""
        self.searches = asyncio.Semaphore(_SEARCHES)
        """For who looks where to begin by time: each has a batch in memory, however large that is."""
        # What clients were asked and have not answered, by the monotonic clock, the longest ago first.
        self._asked: dict[PartitionReading, tuple[float, ReadSession]] = {}
        self._due: dict[Share[ReadSession], None] = {}
        self._round: Iterator[None] | None = None  # what is left to do of the shares that were due
        # By the monotonic clock: a share of many partitions takes its time, and is looked at again whenever one of
        # them is let go of.
        self._rested_at = 0.0
        self._spent = 0.0
        service.node.every(
            max(100, service.settings.reader_patience_ms // 5), self.cut_stuck, "readers that take nothing"
        )
        service.node.every(
            max(100, service.settings.reader_answer_ms // 5), self.take_back, "readers that do not answer"
        )
        service.catalog.on_change.append(self._changed)
        service.topics.on_change.append(self._settings_changed)

    def close(self) -> None:
        """Follow topics no more."""
        self._service.catalog.on_change.remove(self._changed)
        self._service.topics.on_change.remove(self._settings_changed)

    # --- sessions come and go -------------------------------------------------------------------------------------

    def enter(self, session: ReadSession, topics: Iterable[Topic]) -> None:
        """A session reads these topics; :meth:`share` gives it partitions."""
        self._by_id[session.session_id] = session
        if session.consumer:
            self._by_consumer.setdefault(session.consumer, {})[session] = None
        names = self._topics[session] = tuple(topic.name for topic in topics)
        for name in names:
            self._by_topic.setdefault(name, {})[session] = None

    def share(self, session: ReadSession, topic: Topic, partitions: Collection[int]) -> None:
        """Have a session of a consumer read a topic's ``partitions``, or any if there are none, with the others."""
        key = session.consumer, topic.name
        share = self._shares.get(key)
        if share is None:
            consumer = session.consumer
            share = self._shares[key] = Share(
                topic.name, lambda: topic.partitions, lambda info: self._done(consumer, topic, info)
            )
        share.join(session, partitions)
        self._balance_soon(share)

    def leave(self, session: ReadSession) -> None:
        """A session has ended: others get what it had. Harmless when repeated."""
        if self._by_id.pop(session.session_id, None) is None:
            return
        peers = self._by_consumer.get(session.consumer)
        if peers is not None:
            peers.pop(session, None)
            if not peers:
                del self._by_consumer[session.consumer]
        for topic in self._topics.pop(session):
            del self._by_topic[topic][session]
            if not self._by_topic[topic]:
                del self._by_topic[topic]
            share = self._shares.get((session.consumer, topic))
            if share is not None and session in share.members:
                share.leave(session)
                if share.members:
                    self._balance_soon(share)
                else:
                    del self._shares[session.consumer, topic]

    def released(self, session: ReadSession, topic: str, partition: int) -> None:
        """A session has let go of a partition."""
        share = self._shares.get((session.consumer, topic))
        if share is not None:
            share.released(session, partition)
            self._balance_soon(share)

    def ended(self, consumer: str, topic: str) -> None:
        """A partition of a topic that has ended was read or committed to its end: its children may be read."""
        share = self._shares.get((consumer, topic))
        if share is not None:
            self._balance_soon(share)

    def consumers(self) -> list[str]:
        """Those that have sessions now."""
        return list(self._by_consumer)

    def end_all(self, consumer: str, error: YdbError) -> None:
        """End all sessions of a consumer."""
        for session in list(self._by_consumer.get(consumer, ())):
            session.end(error)

    # --- what clients are to answer -------------------------------------------------------------------------------

    def asked(self, session: ReadSession, reading: PartitionReading) -> None:
        """A session's client was asked to begin with a partition, or to let go of it: it is to answer in time."""
        self._asked.pop(reading, None)
        self._asked[reading] = time.monotonic(), session

    def answered(self, reading: PartitionReading) -> None:
        """The client has answered, or need not any more."""
        self._asked.pop(reading, None)

    def silent(self, session: ReadSession) -> None:
        """A session's client does not answer: others come first until it is heard of again."""
        for share in self._shares_of(session):
            share.silent(session)

    def heard(self, session: ReadSession) -> None:
        """The client of a session that was silent has said something."""
        for share in self._shares_of(session):
            share.heard(session)
            self._balance_soon(share)

    def _shares_of(self, session: ReadSession) -> Iterator[Share[ReadSession]]:
        for topic in self._topics.get(session, ()):
            share = self._shares.get((session.consumer, topic))
            if share is not None:
                yield share

    async def take_back(self, now_ms: int) -> None:
        """Take partitions from those who did not answer in time what they were asked about them."""
        before = time.monotonic() - self._service.settings.reader_answer_ms / 1000
        while self._asked:
            for _ in range(min(len(self._asked), _TOLD_AT_ONCE)):
                reading = next(iter(self._asked))
                since, session = self._asked[reading]
                if since > before:
                    return
                del self._asked[reading]
                self._service.node.barrier.call("reader that does not answer", session.unanswered, reading)
            await asyncio.sleep(0)

    # --- looking --------------------------------------------------------------------------------------------------

    def session(self, session_id: str) -> ReadSession | None:
        """The session of that name."""
        return self._by_id.get(session_id)

    def owner(self, consumer: str, topic: str, partition: int) -> ReadSession | None:
        """Whose partition it is."""
        share = self._shares.get((consumer, topic))
        return None if share is None else share.owner(partition)

    def find(self, consumer: str, topic: str, partition: int) -> Reader | None:
        """See :attr:`ydb_topic_front.service.core.YdbService.find_reader`."""
        session = self.owner(consumer, topic, partition)
        reading = None if session is None else session.reading(topic, partition)
        if session is None or reading is None:
            return None
        return Reader(
            session.session_id, session.reader_name, reading.began_ms, reading.place.offset - 1, reading.last_read_ms
        )

    # --- positions ------------------------------------------------------------------------------------------------

    async def store(
        self, consumer: str, positions: dict[tuple[str, int], int], wanted: Callable[[], bool]
    ) -> dict[tuple[str, int], int]:
        """Move positions forward, durably; gives what is stored then, which is more where somebody else was faster.

        Where somebody was, it is tried again as long as it is ``wanted``: what is given means nothing after that.
        """
        progress = self._progress
        known: dict[tuple[str, int], int | None] = {}
        for place in positions:
            found = progress.committed(consumer, *place)
            known[place] = None if found is None else found.offset
        while True:
            now = time.time_ns() // 1_000_000
            ahead = {place: offset for place, offset in positions.items() if (known[place] or 0) < offset}
            ahead |= {place: offset for place, offset in positions.items() if known[place] is None}
            rows = [(topic, index, Committed(offset, commit_ms=now)) for (topic, index), offset in ahead.items()]
            differing = await progress.commit_if(consumer, {place: known[place] for place in ahead}, rows)
            if not differing or not wanted():
                return {place: max(offset, known[place] or 0) for place, offset in positions.items()}
            for place, other in differing.items():
                known[place] = None if other is None else other.offset

    def _done(self, consumer: str, topic: Topic, info: PartitionInfo) -> bool:
        """Whether a partition has ended and all of it is committed."""
        if info.end is None:
            return False
        log = self._service.logs.get(topic.name, info.index)
        start = 0 if log is None else log.log_start_offset
        found = self._progress.committed(consumer, topic.name, info.index)
        return max(0 if found is None else found.offset, start) >= info.end

    # --- what changes ---------------------------------------------------------------------------------------------

    def _changed(self, change: Change) -> None:
        if change.topic is None:
            return
        name = change.topic.name
        self._tell(change.topic, change.kind)
        if change.kind in (ChangeKind.PARTITIONS, ChangeKind.SEALED):
            for (_, topic), share in self._shares.items():
                if topic == name:
                    share.changed()
                    self._balance_soon(share)

    def _settings_changed(self, topic: Topic) -> None:
        self._tell(topic, ChangeKind.CONFIG)

    def _tell(self, topic: Topic, kind: ChangeKind) -> None:
        self._tell_some(topic, kind, deque(self._by_topic.get(topic.name, ())))

    def _tell_some(self, topic: Topic, kind: ChangeKind, sessions: deque[ReadSession]) -> None:
        """As many as one turn may: how many read a topic is for clients to choose."""
        for _ in range(min(len(sessions), _TOLD_AT_ONCE)):
            session = sessions.popleft()
            if session in self._topics:
                self._service.node.barrier.call("reader of a changed topic", session.topic_changed, topic, kind)
        if sessions:
            self._service.loop.call_soon(self._tell_some, topic, kind, sessions)

    async def cut_stuck(self, now_ms: int) -> None:
        """While memory is short, end the sessions whose clients hold some and take nothing."""
        budget = self._service.node.budget
        if budget.scarce or budget.waiting:
            since = time.monotonic() - self._service.settings.reader_patience_ms / 1000
            for session in list(self._by_id.values()):
                self._service.node.barrier.call("reader that takes nothing", session.cut_if_stuck, since)

    def _balance_soon(self, share: Share[ReadSession]) -> None:
        """Once for all that happens before its turn comes, or while the last time is slept off."""
        self._due[share] = None
        if self._round is None:
            self._round = self._balance_all()
            rest = self._rested_at - time.monotonic()
            if rest > 0:
                self._service.loop.call_later(rest, self._step)
            else:
                self._service.loop.call_soon(self._step)

    def _balance_all(self) -> Iterator[None]:
        due, self._due = self._due, {}
        for share in due:
            try:
                yield from share.balance()
            except Exception as error:  # noqa: BLE001 - logged and counted; the other shares are balanced nevertheless
                self._service.node.barrier.caught("balance of readers", error)
            yield

    def _step(self) -> None:
        """One step of what is due; everybody else has a turn of the event loop before the next one."""
        began = time.monotonic()
        assert self._round is not None
        over = False
        try:
            next(self._round)
        except StopIteration:
            over = True
        ended = time.monotonic()
        self._spent += ended - began
        if not over:
            self._service.loop.call_soon(self._step)
            return
        self._rested_at, self._spent, self._round = ended + _REST * self._spent, 0.0, None
        for share in list(self._due):
            self._balance_soon(share)

    # --- consumers as groups (see bridges.catalog.group_view) -------------------------------------------------------

    @property
    def space(self) -> str:
        """YDB's consumers are Kafka's groups."""
        return CONSUMERS

    def summaries(self) -> Iterator[GroupSummary]:
        """The consumers that have sessions now."""
        for consumer, sessions in [*self._by_consumer.items()]:
            yield self._summary(consumer, sessions)

    def knows(self, group_id: str) -> bool:
        """Sessions are nowhere but here."""
        return True

    def summary(self, group_id: str) -> GroupSummary | None:
        """One consumer's line, if it has sessions."""
        sessions = self._by_consumer.get(group_id)
        return None if sessions is None else self._summary(group_id, sessions)

    def view(self, group_id: str) -> GroupView | None:
        """One consumer, if it has sessions."""
        sessions = self._by_consumer.get(group_id)
        if sessions is None:
            return None
        members = tuple(_member(session) for session in sessions)
        return GroupView(self._summary(group_id, sessions), 0, "balanced", None, members)

    def _summary(self, consumer: str, sessions: Collection[ReadSession]) -> GroupSummary:
        return GroupSummary(consumer, _KIND, _STABLE, "ydb", len(sessions))


def _member(session: ReadSession) -> GroupMemberView:
    client = session.client
    return GroupMemberView(
        session.session_id,
        None,
        session.reader_name or client.application or client.software,
        client.host,
        tuple((reading.topic, reading.partition) for reading in session.readings),
        client.software,
        client.user,
    )
