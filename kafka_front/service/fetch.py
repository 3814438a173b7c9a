"""Fetch: answer at once or wait for enough bytes, then read whole batches (reference/kafka.md, rules 41-46).

A waiting request is one object registered with its partitions' logs and one timer; there is no task. Batches at the
tail come from memory, all others in one go through the backend, and what comes behind them is read ahead for a client
that reads on. Without memory for that they are only located, and read when the socket takes them.
"""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from bridges.auth import Operation
from bridges.errors import BatchInvalid, LogError
from bridges.formats import FORMAT_MASK, FormatId
from bridges.formats.records import Buffer, StoredBatch
from bridges.log.gathering import Answer, GatherDone, Wish, gather
from bridges.log.partition_log import PartitionLog
from bridges.net.budget import Kind
from kafka_front.dispatch import DEFERRED, Outcome, Registry
from kafka_front.service.fetch_sessions import FetchedPartition, FetchSession, Key, SessionError, asked_for
from kafka_front.service.list_offsets import epoch_error
from kafka_front.service.log_errors import code_of
from kafka_front.service.stretch import Stretch
from kafka_front.service.turns import in_turns
from kafka_front.wire.apis import APIS, ApiKey
from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.messages import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from kafka_front.service.core import KafkaService
    from kafka_front.session import Context

_KAFKA = int(FormatId.KAFKA)
_IDS_SINCE = 13
_BATCH_HEAD = struct.Struct(">qi4xb")
_BEFORE_LENGTH = 12
"""Bytes of a record batch that its length does not count."""
_MAGIC = 2
_PartitionData = FetchResponse.PartitionData
_Aborted = FetchResponse.AbortedTransaction
_TopicData = FetchResponse.FetchableTopicResponse
_NO_RECORDS: Buffer = b""
_TRANSLATED_AT_ONCE = 400
"""Records and kilobytes of other protocols that are translated for one partition of a request, after the first."""
_LEAST_SHARE = 64 * 1024
"""Bytes that are read of each partition where there is room: with less the work is in the partitions."""

_AT_ONCE = 1_000
"""Partitions of one request that are worked on in one turn of the loop; with more it takes several."""


class _Slot:
    """One partition of a request."""

    __slots__ = ("asked", "data", "end", "key", "limit", "log", "unknown")

    def __init__(self, key: Key, asked: FetchedPartition) -> None:
        self.key = key
        self.asked = asked
        self.log: PartitionLog | None = None
        self.unknown = False
        # How far the client may be shown the partition, and how far the answer goes (-1: it has nothing of it).
        self.limit = 0
        self.end = -1
        self.data = _PartitionData(
            partition_index=asked.partition,
            high_watermark=-1,
            aborted_transactions=None,
            records=_NO_RECORDS,
        )

    def refuse(self, code: ErrorCode) -> None:
        self.log = None
        self.data.error_code = int(code)
        self.data.high_watermark = -1
        self.data.last_stable_offset = -1
        self.data.log_start_offset = -1


class _Operation:
    """One Fetch request, from its arrival to its response."""

    __slots__ = (
        "_allowed",
        "_answers",
        "_committed",
        "_ctx",
        "_finished",
        "_granted",
        "_held",
        "_here",
        "_owner",
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
        "_timer",
        "_told",
        "_topics",
        "_unopened",
        "_waited",
        "response",
    )

    def __init__(
        self, owner: Fetch, ctx: Context, request: FetchRequest, session: FetchSession | None, slots: list[_Slot]
    ) -> None:
        self._owner = owner
        self._ctx = ctx
        self._request = request
        self._session = session
        self._slots = slots
        # Whether the client reads committed data only.
        self._committed = request.isolation_level != 0
        # What the authorizer has said of topics: it is asked once for each.
        self._allowed: dict[str, bool] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._unopened = 0
        self._waited: list[PartitionLog] = []
        self._finished = False
        self._running = True
        self._position = 0
        self._room = min(request.max_bytes, owner.max_bytes)
        # The partitions of which there is something to read, what was read of them, and the bytes of each.
        self._readable: list[_Slot] = []
        self._answers: list[Answer] = []
        self._share = 0
        # Whether a read was answered within its call, or that call has ended.
        self._here = False
        # Whether the client goes on where the last answer on its connection ended.
        self._reads_on = False
        self._served: list[Key] = []
        # Bytes that the budget counts for what is being read, and for all that was.
        self._granted = 0
        self._held = 0
        # What the answer tells so far, and of how many partitions.
        self._topics: dict[str | bytes, _TopicData] = {}
        self._told = 0
        self.response: FetchResponse | None = None

    # --- before reading -----------------------------------------------------------------------------------------

    def start(self) -> FetchResponse | Outcome:
        """Begin; returns the response if it is known at once."""
        for slot in self._slots:
            self._find(slot)
        return self._begin()

    async def start_in_turns(self) -> FetchResponse | Outcome:
        """The same for very many partitions."""
        async for slot in in_turns(self._slots):
            self._find(slot)
        return self._begin()

    def _find(self, slot: _Slot) -> None:
        self._owner.resolve(slot, self._ctx, self._allowed)
        if slot.log is not None and not slot.log.is_open:
            self._unopened += 1

    def _begin(self) -> FetchResponse | Outcome:
        if self._unopened:
            for slot in self._slots:
                if slot.log is not None and not slot.log.is_open:
                    slot.log.when_open(partial(self._guarded, self._opened, slot))
        else:
            self._wait_or_read()
        self._running = False
        return self.response if self.response is not None else DEFERRED

    def _guarded(self, step: Callable[..., None], *args: object) -> None:
        """Take a step on behalf of somebody who has others to tell: a defect costs this request only."""
        if self._running:
            step(*args)  # whoever started the request answers
            return
        try:
            step(*args)
        except Exception:  # noqa: BLE001  # whatever it is, the client gets an answer and the log a traceback
            self.cancel()
            self._ctx.crashed()

    def _opened(self, slot: _Slot, error: LogError | None) -> None:
        if error is not None:
            slot.refuse(code_of(error))
        self._unopened -= 1
        if self._unopened == 0 and not self._finished:
            self._wait_or_read()

    def _wait_or_read(self) -> None:
        enough = self._look()
        wait_ms = min(self._request.max_wait_ms, self._owner.max_wait_ms)
        if enough or wait_ms <= 0:
            self._start_reading()
            return
        # Kept apart from the slots: a slot that is refused while we wait lets go of its log.
        self._waited = [slot.log for slot in self._slots if slot.log is not None]
        for log in self._waited:
            log.add_waiter(self)
        self._timer = self._owner.loop.call_later(wait_ms / 1000, self._guarded, self._expired)
        self._ctx.connection.on_close(self.cancel)

    def _look(self) -> bool:
        """Is there an error to tell, or are min_bytes there? Stops counting as soon as they are.

        A partition that does not exist is no reason to answer at once, unless there is nothing else to wait for: its
        error is told with the rest (Kafka does the same), else a consumer of a deleted topic would ask without pause.
        """
        missing = self._request.min_bytes
        waits = False
        for slot in self._slots:
            log = slot.log
            if log is None:
                if slot.unknown:
                    continue
                return True
            waits = True
            code = self._owner.position_error(slot.asked, log)
            if code is not None:
                slot.refuse(code)
                return True
            offset = slot.asked.fetch_offset
            missing -= log.available(offset, missing if missing > 0 else 1, self._limit(log, offset))
            if missing <= 0 and self._request.min_bytes > 0:
                return True
        return missing <= 0 or not waits

    def _limit(self, log: PartitionLog, offset: int) -> int:
        """How far the client may be shown what lies from ``offset`` on."""
        return log.committed_limit(offset) if self._committed else log.high_watermark

    def log_moved(self, log: PartitionLog) -> None:
        """A partition we wait for moved (see :class:`bridges.log.partition_log.Waiter`)."""
        if not self._finished:
            self._guarded(self._moved, log)

    def _moved(self, log: PartitionLog) -> None:
        if not log.is_open or self._look():
            self._stop_waiting()
            self._start_reading()

    def _expired(self) -> None:
        self._timer = None
        self._stop_waiting()
        self._start_reading()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for log in self._waited:
            log.remove_waiter(self)
        self._ctx.connection.forget_on_close(self.cancel)

    def cancel(self) -> None:
        """The connection is gone: nobody waits any more."""
        self._finished = True
        self._stop_waiting()
        self._release()

    def _release(self) -> None:
        if self._held:
            self._ctx.connection.account.give(Kind.READS, self._held)
            self._held = 0

    # --- reading ------------------------------------------------------------------------------------------------

    def _start_reading(self) -> None:
        self._position = 0
        self._find_readable()

    def _find_readable(self) -> None:
        """Look at partition after partition: what is wrong with it, or whether there is anything to read."""
        slots = self._slots
        ends = min(self._position + _AT_ONCE, len(slots))
        for slot in islice(slots, self._position, ends):
            log = slot.log
            if log is None:
                continue
            if (code := self._owner.position_error(slot.asked, log)) is not None:
                slot.refuse(code)
                continue
            slot.limit = self._limit(log, slot.asked.fetch_offset)
            if slot.asked.fetch_offset < slot.limit:
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
        """Read of all partitions at once what the answer will hold, as far as there is memory for it."""
        ahead = self._ctx.connection.ahead
        if ahead.reading:
            self._ctx.connection.on_close(self.cancel)
            ahead.when_read(partial(self._unless_cancelled, self._read))
            return
        readable = self._readable
        # All at the same speed, if they can be: what is read of them lies together in the log then.
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
        # Of what there is at least one batch must be read to be served.
        self._owner.gather(self._wishes(rest), max(granted, 1), partial(self._gathered, rest), begun)
        if not self._here:
            self._here = True
            connection.on_close(self.cancel)

    def _wishes(self, numbers: list[int]) -> Iterator[Wish]:
        share = self._share
        for number in numbers:
            slot = self._readable[number]
            assert slot.log is not None, "what is refused is not readable"
            yield Wish(slot.log, slot.asked.fetch_offset, min(slot.asked.max_bytes, share), slot.limit)

    def _gathered(self, numbers: list[int], answers: list[Answer]) -> None:
        """What was read, within the call that asked for it or later."""
        if self._finished:
            return
        for number, answer in zip(numbers, answers, strict=False):  # as far as there was room
            self._answers[number] = answer
        self._settle(sum([len(batch.payload) for answer in answers if answer for batch in answer[0]]))
        if self._here:
            self._guarded(self._serve)
        else:
            self._here = True
            self._serve()

    def _settle(self, size: int) -> None:
        """Count what was read instead of what was granted for it."""
        granted, self._granted = self._granted, 0
        account = self._ctx.connection.account
        if size > granted:
            account.take(Kind.READS, size - granted)
        elif size < granted:
            account.give(Kind.READS, granted - size)
        self._held += size - granted

    def _serve(self) -> None:
        """Tell of partition after partition what was read of it."""
        readable = self._readable
        while self._position < len(readable):
            slot, answer = readable[self._position], self._answers[self._position]
            log = slot.log
            if answer is None or log is None:
                if log is not None:
                    self._describe(slot, log)
            else:
                batches, error = answer
                if batches and batches[0].flags & FORMAT_MASK != _KAFKA:
                    log.locatable = False
                    if self._owner.translates(log.stream_id, batches, self._translated):
                        self._ctx.connection.on_close(self.cancel)
                        return
                self._take(slot, batches, error)
            self._position += 1
        self._finish()

    def _translated(self, batches: list[StoredBatch], error: LogError | None) -> None:
        """The first of the batches read, which another protocol wrote, is at hand in Kafka's format."""
        if not self._finished:
            self._guarded(self._take_translated, batches, error)

    def _take_translated(self, batches: list[StoredBatch], error: LogError | None) -> None:
        self._take(self._readable[self._position], batches, error)
        self._position += 1
        self._serve()

    def _locate_all(self) -> bool:
        """Without memory to read anything, answer with places that are read as the socket takes them; False if the
        first readable partition has none that is known."""
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

    def _locate(self, slot: _Slot, log: PartitionLog, wanted: int) -> bool:
        """Serve what lies where the partition is read as a place; False if nothing can be."""
        place = log.locate(slot.asked.fetch_offset, wanted, slot.limit)
        if place is None:
            return False
        self._describe(slot, log)
        if place.size > wanted and self._served:
            return True  # only the first batch of all may exceed the limits (rule 42)
        parts: list[Any] = [Stretch(log, place.start, place.end, place.size, self._owner.checked)]
        slot.data.records = parts
        self._tell_aborted(slot, log, place.end)
        self._room -= place.size
        self._owner.metrics.topic(log.topic).fetched(place.batches, place.end - place.start, place.size)
        self._served.append(slot.key)
        return True

    def _describe(self, slot: _Slot, log: PartitionLog) -> None:
        data = slot.data
        data.high_watermark = log.high_watermark
        data.last_stable_offset = log.last_stable_offset
        data.log_start_offset = log.log_start_offset
        if self._committed:
            data.aborted_transactions = []

    def _tell_aborted(self, slot: _Slot, log: PartitionLog, end: int) -> None:
        """Tell what was aborted up to ``end``: the client gets all batches there, and leaves that out itself."""
        if self._committed:
            slot.data.aborted_transactions = [
                _Aborted(one.producer_id, one.first_offset) for one in log.aborted(slot.asked.fetch_offset, end)
            ]

    def _take(self, slot: _Slot, batches: list[StoredBatch], error: LogError | None) -> None:
        log = slot.log
        if error is not None or log is None:
            slot.refuse(ErrorCode.UNKNOWN_SERVER_ERROR if error is None else code_of(error))
            return
        if self._committed and (code := self._owner.position_error(slot.asked, log)) is not None:
            slot.refuse(code)  # it was trimmed meanwhile: what was aborted there is not known any more
            return
        self._describe(slot, log)
        if not batches or (self._served and len(batches[0].payload) > self._room):
            return  # only the first partition with data may exceed the limits (rule 42)
        parts, invalid = self._owner.payloads(log, batches)
        if not parts:
            slot.refuse(ErrorCode.UNKNOWN_SERVER_ERROR if invalid is None else code_of(invalid))
            return
        del batches[len(parts) :]
        size = sum(map(len, parts))
        slot.data.records = parts
        self._room -= size
        slot.end = batches[-1].end_offset
        self._tell_aborted(slot, log, slot.end)
        self._owner.metrics.topic(log.topic).fetched(len(batches), slot.end - batches[0].base_offset, size)
        self._served.append(slot.key)

    def _read_on(self) -> None:
        """Have read what a client that goes on will ask for next: a client that has just done so is believed to."""
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

    def _go_on_later(self, step: Callable[[], None]) -> None:
        """Take ``step`` in the next turn of the loop, unless the connection ends before."""
        self._ctx.connection.on_close(self.cancel)
        self._owner.loop.call_soon(self._unless_cancelled, step)

    def _unless_cancelled(self, step: Callable[[], None]) -> None:
        if not self._finished:
            self._guarded(step)

    def _finish(self) -> None:
        """Tell of partition after partition, so many in a turn of the loop, and answer."""
        session = self._session
        incremental = session is not None and self._request.session_epoch > 0
        topics = self._topics
        for slot in islice(self._slots, self._told, self._told + _AT_ONCE):
            if slot.data.error_code:
                self._owner.count_error(ErrorCode(slot.data.error_code).name)
            told = slot.asked.news(slot.data) if session is not None else True
            if incremental and not told:
                continue
            name = slot.key[0]
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = _TopicData(topic=slot.asked.topic, topic_id=slot.asked.topic_id)
            topic.partitions.append(slot.data)
        self._told += _AT_ONCE
        if self._told < len(self._slots):
            self._go_on_later(self._finish)
            return
        self._finished = True
        self._ctx.connection.forget_on_close(self.cancel)
        self._release()  # the connection counts what it cannot send
        if session is not None:
            session.served(self._served)
        session_id = session.id if session is not None else 0
        response = FetchResponse(session_id=session_id, responses=list(topics.values()))
        if self._running:
            self.response = response
        elif len(self._slots) > _AT_ONCE:
            self._ctx.respond_off_loop(response)
        else:
            self._ctx.respond(response)
        if self._readable:
            self._read_on()


class Fetch:
    """The handler of Fetch requests."""

    def __init__(self, service: KafkaService) -> None:
        self._logs = service.logs
        self._catalog = service.catalog
        self._access = service.access
        self._sessions = service.fetch_sessions
        self._translator = service.translator
        self._barrier = service.logs.barrier
        self._tasks: set[asyncio.Task[None]] = set()
        self.metrics = service.metrics
        self.count_error = service.metrics.kind(APIS[ApiKey.FETCH].name).failed
        self.loop = service.loop
        self.max_bytes = service.fetch_max_bytes
        self.max_wait_ms = service.fetch_max_wait_ms

    def handle(
        self, ctx: Context, request: FetchRequest
    ) -> FetchResponse | Outcome | Coroutine[Any, Any, FetchResponse | Outcome]:
        uses_ids = ctx.version >= _IDS_SINCE
        if sum(len(topic.partitions) for topic in request.topics) > _AT_ONCE:
            return self._read_in_turns(ctx, request, uses_ids)
        try:
            session, partitions = self._sessions.resolve(request, uses_ids, self.loop.time())
        except SessionError as error:
            return FetchResponse(error_code=int(error.code))
        if len(partitions) > _AT_ONCE:
            return self._start_in_turns(ctx, request, session, partitions)
        slots = [_Slot(key, asked) for key, asked in partitions.items()]
        return _Operation(self, ctx, request, session, slots).start()

    async def _read_in_turns(self, ctx: Context, request: FetchRequest, uses_ids: bool) -> FetchResponse | Outcome:
        asked: dict[Key, FetchedPartition] = {}
        async for topic in in_turns(request.topics):
            async for part in in_turns(topic.partitions):
                key, partition = asked_for(topic, part, uses_ids)
                asked[key] = partition
        try:
            session, partitions = self._sessions.resolve(request, uses_ids, self.loop.time(), asked)
        except SessionError as error:
            return FetchResponse(error_code=int(error.code))
        return await self._start_in_turns(ctx, request, session, partitions)

    async def _start_in_turns(
        self,
        ctx: Context,
        request: FetchRequest,
        session: FetchSession | None,
        partitions: dict[Key, FetchedPartition],
    ) -> FetchResponse | Outcome:
        # A list, because the session may be asked again meanwhile, by somebody else who knows its number.
        slots = [_Slot(key, asked) async for key, asked in in_turns(list(partitions.items()))]
        return await _Operation(self, ctx, request, session, slots).start_in_turns()

    def resolve(self, slot: _Slot, ctx: Context, readable: dict[str, bool]) -> None:
        """Find the slot's log, or say why there is none; ``readable`` is what was found out for the same request."""
        asked = slot.asked
        name = asked.topic
        if not isinstance(slot.key[0], str):
            topic = self._catalog.by_id.get(uuid.UUID(bytes=asked.topic_id))
            if topic is None:
                slot.refuse(ErrorCode.UNKNOWN_TOPIC_ID)
                slot.unknown = True
                return
            name = topic.name
        allowed = readable.get(name)
        if allowed is None:
            allowed = readable[name] = self._access.topic(ctx, Operation.READ, name)
        if not allowed:
            slot.refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            return
        slot.log = self._logs.get(name, asked.partition)
        if slot.log is None:
            slot.refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            slot.unknown = True

    def position_error(self, asked: FetchedPartition, log: PartitionLog) -> ErrorCode | None:
        """What is wrong with reading ``log`` at the asked position and epoch, if anything (rules 18 and 44)."""
        if not log.is_open:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        code = epoch_error(asked.leader_epoch, log)
        if code is not None:
            return code
        if asked.fetch_offset < log.log_start_offset or asked.fetch_offset > log.high_watermark:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        return None

    def translates(
        self, stream_id: int, batches: list[StoredBatch], done: Callable[[list[StoredBatch], LogError | None], None]
    ) -> bool:
        """Whether the first of ``batches``, another protocol's, takes long to tell in Kafka's format: then it is told
        off the event loop, and ``done`` is called later with the batches, the first of them Kafka's own."""
        first = batches[0]
        try:
            if self._translator.payload(stream_id, first, FormatId.KAFKA) is not None:
                return False
        except BatchInvalid:
            return False  # it is found again when the batches are told
        task = asyncio.create_task(self._translate(stream_id, batches, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _translate(
        self, stream_id: int, batches: list[StoredBatch], done: Callable[[list[StoredBatch], LogError | None], None]
    ) -> None:
        first = batches[0]
        try:
            payload = await self._translator.translate(stream_id, first, FormatId.KAFKA)
        except LogError as error:
            done([], error)
        except Exception as error:  # noqa: BLE001 - logged and counted; the client gets an answer
            self._barrier.caught("translation", error)
            done([], BatchInvalid(f"the batch at offset {first.base_offset} cannot be translated"))
        else:
            done([first._replace(flags=_KAFKA, payload=payload), *batches[1:]], None)

    def gather(self, wishes: Iterable[Wish], room: int, done: GatherDone, begun: bool = False) -> None:
        """Read several partitions at once; ``begun``: nothing has to be read if there is no room for it."""
        gather(self._logs.client, wishes, room, done, begun)

    def payloads(self, log: PartitionLog, batches: list[StoredBatch]) -> tuple[list[Buffer], BatchInvalid | None]:
        """The batches in Kafka's format, up to the first that cannot be told in it, and what is wrong with that; or up
        to one of another protocol that takes too long after those before it."""
        parts: list[Buffer] = []
        enough = self._translator.spent + _TRANSLATED_AT_ONCE
        for batch in batches:
            try:
                if batch.flags & FORMAT_MASK == _KAFKA:
                    parts.append(self.checked(batch))
                    continue
                log.locatable = False
                if parts and self._translator.spent >= enough:
                    break
                told = self._translator.payload(log.stream_id, batch, FormatId.KAFKA)
                if told is None:
                    break
                parts.append(told)
            except BatchInvalid as invalid:
                return parts, invalid
        return parts, None

    def checked(self, batch: StoredBatch) -> Buffer:
        """The bytes of a batch stored in Kafka's format.

        Raises BatchInvalid for one that is not what it says it is: an SBP client may have stored anything, and after a
        wrong length a reader could read nothing more.
        """
        payload = batch.payload
        try:
            if _BATCH_HEAD.unpack_from(payload) == (batch.base_offset, len(payload) - _BEFORE_LENGTH, _MAGIC):
                return payload
        except struct.error:
            pass
        raise BatchInvalid(f"the batch at offset {batch.base_offset} is not what it says it is")


def register(registry: Registry, service: KafkaService) -> None:
    registry.register(ApiKey.FETCH, Fetch(service).handle)
