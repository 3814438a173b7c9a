"""A reading session of a raw client, and a quick way to write what it reads."""

from __future__ import annotations

from typing import Any

from tests.ydb_topic_front.raw import RawClient, RawStream
from ydb_topic_front.wire.statuses import Status

CREDIT = 50 * 1024**2


def write(raw: RawClient, path: str, *bodies: bytes, partition: int = 0, codec: int = 1, **more: Any) -> None:
    """One request of messages without a producer, acknowledged."""
    stream = raw.stream("StreamWrite")
    stream.send(init_request={"path": path, "partition_id": partition})
    stream.send(
        write_request={
            "messages": [{"seq_no": number, "data": body, **more} for number, body in enumerate(bodies, 1)],
            "codec": codec,
        }
    )
    assert stream.receive().status == Status.SUCCESS
    assert len(stream.receive().write_response.acks) == len(bodies)
    stream.half_close()
    assert stream.rest() == []


class Session:
    """A stream that has had its init_request. Of each kind messages are received in order, kinds in any."""

    def __init__(self, raw: RawClient, *paths: str, consumer: str = "c", credit: int = CREDIT, **init: Any) -> None:
        self.stream: RawStream = raw.stream("StreamRead")
        self._early: list[Any] = []
        topics = init.pop("topics_read_settings", [{"path": path} for path in paths])
        self.stream.send(init_request={"topics_read_settings": topics, "consumer": consumer, **init})
        self.session_id = self.receive("init_response").session_id
        assert self.session_id
        if credit:
            self.stream.send(read_request={"bytes_size": credit})

    def receive(self, kind: str) -> Any:
        """The next message of this kind."""
        for message in self._early:
            if message.WhichOneof("server_message") == kind:
                self._early.remove(message)
                return getattr(message, kind)
        while True:
            message = self.stream.receive()
            assert message.status == Status.SUCCESS, message
            if message.WhichOneof("server_message") == kind:
                return getattr(message, kind)
            self._early.append(message)

    def started(self, **answer: Any) -> Any:
        """Have the next partition started; gives what was said of it."""
        request = self.receive("start_partition_session_request")
        self.start(request, **answer)
        return request

    def start(self, request: Any, **answer: Any) -> None:
        number = request.partition_session.partition_session_id
        self.stream.send(start_partition_session_response={"partition_session_id": number, **answer})

    def read(self, count: int) -> list[Any]:
        """So many messages, or more, in their order."""
        found: list[Any] = []
        while len(found) < count:
            response = self.receive("read_response")
            assert response.bytes_size > 0
            for data in response.partition_data:
                for batch in data.batches:
                    found += batch.message_data
        return found

    def commit(self, session: int, *ranges: tuple[int, int]) -> None:
        offsets = [{"start": start, "end": end} for start, end in ranges]
        self.stream.send(
            commit_offset_request={"commit_offsets": [{"partition_session_id": session, "offsets": offsets}]}
        )

    def committed(self) -> dict[int, int]:
        """What the next answer says was committed, by partition session."""
        response = self.receive("commit_offset_response")
        return {one.partition_session_id: one.committed_offset for one in response.partitions_committed_offsets}

    def nothing_but(self) -> bool:
        """Whether nothing came that was not asked for."""
        return not self._early

    def refusal(self) -> tuple[int, str]:
        """What the stream ends with."""
        *_, last = self.stream.rest()
        (issue,) = last.issues
        return last.status, issue.message

    def end(self) -> list[Any]:
        """Leave; gives what came before the end."""
        self.stream.half_close()
        return self.stream.rest()


def number_of(request: Any) -> int:
    number: int = request.partition_session.partition_session_id
    return number
