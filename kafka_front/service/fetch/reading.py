"""Reading for a Fetch request, and its answer: all partitions at once, as far as there is memory.

Batches at the tail come from memory, all others in one pass through the backend. For a client that reads on, the
batches behind the answer are read ahead. If there is no memory, batches are only located, and read when the socket
takes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from anabranch_kit.memory.budget import Kind
from bridges.errors import AbortedNotAtHand, LogError
from bridges.formats import FORMAT_MASK
from bridges.formats.records import StoredBatch
from bridges.log.gathering import Answer, Wish
from bridges.log.partition.partition_log import PartitionLog
from kafka_front.service.fetch.partitions import KAFKA, Partitions, Slot
from kafka_front.service.fetch.places import Key, Places
from kafka_front.service.fetch.sessions import FetchSession
from kafka_front.service.fetch.stretch import Stretch
from kafka_front.service.log_errors import code_of
from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.messages import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from kafka_front.context import Context

_Aborted = FetchResponse.AbortedTransaction
_TopicData = FetchResponse.FetchableTopicResponse
_LEAST_SHARE = 64 * 1024
"""Least bytes read of each partition, if there is room: smaller reads cost mostly the work for each partition."""


class Reading(ABC):
    """One Fetch request from the moment it is to be answered; a subclass decides how it waits for that."""

    __slots__ = (
        "_answers",
        "_committed",
        "_ctx",
        "_finished",
        "_granted",
        "_held",
        "_here",
        "_hinted",
        "_owner",
        "_places",
        "_position",
        "_readable",
        "_reads_on",
        "_request",
        "_room",
        "_running",
        "_served",
        "_session",
        "_share",
        "_slots",
        "_told",
        "_topic",
        "_topics",
        "response",
    )

    def __init__(
        self,
        owner: Partitions,
        ctx: Context,
        request: FetchRequest,
        session: FetchSession | None,
        slots: list[Slot],
        places: Places | None = None,
    ) -> None:
        self._owner = owner
        self._ctx = ctx
        self._request = request
        self._session = session
        self._slots = slots
        # The places of the session's partitions that are not among the slots; None without a session, or beside another
        # request of it.
        self._places = places
        if places is not None:
            places.request = self
        # Whether the client reads committed data only.
        self._committed = request.isolation_level != 0
        self._finished = False
        self._running = True
        self._position = 0
        self._room = min(request.max_bytes, owner.max_bytes)
        # The partitions that have data to read, the batches read of them, and the bytes read of each.
        self._readable: list[Slot] = []
        self._answers: list[Answer] = []
        self._share = 0
        # Whether a read was answered within its call, or that call has ended.
        self._here = False
        # Whether the client goes on where the last answer on its connection ended.
        self._reads_on = False
        self._served: list[Key] = []
        # Bytes that the budget counts for the read in progress, and for all reads.
        self._granted = 0
        self._held = 0
        # The answer so far, its last topic's key, and the number of slots that it covers.
        self._topics: list[_TopicData] = []
        self._topic: str | bytes | None = None
        self._told = 0
        # The leaders that the answer names.
        self._hinted: set[int] = set()
        self.response: FetchResponse | None = None

    @abstractmethod
    def stirred(self, key: Key) -> None:
        """Take notice of a partition of the session that had no news before and whose log has moved."""

    @abstractmethod
    def cancel(self) -> None:
        """End the request without an answer: the connection is gone."""

    def _guarded(self, step: Callable[..., None], *args: object) -> None:
        """Run a step from another component's callback: a defect fails this request only."""
        if self._running:
            step(*args)  # the caller of start() answers
            return
        try:
            step(*args)
        except Exception:  # noqa: BLE001  # whatever it is, the client gets an answer and the log a traceback
            self.cancel()
            self._ctx.crashed()

    def _limit(self, log: PartitionLog, offset: int) -> int:
        """Return the offset up to which the client may read from ``offset`` on."""
        return log.committed_limit(offset) if self._committed else log.high_watermark

    def _end(self) -> None:
        self._finished = True
        if self._places is not None and self._places.request is self:
            self._places.request = None

    def _release(self) -> None:
        if self._held:
            self._ctx.connection.account.give(Kind.READS, self._held)
            self._held = 0

    # --- reading ------------------------------------------------------------------------------------------------

    def _start_reading(self) -> None:
        self._position = 0
        self._find_readable()

    def _find_readable(self) -> None:
        """Check partition after partition for errors, and collect those that have data to read."""
        slots = self._slots
        ends = min(self._position + self._owner.at_once, len(slots))
        for slot in islice(slots, self._position, ends):
            log = slot.log
            if log is None:
                continue
            if (code := self._owner.position_error(slot.asked, log)) is not None:
                slot.refuse(code)
                continue
            slot.data.preferred_read_replica = self._owner.nearer(self._ctx, self._request, log)
            slot.limit = self._limit(log, slot.asked.fetch_offset)
            if slot.data.preferred_read_replica >= 0:
                self._describe(slot, log)
            elif slot.asked.fetch_offset < slot.limit:
                self._readable.append(slot)
            else:
                self._describe(slot, log)
        self._position = ends
        if ends < len(slots):
            self._go_on_later(self._find_readable)
            return
        self._position = 0
        if self._readable:
            self._read()
        else:
            self._finish()

    def _read(self) -> None:
        """Read the answer's batches from all partitions at once, as far as there is memory."""
        ahead = self._ctx.connection.ahead
        if ahead.reading:
            self._ctx.connection.on_close(self.cancel)
            ahead.when_read(partial(self._unless_cancelled, self._read))
            return
        readable = self._readable
        if len(readable) == 1 and self._read_at_hand(readable[0]):
            return
        # Equal shares: partitions read at the same speed lie close together in the write-ahead log.
        self._share = max(self._room // len(readable), _LEAST_SHARE)
        self._answers = [None] * len(readable)
        self._reads_on = any(ahead.expects(slot.log, slot.asked.fetch_offset) for slot in readable)
        left = self._room
        if ahead.holds:
            for number, slot in enumerate(readable):
                taken = ahead.take(slot.log, slot.asked.fetch_offset, slot.asked.max_bytes, slot.limit)
                if taken is not None:
                    self._answers[number] = (taken[0], None)
                    self._held += taken[1]
                    left -= taken[1]
        begun = left < self._room
        if begun and left < self._room // 4:
            self._serve()
            return
        connection = self._ctx.connection
        granted = connection.account.grant(Kind.READS, max(1, min(left, connection.read_ahead)), 1)
        if not granted and begun:
            self._serve()
            return
        if not granted and self._locate_all():
            self._finish()
            return
        self._granted = granted
        self._held += granted
        self._here = False
        rest = [number for number, answer in enumerate(self._answers) if answer is None]
        # At least one batch must be read to serve anything.
        self._owner.gather(self._wishes(rest), max(granted, 1), partial(self._gathered, rest), begun)
        if not self._here:
            self._here = True
            connection.on_close(self.cancel)

    def _read_at_hand(self, slot: Slot) -> bool:
        """Serve the only readable partition from memory, which is the usual case of a client that follows a log. Return
        False if its batches are not in memory or the budget has no room."""
        asked, log, connection = slot.asked, slot.log, self._ctx.connection
        assert log is not None, "what is refused is not readable"
        answer = log.at_hand(asked.fetch_offset, max(1, min(asked.max_bytes, self._room)), slot.limit)
        if answer is None or answer[1] is not None:
            return False
        size = 0
        for batch in answer[0]:
            size += len(batch.payload)
        if size > connection.read_ahead or not connection.account.admit(Kind.READS, size):
            return False
        self._held += size
        self._answers = [answer]
        self._share = self._room
        self._reads_on = connection.ahead.expects(log, asked.fetch_offset)
        self._serve()
        return True

    def _wishes(self, numbers: list[int]) -> Iterator[Wish]:
        share = self._share
        for number in numbers:
            slot = self._readable[number]
            assert slot.log is not None, "what is refused is not readable"
            yield Wish(slot.log, slot.asked.fetch_offset, min(slot.asked.max_bytes, share), slot.limit)

    def _gathered(self, numbers: list[int], answers: list[Answer]) -> None:
        """Serve the batches read, within the call that asked for them or later."""
        if self._finished:
            return
        for number, answer in zip(numbers, answers, strict=False):  # shorter if there was no room for the rest
            self._answers[number] = answer
        self._settle(sum([len(batch.payload) for answer in answers if answer for batch in answer[0]]))
        if self._here:
            self._guarded(self._serve)
        else:
            self._here = True
            self._serve()

    def _settle(self, size: int) -> None:
        """Replace the granted bytes in the budget by the bytes read."""
        granted, self._granted = self._granted, 0
        account = self._ctx.connection.account
        if size > granted:
            account.take(Kind.READS, size - granted)
        elif size < granted:
            account.give(Kind.READS, granted - size)
        self._held += size - granted

    def _serve(self) -> None:
        """Put the batches read into the answer, partition after partition."""
        readable = self._readable
        while self._position < len(readable):
            slot, answer = readable[self._position], self._answers[self._position]
            log = slot.log
            if answer is None or log is None:
                if log is not None:
                    self._describe(slot, log)
            else:
                batches, error = answer
                if batches and batches[0].flags & FORMAT_MASK != KAFKA:
                    log.reading.locatable = False
                    if self._owner.translates(log.stream_id, batches, self._translated):
                        self._ctx.connection.on_close(self.cancel)
                        return
                self._take(slot, batches, error)
            self._position += 1
        self._finish()

    def _translated(self, batches: list[StoredBatch], error: LogError | None) -> None:
        """Go on when the first of the batches, which another protocol wrote, is in Kafka's format."""
        if not self._finished:
            self._guarded(self._take_translated, batches, error)

    def _take_translated(self, batches: list[StoredBatch], error: LogError | None) -> None:
        self._take(self._readable[self._position], batches, error)
        self._position += 1
        self._serve()

    def _locate_all(self) -> bool:
        """Answer with places that are read as the socket takes them, since there is no memory for reads. Return False
        if the place of the first readable partition is unknown."""
        for slot in self._readable:
            log = slot.log
            if log is None:
                continue
            if self._served and self._room <= 0:
                self._describe(slot, log)
            elif not self._locate(slot, log, min(slot.asked.max_bytes, max(self._room, 1))):
                if not self._served:
                    return False
                self._describe(slot, log)
        return True

    def _locate(self, slot: Slot, log: PartitionLog, wanted: int) -> bool:
        """Serve a partition as a place in the log; return False if its place is unknown."""
        place = log.locate(slot.asked.fetch_offset, wanted, slot.limit)
        if place is None:
            return False
        self._describe(slot, log)
        if place.size > wanted and self._served:
            return True  # only the first batch of all may exceed the limits (rule 42)
        if not self._tell_aborted(slot, log, place.end):
            return True
        parts: list[Any] = [Stretch(log, place.start, place.end, place.size, self._owner.checked)]
        slot.data.records = parts
        self._room -= place.size
        self._count(log, place.batches, place.end - place.start, place.size)
        self._served.append(slot.key)
        return True

    def _describe(self, slot: Slot, log: PartitionLog) -> None:
        data = slot.data
        data.high_watermark = log.high_watermark
        data.last_stable_offset = log.last_stable_offset
        data.log_start_offset = log.log_start_offset
        if self._committed:
            data.aborted_transactions = []

    def _tell_aborted(self, slot: Slot, log: PartitionLog, end: int) -> bool:
        """List the aborted transactions up to ``end``: the client gets all batches there, and filters them itself.

        Return False if the list was evicted since the request began: nothing may be served then, and the client asks
        again.
        """
        if self._committed:
            try:
                aborted = log.aborted(slot.asked.fetch_offset, min(end, slot.limit))
            except AbortedNotAtHand:
                return False
            slot.data.aborted_transactions = [_Aborted(one.producer_id, one.first_offset) for one in aborted]
        return True

    def _take(self, slot: Slot, batches: list[StoredBatch], error: LogError | None) -> None:
        log = slot.log
        if error is not None or log is None:
            slot.refuse(ErrorCode.UNKNOWN_SERVER_ERROR if error is None else code_of(error))
            return
        if self._committed and (code := self._owner.position_error(slot.asked, log)) is not None:
            slot.refuse(code)  # trimmed meanwhile: its aborted ranges are no longer known
            return
        self._describe(slot, log)
        if not batches or (self._served and len(batches[0].payload) > self._room):
            return  # only the first partition with data may exceed the limits (rule 42)
        parts, invalid = self._owner.payloads(log, batches)
        if not parts:
            slot.refuse(ErrorCode.UNKNOWN_SERVER_ERROR if invalid is None else code_of(invalid))
            return
        del batches[len(parts) :]
        end = batches[-1].end_offset
        if not self._tell_aborted(slot, log, end):
            return
        size = sum(map(len, parts))
        slot.data.records = parts
        self._room -= size
        slot.end = end
        self._count(log, len(batches), slot.end - batches[0].base_offset, size)
        self._served.append(slot.key)

    def _count(self, log: PartitionLog, batches: int, records: int, size: int) -> None:
        self._owner.metrics.topic(log.topic).fetched(batches, records, size)
        self._ctx.connection.client.read(log.topic, log.partition, records, size)

    def _read_on(self) -> None:
        """Start reading ahead. A client that went on where its last answer ended is expected to do so again."""
        connection = self._ctx.connection
        expected: dict[PartitionLog, int] = {}
        wishes: list[Wish] = []
        behind: list[Wish] = []
        for slot in self._readable:
            log = slot.log
            if log is None:
                continue
            offset = slot.asked.fetch_offset if slot.end < 0 else slot.end
            expected[log] = offset
            if self._reads_on and offset < slot.limit:
                wish = Wish(log, offset, min(slot.asked.max_bytes, self._share), slot.limit)
                (wishes if slot.end < 0 else behind).append(wish)
        turn = connection.ahead.expect(expected)
        wishes += behind
        if wishes:
            room = min(self._request.max_bytes, self._owner.max_bytes)
            self._owner.loop.call_soon(connection.ahead.read, turn, self._owner.gather, wishes, room)

    def _is_told(self, slot: Slot) -> bool:
        """Return whether the client knows the present state of the partition's log after this answer."""
        asked, log, data = slot.asked, slot.log, slot.data
        return (
            log is not None
            and not data.error_code
            and not data.records
            and data.preferred_read_replica < 0
            and self._owner.position_error(asked, log) is None
            and asked.fetch_offset >= self._limit(log, asked.fetch_offset)
            and asked.high_watermark == log.high_watermark
            and asked.log_start_offset == log.log_start_offset
            and self._session is not None
            and self._session.partitions.get(slot.key) is asked
            and slot.key in self._session.places.awake
        )

    def _go_on_later(self, step: Callable[[], None]) -> None:
        """Run ``step`` in the next turn of the loop, unless the connection ends before."""
        self._ctx.connection.on_close(self.cancel)
        self._owner.loop.call_soon(self._unless_cancelled, step)

    def _unless_cancelled(self, step: Callable[[], None]) -> None:
        if not self._finished:
            self._guarded(step)

    def _finish(self) -> None:
        """Add partition after partition to the answer, a limited number in each turn of the loop, and send it."""
        session = self._session
        incremental = session is not None and self._request.session_epoch > 0
        topics = self._topics
        for slot in islice(self._slots, self._told, self._told + self._owner.at_once):
            if slot.data.error_code:
                self._owner.count_error(ErrorCode(slot.data.error_code).name)
                self._hinted.add(self._owner.hints.fetch(self._ctx, slot.asked.topic, slot.data))
            told = slot.asked.news(slot.data) if session is not None else True
            if self._places is not None and self._is_told(slot):
                assert slot.log is not None
                self._places.rest(slot.key, slot.log)
            if incremental and not told:
                continue
            # Partitions are answered in the order that was asked for, with their topic again where it changes.
            if slot.key[0] != self._topic:
                self._topic = slot.key[0]
                topics.append(_TopicData(topic=slot.asked.topic, topic_id=slot.asked.topic_id))
            topics[-1].partitions.append(slot.data)
        self._told += self._owner.at_once
        if self._told < len(self._slots):
            self._go_on_later(self._finish)
            return
        self._end()
        self._ctx.connection.forget_on_close(self.cancel)
        if session is not None:
            session.served(self._served)
        if self._owner.quota.in_force:
            connection = self._ctx.connection
            connection.charge(self._owner.quota, min(self._request.max_bytes, self._owner.max_bytes) - self._room)
        session_id = session.id if session is not None else 0
        response = FetchResponse(session_id=session_id, responses=topics)
        if self._hinted:
            self._hinted.discard(-1)
            response.node_endpoints = self._owner.hints.fetch_endpoints(self._ctx, self._hinted)
        if len(self._slots) > self._owner.at_once:
            self._ctx.respond_off_loop(response, self._release)  # the batches stay in memory until it is encoded
        else:
            self._release()  # the connection counts what it cannot send
            if self._running:
                self.response = response
            else:
                self._ctx.respond(response)
        if self._readable:
            self._read_on()
