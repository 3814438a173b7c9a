"""A raw client that reads directly as YDB's SDK for C++ does (its direct_reader.cpp): the session in a StreamRead, the
data in a StreamDirectRead to each node that owns partitions."""

from __future__ import annotations

from typing import Any

from tests.ydb_topic_front.raw import RawClient, RawStream
from tests.ydb_topic_front.reading import Session
from ydb_topic_front.wire.statuses import Status


class DirectSession(Session):
    """A StreamRead with ``direct_read``."""

    def __init__(self, raw: RawClient, *paths: str, consumer: str = "c", **init: Any) -> None:
        super().__init__(raw, *paths, consumer=consumer, direct_read=True, **init)
        self.raw, self.consumer, self.paths = raw, consumer, paths

    def data(self, raw: RawClient | None = None) -> DataStream:
        """A stream for its data to the node of ``raw``."""
        stream = DataStream(raw or self.raw, self.session_id, self.consumer, *self.paths)
        stream.receive("init_response")
        return stream

    def ack(self, number: int, read_id: int) -> None:
        self.stream.send(direct_read_ack={"partition_session_id": number, "direct_read_id": read_id})


class DataStream:
    """A StreamDirectRead that has had its init_request."""

    def __init__(self, raw: RawClient, session_id: str, consumer: str, *paths: str) -> None:
        self.stream: RawStream = raw.stream("StreamDirectRead")
        self._early: list[Any] = []
        topics = [{"path": path} for path in paths]
        self.stream.send(init_request={"session_id": session_id, "consumer": consumer, "topics_read_settings": topics})

    def receive(self, kind: str, number: int | None = None) -> Any:
        """The next message of this kind, about one partition session if that matters."""
        while True:
            for message in self._early:
                found = getattr(message, kind)
                if message.WhichOneof("server_message") == kind and (
                    number is None or found.partition_session_id == number
                ):
                    self._early.remove(message)
                    return found
            message = self.stream.receive()
            assert message.status == Status.SUCCESS, message
            self._early.append(message)

    def ask(self, number: int, generation: int, last: int = 0) -> None:
        """Ask for a partition behind the read ``last``."""
        self.stream.send(
            start_direct_read_partition_session_request={
                "partition_session_id": number,
                "generation": generation,
                "last_direct_read_id": last,
            }
        )

    def begin(self, number: int, generation: int, last: int = 0) -> None:
        """Have a partition's data sent."""
        self.ask(number, generation, last)
        answer = self.receive("start_direct_read_partition_session_response", number)
        assert answer.generation == generation

    def stopped(self) -> tuple[int, int]:
        """The partition session that the server does not send any more, and why."""
        answer = self.receive("stop_direct_read_partition_session")
        assert answer.issues
        return answer.partition_session_id, answer.status

    def refusal(self) -> int:
        """The status that the stream ends with."""
        *_, last = self.stream.rest()
        status: int = last.status
        return status

    def read(self, read_id: int, number: int | None = None) -> list[Any]:
        """The messages of the next read, of one partition session if that matters, which has this number."""
        response = self.receive("direct_read_response", number)
        assert response.direct_read_id == read_id
        assert response.partition_session_id == response.partition_data.partition_session_id
        assert response.bytes_size > 0
        return [one for batch in response.partition_data.batches for one in batch.message_data]

    def read_up_to(self, offset: int, read_id: int = 1) -> tuple[list[Any], int]:
        """The messages up to an offset, from the read of this number on, and the number of the last read."""
        found = self.read(read_id)
        while found[-1].offset < offset:
            read_id += 1
            found += self.read(read_id)
        return found, read_id
