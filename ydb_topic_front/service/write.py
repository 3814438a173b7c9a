"""StreamWrite: a session that writes to one partition (reference/ydb.md, section 2).

Two tasks serve a stream: one reads requests, checks them and hands them to the partition's log; the other sends the
answers, in the order of the requests, each when all of it is durable. When something goes wrong nothing more is handed
over, so that what the client repeats after it has come again was not overtaken by what came behind.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from bridges.auth import ANONYMOUS, NODE, Operation, Resource, ResourceKind
from bridges.errors import LogError
from bridges.formats import FormatId
from bridges.formats.producer import LedgerKind, SeqNoStamp
from bridges.formats.ydb import encode_batch, parse_head, without_first
from bridges.log.interfaces import Appended, Batch, note
from bridges.metrics import TopicTraffic
from bridges.net.budget import Kind
from bridges.net.grpc_server import GrpcRefusal
from bridges.sliced import advance
from ydb_topic_front.failures import told
from ydb_topic_front.service.producers import Producers
from ydb_topic_front.service.writers import Writers
from ydb_topic_front.session.write_acks import Run, Times, encode_response
from ydb_topic_front.session.write_init import WriteInit, parse_init
from ydb_topic_front.session.write_request import Part, WriteParts, parse_other, parts_of, write_body
from ydb_topic_front.wire.messages import StreamWriteFromServer
from ydb_topic_front.wire.statuses import Issue, Status, YdbError, bad_request

if TYPE_CHECKING:
    from bridges.catalog.topics import Topic
    from bridges.log.partition_log import PartitionLog
    from bridges.net.grpc_server import GrpcStream
    from ydb_topic_front.dispatch import Registry
    from ydb_topic_front.service.core import YdbService
    from ydb_topic_front.service.writers import Key

_YDB = int(FormatId.YDB)
_SEQ_NO = int(LedgerKind.SEQ_NO)
_KNOWN_CODECS = range(1, 5)
_FIRST_CUSTOM_CODEC = 10_000
_REQUEST_BYTES = 1024
"""What a request costs besides its bytes until it is answered."""
_HELD_BYTES = 128 * 1024
"""Requests of so many bytes together are worth being handed over to the log while others are being made durable."""
_EXPIRY_MS = 600_000
_IDENTIFIED_S = 60.0
"""After this time it is looked again whether the client's token is good."""

_BOUND_S = 3_600.0
"""After this time of writing, the producer's row is looked at again, lest it expire."""

TICKET = "x-ydb-auth-ticket"
"""The header with a client's token."""

_numbers = count(1)


class Writing:
    """What all sessions that write share."""

    def __init__(self, service: YdbService) -> None:
        node = service.node
        self.service = service
        self.writers = Writers(service.catalog)
        self.producers = Producers(
            node.db, service.logs.options.seq_no_producer_idle_ms, service.settings.max_producers
        )
        self.counts = node.metrics.kind("WriteRequest")
        self.unknown = TopicTraffic()
        self._turn = count()
        node.every(_EXPIRY_MS, self.producers.expire, "expiry of YDB's producers")

    def any_partition(self, topic: Topic) -> int:
        """A partition for a session without a producer: each in its turn. Raises YdbError."""
        active = topic.active
        if not active:
            raise YdbError(Status.OVERLOADED, "all partitions of the topic are sealed", Issue.PARTITION_INACTIVE)
        return active[next(self._turn) % len(active)].index


def register(registry: Registry, service: YdbService) -> None:
    """Add this module's method."""
    writing = Writing(service)

    async def stream_write(stream: GrpcStream) -> None:
        await WriteStream(writing, stream).serve()

    registry.stream("StreamWrite", stream_write)


class _Request:
    """A WriteRequest on its way: what became of its parts, in their order."""

    __slots__ = ("arrived", "cost", "handed", "left", "parts", "results", "size", "stored", "undecided")

    def __init__(self, parts: list[Part], size: int, arrived: float) -> None:
        self.parts: list[Sequence[int]] = [part.seq_nos for part in parts]
        self.results: list[Appended | None] = [None] * len(parts)
        self.left = len(parts)
        """Parts that are not durable: never zero when one was refused."""
        self.size = size
        self.cost = size + _REQUEST_BYTES
        self.arrived = arrived
        self.handed = arrived
        self.stored = arrived
        self.undecided = 0
        """Parts with the log, and one while they are handed over."""

    @property
    def acks(self) -> int:
        return sum(map(len, self.parts))

    def runs(self) -> list[Run]:
        """What the acks say."""
        runs: list[Run] = []
        for seq_nos, appended in zip(self.parts, self.results, strict=True):
            assert appended is not None
            if appended.duplicate:
                runs.append(Run(seq_nos, -1))
                continue
            if appended.skipped:
                runs.append(Run(seq_nos[: appended.skipped], -1))
                seq_nos = seq_nos[appended.skipped :]
            runs.append(Run(seq_nos, appended.base))
        return runs


class _Answer:
    """Something to send that is no answer to a write, in its place among those that are."""

    __slots__ = ("cost", "raw")

    left = 0
    undecided = 0

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.cost = len(raw) + _REQUEST_BYTES


class WriteStream:
    """One StreamWrite."""

    def __init__(self, writing: Writing, stream: GrpcStream) -> None:
        service = writing.service
        self._writing = writing
        self._service = service
        self._stream = stream
        self._account = stream.account
        self._limit = service.settings.unacknowledged_bytes_per_stream
        self._most_records = service.node.limits.batch_records
        self._queue: deque[_Request | _Answer] = deque()
        self._unanswered = 0  # bytes
        self._in_flight = 0
        self._end: YdbError | None = None
        self._half_closed = False
        self._closed = False
        self._held: list[tuple[_Request, Part, int]] = []
        self._held_bytes = 0
        self._moved = asyncio.Event()  # for the task that answers
        self._room = asyncio.Event()  # for the one that reads
        self._settled = asyncio.Event()
        self._settled.set()
        self._topic: Topic | None = None
        self._key: Key | None = None
        self._log: PartitionLog | None = None
        self._traffic = writing.unknown
        self._producer = b""
        self._meta = b""
        self._principal = ANONYMOUS
        self._resource = NODE
        self._checked_at = 0.0
        self._bound_at = 0.0
        self._refusal: GrpcRefusal | None = None

    # --- what others say --------------------------------------------------------------------------------------------

    def end(self, error: YdbError) -> None:
        """Take nothing more, and end with ``error`` when what is in flight is answered; the first error counts."""
        if self._end is None:
            self._end = error
            self._moved.set()
            self._room.set()

    async def settled(self) -> None:
        """Return when the fate of everything that was handed to the log is decided."""
        await self._settled.wait()

    # --- the stream's life ------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Serve the stream until its client ends it, or something else does."""
        self._stream.when_draining(lambda: self.end(YdbError(Status.UNAVAILABLE, "the node is stopping")))
        reading = asyncio.create_task(self._read())
        try:
            await self._send()
        finally:
            if self._end is None:
                self._hand_over_held()
            self.end(YdbError(Status.CANCELLED, "the stream has ended"))
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            self._closed = True
            for item in self._queue:
                # Bytes that are with the log are held until it has decided.
                if not item.undecided:
                    self._account.give(Kind.REQUESTS, item.cost)
            if not self._in_flight:
                self._leave()

    def _leave(self) -> None:
        if self._topic is not None:
            self._writing.writers.leave(self._topic, self._key, self)

    async def _read(self) -> None:
        """Take messages until the stream ends, one way or another."""
        try:
            async with asyncio.timeout(self._service.settings.init_timeout_ms / 1000):
                raw = await self._stream.read()
            if raw is not None:
                self._account.give(Kind.REQUESTS, len(raw))
                await self._open(raw)
            while raw is not None and self._end is None:
                if self._unanswered >= self._limit:
                    self._room.clear()
                    await self._room.wait()
                    continue
                raw = await self._stream.read()
                if raw is not None:
                    await self._take(raw)
            self._half_closed = raw is None
            self._moved.set()
        except TimeoutError:
            self.end(YdbError(Status.TIMEOUT, "there was no init_request"))
        except (YdbError, LogError) as error:
            self.end(told(error))
        except GrpcRefusal as refusal:
            self._refusal = refusal
            self.end(YdbError(Status.UNAUTHORIZED, str(refusal)))
        except Exception as error:  # noqa: BLE001 - logged, counted and told
            self._service.node.barrier.caught("StreamWrite", error)
            self.end(YdbError(Status.INTERNAL_ERROR, "an unexpected error"))

    async def _send(self) -> None:
        """Send answers in the order of their requests, and at the end why it is the end."""
        queue, stream, moved = self._queue, self._stream, self._moved
        while True:
            moved.clear()
            while queue and not queue[0].left:
                item = queue.popleft()
                if isinstance(item, _Answer):
                    self._answered(item)
                    await stream.write(item.raw)
                else:
                    await self._acknowledge(item)
            if moved.is_set():
                continue
            if self._half_closed and not queue:
                return
            if self._end is not None and not self._in_flight:
                break
            await moved.wait()
        if self._refusal is not None:
            raise self._refusal
        response = StreamWriteFromServer()
        self._end.tell(response)
        self._writing.counts.failed(self._end.status.name)
        await stream.write(response.SerializeToString())

    async def _acknowledge(self, request: _Request) -> None:
        assert self._log is not None
        waited = request.handed - request.arrived
        times = Times(request.stored - request.handed, waited, waited)
        try:
            work = encode_response(request.runs(), self._log.partition, times)
            ended, raw = advance(work)
            if not ended:
                raw = await self._service.node.works.finish(work, request.acks)
        finally:
            self._answered(request)
        self._writing.counts.done(time.monotonic() - request.arrived, request.size, len(raw))
        await self._stream.write(raw)

    def _answered(self, item: _Request | _Answer) -> None:
        """What it cost is held no longer, but for the answer while gRPC has it."""
        self._unanswered -= item.cost
        self._account.give(Kind.REQUESTS, item.cost)
        self._room.set()

    # --- its beginning ----------------------------------------------------------------------------------------------

    async def _open(self, raw: bytes) -> None:
        message = parse_other(raw)
        if message.WhichOneof("client_message") != "init_request":
            raise bad_request("the first message of a stream is an init_request: write in not inited session")
        init = parse_init(message.init_request)
        self._identify()
        writers = self._writing.writers
        self._topic = topic = self._service.topic_at(self._stream, init.path, Operation.WRITE)
        writers.enter(topic, self)
        self._producer = init.producer
        self._meta = init.encoded_meta(self._stream.host)
        self._resource = Resource(ResourceKind.TOPIC, topic.name)
        self._traffic = self._service.node.metrics.topic(topic.name)
        log = self._log = await self._partition(topic, init)
        await log.ready()
        generation = self._service.generation(topic.name, log.partition)
        if init.generation is not None and init.generation != generation:
            raise YdbError(Status.UNAVAILABLE, f"partition {log.partition} is in generation {generation}")
        if init.producer:
            self._key = (topic.topic_id, log.partition, init.producer)
            await writers.own(self._key, self)
            await log.ready()  # it may have failed under the one before
        last = await self._last_seq_no(topic, log)
        if self._end is not None:
            return
        response = StreamWriteFromServer(status=Status.SUCCESS)
        opened = response.init_response
        opened.last_seq_no = last
        opened.partition_id = log.partition
        opened.session_id = f"{init.producer.decode()}|{uuid.uuid4()}_{next(_numbers)}"
        opened.supported_codecs.codecs.extend(sorted(self._service.topics.of(topic.name).codecs))
        self._put(response.SerializeToString())

    async def _partition(self, topic: Topic, init: WriteInit) -> PartitionLog:
        wanted = init.partition
        if wanted is not None:
            found = topic.partitions[wanted] if wanted < len(topic.partitions) else None
            if found is None:
                raise bad_request(f"partition {wanted} does not exist")
            if not found.is_active:
                message = f"partition {wanted} is sealed and takes no more messages"
                raise YdbError(Status.OVERLOADED, message, Issue.PARTITION_INACTIVE)
        if init.producer:
            wanted = await self._writing.producers.partition_of(topic, init.producer, wanted)
            self._bound_at = time.monotonic()
        elif wanted is None:
            wanted = self._writing.any_partition(topic)
        return self._service.log_of(topic, wanted)

    async def _last_seq_no(self, topic: Topic, log: PartitionLog) -> int:
        """The producer's last seq_no, which is durable; that of the partitions that this one came from, if it was
        written there, is made known here first."""
        if not self._producer:
            return 0
        key = SeqNoStamp(self._producer, ()).key
        last = log.last(_SEQ_NO, key)
        if last is not None:
            return last.number
        inherited = 0
        parents = list(topic.partitions[log.partition].parents)
        seen = set(parents)
        while parents:
            number = parents.pop()
            parent = self._service.log_of(topic, number)
            await _decided_there(parent)
            known = parent.last(_SEQ_NO, key)
            if known is None:
                more = [one for one in topic.partitions[number].parents if one not in seen]
                seen.update(more)
                parents += more
            else:
                inherited = max(inherited, known.number)
        if inherited:
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def done(appended: Appended, error: LogError | None) -> None:
                if not told.done():
                    told.set_result(None) if error is None else told.set_exception(error)

            log.append(note(SeqNoStamp(self._producer, (inherited,))), done)
            await told
        return inherited

    # --- what the client says ---------------------------------------------------------------------------------------

    async def _take(self, raw: bytes) -> None:
        """Deal with a message, whose bytes are held in the account until a request that goes on its way takes over."""
        arrived = time.monotonic()
        size = len(raw)
        taken = False
        try:
            body = write_body(raw)
            if body is None:
                self._take_other(parse_other(raw))
                return
            work = parts_of(raw, body, self._most_records)
            ended, found = advance(work)
            if not ended:
                found = await self._service.node.works.finish(work, size // 1024)
            self._check(found.codec, arrived)
            if self._producer and arrived - self._bound_at > _BOUND_S:
                await self._still_bound(arrived)
            request = _Request(found.parts, size, arrived)
            self._account.take(Kind.REQUESTS, _REQUEST_BYTES)
            taken = True
        finally:
            if not taken:
                self._account.give(Kind.REQUESTS, size)
        self._queue.append(request)
        self._unanswered += request.cost
        if len(found.parts) > 1:
            self._hand_over_held()
            await self._append_parts(request, found)
            return
        self._held.append((request, found.parts[0], found.codec))
        self._held_bytes += size
        if not self._in_flight or self._held_bytes >= _HELD_BYTES:
            self._hand_over_held()

    def _hand_over_held(self) -> None:
        """Hand over to the log what waits for it.

        Small requests that come while earlier ones are being made durable are handed over together when these are: the
        backend would take them no sooner, and one by one each would cost as much as all of them.
        """
        held, self._held, self._held_bytes = self._held, [], 0
        for request, part, codec in held:
            self._begin(request)
            try:
                self._append(request, 0, part, codec)
            finally:
                self._decided(request)

    def _begin(self, request: _Request) -> None:
        self._settled.clear()
        self._in_flight += 1
        request.undecided = 1
        request.handed = time.monotonic()

    async def _append_parts(self, request: _Request, found: WriteParts) -> None:
        # What is copied for the log is there besides the bytes that came.
        self._account.take(Kind.REQUESTS, request.size)
        self._begin(request)
        try:
            for index, part in enumerate(found.parts):
                await asyncio.sleep(0)  # to copy one of them is work for a turn
                self._append(request, index, part, found.codec)
        finally:
            self._account.give(Kind.REQUESTS, request.size)
            self._decided(request)

    def _append(self, request: _Request, index: int, part: Part, codec: int) -> None:
        """Hand a part over to the log, unless something was refused: what comes behind that must not get into the log
        without it."""
        if self._end is None:
            assert self._log is not None
            batch = self._batch(part, codec)
            request.undecided += 1
            self._log.append(batch, partial(self._stored, request, index))

    def _take_other(self, message: Any) -> None:
        match message.WhichOneof("client_message"):
            case "update_token_request":
                self._stream.replace_header(TICKET, message.update_token_request.token)
                self._identify()
                response = StreamWriteFromServer(status=Status.SUCCESS)
                response.update_token_response.SetInParent()
                self._put(response.SerializeToString())
            case "init_request":
                raise bad_request("the stream has had its init_request")
            case "write_request":
                raise bad_request("a message must be a write_request and nothing else")
            case _:
                raise bad_request("a message that says nothing")

    def _identify(self) -> None:
        """Look who the client is. Raises GrpcRefusal."""
        self._principal = self._service.principal(self._stream)
        self._checked_at = time.monotonic()

    def _check(self, codec: int, now: float) -> None:
        """Whether the client may still write, and with this codec. Raises YdbError, GrpcRefusal."""
        topic = self._topic
        assert topic is not None
        if now - self._checked_at > _IDENTIFIED_S:
            self._identify()
        if not self._service.node.authorizer.allows(self._principal, Operation.WRITE, self._resource):
            message = f"access to topic {topic.name!r} is denied: you may not write it"
            raise YdbError(Status.UNAUTHORIZED, message, Issue.ACCESS_DENIED)
        allowed = self._service.topics.of(topic.name).codecs
        if codec not in allowed if allowed else codec not in _KNOWN_CODECS and codec < _FIRST_CUSTOM_CODEC:
            raise bad_request(f"codec {codec} is none of the topic's")

    async def _still_bound(self, now: float) -> None:
        """A producer that writes is not forgotten, however long its session lasts. Raises YdbError."""
        assert self._topic is not None
        assert self._log is not None
        self._bound_at = now
        if self._topic.partitions[self._log.partition].is_active:
            await self._writing.producers.partition_of(self._topic, self._producer, self._log.partition)

    def _batch(self, part: Part, codec: int) -> Batch:
        seq_nos = part.seq_nos
        number = len(seq_nos)
        payload = encode_batch(
            self._producer, self._meta, codec, number, seq_nos[0], seq_nos[-1], part.max_created_ms, part.messages
        )
        if not self._producer:
            return Batch(payload, number, _YDB, part.max_created_ms)
        stamp = SeqNoStamp(self._producer, seq_nos)
        return Batch(payload, number, _YDB, part.max_created_ms, stamp, None, partial(self._rest, payload, seq_nos))

    def _rest(self, payload: bytes, seq_nos: Sequence[int], skipped: int) -> Batch:
        """A batch without the messages that are in the log already."""
        head = parse_head(payload)
        messages = without_first(memoryview(payload)[head.body :], skipped)
        return self._batch(Part(messages, seq_nos[skipped:], head.max_created_ms), head.codec)

    # --- what becomes of it -----------------------------------------------------------------------------------------

    def _stored(self, request: _Request, index: int, appended: Appended, error: LogError | None) -> None:
        """The log's answer for one part."""
        if error is None:
            request.results[index] = appended
            request.left -= 1
            if not appended.duplicate:
                size = request.size if len(request.parts) == 1 else request.size // len(request.parts)
                self._traffic.appended(1, appended.end - appended.base, size)
        else:
            self.end(told(error))
        self._decided(request)

    def _decided(self, request: _Request) -> None:
        request.undecided -= 1
        if request.undecided:
            return
        request.stored = time.monotonic()
        if self._closed:
            self._account.give(Kind.REQUESTS, request.cost)
        self._moved.set()
        self._in_flight -= 1
        if not self._in_flight:
            if self._held and self._end is None:
                self._hand_over_held()
                return
            self._settled.set()
            if self._closed:
                self._leave()

    def _put(self, raw: bytes) -> None:
        answer = _Answer(raw)
        self._account.take(Kind.REQUESTS, answer.cost)
        self._unanswered += answer.cost
        self._queue.append(answer)
        self._moved.set()


async def _decided_there(log: PartitionLog) -> None:
    """Return when nothing of a sealed partition is in flight: what its ledger says is durable then. Raises LogError."""
    while True:
        await log.ready()
        if log.next_offset == log.high_watermark:
            return
        await log.until(lambda: not log.is_open or log.next_offset == log.high_watermark)
