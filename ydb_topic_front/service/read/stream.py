"""StreamRead: a session that reads partitions, alone or together with other sessions of its consumer
(docs/protocols/ydb.md, "StreamRead").

Besides the two tasks of every stream that sends data (:mod:`ydb_topic_front.service.read.data_stream`), two start when
they first have work: one finds where partitions begin (:mod:`ydb_topic_front.service.read.partitions`), one stores
positions (:mod:`ydb_topic_front.service.read.commits`).

With ``direct_read`` the data goes through other streams (:mod:`ydb_topic_front.service.read.direct_stream`), which the
session ends with itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from anabranch_kit.run.turns import in_turns
from bridges.auth import Operation
from bridges.catalog.topics.topic import ChangeKind
from ydb_topic_front.service.core import describe_client
from ydb_topic_front.service.read.data_stream import DataStream
from ydb_topic_front.service.read.partitions import ReadPartitions
from ydb_topic_front.session.read_init import no_such_consumer, parse_init
from ydb_topic_front.wire.statuses import Issue, Status, YdbError, bad_request, unknown_topic

if TYPE_CHECKING:
    from bridges.catalog.topics.topic import Topic
    from bridges.clients import Client, Description
    from bridges.net.grpc_server import GrpcStream
    from ydb_topic_front.service.core import YdbService
    from ydb_topic_front.service.read.readers import Readers
    from ydb_topic_front.session.partition_reading import PartitionReading


def node_of(session_id: str) -> str:
    """Return the node id, as clients see it, of the node that serves a read session; empty for no session's id."""
    parts = session_id.rsplit("_", 2)
    return parts[1] if len(parts) == 3 else ""


class ReadStream(DataStream):
    """One StreamRead call."""

    method = "StreamRead"

    def __init__(self, service: YdbService, readers: Readers, stream: GrpcStream) -> None:
        super().__init__(service, stream)
        self._readers = readers
        self._silent = False
        self._direct: dict[DataStream, None] = {}
        self._partitions = ReadPartitions(
            service, readers, self, stream, self.answers, lambda: self._error is not None, self._wake.set, self._begin
        )
        self._commits = self._partitions.commits
        self._pump = self._partitions.pump
        self.client: Client = service.enter(stream, self._describe, self.end)

    def _describe(self) -> Description:
        return describe_client(self._stream, self.reader_name, self.identity.principal)

    # --- calls from other parts -------------------------------------------------------------------------------------

    @property
    def consumer(self) -> str:
        return self._partitions.consumer

    @property
    def reader_name(self) -> str:
        return self._partitions.init.reader_name

    @property
    def is_direct(self) -> bool:
        return self._partitions.init.is_direct

    @property
    def readings(self) -> Iterable[PartitionReading]:
        return self._partitions.readings

    @property
    def partitions(self) -> ReadPartitions:
        return self._partitions

    def reading(self, topic: str, partition: int) -> PartitionReading | None:
        """Return the partition session of a partition; None if this session does not have the partition."""
        return self._partitions.at(topic, partition)

    def attach(self, stream: DataStream) -> None:
        """Have a StreamDirectRead woken by new credit, and ended with the session."""
        self._direct[stream] = None

    def detach(self, stream: DataStream) -> None:
        """Forget a StreamDirectRead that has ended."""
        self._direct.pop(stream, None)

    def wake_senders(self) -> None:
        """Let all streams of the session send: there is more credit."""
        self._wake.set()
        for stream in self._direct:
            stream.wake()

    def cut_if_stuck(self, since: float) -> None:
        super().cut_if_stuck(since)
        for stream in list(self._direct):
            stream.cut_if_stuck(since)

    async def tell_moves(self) -> None:
        """Tell the client which of its partitions have another owner or generation by now."""
        await self._partitions.tell_moves()

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

    # --- the stream's life ------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        self._readers.leave(self)
        for stream in list(self._direct):
            stream.end(YdbError(Status.SESSION_EXPIRED, "the read session has ended", Issue.WRONG_COOKIE))

    def _close(self) -> None:
        self._service.node.clients.leave(self.client)
        self._partitions.close()

    def _untie(self) -> None:
        self._pump = None
        self._partitions.untie()

    @property
    def _unsettled(self) -> bool:
        return self._commits.unsettled

    # --- messages of the client -------------------------------------------------------------------------------------

    async def _handle(self, kind: str | None, message: Any) -> None:
        if kind == "commit_offset_request":
            await self._commits.request(message.commit_offset_request)
        elif (handler := _HANDLERS.get(kind or "")) is not None:
            handler(self, getattr(message, kind or ""))
        else:
            raise bad_request(f"{kind or 'an empty message'} cannot be here")
        if self._silent:  # SDKs send tokens even if the application hangs: those are handled elsewhere
            self._silent = False
            self._readers.restore(self)

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
        message = self._success()
        message.init_response.session_id = self.session_id
        self.answers.put(message)
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
        self._require_read(self.consumer, self._partitions.topics.keys())

    def _read_request(self, request: Any) -> None:
        if request.bytes_size <= 0:
            raise bad_request(f"a credit of {request.bytes_size} bytes")
        self._partitions.credit.add(request.bytes_size)


_HANDLERS: Mapping[str, Callable[[ReadStream, Any], None]] = {
    "read_request": ReadStream._read_request,
    "start_partition_session_response": lambda stream, said: stream._partitions.started(said),
    "stop_partition_session_response": lambda stream, said: stream._partitions.stopped(said),
    "partition_session_status_request": lambda stream, said: stream._partitions.status(said),
    "direct_read_ack": lambda stream, said: stream._partitions.acknowledge(said),
}
