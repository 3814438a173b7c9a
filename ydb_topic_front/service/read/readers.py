"""All read sessions of the front: how they share the partitions of their consumers, and which events they must hear
of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from anabranch_kit.run import clock
from anabranch_kit.run.turns import Turns, in_turns, step_through
from bridges.catalog.progress import Committed
from bridges.catalog.topics.topic import Change, ChangeKind, Topic
from bridges.catalog.views.groups import CONSUMERS, GroupDirectory, GroupMemberView, GroupSummary, GroupView
from ydb_topic_front.service.read.balancer import Member, Share
from ydb_topic_front.service.read.coordination import Coordination

if TYPE_CHECKING:
    from bridges.catalog.topics.lineage import PartitionInfo
    from bridges.clients import Client
    from ydb_topic_front.service.core import YdbService
    from ydb_topic_front.service.read.coordination import Coordination
    from ydb_topic_front.session.partition_reading import PartitionReading
    from ydb_topic_front.wire.statuses import YdbError

_KIND = "consumer"
_STABLE = "Stable"
_SEARCHES = 4
_MOVES_MS = 500
"""Interval at which sessions with ``direct_read`` look for partitions that have moved."""
REST = 9
"""Pause after a round of balancing, as a multiple of its duration: balancing takes at most a tenth of the event loop's
time, however many partitions there are."""


class ReadSession(Member, Protocol):
    """A stream that reads, as the other parts of the front see it."""

    @property
    def session_id(self) -> str: ...
    @property
    def consumer(self) -> str: ...
    @property
    def reader_name(self) -> str: ...
    @property
    def client(self) -> Client: ...
    @property
    def is_direct(self) -> bool: ...
    def end(self, error: YdbError) -> None:
        """End the session with ``error``."""

    async def tell_moves(self) -> None:
        """Tell the client of a session with ``direct_read`` which of its partitions have moved."""

    def wake_senders(self) -> None:
        """Let all streams of the session send: there is more credit."""

    def position_moved(self, topic: str, partition: int, offset: int, *, tell: bool = True) -> None:
        """Note that a CommitOffset call has stored a position on behalf of this session."""

    def unanswered(self, reading: PartitionReading) -> None:
        """Note that the client did not answer a request about a partition in time."""

    def topic_changed(self, topic: Topic, change: ChangeKind) -> None:
        """Handle a change of a topic that the session reads."""

    def reading(self, topic: str, partition: int) -> PartitionReading | None:
        """Return the partition session of a partition; None if the session does not have the partition."""

    def cut_if_stuck(self, since: float) -> None:
        """End the session if its client has taken nothing since ``since`` (monotonic clock)."""

    @property
    def readings(self) -> Iterable[PartitionReading]: ...


class Reader(NamedTuple):
    """The session that reads a partition for a consumer. Times in ms since the epoch; ``last_read_offset`` is -1 before
    the first read."""

    session_id: str
    reader_name: str
    began_ms: int
    last_read_offset: int = -1
    last_read_ms: int = 0


class Readers(GroupDirectory):
    """All read sessions, by id, topic and consumer, and one :class:`Share` per consumer and topic."""

    def __init__(self, service: YdbService) -> None:
        self._service = service
        self._progress = service.node.progress
        self._shares: dict[tuple[str, str], Share[ReadSession]] = {}
        self._by_topic: dict[str, dict[ReadSession, None]] = {}
        self.by_id: dict[str, ReadSession] = {}
        self._topics: dict[ReadSession, tuple[str, ...]] = {}
        self._by_consumer: dict[str, dict[ReadSession, None]] = {}
        self._direct: dict[ReadSession, None] = {}
        self.coordination = Coordination(service, self, service.node.owners, service.node.peers)
        """The consumers that this node coordinates."""
        self.searches = asyncio.Semaphore(_SEARCHES)
        """Limits concurrent searches by time: each holds a batch in memory, of any size."""
        # Unanswered requests to clients with the time they were sent (monotonic clock), the oldest first.
        self.asked: dict[PartitionReading, tuple[float, ReadSession]] = {}
        self._due: dict[Share[ReadSession], None] = {}
        self._round: Iterator[None] | None = None  # the rest of the balancing under way
        # Monotonic clock. A share with many partitions takes long to balance, and is balanced again whenever one of
        # them is released.
        self._rested_at = 0.0
        self._spent = 0.0
        service.node.every(
            max(100, service.settings.reader_patience_ms // 5), self.cut_stuck, "readers that take nothing"
        )
        service.node.every(
            max(100, service.settings.reader_answer_ms // 5), self.take_back, "readers that do not answer"
        )
        service.node.every(_MOVES_MS, self.tell_moves, "moves of partitions that are read directly")
        service.catalog.on_change.append(self._changed)
        service.topics.on_change.append(self._settings_changed)

    def close(self) -> None:
        """Stop following topics."""
        self._service.catalog.on_change.remove(self._changed)
        self._service.topics.on_change.remove(self._settings_changed)

    # --- sessions come and go -------------------------------------------------------------------------------------

    def enter(self, session: ReadSession, topics: Iterable[Topic]) -> None:
        """Add a session that reads ``topics``; :meth:`share` assigns it partitions."""
        self.by_id[session.session_id] = session
        if session.is_direct:
            self._direct[session] = None
        if session.consumer:
            self._by_consumer.setdefault(session.consumer, {})[session] = None
            self._progress.came(session.consumer)
        names = self._topics[session] = tuple(topic.name for topic in topics)
        for name in names:
            self._by_topic.setdefault(name, {})[session] = None

    def share(self, session: ReadSession, topic: Topic, partitions: Collection[int]) -> None:
        """Add a consumer's session to those that share a topic. It reads ``partitions``, or any if that is empty."""
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
        """Remove a session that has ended, and assign its partitions to others. Does nothing when repeated."""
        if self.by_id.pop(session.session_id, None) is None:
            return
        self._direct.pop(session, None)
        sessions = self._by_consumer.get(session.consumer)
        if sessions is not None:
            sessions.pop(session, None)
            if not sessions:
                del self._by_consumer[session.consumer]
                self._progress.went(session.consumer)
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
        """Assign a partition that a session has let go of."""
        share = self._shares.get((session.consumer, topic))
        if share is not None:
            share.released(session, partition)
            self._balance_soon(share)

    def ended(self, consumer: str, topic: str) -> None:
        """Balance again after a partition that has ended was read or committed to its end: its children may now be
        read."""
        share = self._shares.get((consumer, topic))
        if share is not None:
            self._balance_soon(share)

    def consumers(self) -> list[str]:
        """Return the consumers that have sessions."""
        return list(self._by_consumer)

    def end_all(self, consumer: str, error: YdbError) -> None:
        for session in list(self._by_consumer.get(consumer, ())):
            session.end(error)

    # --- requests to clients --------------------------------------------------------------------------------------

    def note_question(self, session: ReadSession, reading: PartitionReading) -> None:
        """Note that a client was asked to start or stop a partition session and must answer within
        ``reader_answer_ms``."""
        self.asked.pop(reading, None)
        self.asked[reading] = time.monotonic(), session

    def note_answer(self, reading: PartitionReading) -> None:
        """Note that the client has answered, or need not any more."""
        self.asked.pop(reading, None)

    def demote(self, session: ReadSession) -> None:
        """Put a session whose client does not answer behind all others until it is heard of again."""
        for share in self._shares_of(session):
            share.demote(session)

    def restore(self, session: ReadSession) -> None:
        """Restore a silent session whose client has sent a message."""
        for share in self._shares_of(session):
            share.restore(session)
            self._balance_soon(share)

    def _shares_of(self, session: ReadSession) -> Iterator[Share[ReadSession]]:
        for topic in self._topics.get(session, ()):
            share = self._shares.get((session.consumer, topic))
            if share is not None:
                yield share

    async def take_back(self, now_ms: int) -> None:
        """Take partitions from clients that did not answer a request about them in time."""
        before = time.monotonic() - self._service.settings.reader_answer_ms / 1000
        turns = Turns()
        while self.asked:
            reading = next(iter(self.asked))
            since, session = self.asked[reading]
            if since > before:
                return
            del self.asked[reading]
            self._service.node.barrier.call("reader that does not answer", session.unanswered, reading)
            await turns.rest()

    async def tell_moves(self, now_ms: int) -> None:
        """Tell the clients that read directly which partitions have moved."""
        async for session in in_turns(list(self._direct)):
            await session.tell_moves()

    # --- look-ups -------------------------------------------------------------------------------------------------

    def session(self, session_id: str) -> ReadSession | None:
        return self.by_id.get(session_id)

    def owner(self, consumer: str, topic: str, partition: int) -> ReadSession | None:
        share = self._shares.get((consumer, topic))
        return None if share is None else share.owner(partition)

    def find(self, consumer: str, topic: str, partition: int) -> Reader | None:
        """Describe the session that reads a partition for a consumer; None if there is none."""
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
        """Move positions forward, durably. Returns the stored positions, which are higher where another commit was
        further.

        Retries as long as ``wanted()`` when positions changed meanwhile; once it is false the result means nothing.
        """
        progress = self._progress
        known: dict[tuple[str, int], int | None] = {}
        for place in positions:
            found = progress.committed(consumer, *place)
            known[place] = None if found is None else found.offset
        while True:
            now = clock.now_ms()
            ahead = {place: offset for place, offset in positions.items() if (known[place] or 0) < offset}
            ahead |= {place: offset for place, offset in positions.items() if known[place] is None}
            rows = [(topic, index, Committed(offset, commit_ms=now)) for (topic, index), offset in ahead.items()]
            differing = await progress.commit_if(consumer, {place: known[place] for place in ahead}, rows)
            if not differing or not wanted():
                return {place: max(offset, known[place] or 0) for place, offset in positions.items()}
            for place, other in differing.items():
                known[place] = None if other is None else other.offset

    def _done(self, consumer: str, topic: Topic, info: PartitionInfo) -> bool:
        """Return whether a partition has ended and all of it is committed or trimmed."""
        if info.end is None:
            return False
        log = self._service.logs.get(topic.name, info.index)
        start = 0 if log is None else log.log_start_offset
        found = self._progress.committed(consumer, topic.name, info.index)
        return max(0 if found is None else found.offset, start) >= info.end

    # --- changes of topics ----------------------------------------------------------------------------------------

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
        """Notify the sessions of a change, in turns: clients decide how many read a topic."""
        sessions = (session for session in list(self._by_topic.get(topic.name, ())) if session in self._topics)
        call = partial(self._service.node.barrier.call, "reader of a changed topic")
        step_through((call(one.topic_changed, topic, kind) for one in sessions), self._service.loop.call_soon)

    async def cut_stuck(self, now_ms: int) -> None:
        """End the sessions whose clients hold memory and take nothing, while memory is short."""
        budget = self._service.node.budget
        if budget.scarce or budget.waiting:
            since = time.monotonic() - self._service.settings.reader_patience_ms / 1000
            for session in list(self.by_id.values()):
                self._service.node.barrier.call("reader that takes nothing", session.cut_if_stuck, since)

    def _balance_soon(self, share: Share[ReadSession]) -> None:
        """Schedule a balance, one for all events until it runs. It waits out the pause after the previous round."""
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
        """Run one step of balancing. Other tasks get a turn of the event loop before the next one."""
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
        self._rested_at, self._spent, self._round = ended + REST * self._spent, 0.0, None
        for share in list(self._due):
            self._balance_soon(share)

    # --- consumers as groups (see bridges.catalog.views.groups) -------------------------------------------------------

    @property
    def space(self) -> str:
        """Return the name space of the consumers, which they share with Kafka's groups."""
        return CONSUMERS

    def summaries(self) -> Iterator[GroupSummary]:
        for consumer, sessions in [*self._by_consumer.items()]:
            yield self._summary(consumer, sessions)

    def knows(self, group_id: str) -> bool:
        """Return True: sessions are never stored, so all members are known."""
        return True

    def summary(self, group_id: str) -> GroupSummary | None:
        """Return a consumer's summary, None if it has no sessions."""
        sessions = self._by_consumer.get(group_id)
        return None if sessions is None else self._summary(group_id, sessions)

    def view(self, group_id: str) -> GroupView | None:
        """Return a consumer with its members, None if it has no sessions."""
        sessions = self._by_consumer.get(group_id)
        if sessions is None:
            return None
        members = tuple(_member(session) for session in sessions)
        return GroupView(self._summary(group_id, sessions), 0, "balanced", None, members)

    def _summary(self, consumer: str, sessions: Collection[ReadSession]) -> GroupSummary:
        return GroupSummary(consumer, _KIND, _STABLE, "ydb", len(sessions))


def _member(session: ReadSession) -> GroupMemberView:
    described = session.client.describe().cut()
    return GroupMemberView(
        session.session_id,
        None,
        described.name or described.software,
        session.client.host,
        tuple((reading.topic, reading.partition) for reading in session.readings),
        described.software,
        described.user,
    )
