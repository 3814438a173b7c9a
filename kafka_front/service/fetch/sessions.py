"""Incremental fetch sessions (KIP-227; docs/protocols/kafka.md, rule 45).

A session remembers the partitions that a consumer reads and their state in its last answer. So a request names only
changes and a response only news.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial

from anabranch_kit.run.turns import in_turns, portions
from kafka_front.service.fetch.places import Key, Places
from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.messages import FetchRequest, FetchResponse

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_LAST_EPOCH = 2**31 - 1


class FetchedPartition:
    """One partition of a consumer, and its state in the last answer."""

    __slots__ = (
        "fetch_offset",
        "high_watermark",
        "leader_epoch",
        "log_start_offset",
        "max_bytes",
        "partition",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, topic_id: bytes, request: FetchRequest.FetchPartition) -> None:
        # If the client asks by id, the name that the topic had when it was last found; empty until then.
        self.topic = topic
        self.topic_id = topic_id
        self.partition = request.partition
        self.high_watermark = -1
        self.log_start_offset = -1
        self.fetch_offset = request.fetch_offset
        self.max_bytes = request.partition_max_bytes
        self.leader_epoch = request.current_leader_epoch

    def update(self, request: FetchRequest.FetchPartition) -> None:
        """Take over the position and size that the consumer asks for."""
        self.fetch_offset = request.fetch_offset
        self.max_bytes = request.partition_max_bytes
        self.leader_epoch = request.current_leader_epoch

    def news(self, data: FetchResponse.PartitionData) -> bool:
        """Return whether an incremental response must name this partition, and remember the state that it sends."""
        changed = (
            bool(data.records)
            or data.error_code != ErrorCode.NONE
            or data.preferred_read_replica >= 0
            or data.high_watermark != self.high_watermark
            or data.log_start_offset != self.log_start_offset
        )
        self.high_watermark = data.high_watermark
        self.log_start_offset = data.log_start_offset
        # The next response after an error must name the partition again, even if nothing else has changed by then.
        if data.error_code != ErrorCode.NONE:
            self.high_watermark = -1
        return changed


class FetchSession:
    """The partitions of one consumer, in the order in which they are served next, and their places.

    ``busy``: a request is changing the session in turns; other requests are refused meanwhile.
    """

    __slots__ = ("busy", "epoch", "id", "last_used", "partitions", "places", "uses_ids")

    def __init__(self, session_id: int, uses_ids: bool, partitions: dict[Key, FetchedPartition], now: float) -> None:
        self.id = session_id
        self.epoch = 1
        self.busy = False
        self.uses_ids = uses_ids
        self.partitions = partitions
        self.places = Places(partitions)
        self.last_used = now

    def advance(self) -> None:
        """Expect the next epoch from now on."""
        self.epoch = 1 if self.epoch == _LAST_EPOCH else self.epoch + 1

    def served(self, keys: Iterable[Key]) -> None:
        """Put partitions that just delivered data behind those that did not, so that none starves."""
        for key in keys:
            found = self.partitions.pop(key, None)
            if found is not None:
                self.partitions[key] = found
                self.places.served(key)


class SessionError(Exception):
    """The request does not fit its session; the client starts over with a full fetch."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


def _key(topic: str, topic_id: bytes, partition: int, uses_ids: bool) -> Key:
    return (topic_id if uses_ids else topic, partition)


class FetchSessions:
    """All sessions of a node, at most ``slots``; idle ones make room after ``evict_after`` seconds.

    They remember at most ``partitions`` in all, and one session a tenth of that, since a request of a few bytes is
    answered for all partitions of its session. A client that reads more names them in each request. ``later`` calls a
    function in a later turn of the event loop.
    """

    __slots__ = ("_later", "_partitions", "evict_after", "most", "sessions", "slots")

    def __init__(
        self,
        slots: int,
        evict_after: float = 120.0,
        *,
        partitions: int = 500_000,
        later: Callable[[Callable[[], None]], object] = lambda call: call(),
    ) -> None:
        self._later = later
        self.slots = slots
        self.evict_after = evict_after
        self.most = partitions
        self._partitions = 0
        # In order of last use.
        self.sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self.sessions)

    def resolve(
        self, request: FetchRequest, uses_ids: bool, now: float
    ) -> tuple[FetchSession | None, dict[Key, FetchedPartition]]:
        """Return the session (None: the request stands alone) and the partitions to serve.

        Raises SessionError.
        """
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            asked = (_asked_for(topic, part, uses_ids) for topic in request.topics for part in topic.partitions)
            return self._begun(request, uses_ids, dict(asked), now)
        found = self._find(request, uses_ids, now)
        before = len(found.partitions)
        for topic in request.topics:
            _name(found, topic, topic.partitions)
        for forgotten in request.forgotten_topics_data:
            _forget(found, forgotten, forgotten.partitions)
        self._partitions += len(found.partitions) - before
        self._check_size(found, before)
        found.advance()
        return found, found.partitions

    async def resolve_in_turns(
        self, request: FetchRequest, uses_ids: bool, now: float
    ) -> tuple[FetchSession | None, dict[Key, FetchedPartition]]:
        """Resolve a request that names many partitions, like :meth:`resolve`, in turns with other work."""
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            asked: dict[Key, FetchedPartition] = {}
            async for topic in in_turns(request.topics):
                async for some in portions(topic.partitions):
                    asked.update(_asked_for(topic, part, uses_ids) for part in some)
            return self._begun(request, uses_ids, asked, now)
        found = self._find(request, uses_ids, now)
        before = len(found.partitions)
        found.busy = True
        try:
            async for topic in in_turns(request.topics):
                async for parts in portions(topic.partitions):
                    self._change(found, before, partial(_name, found, topic, parts))
            async for forgotten in in_turns(request.forgotten_topics_data):
                async for numbers in portions(forgotten.partitions):
                    self._change(found, before, partial(_forget, found, forgotten, numbers))
        except BaseException:
            self.drop(found.id)  # it is not what the client believes
            raise
        finally:
            found.busy = False
        self._check_size(found, before)
        found.advance()
        return found, found.partitions

    def _begun(
        self, request: FetchRequest, uses_ids: bool, asked: dict[Key, FetchedPartition], now: float
    ) -> tuple[FetchSession | None, dict[Key, FetchedPartition]]:
        if request.session_id:
            self.drop(request.session_id)
        if request.session_epoch == FINAL_EPOCH or not asked or not self._make_room(now, len(asked)):
            return None, asked
        session = FetchSession(self._new_id(), uses_ids, asked, now)
        self.sessions[session.id] = session
        self._partitions += len(asked)
        return session, asked

    def _find(self, request: FetchRequest, uses_ids: bool, now: float) -> FetchSession:
        found = self.sessions.get(request.session_id)
        if found is None:
            raise SessionError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if request.session_epoch != found.epoch or found.busy:
            raise SessionError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if uses_ids != found.uses_ids:
            raise SessionError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        found.last_used = now
        self.sessions.move_to_end(found.id)
        return found

    def _change(self, session: FetchSession, before: int, change: Callable[[], None]) -> None:
        """Make one part of a change that runs in turns. Raises SessionError."""
        if self.sessions.get(session.id) is not session:
            raise SessionError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        had = len(session.partitions)
        change()
        self._partitions += len(session.partitions) - had
        self._check_size(session, before)

    def _check_size(self, session: FetchSession, before: int) -> None:
        """Raise SessionError if the session has grown too large: the client starts over with a full request, which is
        answered without a session."""
        if len(session.partitions) > max(before, self._most_of_one) or self._partitions > self.most:
            self.drop(session.id)
            raise SessionError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    @property
    def _most_of_one(self) -> int:
        return self.most // 10

    def drop(self, session_id: int) -> None:
        session = self.sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)
            session.places.close(self._later)

    def _make_room(self, now: float, partitions: int) -> bool:
        if partitions > self._most_of_one:
            return False
        while self.sessions and (len(self.sessions) >= self.slots or self._partitions + partitions > self.most):
            oldest = next(iter(self.sessions.values()))
            if now - oldest.last_used < self.evict_after:
                return False
            self.drop(oldest.id)
        return self.slots > 0

    def _new_id(self) -> int:
        while True:
            # Unguessable, so that a client with an id from a former run does not meet another client's session.
            candidate = random.SystemRandom().randint(1, 2**31 - 1)
            if candidate not in self.sessions:
                return candidate


def _asked_for(
    topic: FetchRequest.FetchTopic, part: FetchRequest.FetchPartition, uses_ids: bool
) -> tuple[Key, FetchedPartition]:
    """Return the key and the partition that a request names."""
    key = _key(topic.topic, topic.topic_id, part.partition, uses_ids)
    return key, FetchedPartition(topic.topic, topic.topic_id, part)


def _name(session: FetchSession, topic: FetchRequest.FetchTopic, parts: Iterable[FetchRequest.FetchPartition]) -> None:
    for part in parts:
        key = _key(topic.topic, topic.topic_id, part.partition, session.uses_ids)
        known = session.partitions.get(key)
        if known is None:
            session.partitions[key] = FetchedPartition(topic.topic, topic.topic_id, part)
        else:
            known.update(part)
        session.places.wake(key)


def _forget(session: FetchSession, topic: FetchRequest.ForgottenTopic, partitions: Iterable[int]) -> None:
    for partition in partitions:
        key = _key(topic.topic, topic.topic_id, partition, session.uses_ids)
        if session.partitions.pop(key, None) is not None:
            session.places.forget(key)
