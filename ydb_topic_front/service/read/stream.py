"""StreamRead: a session that reads partitions, alone or together with other sessions of its consumer
(docs/protocols/ydb.md, "StreamRead").

Up to four tasks serve a stream. One receives the client's messages and one sends. Two start when they first have work:
one finds where partitions begin (:mod:`ydb_topic_front.service.read.partitions`), one stores positions
(:mod:`ydb_topic_front.service.read.commits`).

An error in any of them becomes the last message to the client.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.turns import Turns, in_turns
from bridges.auth import Operation, Resource, ResourceKind
from bridges.catalog.topics.topic import ChangeKind
from bridges.errors import LogError
from bridges.net.grpc_server import Code, GrpcRefusal
from bridges.net.quotas import Throttle
from ydb_topic_front.failures import translate_error
from ydb_topic_front.service.core import TICKET, describe_client
from ydb_topic_front.service.identity import Identity
from ydb_topic_front.service.read.answers import ReadAnswers
from ydb_topic_front.service.read.chore import Work
from ydb_topic_front.service.read.partitions import ReadPartitions
from ydb_topic_front.session.read_init import no_such_consumer, parse_init
from ydb_topic_front.wire.messages import StreamReadFromClient, StreamReadFromServer
from ydb_topic_front.wire.statuses import Status, YdbError, bad_request, unknown_topic

if TYPE_CHECKING:
    from bridges.catalog.topics.topic import Topic
    from bridges.clients import Client, Description
    from bridges.net.grpc_server import GrpcStream
    from ydb_topic_front.service.core import YdbService
    from ydb_topic_front.service.read.readers import Readers
    from ydb_topic_front.session.partition_reading import PartitionReading

_MESSAGE_BYTES = 1024 * 1024
"""Longest message of a client: parsing a longer one would block the event loop."""


def parse_message(raw: bytes) -> Any:
    """Parse a client's message. Raises YdbError."""
    if len(raw) > _MESSAGE_BYTES:
        raise bad_request(f"a message of {len(raw)} bytes is more than {_MESSAGE_BYTES}")
    try:
        return StreamReadFromClient.FromString(raw)
    except DecodeError:
        raise bad_request("the bytes are no StreamRead message") from None


class ReadStream:
    """One StreamRead call."""

    def __init__(self, service: YdbService, readers: Readers, stream: GrpcStream) -> None:
        self._service = service
        self._readers = readers
        self._stream = stream
        self.session_id = ""
        self._identity = Identity(service, stream, self._refused)
        self._error: YdbError | None = None
        # Code and text instead of the exception, whose traceback would keep its frames and this stream in memory.
        self._refusal: tuple[Code, str] | None = None
        self._half_closed = False
        self._cut = False
        self._silent = False
        self._wake = asyncio.Event()
        self._answers = ReadAnswers(stream.account, self._wake.set)
        self._partitions = ReadPartitions(
            service, readers, self, stream, self._answers, lambda: self._error is not None, self._wake.set, self._begin
        )
        self._commits = self._partitions.commits
        self._pump = self._partitions.pump
        self._task: asyncio.Task[Any] | None = None
        self._others: list[asyncio.Task[None]] = []
        self._quota = service.node.quotas.fetch
        self._throttle = Throttle(self._released)
        # Whether the throttle has just let this session pass after waiting for its quota.
        self._its_turn = False
        self._over = False
        self._writing_since = 0.0
        self.client: Client = service.enter(stream, self._describe, self.end)

    def _describe(self) -> Description:
        return describe_client(self._stream, self.reader_name, self._identity.principal)

    # --- calls from other parts -------------------------------------------------------------------------------------

    @property
    def consumer(self) -> str:
        return self._partitions.consumer

    @property
    def reader_name(self) -> str:
        return self._partitions.init.reader_name

    @property
    def readings(self) -> Iterable[PartitionReading]:
        return self._partitions.readings

    def reading(self, topic: str, partition: int) -> PartitionReading | None:
        """Return the partition session of a partition; None if this session does not have the partition."""
        return self._partitions.at(topic, partition)

    def end(self, error: YdbError) -> None:
        """End the session with ``error``, and free its partitions at once. Only the first error counts."""
        if self._error is None:
            self._error = error
            self._readers.leave(self)
            self._wake.set()
            self._answers.close()

    def _refused(self, refusal: GrpcRefusal) -> None:
        self._refusal = refusal.code, str(refusal)
        self.end(YdbError(Status.UNAUTHORIZED, str(refusal)))

    def unanswered(self, reading: PartitionReading) -> None:
        """Take a partition from a client that did not answer in time whether it starts it, or lets go of it."""
        if self._error is None:
            self._silent = True
            self._readers.demote(self)
            self._partitions.take_back(reading)

    def position_moved(self, topic: str, partition: int, offset: int, *, tell: bool = True) -> None:
        """Note that a CommitOffset call or a transaction has stored a position on behalf of this session; ``tell`` the
        client."""
        reading = self._partitions.at(topic, partition)
        if reading is not None:
            self._commits.stored_by_others(reading, offset, tell=tell)

    def start(self, topic: str, partition: int) -> None:
        """Take a partition that the balancer has assigned (see
        :class:`ydb_topic_front.service.read.balancer.Member`)."""
        self._partitions.start(topic, partition)

    def let_go(self, topic: str, partition: int) -> None:
        """Let go of a partition that another session is to read."""
        self._partitions.let_go(topic, partition)

    def has_read_all(self, topic: str, partition: int) -> bool:
        """Return whether the client was told that a partition has ended, and has got all of it."""
        reading = self._partitions.at(topic, partition)
        return reading is not None and reading.end_told

    def topic_changed(self, topic: Topic, change: ChangeKind) -> None:
        """End the session if a topic it reads was deleted, or no longer has its consumer."""
        path = self._partitions.wanted[topic.name].path
        if change is ChangeKind.DELETED:
            self.end(unknown_topic(path))
        elif self.consumer and self.consumer not in self._service.topics.get_settings(topic.name).consumers:
            self.end(no_such_consumer(self.consumer, path))

    def cut_if_stuck(self, since: float) -> None:
        """End the stream if its client has taken nothing since ``since`` (monotonic clock): its unsent answer holds
        memory."""
        if self._task is not None and 0 < self._writing_since < since and not self._cut:
            self._cut = True
            self._task.cancel()

    # --- the stream's life ------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Serve the stream until the client or an error ends it."""
        self._task = asyncio.current_task()
        self._stream.when_draining(lambda: self.end(YdbError(Status.UNAVAILABLE, "the node is stopping")))
        self._begin(self._receive)
        try:
            await self._guarded(self._send())
            await self._say_why()
        except asyncio.CancelledError:
            if not self._cut:
                raise
            # The client gets this status when it reads again, behind the answer that it has not taken.
            raise GrpcRefusal(Code.UNAVAILABLE, "nothing was taken of what was sent, and memory is short") from None
        finally:
            self._throttle.end()
            self._service.node.clients.leave(self.client)
            self._readers.leave(self)
            self._partitions.close()
            self._over = True
            others, self._others = self._others, []
            for task in others:
                task.cancel()
            try:
                await asyncio.gather(*others, return_exceptions=True)
            finally:
                self._answers.drop()
                self._partitions.untie()
                self._identity.close()

    def _begin(self, work: Work) -> None:
        """Run ``work`` as a task until the stream has ended."""
        if not self._over:
            self._others.append(asyncio.create_task(self._guarded(work())))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (YdbError, LogError) as error:
            self.end(translate_error(error))
        except GrpcRefusal as refusal:
            self._refused(refusal)
        except Exception as error:  # noqa: BLE001 - logged, counted and told
            self._service.node.barrier.caught("StreamRead", error)
            self.end(YdbError(Status.INTERNAL_ERROR, "an unexpected error"))

    async def _say_why(self) -> None:
        if self._refusal is not None:
            raise GrpcRefusal(*self._refusal)
        if self._error is not None:
            message = StreamReadFromServer()
            self._error.tell(message)
            self._service.node.metrics.kind("StreamRead").failed(self._error.status.name)
            await self._stream.write(message.SerializeToString())

    async def _send(self) -> None:
        """Send answers first, and data when there are none, until the session ends."""
        pump = self._pump
        turns = Turns()
        while self._error is None:
            self._wake.clear()
            if self._answers:
                await self._write(self._answers.take())
            elif self._half_closed and not self._commits.unsettled:
                return
            elif pump.ready and not self._half_closed:
                if self._identity.is_old:
                    self._identify()
                if self._quota.in_force and not self._may_read():
                    await self._wake.wait()
                    continue
                raw = await pump.response()
                if raw is None:
                    await turns.rest()  # many partitions in a row may have nothing to send
                elif self._error is None:
                    if self._quota.in_force:
                        self._throttle.charge(self._quota.bucket(self._identity.principal.name, None), len(raw))
                        self._its_turn = False
                    await self._write(raw)
            else:
                await self._wake.wait()

    def _may_read(self) -> bool:
        """Return whether the client's quota allows data now; if not, the throttle wakes the sender when it does."""
        if self._throttle.waits:
            return False
        return self._its_turn or self._throttle.passes(self._quota.bucket(self._identity.principal.name, None))

    def _released(self) -> None:
        self._its_turn = True
        self._wake.set()

    async def _write(self, raw: bytes) -> None:
        self._writing_since = time.monotonic()
        await self._stream.write(raw)
        self._writing_since = 0.0

    # --- messages of the client -------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        stream = self._stream
        while (raw := await self._stream.read()) is not None:
            stream.account.give(Kind.REQUESTS, len(raw))
            if self._error is not None:
                return
            message = parse_message(raw)
            kind = message.WhichOneof("client_message")
            if not self.session_id:
                if kind != "init_request":
                    raise bad_request("the first message of a stream is an init_request")
                await self._open(message.init_request)
                continue
            if kind == "commit_offset_request":
                await self._commits.request(message.commit_offset_request)
            elif (handler := _HANDLERS.get(kind)) is not None:
                handler(self, getattr(message, kind))
            else:
                raise bad_request(f"{kind or 'an empty message'} cannot be here")
            if self._silent and kind != "update_token_request":  # SDKs send those even if the application hangs
                self._silent = False
                self._readers.restore(self)
            await self._answers.few()
        self._half_closed = True
        self._wake.set()

    async def _open(self, request: Any) -> None:
        service, mine = self._service, self._partitions
        init = mine.init = parse_init(request)
        self._identify()  # check the right before revealing whether the consumer exists
        for wanted in init.topics:
            topic = service.topic_at(self._stream, wanted.path, Operation.READ)
            if topic.name in mine.topics:
                raise bad_request(f"topic '{wanted.path}' is named twice")
            if init.consumer and init.consumer not in service.topics.get_settings(topic.name).consumers:
                raise no_such_consumer(init.consumer, wanted.path)
            async for partition in in_turns(wanted.partitions):
                if not 0 <= partition < len(topic.partitions):
                    raise bad_request(f"topic '{wanted.path}' has no partition {partition}")
            mine.topics[topic.name] = topic
            mine.wanted[topic.name] = wanted
        if init.consumer:
            await self._readers.coordination.await_known(init.consumer)
        self._identify()
        if init.consumer:
            self._readers.coordination.require(init.consumer)
            service.node.progress.require_free(init.consumer)
        self.session_id = f"{init.consumer or 'reader'}_{service.node_id}_{uuid.uuid4()}"
        message = StreamReadFromServer(status=Status.SUCCESS)
        message.init_response.session_id = self.session_id
        self._answers.put(message)
        self._readers.enter(self, mine.topics.values())
        async for name, topic in in_turns(list(mine.topics.items())):
            partitions = mine.wanted[name].partitions
            if init.consumer:
                self._readers.share(self, topic, partitions)
            else:
                async for partition in in_turns(sorted(partitions)):
                    mine.start(name, partition)
                    if self._error is not None:
                        return

    def _identify(self) -> None:
        """Authenticate the client again and check that it may read its topics and consumer. Raises GrpcRefusal,
        YdbError."""
        service, stream = self._service, self._stream
        principal = self._identity.identify()
        if self.consumer:
            service.require(stream, Operation.READ, Resource(ResourceKind.GROUP, self.consumer), principal)
        for name in self._partitions.topics:
            service.require(stream, Operation.READ, Resource(ResourceKind.TOPIC, name), principal)

    def _read_request(self, request: Any) -> None:
        if request.bytes_size <= 0:
            raise bad_request(f"a credit of {request.bytes_size} bytes")
        self._pump.credit = min(self._pump.credit + request.bytes_size, 1 << 62)
        self._wake.set()

    def _update_token(self, request: Any) -> None:
        self._stream.replace_header(TICKET, request.token)
        self._identify()
        message = StreamReadFromServer(status=Status.SUCCESS)
        message.update_token_response.SetInParent()
        self._answers.put(message)


_HANDLERS: Mapping[str, Callable[[ReadStream, Any], None]] = {
    "read_request": ReadStream._read_request,
    "start_partition_session_response": lambda stream, said: stream._partitions.started(said),
    "stop_partition_session_response": lambda stream, said: stream._partitions.stopped(said),
    "partition_session_status_request": lambda stream, said: stream._partitions.status(said),
    "update_token_request": ReadStream._update_token,
}
