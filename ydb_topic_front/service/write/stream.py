"""StreamWrite: a session that writes to one partition (docs/protocols/ydb.md, "StreamWrite").

Two tasks serve a stream. One reads requests, checks them and hands them to the partition's log. The other sends the
answers in the order of the requests, each when all of its request is durable. After an error nothing more is handed
over: the client reconnects and repeats from the failed request, which later requests must not overtake.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.sliced import advance
from bridges.auth import NODE, Operation, Resource, ResourceKind
from bridges.errors import LogError
from bridges.net.grpc_server import Code, GrpcRefusal
from ydb_topic_front.failures import translate_error
from ydb_topic_front.service.core import TICKET, describe_client
from ydb_topic_front.service.identity import Identity
from ydb_topic_front.service.transactions.transaction import StagedWrite
from ydb_topic_front.service.write.appends import WriteAppends
from ydb_topic_front.service.write.last_seq_no import answer_others
from ydb_topic_front.service.write.start import bound_to, insisted_on, last_seq_no
from ydb_topic_front.service.write.writing import Writing
from ydb_topic_front.session.write_acks import Times, encode_at_once, encode_response
from ydb_topic_front.session.write_batches import Batches
from ydb_topic_front.session.write_init import WriteInit, parse_init
from ydb_topic_front.session.write_queue import REQUEST_BYTES, Answer, Request
from ydb_topic_front.session.write_request import parse_other, parts_at_once, parts_in_slices, write_body
from ydb_topic_front.wire.messages import StreamWriteFromServer
from ydb_topic_front.wire.statuses import Issue, Status, YdbError, bad_request

if TYPE_CHECKING:
    from bridges.catalog.topics.topic import Topic
    from bridges.clients import Description
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.metrics import TopicTraffic
    from bridges.net.grpc_server import GrpcStream
    from ydb_topic_front.dispatch import Registry
    from ydb_topic_front.service.core import YdbService
    from ydb_topic_front.service.write.writers import Key
    from ydb_topic_front.session.write_request import WriteParts

_KNOWN_CODECS = range(1, 5)
_FIRST_CUSTOM_CODEC = 10_000
_BOUND_S = 3_600.0
"""Interval at which a writing session refreshes its producer's row, so that it does not expire."""

_numbers = count(1)


class WriteStream:
    """One StreamWrite call."""

    def __init__(self, writing: Writing, stream: GrpcStream) -> None:
        service = writing.service
        self._writing = writing
        self._service = service
        self._stream = stream
        self._account = stream.account
        self._limit = service.settings.unacknowledged_bytes_per_stream
        self._most_records = service.node.limits.batch_records
        self._queue: deque[Request | Answer] = deque()
        self._unanswered = 0  # bytes
        self._end: YdbError | None = None
        self._half_closed = False
        self._moved = asyncio.Event()  # for _send
        self._room = asyncio.Event()  # for _read
        self._appends = WriteAppends(
            stream.account,
            lambda: self._end is None,
            lambda error: self.end(translate_error(error)),
            self._moved.set,
            self._leave,
        )
        self._topic: Topic | None = None
        self._key: Key | None = None
        self._log: PartitionLog | None = None
        self._producer = self._meta = b""
        self._resource = NODE
        self._identity = Identity(service, stream, self._refused)
        self.bound_at = 0.0
        # Code and text instead of the exception, whose traceback would keep its frames and this stream in memory.
        self._refusal: tuple[Code, str] | None = None
        self.client = service.enter(stream, self._describe, self.end)

    def _describe(self) -> Description:
        return describe_client(self._stream, self._producer.decode(errors="replace"), self._identity.principal)

    # --- calls from other parts -------------------------------------------------------------------------------------

    def end(self, error: YdbError) -> None:
        """Take nothing more, and end with ``error`` when everything in flight is answered. Only the first error
        counts."""
        if self._end is None:
            self._end = error
            self._moved.set()
            self._room.set()

    def _refused(self, refusal: GrpcRefusal) -> None:
        self._refusal = refusal.code, str(refusal)
        self.end(YdbError(Status.UNAUTHORIZED, str(refusal)))

    async def await_decided(self) -> None:
        """Wait until the log has decided everything that was handed to it."""
        await self._appends.await_decided()

    # --- the stream's life ------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Serve the stream until the client or an error ends it."""
        self._stream.when_draining(lambda: self.end(YdbError(Status.UNAVAILABLE, "the node is stopping")))
        reading = asyncio.create_task(self._read())
        try:
            await self._send()
        finally:
            self._service.node.clients.leave(self.client)
            if self._end is None:
                self._appends.hand_over_held()
            self.end(YdbError(Status.CANCELLED, "the stream has ended"))
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            for item in self._queue:
                # The bytes of requests in flight are held until the log has decided.
                if not item.undecided:
                    self._account.give(Kind.REQUESTS, item.cost)
            self._appends.close()
            self._identity.close()

    def _leave(self) -> None:
        if self._topic is not None:
            self._writing.writers.leave(self._topic, self._key, self)

    async def _read(self) -> None:
        """Handle the client's messages until the stream ends."""
        try:
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
        except (YdbError, LogError) as error:
            self.end(translate_error(error))
        except GrpcRefusal as refusal:
            self._refused(refusal)
        except Exception as error:  # noqa: BLE001 - logged, counted and told
            self._service.node.barrier.caught("StreamWrite", error)
            self.end(YdbError(Status.INTERNAL_ERROR, "an unexpected error"))

    async def _send(self) -> None:
        """Send answers in the order of their requests, and finally the reason for the end."""
        queue, stream, moved = self._queue, self._stream, self._moved
        while True:
            moved.clear()
            while queue and not queue[0].left:
                item = queue.popleft()
                if isinstance(item, Answer):
                    self._answered(item)
                    await stream.write(item.raw)
                else:
                    await self._acknowledge(item)
            if moved.is_set():
                continue
            if self._half_closed and not queue:
                return
            if self._end is not None and not self._appends.in_flight:
                break
            await moved.wait()
        if self._refusal is not None:
            raise GrpcRefusal(*self._refusal)
        response = StreamWriteFromServer()
        self._end.tell(response)
        self._writing.counts.failed(self._end.status.name)
        await stream.write(response.SerializeToString())

    async def _acknowledge(self, request: Request) -> None:
        assert self._log is not None
        waited = request.handed - request.arrived - request.quota
        times = Times(request.stored - request.handed, waited, waited, request.quota)
        try:
            runs, partition = request.runs(), self._log.partition
            raw = encode_at_once(runs, partition, times)
            if raw is None:
                work = encode_response(runs, partition, times)
                ended, raw = advance(work)
                if not ended:
                    raw = await self._service.node.works.finish(work, request.acks)
        finally:
            self._answered(request)
            if not request.staged:
                self._appends.note_answer()
        self._writing.counts.done(time.monotonic() - request.arrived, request.size, len(raw))
        await self._stream.write(raw)

    def _answered(self, item: Request | Answer) -> None:
        """Return the memory of an answered request. gRPC may hold the encoded answer a little longer."""
        self._unanswered -= item.cost
        self._account.give(Kind.REQUESTS, item.cost)
        self._room.set()

    # --- its beginning ----------------------------------------------------------------------------------------------

    async def _open(self, raw: bytes) -> None:
        message = parse_other(raw)
        if message.WhichOneof("client_message") != "init_request":
            raise bad_request("the first message of a stream is an init_request: write in not inited session")
        init = parse_init(message.init_request)
        self._identity.identify()
        writers = self._writing.writers
        self._topic = topic = self._service.topic_at(self._stream, init.path, Operation.WRITE)
        writers.enter(topic, self)
        self._producer = init.producer
        self._resource = Resource(ResourceKind.TOPIC, topic.name)
        partition = await partition_for(self._writing, topic, init)
        self.bound_at = time.monotonic()
        log = self._log = self._service.log_of(topic, partition)
        traffic = self._service.node.metrics.topic(topic.name)
        self._meta = init.encoded_meta(self._stream.host)
        batches = Batches(init.producer, self._meta)
        self._appends.begin(log, batches, partial(self._written, topic, log.partition, traffic))
        self.client.wrote(topic.name, log.partition, 0, 0)
        await log.ready()
        generation = self._service.generation(topic.name, log.partition)
        if init.generation is not None and init.generation != generation:
            raise YdbError(Status.UNAVAILABLE, f"partition {log.partition} is in generation {generation}")
        if init.producer:
            self._key = (topic.topic_id, log.partition, init.producer)
            await writers.own(self._key, self)
            await log.ready()  # it may have failed during the former session
            await self._service.transactions.require_decided((topic.name, log.partition), init.producer)
        last = await last_seq_no(self._service, topic, log, init.producer) if init.producer else 0
        if self._end is not None:
            return
        response = StreamWriteFromServer(status=Status.SUCCESS)
        opened = response.init_response
        opened.last_seq_no = last
        opened.partition_id = log.partition
        opened.session_id = f"{init.producer.decode()}|{uuid.uuid4()}_{next(_numbers)}"
        opened.supported_codecs.codecs.extend(sorted(self._service.topics.get_settings(topic.name).codecs))
        self._put(response.SerializeToString())

    # --- messages of the client -------------------------------------------------------------------------------------

    async def _take(self, raw: bytes) -> None:
        """Handle a message. Its bytes are counted in the account until a request takes them over."""
        arrived = time.monotonic()
        size = len(raw)
        taken = False
        try:
            body = write_body(raw)
            if body is None:
                self._take_other(parse_other(raw))
                return
            found = parts_at_once(raw, body, self._most_records)
            if found is None:
                work = parts_in_slices(body, self._most_records)
                found = await self._service.node.works.finish(work, size // 1024)
            self._check(found.codec)
            if self._producer and arrived - self.bound_at > _BOUND_S:
                await self._still_bound(arrived)
            assert self._topic is not None
            assert self._log is not None
            speeds, quota = self._writing.speeds, 0.0
            if speeds.limits(self._topic):
                quota = await speeds.admit(self._topic, self._log.partition, size, self)
            if speeds.has_quotas:
                quota += await speeds.admit_writer(self._identity.principal, size, self)
            request = Request(found.parts, size, arrived)
            request.quota = quota
            self._account.take(Kind.REQUESTS, REQUEST_BYTES)
            taken = True
        finally:
            if not taken:
                self._account.give(Kind.REQUESTS, size)
        self._queue.append(request)
        self._unanswered += request.cost
        if found.transaction is None:
            await self._appends.take(request, found)
        else:
            await self._stage(request, found, *found.transaction)

    async def _stage(self, request: Request, found: WriteParts, session: str, transaction: str) -> None:
        """Stage a request in its transaction. Raises YdbError."""
        assert self._topic is not None
        assert self._log is not None
        head = session, transaction, self._topic.name, self._topic.topic_id.bytes, self._log.partition
        for index, part in enumerate(found.parts):
            rest = list(part.seq_nos), part.max_created_ms, bytes(part.messages)
            write = StagedWrite(*head, self._producer, self._meta, found.codec, *rest)
            request.staged_part(index, await self._writing.staging.stage(write, self._stream))
            self.client.wrote(self._topic.name, self._log.partition, len(write.seq_nos), len(write.messages))
        self._moved.set()

    def _take_other(self, message: Any) -> None:
        match message.WhichOneof("client_message"):
            case "update_token_request":
                self._stream.replace_header(TICKET, message.update_token_request.token)
                self._identity.identify()
                response = StreamWriteFromServer(status=Status.SUCCESS)
                response.update_token_response.SetInParent()
                self._put(response.SerializeToString())
            case "init_request":
                raise bad_request("the stream has already had its init_request: open another stream")
            case "write_request":
                raise bad_request("a message must have one write_request and no other fields")
            case _:
                raise bad_request("the message has no client_message: send a write_request or an update_token_request")

    def _check(self, codec: int) -> None:
        """Check that the client may still write, and with this codec. Raises YdbError, GrpcRefusal."""
        topic = self._topic
        assert topic is not None
        if self._identity.is_old:
            self._identity.identify()
        if not self._service.node.authorizer.allows(self._identity.principal, Operation.WRITE, self._resource):
            message = f"access to topic {topic.name!r} is denied: you may not write it"
            raise YdbError(Status.UNAUTHORIZED, message, Issue.ACCESS_DENIED)
        allowed = self._service.topics.get_settings(topic.name).codecs
        if codec not in allowed if allowed else codec not in _KNOWN_CODECS and codec < _FIRST_CUSTOM_CODEC:
            raise bad_request(f"codec {codec} is none of the topic's")

    async def _still_bound(self, now: float) -> None:
        """Refresh the producer's row, so that it does not expire during a long session. Raises YdbError."""
        assert self._topic is not None
        assert self._log is not None
        self.bound_at = now
        if self._topic.partitions[self._log.partition].is_active:
            await self._writing.producers.partition_of(self._topic, self._producer, self._log.partition)

    # --- results ----------------------------------------------------------------------------------------------------

    def _written(
        self, topic: Topic, partition: int, traffic: TopicTraffic, messages: int, size: int, created_ms: int
    ) -> None:
        """Count a batch that is durable (see :meth:`WriteAppends.begin`)."""
        traffic.appended(1, messages, size)
        self.client.wrote(topic.name, partition, messages, size)
        if created_ms >= 0:
            self._service.measures.written(topic, partition, created_ms)

    def _put(self, raw: bytes) -> None:
        answer = Answer(raw)
        self._account.take(Kind.REQUESTS, answer.cost)
        self._unanswered += answer.cost
        self._queue.append(answer)
        self._moved.set()


async def partition_for(writing: Writing, topic: Topic, init: WriteInit) -> int:
    """Return the partition that a session writes to. Raises YdbError, LogError."""
    wanted = insisted_on(topic, init)
    if init.producer:
        return await bound_to(writing.service, writing.producers, topic, init.producer, wanted)
    return writing.any_partition(topic) if wanted is None else wanted


def register(registry: Registry, service: YdbService) -> None:
    """Add this module's method."""
    writing = Writing(service)
    answer_others(service.node)
    owners = service.node.owners

    async def stream_write(stream: GrpcStream) -> None:
        await WriteStream(writing, stream).serve()

    async def slot_of(raw: bytes, stream: GrpcStream) -> Callable[[], int] | None:
        message = parse_other(raw)
        if message.WhichOneof("client_message") != "init_request":
            return None
        init = parse_init(message.init_request)
        if init.generation is not None:
            return None  # the client has located the partition itself; if that was wrong it must do so again
        topic = service.topic_at(stream, init.path, Operation.WRITE)
        partition = await partition_for(writing, topic, init)
        return lambda: owners.slot_of(topic.name, partition)

    registry.stream("StreamWrite", service.forwarding.led("StreamWrite", stream_write, slot_of, _last))


def _last(error: YdbError) -> bytes:
    response = StreamWriteFromServer()
    error.tell(response)
    raw: bytes = response.SerializeToString()
    return raw
