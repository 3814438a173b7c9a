"""StreamDirectRead: sends the data of a read session with ``direct_read`` (docs/protocols/ydb.md, "Direct reading").

A client opens one such stream to each node that owns partitions of its session, and asks it for these partitions. The
session itself, its credit and its positions stay with the StreamRead, so this stream is served where the session is.

What could go wrong, and why it does not:

* A stream breaks with reads on their way: the client names the last read that it has got, and the session goes on
  behind it.
* Two streams send one partition: the session has one sender for each, and a new one begins when the former has stopped.
* A partition moves: the client is told the new place (UpdatePartitionSession), and asks that node.
* A client acknowledges nothing: it gets at most 1000 reads of a partition, and only the bytes that it gave credit for.
* A client asks for a partition that another session has by now: it gets StopDirectReadPartitionSession.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bridges.auth import Operation
from ydb_topic_front.service.read.data_stream import DataStream
from ydb_topic_front.service.read.stream import ReadStream
from ydb_topic_front.wire.statuses import Issue, Status, YdbError, bad_request

if TYPE_CHECKING:
    from bridges.net.grpc_server import GrpcStream
    from ydb_topic_front.service.core import YdbService
    from ydb_topic_front.service.read.readers import Readers


class DirectStream(DataStream):
    """One StreamDirectRead call."""

    method = "StreamDirectRead"

    def __init__(self, service: YdbService, readers: Readers, stream: GrpcStream) -> None:
        super().__init__(service, stream)
        self._readers = readers
        self._session: ReadStream | None = None
        self._consumer = ""
        self._topics: dict[str, None] = {}

    def _identify(self) -> None:
        self._require_read(self._consumer, self._topics.keys())

    def _end_reading(self, error: YdbError) -> None:
        session = self._session
        self.end(error)
        if session is not None:  # its client hears of the error as if it had read with StreamRead
            session.end(error)

    def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.detach(self)

    def _close(self) -> None:
        if self._pump is not None:
            self._pump.close()

    def _untie(self) -> None:
        self._pump = None

    # --- messages of the client ---------------------------------------------------------------------------------------

    async def _open(self, request: Any) -> None:
        self._consumer = request.consumer
        self._identify()  # check the right before revealing whether the session exists
        if not request.topics_read_settings:
            raise bad_request("init_request has no topics_read_settings")
        session = self._readers.session(request.session_id)
        if not isinstance(session, ReadStream) or not session.is_direct:
            message = f"there is no read session '{request.session_id}' with direct_read: open a StreamRead first"
            raise YdbError(Status.SESSION_EXPIRED, message, Issue.WRONG_COOKIE)
        if request.consumer != session.consumer:
            raise bad_request(f"session '{request.session_id}' has the consumer '{session.consumer}'")
        for wanted in request.topics_read_settings:
            topic = self._service.topic_at(self._stream, wanted.path, Operation.READ)
            if topic.name not in session.partitions.topics:
                raise bad_request(f"session '{request.session_id}' does not read the topic '{wanted.path}'")
            self._topics[topic.name] = None
        self.session_id = session.session_id
        self._session = session
        session.attach(self)
        self._pump = session.partitions.new_pump(self._wake.set)
        message = self._success()
        message.init_response.SetInParent()
        self.answers.put(message)

    async def _handle(self, kind: str | None, message: Any) -> None:
        if kind != "start_direct_read_partition_session_request":
            raise bad_request(f"{kind or 'an empty message'} cannot be here")
        request = message.start_direct_read_partition_session_request
        session, pump = self._session, self._pump
        if session is None or pump is None:
            return  # the session has ended, and this stream ends with it
        reading = await session.partitions.sole(request.partition_session_id)
        if reading is None or reading.direct is None or reading.topic not in self._topics:
            self._stop(request, Status.SESSION_EXPIRED, "the partition session has ended, or was not started")
        elif request.generation != reading.direct.generation:
            self._stop(request, Status.UNAVAILABLE, f"the partition has the generation {reading.direct.generation}")
            # C++ ignores the stop and waits for an update. One that was sent before the user started the partition is
            # lost.
            session.partitions.tell_move(reading, reading.direct)
        elif self._error is None:
            if not session.partitions.feed_from(reading, request.last_direct_read_id, pump):
                self._stop(request, Status.SESSION_EXPIRED, "the partition is another session's now")
                return
            answer = self._success()
            answer.start_direct_read_partition_session_response.partition_session_id = reading.session_id
            answer.start_direct_read_partition_session_response.generation = reading.direct.generation
            self.answers.put(answer)

    def _stop(self, request: Any, status: Status, reason: str) -> None:
        answer = self._success()
        stop = answer.stop_direct_read_partition_session
        YdbError(status, reason).tell(stop)
        stop.partition_session_id = request.partition_session_id
        stop.generation = request.generation
        self.answers.put(answer)
