"""StreamWrite, by a client that sees every message: what SDKs never send is here, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import pytest

from tests.node_process import NodeProcess
from tests.ydb_topic_front.raw import RawClient, RawStream
from ydb_topic_front.wire.statuses import Status

MEBIBYTE = 1024**2


@pytest.fixture
def made(raw: RawClient, topic: str) -> str:
    """The path of a topic with three partitions."""
    path = f"/local/{topic}"
    raw.result("CreateTopic", path=path, partitioning_settings={"min_active_partitions": 3})
    return path


class Session:
    """A stream that has had its init_request."""

    def __init__(self, raw: RawClient, path: str, **init: Any) -> None:
        self.stream: RawStream = raw.stream("StreamWrite")
        self.stream.send(init_request={"path": path, **init})
        self.opened = self.stream.receive()
        assert self.opened.status == Status.SUCCESS, self.opened
        self.init = self.opened.init_response

    def send(self, *seq_nos: int, codec: int = 1, data: bytes = b"data", **more: Any) -> None:
        messages = [{"seq_no": seq_no, "data": data, **more} for seq_no in seq_nos]
        self.stream.send(write_request={"messages": messages, "codec": codec})

    def acks(self) -> list[tuple[int, int | None]]:
        """Of the next answer: (seq_no, offset), None for one that was skipped."""
        return told(self.stream.receive())

    def write(self, *seq_nos: int, **more: Any) -> list[tuple[int, int | None]]:
        self.send(*seq_nos, **more)
        return self.acks()

    def end(self) -> None:
        self.stream.half_close()
        assert self.stream.rest() == []


def told(message: Any) -> list[tuple[int, int | None]]:
    assert message.status == Status.SUCCESS, message
    response = message.write_response
    assert response.HasField("write_statistics")
    found: list[tuple[int, int | None]] = []
    for ack in response.acks:
        if ack.WhichOneof("message_write_status") == "written":
            found.append((ack.seq_no, ack.written.offset))
        else:
            assert ack.skipped.reason == 1
            found.append((ack.seq_no, None))
    return found


def last_of(messages: Sequence[Any]) -> tuple[int, str]:
    """Status and issue of the message that ends a stream."""
    (issue,) = messages[-1].issues
    return messages[-1].status, issue.message


def refused(raw: RawClient, *requests: dict[str, Any]) -> tuple[int, str]:
    """What a stream of these messages ends with."""
    stream = raw.stream("StreamWrite")
    for request in requests:
        stream.send(**request)
    return last_of(stream.rest())


def test_messages_are_acknowledged_with_their_offsets(raw: RawClient, made: str) -> None:
    session = Session(raw, made, producer_id="p", message_group_id="p")
    assert session.init.last_seq_no == 0
    assert session.init.session_id
    assert session.write(1, 2, 3) == [(1, 0), (2, 1), (3, 2)]
    assert session.write(10, 20) == [(10, 3), (20, 4)]
    session.send(21, codec=2)
    session.send(22, codec=10_000)
    assert [session.acks(), session.acks()] == [[(21, 5)], [(22, 6)]]
    session.end()


def test_what_was_written_is_skipped_also_within_a_request(raw: RawClient, made: str) -> None:
    first = Session(raw, made, producer_id="p")
    assert first.write(1, 2, 5) == [(1, 0), (2, 1), (5, 2)]
    assert first.write(2, 5) == [(2, None), (5, None)]
    assert first.write(1, 3, 5, 6, 9) == [(1, None), (3, None), (5, None), (6, 3), (9, 4)]
    first.end()
    second = Session(raw, made, producer_id="p")
    assert (second.init.last_seq_no, second.init.partition_id) == (9, first.init.partition_id)
    assert second.write(9, 10) == [(9, None), (10, 5)]
    second.end()


def test_without_a_producer_nothing_is_a_repetition(raw: RawClient, made: str) -> None:
    session = Session(raw, made, partition_id=1)
    assert session.init.last_seq_no == 0
    assert session.write(1, 2) == [(1, 0), (2, 1)]
    assert session.write(1, 2) == [(1, 2), (2, 3)]
    session.end()
    assert {Session(raw, made).init.partition_id for _ in range(3)} == {0, 1, 2}


def test_a_producer_stays_where_it_is(raw: RawClient, made: str) -> None:
    places = {}
    for number in range(12):
        session = Session(raw, made, producer_id=f"p{number}")
        places[f"p{number}"] = session.init.partition_id
        session.end()
    assert set(places.values()) == {0, 1, 2}
    changed = {"set_min_active_partitions": 7}
    assert raw.call("AlterTopic", path=made, alter_partitioning_settings=changed).status == Status.SUCCESS
    for producer, place in places.items():
        session = Session(raw, made, producer_id=producer)
        assert session.init.partition_id == place
        session.end()
        elsewhere = {"path": made, "producer_id": producer, "partition_id": (place + 1) % 3}
        status, message = refused(raw, {"init_request": elsewhere})
        assert status == Status.BAD_REQUEST
        assert f"bound to partition {place}" in message
    assert {Session(raw, made, producer_id=f"n{number}").init.partition_id for number in range(60)} > {0, 1, 2}


def test_a_new_session_of_a_producer_ends_the_old_one(raw: RawClient, made: str) -> None:
    old = Session(raw, made, producer_id="p")
    assert old.write(1) == [(1, 0)]
    new = Session(raw, made, producer_id="p")
    assert new.init.last_seq_no == 1
    status, message = last_of(old.stream.rest())
    assert status == Status.SESSION_EXPIRED
    assert "another" in message
    assert new.write(1, 2) == [(1, None), (2, 1)]
    # Those without a producer, or with others, leave each other alone.
    others = [Session(raw, made, partition_id=0), Session(raw, made, partition_id=0)]
    others.append(Session(raw, made, producer_id="q"))
    for session in (*others, new):
        session.write(7)
        session.end()


INIT = {"init_request": {"path": "t"}}
GOOD = {"seq_no": 1, "data": b"x"}


def write(*messages: dict[str, Any], codec: int = 1, **more: Any) -> dict[str, Any]:
    return {"write_request": {"messages": messages, "codec": codec, **more}}


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        (write(), Status.BAD_REQUEST, "has no messages"),
        (write({**GOOD, "seq_no": 0}), Status.BAD_REQUEST, "not positive"),
        (write({**GOOD, "seq_no": -5}), Status.BAD_REQUEST, "not positive"),
        (write(GOOD, GOOD), Status.BAD_REQUEST, "must rise"),
        (write({**GOOD, "seq_no": 2}, GOOD), Status.BAD_REQUEST, "must rise"),
        (write(GOOD, codec=0), Status.BAD_REQUEST, "codec 0"),
        (write(GOOD, codec=-1), Status.BAD_REQUEST, "codec -1"),
        (write(GOOD, codec=77), Status.BAD_REQUEST, "codec 77"),
        (
            write({**GOOD, "metadata_items": [{"key": "k", "value": b"x" * 4096}]}),
            Status.BAD_REQUEST,
            "4097 bytes, more than 4096",
        ),
        (
            write({**GOOD, "metadata_items": [{"key": "k", "value": b"x" * 4096}, {}]}),
            Status.BAD_REQUEST,
            "4097 bytes, more than 4096",
        ),
        (write(GOOD, tx={"id": "a", "session": "b"}), Status.BAD_REQUEST, "session"),
        (INIT, Status.BAD_REQUEST, "has already had its init_request"),
        ({}, Status.BAD_REQUEST, "has no client_message"),
    ],
)
def test_what_the_protocol_does_not_allow_ends_the_stream_with_its_reason(
    raw: RawClient, made: str, request_: dict[str, Any], status: Status, words: str
) -> None:
    """What came before it is answered."""
    stream = raw.stream("StreamWrite")
    stream.send(init_request={"path": made, "producer_id": "p"})
    stream.send(**write(GOOD))
    stream.send(**request_)
    stream.send(**write({**GOOD, "seq_no": 9}))
    opened, written, *end = stream.rest()
    assert opened.HasField("init_response")
    assert told(written) == [(1, 0)]
    assert last_of(end)[0] == status
    assert words in last_of(end)[1]
    session = Session(raw, made, producer_id="p")
    assert session.init.last_seq_no == 1, "what came behind was not written"
    session.end()


@pytest.mark.parametrize(
    ("init", "status", "words"),
    [
        ({"path": ""}, Status.BAD_REQUEST, "path"),
        ({"path": "/local/nowhere"}, Status.SCHEME_ERROR, "nowhere"),
        ({"producer_id": "a", "message_group_id": "b"}, Status.BAD_REQUEST, "message_group_id"),
        ({"producer_id": "a" * 2049}, Status.BAD_REQUEST, "2048"),
        ({"partition_id": 3}, Status.BAD_REQUEST, "partition 3"),
        ({"partition_id": -1}, Status.BAD_REQUEST, "partition -1"),
        ({"partition_id": 2**40}, Status.BAD_REQUEST, "partition"),
        ({"partition_with_generation": {"partition_id": 0, "generation": 99}}, Status.UNAVAILABLE, "generation"),
        ({"write_session_meta": {"k": "v" * 70_000}}, Status.BAD_REQUEST, "long"),
        ({"write_session_meta": {"k": "v" * 5_000}}, Status.BAD_REQUEST, "metadata"),
    ],
)
def test_an_init_that_cannot_be(raw: RawClient, made: str, init: dict[str, Any], status: Status, words: str) -> None:
    got, message = refused(raw, {"init_request": {"path": made, **init}})
    assert got == status
    assert words in message


def test_the_first_message_is_an_init(raw: RawClient) -> None:
    assert refused(raw, write(GOOD))[0] == Status.BAD_REQUEST
    assert refused(raw, {"update_token_request": {"token": "x"}})[0] == Status.BAD_REQUEST
    stream = raw.stream("StreamWrite")
    stream.send_raw(b"\xff\xff\xff")
    assert last_of(stream.rest())[0] == Status.BAD_REQUEST


def test_direct_writes_name_the_generation_that_describing_tells(raw: RawClient, made: str) -> None:
    found = raw.result("DescribePartition", path=made, partition_id=1, include_location=True)
    location = found.partition.partition_location
    (endpoint,) = raw.result("ListEndpoints", database="/local").endpoints
    assert location.node_id == endpoint.node_id
    direct = {"partition_id": 1, "generation": location.generation}
    session = Session(raw, made, producer_id="d", partition_with_generation=direct)
    assert session.init.partition_id == 1
    other = {**direct, "generation": location.generation + 1}
    init = {"path": made, "producer_id": "d", "partition_with_generation": other}
    assert refused(raw, {"init_request": init})[0] == Status.UNAVAILABLE
    # Whoever was told wrong has not ended the one that was told right.
    assert session.write(1) == [(1, 0)]
    session.end()


def test_a_topic_that_names_its_codecs_takes_no_others(raw: RawClient, topic: str) -> None:
    raw.result("CreateTopic", path=topic, supported_codecs={"codecs": [1, 10_001]})
    session = Session(raw, topic)
    assert list(session.init.supported_codecs.codecs) == [1, 10_001]
    assert session.write(1, codec=10_001) == [(1, 0)]
    session.send(2, codec=2)
    assert last_of(session.stream.rest())[0] == Status.BAD_REQUEST


def test_a_token_is_updated(raw: RawClient, made: str) -> None:
    session = Session(raw, made)
    session.stream.send(update_token_request={"token": ""})
    session.send(1)
    first, second = session.stream.receive(), session.stream.receive()
    assert first.HasField("update_token_response")
    assert told(second) == [(1, 0)]
    session.end()


def test_many_and_long_messages_in_one_request(raw: RawClient, made: str) -> None:
    """Larger than a batch can be, they become several; each is found again by the same number."""
    session = Session(raw, made, producer_id="p")
    data = b"x" * (5 * MEBIBYTE)
    assert session.write(*range(1, 9), data=data) == [(number, number - 1) for number in range(1, 9)]
    assert session.write(8, 9, data=data) == [(8, None), (9, 8)]
    several = range(100, 40_100)
    assert session.write(*several, data=b"y") == list(zip(several, range(9, 40_009), strict=True))
    odd = range(50_001, 90_001, 2)
    assert session.write(*odd, data=b"") == list(zip(odd, range(40_009, 60_009), strict=True))
    assert session.write(90_000, 90_001) == [(90_000, 60_009), (90_001, 60_010)]
    session.end()


def test_a_request_larger_than_ydb_takes_ends_with_grpcs_own_words(raw: RawClient, made: str) -> None:
    session = Session(raw, made, producer_id="p")
    session.send(1, data=b"x" * 64_000_001)
    with pytest.raises(grpc.RpcError) as caught:
        session.stream.receive()
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
    assert "larger than max" in caught.value.details()  # type: ignore[attr-defined]


def test_fields_in_another_order_are_stored_in_theirs(raw: RawClient, made: str) -> None:
    session = Session(raw, made, producer_id="p")
    # codec first, then a message: 10 01, 0a 05 (08 01 1a 01 78)
    session.stream.send_raw(bytes.fromhex("1209 1001 0a05 08011a0178"))
    assert session.acks() == [(1, 0)]
    assert session.write(1, 2) == [(1, None), (2, 1)]
    session.end()


def test_dropping_the_topic_ends_its_streams(raw: RawClient, made: str) -> None:
    session = Session(raw, made, producer_id="p")
    session.write(1)
    assert raw.call("DropTopic", path=made).status == Status.SUCCESS
    assert last_of(session.stream.rest())[0] == Status.SCHEME_ERROR
    raw.result("CreateTopic", path=made)
    again = Session(raw, made, producer_id="p")
    assert again.init.last_seq_no == 0
    assert again.write(1) == [(1, 0)]
    again.end()


def test_answers_nobody_reads_stop_the_reading(ydb_node: NodeProcess, raw: RawClient, made: str) -> None:
    """Until they are read: then all of it is written."""
    session = Session(raw, made, producer_id="p")
    for number in range(1, 41):
        session.send(number, data=b"x" * MEBIBYTE)
    assert [session.acks() for _ in range(40)] == [[(number, number - 1)] for number in range(1, 41)]
    session.end()


@pytest.fixture
def other(raw: RawClient, made: str) -> Iterator[RawStream]:
    stream = raw.stream("StreamWrite")
    yield stream
    stream.cancel()


def test_half_closing_has_everything_answered_first(raw: RawClient, made: str, other: RawStream) -> None:
    other.send(init_request={"path": made, "producer_id": "p"})
    for number in range(1, 21):
        other.send(**write({**GOOD, "seq_no": number}))
    other.half_close()
    opened, *written = other.rest()
    assert opened.status == Status.SUCCESS
    assert [told(one) for one in written] == [[(number, number - 1)] for number in range(1, 21)]
