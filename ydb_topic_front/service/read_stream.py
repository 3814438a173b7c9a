"""StreamRead: a session that reads partitions, by itself or with others of its consumer (reference/ydb.md, section 3).

Four tasks serve a stream: one takes what the client says, one sends, one looks where partitions begin, one stores
positions. What goes wrong in any of them is the last message that the client gets.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from bridges.auth import Operation, Resource, ResourceKind
from bridges.catalog.topics import ChangeKind
from bridges.errors import LogError
from bridges.net.budget import Kind
from bridges.net.grpc_server import GrpcRefusal
from ydb_topic_front.failures import told
from ydb_topic_front.service.read_pump import ReadPump
from ydb_topic_front.service.read_start import first_written
from ydb_topic_front.service.write import TICKET
from ydb_topic_front.session.commit_ranges import CommitRanges
from ydb_topic_front.session.partition_reading import PartitionReading, ReadingState
from ydb_topic_front.session.read_data import Place
from ydb_topic_front.session.read_init import ReadInit, TopicWanted, no_such_consumer, parse_init
from ydb_topic_front.wire.messages import StreamReadFromClient, StreamReadFromServer
from ydb_topic_front.wire.statuses import Status, YdbError, bad_request, unknown_topic

if TYPE_CHECKING:
    from bridges.catalog.topics import Topic
    from bridges.log.partition_log import PartitionLog
    from bridges.net.grpc_server import GrpcStream
    from ydb_topic_front.service.core import YdbService
    from ydb_topic_front.service.readers import Readers

_MOST_UNSENT = 1000
"""Answers that wait to be sent: with more nothing is read from the client."""
_MOST_RANGES = 100_000
"""Commits of a session that wait for a hole before them to be filled."""
_RANGES_AT_ONCE = 500
_MESSAGE_BYTES = 1024 * 1024
"""Longest message of a reader: to parse more would hold up others."""
_OPENED_AT_ONCE = 16
_IDENTIFIED_S = 60.0
"""After this time it is looked again whether the client's token is good, and whether it may still read."""


class ReadStream:
    """One StreamRead."""

    def __init__(self, service: YdbService, readers: Readers, stream: GrpcStream) -> None:
        self._service = service
        self._readers = readers
        self._stream = stream
        self._init = ReadInit((), "", "", False)
        self._wanted: dict[str, TopicWanted] = {}
        self._topics: dict[str, Topic] = {}
        self.session_id = ""
        self._readings: dict[int, PartitionReading] = {}
        self._by_place: dict[tuple[str, int], PartitionReading] = {}
        self._numbers = 0
        self._ranges = 0  # of all partitions, with holes before them
        self._out: deque[bytes] = deque()
        self._error: YdbError | None = None
        self._refusal: GrpcRefusal | None = None
        self._half_closed = False
        self._wake = asyncio.Event()
        self._sent = asyncio.Event()
        self._to_open: dict[PartitionReading, None] = {}
        self._open_wake = asyncio.Event()
        self._moved: dict[PartitionReading, None] = {}
        self._storing: frozenset[PartitionReading] = frozenset()
        self._store_wake = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None
        self._writing_since = 0.0
        self._checked_at = 0.0
        self._pump = ReadPump(service.node, self._log_of, self._read_all, self._wake.set)

    # --- as others see it -------------------------------------------------------------------------------------------

    @property
    def consumer(self) -> str:
        return self._init.consumer

    @property
    def reader_name(self) -> str:
        return self._init.reader_name

    @property
    def peer(self) -> str:
        return self._stream.host

    @property
    def readings(self) -> Iterable[PartitionReading]:
        return self._readings.values()

    def reading(self, topic: str, partition: int) -> PartitionReading | None:
        """What it does with a partition; None if it is not its own."""
        return self._by_place.get((topic, partition))

    def end(self, error: YdbError) -> None:
        """End with ``error``, the first one that is told; partitions are free at once."""
        if self._error is None:
            self._error = error
            self._readers.leave(self)
            self._wake.set()
            self._sent.set()

    def position_moved(self, topic: str, partition: int, offset: int) -> None:
        """Somebody has stored a position on behalf of this session."""
        reading = self._by_place.get((topic, partition))
        if reading is not None and self._catch_up(reading, offset):
            self._tell_committed({reading: reading.commits.position})

    def start(self, topic: str, partition: int) -> None:
        """The partition is this session's (see :class:`ydb_topic_front.service.read_balancer.Member`)."""
        self._numbers += 1
        path = self._service.path_of(self._stream, self._topics[topic])
        reading = PartitionReading(self._numbers, topic, path, partition)
        self._readings[reading.session_id] = self._by_place[topic, partition] = reading
        self._to_open[reading] = None
        self._open_wake.set()

    def let_go(self, topic: str, partition: int) -> None:
        """Somebody else is to read the partition."""
        reading = self._by_place[topic, partition]
        if reading.state is ReadingState.OPENING:
            self._forget(reading)  # the client knows nothing of it
            return
        reading.state = ReadingState.STOPPING
        self._pump.remove(reading)
        message = StreamReadFromServer(status=Status.SUCCESS)
        request = message.stop_partition_session_request
        request.partition_session_id = reading.session_id
        request.graceful = True
        request.committed_offset = reading.commits.position
        self._put(message)

    def has_read_all(self, topic: str, partition: int) -> bool:
        """Whether the client knows that a partition has ended, and has got all of it."""
        reading = self._by_place.get((topic, partition))
        return reading is not None and reading.end_told

    def topic_changed(self, topic: Topic, change: ChangeKind) -> None:
        """Something is different with a topic that is read."""
        if change is ChangeKind.DELETED:
            self.end(unknown_topic(self._wanted[topic.name].path))
        elif self.consumer and self.consumer not in self._service.topics.of(topic.name).consumers:
            self.end(no_such_consumer(self.consumer, self._wanted[topic.name].path))

    # --- the stream's life ------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Serve the stream until its client ends it, or something else does."""
        self._task = asyncio.current_task()
        self._stream.when_draining(lambda: self.end(YdbError(Status.UNAVAILABLE, "the node is stopping")))
        tasks = [
            asyncio.create_task(self._guarded(work)) for work in (self._receive(), self._open_all(), self._store_all())
        ]
        try:
            await self._guarded(self._send())
            await self._say_why()
        finally:
            self._readers.leave(self)
            self._pump.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._stream.account.give(Kind.RESPONSES, sum(map(len, self._out)))
            self._out.clear()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (YdbError, LogError) as error:
            self.end(told(error))
        except GrpcRefusal as refusal:
            self._refusal = refusal
            self.end(YdbError(Status.UNAUTHORIZED, str(refusal)))
        except Exception as error:  # noqa: BLE001 - logged, counted and told
            self._service.node.barrier.caught("StreamRead", error)
            self.end(YdbError(Status.INTERNAL_ERROR, "an unexpected error"))

    async def _say_why(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        if self._error is not None:
            message = StreamReadFromServer()
            self._error.tell(message)
            self._service.node.metrics.kind("StreamRead").failed(self._error.status.name)
            await self._stream.write(message.SerializeToString())

    async def _send(self) -> None:
        """Send answers, and between them data, until it is over."""
        out, pump = self._out, self._pump
        while self._error is None:
            self._wake.clear()
            if out:
                answer = out.popleft()
                self._stream.account.give(Kind.RESPONSES, len(answer))
                await self._write(answer)
                self._sent.set()
            elif self._half_closed and not self._moved and not self._storing:
                return
            elif pump.ready and not self._half_closed:
                if time.monotonic() - self._checked_at > _IDENTIFIED_S:
                    self._identify()
                raw = await pump.response()
                if raw is None:
                    await asyncio.sleep(0)  # there may be very many partitions with nothing to send
                elif self._error is None:
                    await self._write(raw)
            else:
                await self._wake.wait()

    async def _write(self, raw: bytes) -> None:
        self._writing_since = time.monotonic()
        await self._stream.write(raw)
        self._writing_since = 0.0

    def cut_if_stuck(self, since: float) -> None:
        """End without a word if the client has taken nothing since then, by the monotonic clock: it holds memory."""
        if self._task is not None and 0 < self._writing_since < since:
            self._service.node.metrics.kind("StreamRead").failed("client takes nothing")
            self._task.cancel()

    def _put(self, message: Any) -> None:
        raw = message.SerializeToString()
        self._stream.account.take(Kind.RESPONSES, len(raw))
        self._out.append(raw)
        self._wake.set()

    # --- what the client says ---------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        stream = self._stream
        while (raw := await self._next()) is not None:
            stream.account.give(Kind.REQUESTS, len(raw))
            if self._error is not None:
                return
            if len(raw) > _MESSAGE_BYTES:
                raise bad_request(f"a message of {len(raw)} bytes is more than {_MESSAGE_BYTES}")
            try:
                message = StreamReadFromClient.FromString(raw)
            except DecodeError:
                raise bad_request("this is no message of a reader") from None
            kind = message.WhichOneof("client_message")
            if not self.session_id:
                if kind != "init_request":
                    raise bad_request("the first message of a stream is an init_request")
                await self._open(message.init_request)
                continue
            if kind == "commit_offset_request":
                await self._commit(message.commit_offset_request)
            elif (handler := _HANDLERS.get(kind)) is not None:
                handler(self, getattr(message, kind))
            else:
                raise bad_request(f"{kind or 'an empty message'} cannot be here")
            await self._few_unsent()
        self._half_closed = True
        self._wake.set()

    async def _few_unsent(self) -> None:
        """Return when the client has taken so many answers that there may be more."""
        while len(self._out) > _MOST_UNSENT and self._error is None:
            self._sent.clear()
            await self._sent.wait()

    async def _next(self) -> bytes | None:
        if self.session_id:
            return await self._stream.read()
        try:
            async with asyncio.timeout(self._service.settings.init_timeout_ms / 1000):
                return await self._stream.read()
        except TimeoutError:
            raise YdbError(Status.TIMEOUT, "there was no init_request") from None

    async def _open(self, request: Any) -> None:
        service = self._service
        init = self._init = parse_init(request)
        for wanted in init.topics:
            topic = service.topic_at(self._stream, wanted.path, Operation.READ)
            if topic.name in self._topics:
                raise bad_request(f"topic '{wanted.path}' is named twice")
            if init.consumer and init.consumer not in service.topics.of(topic.name).consumers:
                raise no_such_consumer(init.consumer, wanted.path)
            for partition in wanted.partitions:
                if not 0 <= partition < len(topic.partitions):
                    raise bad_request(f"topic '{wanted.path}' has no partition {partition}")
            self._topics[topic.name] = topic
            self._wanted[topic.name] = wanted
        self._identify()
        self.session_id = f"{init.consumer or 'reader'}_{service.node_id}_{uuid.uuid4()}"
        message = StreamReadFromServer(status=Status.SUCCESS)
        message.init_response.session_id = self.session_id
        self._put(message)
        self._readers.enter(self, self._topics.values())
        for name, topic in self._topics.items():
            partitions = self._wanted[name].partitions
            if init.consumer:
                self._readers.share(self, topic, partitions)
            else:
                for number, partition in enumerate(sorted(partitions), 1):
                    self.start(name, partition)
                    if not number % _RANGES_AT_ONCE:
                        await asyncio.sleep(0)

    def _identify(self) -> None:
        """Look who the client is, and whether it may read. Raises GrpcRefusal, YdbError."""
        service, stream = self._service, self._stream
        service.principal(stream)
        if self.consumer:
            service.require(stream, Operation.READ, Resource(ResourceKind.GROUP, self.consumer))
        for name in self._topics:
            service.require(stream, Operation.READ, Resource(ResourceKind.TOPIC, name))
        self._checked_at = time.monotonic()

    def _read_request(self, request: Any) -> None:
        if request.bytes_size <= 0:
            raise bad_request(f"a credit of {request.bytes_size} bytes")
        self._pump.credit = min(self._pump.credit + request.bytes_size, 1 << 62)
        self._wake.set()

    def _start_response(self, response: Any) -> None:
        reading = self._readings.get(response.partition_session_id)
        if reading is None:
            return
        if reading.state is ReadingState.OPENING:
            raise bad_request(f"partition session {reading.session_id} was not started")
        commit = response.commit_offset if response.HasField("commit_offset") else None
        if commit is not None and commit > reading.commits.position:
            if not self.consumer:
                raise bad_request("without a consumer nothing can be committed")
            self._commit_range(reading, reading.commits.position, commit)
        offset = response.read_offset if response.HasField("read_offset") else None
        reading.started(offset, max(reading.place.offset, reading.commits.position))
        if reading.may_send:
            self._pump.add(reading)

    async def _commit(self, request: Any) -> None:
        if not self.consumer:
            raise bad_request("without a consumer nothing can be committed")
        if not request.commit_offsets:
            raise bad_request("a commit of nothing")
        steps = 0
        for part in request.commit_offsets:
            if not part.offsets:
                raise bad_request("a commit of no offsets")
            for offsets in part.offsets:
                steps += 1
                if not steps % _RANGES_AT_ONCE:
                    await asyncio.sleep(0)
                reading = self._readings.get(part.partition_session_id)
                if reading is not None:  # else it was stopped, and the client may not know yet
                    self._commit_range(reading, offsets.start, offsets.end)

    def _commit_range(self, reading: PartitionReading, start: int, end: int) -> None:
        if reading.state is ReadingState.OPENING:
            raise bad_request(f"partition session {reading.session_id} was not started")
        self._check_commit(reading, end)
        commits = reading.commits
        self._ranges -= len(commits)
        if commits.add(start, end):
            self._store(reading)
        self._ranges += len(commits)
        if self._ranges > _MOST_RANGES:
            raise bad_request(f"there are more than {_MOST_RANGES} commits with holes before them")

    def _check_commit(self, reading: PartitionReading, offset: int) -> None:
        log = self._log_of(reading)
        if log.is_open and offset > log.high_watermark:
            raise bad_request(
                f"a commit up to {offset} of partition {reading.partition}, which ends at {log.high_watermark}"
            )

    def _stop_response(self, response: Any) -> None:
        if not self.consumer:
            raise bad_request("without a consumer there is nobody to let go for")
        reading = self._readings.get(response.partition_session_id)
        if reading is None or reading.state is not ReadingState.STOPPING:
            raise bad_request(f"partition session {response.partition_session_id} was not asked to stop")
        self._forget(reading)

    def _status_request(self, request: Any) -> None:
        reading = self._readings.get(request.partition_session_id)
        if reading is None:
            return
        log = self._log_of(reading)
        message = StreamReadFromServer(status=Status.SUCCESS)
        answer = message.partition_session_status_response
        answer.partition_session_id = reading.session_id
        answer.partition_offsets.start = log.log_start_offset
        answer.partition_offsets.end = log.last_stable_offset
        answer.committed_offset = reading.commits.position
        answer.read_offset = reading.place.offset
        answer.write_time_high_watermark.SetInParent()
        if (last := log.state.last) is not None and last[2] >= 0:
            answer.write_time_high_watermark.seconds = last[2] // 1000
            answer.write_time_high_watermark.nanos = last[2] % 1000 * 1_000_000
        self._put(message)

    def _update_token(self, request: Any) -> None:
        self._stream.replace_header(TICKET, request.token)
        self._identify()
        message = StreamReadFromServer(status=Status.SUCCESS)
        message.update_token_response.SetInParent()
        self._put(message)

    # --- partitions -------------------------------------------------------------------------------------------------

    def _log_of(self, reading: PartitionReading) -> PartitionLog:
        return self._service.log_of(self._topics[reading.topic], reading.partition)

    async def _open_all(self) -> None:
        """Tell the client of partitions that have become its own, when it is known where they begin."""
        while True:
            await self._open_wake.wait()
            self._open_wake.clear()
            while self._to_open:
                some = list(islice(self._to_open, _OPENED_AT_ONCE))
                for reading in some:
                    del self._to_open[reading]
                await asyncio.gather(*map(self._open_one, some))
                await self._few_unsent()

    async def _open_one(self, reading: PartitionReading) -> None:
        service = self._service
        log = self._log_of(reading)
        await log.ready()
        wanted = self._wanted[reading.topic]
        not_before = wanted.read_from_ms
        committed = None
        if self.consumer:
            committed = service.node.progress.committed(self.consumer, reading.topic, reading.partition)
            consumer = service.topics.of(reading.topic).consumers.get(self.consumer)
            if consumer is not None and consumer.HasField("read_from"):
                not_before = max(not_before, consumer.read_from.seconds * 1000 + consumer.read_from.nanos // 1_000_000)
        reading.not_before_ms = not_before
        reading.max_lag_ms = wanted.max_lag_ms
        now = time.time_ns() // 1_000_000
        if wanted.max_lag_ms >= 0:
            not_before = max(not_before, now - wanted.max_lag_ms)
        position = 0 if committed is None else committed.offset
        start = max(position, log.log_start_offset)
        if not_before >= 0:
            async with self._readers.searches:
                start = max(start, await first_written(log, not_before, self._stream.account))
        if self._readings.get(reading.session_id) is not reading:
            return  # somebody else is to read it by now
        reading.commits = CommitRanges(position)
        reading.place = Place(start)
        reading.began_ms = now
        reading.state = ReadingState.STARTING
        message = StreamReadFromServer(status=Status.SUCCESS)
        request = message.start_partition_session_request
        request.partition_session.partition_session_id = reading.session_id
        request.partition_session.path = reading.path
        request.partition_session.partition_id = reading.partition
        request.committed_offset = position
        request.partition_offsets.start = max(position, log.log_start_offset)
        request.partition_offsets.end = max(request.partition_offsets.start, log.last_stable_offset)
        self._put(message)

    def _forget(self, reading: PartitionReading) -> None:
        """The partition is not this session's any more, when what was committed of it is stored."""
        del self._readings[reading.session_id]
        self._ranges -= len(reading.commits)
        self._to_open.pop(reading, None)
        self._pump.remove(reading)
        if reading not in self._moved and reading not in self._storing:
            self._release(reading)

    def _release(self, reading: PartitionReading) -> None:
        self._by_place.pop((reading.topic, reading.partition), None)
        self._readers.released(self, reading.topic, reading.partition)

    def _read_all(self, reading: PartitionReading) -> None:
        """All of a partition that has ended was sent."""
        if reading.end_told or not self._init.knows_ends:
            return
        reading.end_told = True
        topic = self._topics[reading.topic]
        info = topic.partitions[reading.partition]
        message = StreamReadFromServer(status=Status.SUCCESS)
        told = message.end_partition_session
        told.partition_session_id = reading.session_id
        told.child_partition_ids.extend(info.children)
        adjacent = {index for child in info.children for index in topic.partitions[child].parents}
        told.adjacent_partition_ids.extend(sorted(adjacent - {info.index}))
        self._put(message)
        self._readers.ended(self.consumer, reading.topic)

    # --- positions --------------------------------------------------------------------------------------------------

    def _store(self, reading: PartitionReading) -> None:
        self._moved[reading] = None
        self._store_wake.set()

    async def _store_all(self) -> None:
        """Store positions that have moved, all that are waiting at once, and tell the client."""
        while True:
            await self._store_wake.wait()
            self._store_wake.clear()
            if self._error is not None:
                return  # others have its partitions by now
            if not self._moved:
                continue
            self._storing, self._moved = frozenset(self._moved), {}
            positions = {(one.topic, one.partition): one.commits.position for one in self._storing}
            stored = await self._readers.store(self.consumer, positions, lambda: self._error is None)
            done, self._storing = self._storing, frozenset()
            for reading in done:
                self._catch_up(reading, stored[reading.topic, reading.partition])
            self._tell_committed({one: stored[one.topic, one.partition] for one in done})
            for reading in done:
                if reading.session_id not in self._readings and reading not in self._moved:
                    self._release(reading)
                elif reading.end_told or self._log_of(reading).final_offset is not None:
                    self._readers.ended(self.consumer, reading.topic)
            self._wake.set()

    def _catch_up(self, reading: PartitionReading, offset: int) -> bool:
        """Others have committed up to ``offset``; whether that moved this session's position."""
        before = len(reading.commits)
        moved = reading.commits.moved(offset)
        if reading.session_id in self._readings:
            self._ranges += len(reading.commits) - before
        return moved

    def _tell_committed(self, positions: Mapping[PartitionReading, int]) -> None:
        message = StreamReadFromServer(status=Status.SUCCESS)
        response = message.commit_offset_response
        for reading, offset in positions.items():
            if reading.session_id in self._readings:
                response.partitions_committed_offsets.add(
                    partition_session_id=reading.session_id, committed_offset=offset
                )
        if response.partitions_committed_offsets:
            self._put(message)


_HANDLERS: Mapping[str, Callable[[ReadStream, Any], None]] = {
    "read_request": ReadStream._read_request,
    "start_partition_session_response": ReadStream._start_response,
    "stop_partition_session_response": ReadStream._stop_response,
    "partition_session_status_request": ReadStream._status_request,
    "update_token_request": ReadStream._update_token,
}
