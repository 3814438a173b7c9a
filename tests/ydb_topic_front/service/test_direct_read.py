"""StreamDirectRead: the data of a session with ``direct_read``, as YDB's SDK for C++ reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bridges.log.partition.partition_log import PartitionLog
from bridges.node.assembly import Node
from tests.node_process import NodeProcess
from tests.ydb_topic_front.direct import DataStream, DirectSession
from tests.ydb_topic_front.raw import RawClient
from tests.ydb_topic_front.reading import Session, number_of, write
from tests.ydb_topic_front.service.test_read_lineage import PATIENCE, allow_splits, make, node, of_client, split
from tests.ydb_topic_front.service.test_transactions import Client, Writer
from ydb_topic_front.session import direct_reads
from ydb_topic_front.wire.statuses import Status

__all__ = ["node"]

LARGE = 600_000
"""Bytes of a message, two of which do not fit a read."""


@pytest.fixture
def made(raw: RawClient, topic: str) -> str:
    path = f"/local/{topic}"
    raw.result("CreateTopic", path=path, consumers=[{"name": "c"}])
    return path


@contextmanager
def reading(raw: RawClient, path: str, **init: Any) -> Iterator[tuple[DirectSession, DataStream, int, int]]:
    """A session that reads partition 0: with its data stream, the partition session, and the generation."""
    session = DirectSession(raw, path, **init)
    started = session.started()
    number, generation = number_of(started), started.partition_location.generation
    data = session.data()
    data.begin(number, generation)
    yield session, data, number, generation
    data.stream.cancel()
    session.stream.cancel()


def test_data_comes_by_the_stream_to_the_partitions_node(raw: RawClient, made: str) -> None:
    write(raw, made, b"0", b"1", b"2")
    (endpoint,) = raw.result("ListEndpoints", database="/local").endpoints
    described = raw.result("DescribePartition", path=made, partition_id=0, include_location=True).partition
    session = DirectSession(raw, made)
    started = session.started()
    location = started.partition_location
    assert (location.node_id, location.generation) == (endpoint.node_id, described.partition_location.generation)
    assert location.generation > 0
    data = session.data()
    data.begin(number_of(started), location.generation)
    assert [(one.offset, one.data) for one in data.read(1)] == [(0, b"0"), (1, b"1"), (2, b"2")]
    session.ack(number_of(started), 1)
    session.commit(number_of(started), (0, 3))
    assert session.committed() == {number_of(started): 3}
    write(raw, made, b"3")
    assert [one.data for one in data.read(2)] == [b"3"]
    assert session.nothing_but(), "no data comes in the session's own stream"
    data.stream.half_close()
    assert data.stream.rest() == []
    session.end()


def test_a_client_may_ask_for_data_before_it_has_started_the_partition(raw: RawClient, made: str) -> None:
    write(raw, made, b"0", b"1")
    session = DirectSession(raw, made)
    request = session.receive("start_partition_session_request")
    data = session.data()
    data.begin(number_of(request), request.partition_location.generation)
    session.start(request, read_offset=1)
    assert [one.offset for one in data.read(1)] == [1]
    session.end()
    assert data.refusal() == Status.SESSION_EXPIRED


def test_no_more_comes_than_the_session_has_credit_for(raw: RawClient, made: str) -> None:
    write(raw, made, *[bytes(1000)] * 5)
    with reading(raw, made, credit=1) as (session, data, number, _):
        assert [one.offset for one in data.read(1)] == [0]
        session.stream.send(partition_session_status_request={"partition_session_id": number})
        assert session.receive("partition_session_status_response").read_offset == 1
        session.stream.send(read_request={"bytes_size": 1 << 20})
        assert [one.offset for one in data.read(2)] == [1, 2, 3, 4]


@pytest.mark.parametrize("read_id", [2, 3, 0])
def test_reads_are_acknowledged_in_their_order(raw: RawClient, made: str, read_id: int) -> None:
    """As with YDB."""
    write(raw, made, bytes(LARGE))
    write(raw, made, bytes(LARGE))
    with reading(raw, made) as (session, data, number, _):
        data.read_up_to(1)
        session.ack(number + 1, 1)  # of a partition session that has ended, as far as the client can know
        session.ack(number, read_id)
        assert session.refusal()[0] == Status.BAD_REQUEST
        assert data.refusal() == Status.SESSION_EXPIRED


def test_a_stream_that_broke_goes_on_behind_the_last_read_that_came(raw: RawClient, made: str) -> None:
    write(raw, made, bytes(LARGE))
    write(raw, made, bytes(LARGE))
    write(raw, made, bytes(LARGE))
    # The credit is for three messages: what the client has not got has to be given back.
    with reading(raw, made, credit=3 * LARGE) as (session, data, number, generation):
        for read_id in (1, 2, 3):
            data.read(read_id)
        session.ack(number, 1)
        data.stream.cancel()
        again = session.data()
        again.begin(number, generation, last=1)
        assert [one.offset for one in again.read(2)] == [1]
        assert [one.offset for one in again.read(3)] == [2]
        # Another one takes the partition over from a stream that still stands.
        other = session.data()
        other.begin(number, generation, last=2)
        assert [one.offset for one in other.read(3)] == [2]
        session.ack(number, 2)
        session.ack(number, 3)
        session.commit(number, (0, 3))
        assert session.committed() == {number: 3}
        other.ask(number, generation, last=4)
        assert other.refusal() == Status.BAD_REQUEST


def test_the_next_session_gets_a_partition_when_all_its_reads_have_come(raw: RawClient, made: str) -> None:
    raw.result("AlterTopic", path=made, alter_partitioning_settings={"set_min_active_partitions": 2})
    write(raw, made, b"0")
    write(raw, made, b"1", partition=1)
    first = DirectSession(raw, made)
    data = first.data()
    for _ in range(2):
        started = first.started()
        data.begin(number_of(started), started.partition_location.generation)
        data.read(1)
    second = DirectSession(raw, made)
    stop = first.receive("stop_partition_session_request")
    assert (stop.graceful, stop.last_direct_read_id) == (True, 1)
    first.ack(stop.partition_session_id, 1)
    first.stream.send(
        stop_partition_session_response={"partition_session_id": stop.partition_session_id, "graceful": True}
    )
    taken = second.started()
    other = second.data()
    other.begin(number_of(taken), taken.partition_location.generation)
    assert len(other.read(1)) == 1, "nobody has committed it"
    data.ask(stop.partition_session_id, taken.partition_location.generation, last=1)
    assert data.stopped() == (stop.partition_session_id, Status.SESSION_EXPIRED)
    first.end()
    second.end()


def test_a_partition_that_is_to_stop_is_taken_back_when_its_reads_are_lost(raw: RawClient, made: str) -> None:
    """The client would wait for the last read that the stop names."""
    write(raw, made, b"0")
    with reading(raw, made) as (session, data, number, generation):
        data.read(1)
        other = DirectSession(raw, made, topics_read_settings=[{"path": made, "partition_ids": [0]}])
        assert session.receive("stop_partition_session_request").graceful
        data.stream.cancel()
        again = session.data()
        again.ask(number, generation, last=0)
        assert again.stopped() == (number, Status.SESSION_EXPIRED)
        assert not session.receive("stop_partition_session_request").graceful
        other.started()
        other.end()


def test_who_asks_for_what_is_not_there_is_told_so(raw: RawClient, made: str) -> None:
    write(raw, made, b"0")
    with reading(raw, made) as (session, data, number, generation):
        data.read(1)
        data.ask(number, generation + 1)
        assert data.stopped() == (number, Status.UNAVAILABLE)
        assert session.receive("update_partition_session").partition_location.generation == generation
        data.ask(number + 7, generation)
        assert data.stopped() == (number + 7, Status.SESSION_EXPIRED)
        data.begin(number, generation)
        assert [one.data for one in data.read(1)] == [b"0"], "the stream and the session go on"
        plain = Session(raw, made, credit=0)
        for session_id, consumer, paths, status in (
            ("c_1_nowhere", "c", [made], Status.SESSION_EXPIRED),
            ("x", "c", [made], Status.SESSION_EXPIRED),
            (plain.session_id, "c", [made], Status.SESSION_EXPIRED),
            (session.session_id, "d", [made], Status.BAD_REQUEST),
            (session.session_id, "c", [], Status.BAD_REQUEST),
            (session.session_id, "c", [f"{made}/nowhere"], Status.SCHEME_ERROR),
        ):
            assert DataStream(raw, session_id, consumer, *paths).refusal() == status, (session_id, consumer, paths)
        plain.end()
        data.stream.send(init_request={"session_id": session.session_id})
        assert data.refusal() == Status.BAD_REQUEST
        session.data().stream.cancel()


def test_a_session_without_a_consumer_reads_directly(raw: RawClient, made: str) -> None:
    write(raw, made, b"0", b"1")
    named = [{"path": made, "partition_ids": [0]}]
    with reading(raw, made, consumer="", topics_read_settings=named) as (_, data, _, _):
        assert [one.data for one in data.read(1)] == [b"0", b"1"]


def test_records_of_every_protocol_have_their_offsets(raw: RawClient, ydb_node: NodeProcess, made: str) -> None:
    """Kafka's records and aborted transactions, YDB's transactions, and what was deleted: as StreamRead has them."""
    topic = made.rpartition("/")[2]
    write(raw, made, b"deleted")
    write(raw, made, b"ydb")
    plain = Producer({"bootstrap.servers": ydb_node.kafka})
    plain.produce(topic, b"kafka", b"key", partition=0)
    assert plain.flush(PATIENCE) == 0
    for end in ("abort_transaction", "commit_transaction"):
        producer = Producer({"bootstrap.servers": ydb_node.kafka, "transactional.id": f"{topic}-{end}"})
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        producer.produce(topic, end.encode(), partition=0)
        getattr(producer, end)(PATIENCE)
    client = Client(raw)
    tx = client.begin()
    Writer(raw, made).stage(tx, 7)
    assert client.commit(tx).status == Status.SUCCESS
    admin = AdminClient({"bootstrap.servers": ydb_node.kafka})
    for deleted in admin.delete_records([TopicPartition(topic, 0, 1)]).values():
        deleted.result(PATIENCE)
    write(raw, made, b"last")
    named = [{"path": made, "partition_ids": [0]}]
    session = Session(raw, consumer="", topics_read_settings=named)
    session.started()
    wanted = session.read(1)
    while wanted[-1].data != b"last":
        wanted += session.read(1)
    session.end()
    assert [one.data for one in wanted] == [
        b"ydb",
        b"kafka",
        b"commit_transaction",
        b"7",
        b"last",
    ]
    with reading(raw, made) as (direct, data, number, _):
        found, last = data.read_up_to(wanted[-1].offset)
        assert found == wanted
        for read_id in range(1, last + 1):
            direct.ack(number, read_id)
        direct.commit(number, (0, wanted[-1].offset + 1))
        assert direct.committed() == {number: wanted[-1].offset + 1}


def test_a_reader_that_was_away_goes_on_behind_what_retention_has_removed(
    raw: RawClient, ydb_node: NodeProcess, made: str
) -> None:
    write(raw, made, bytes(LARGE))
    write(raw, made, bytes(LARGE))
    with reading(raw, made) as (session, data, number, generation):
        data.read_up_to(1)
        data.stream.cancel()
        write(raw, made, b"left")
        admin = AdminClient({"bootstrap.servers": ydb_node.kafka})
        for deleted in admin.delete_records([TopicPartition(made.rpartition("/")[2], 0, 2)]).values():
            deleted.result(PATIENCE)
        again = session.data()
        again.begin(number, generation)
        assert [(one.offset, one.data) for one in again.read(1)] == [(2, b"left")]
        session.ack(number, 1)
        session.commit(number, (2, 3))
        assert session.committed() == {number: 3}


async def test_a_client_that_acknowledges_nothing_gets_no_more(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_reads, "MOST_UNACKNOWLEDGED", 2)
    await of_client(make, node)

    def read(raw: RawClient) -> None:
        for _ in range(4):
            write(raw, "t", bytes(LARGE))
        with reading(raw, "t") as (session, data, number, _):
            found = [one.offset for read_id in (1, 2) for one in data.read(read_id)]
            session.stream.send(partition_session_status_request={"partition_session_id": number})
            assert session.receive("partition_session_status_response").read_offset == found[-1] + 1
            session.ack(number, 1)
            assert [one.offset for one in data.read(3)] == [found[-1] + 1]

    await of_client(read, node)


async def test_streams_of_a_session_share_its_credit(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one reads, the other has to leave it what it may use."""
    await of_client(make, node)
    go_on, begun = asyncio.Event(), []
    loop, original = asyncio.get_running_loop(), PartitionLog.read_committed

    async def slowly(log: PartitionLog, offset: int, max_bytes: int) -> Any:
        begun.append(log.partition)
        await go_on.wait()
        return await original(log, offset, max_bytes)

    def read(raw: RawClient) -> None:
        raw.result("AlterTopic", path="t", alter_partitioning_settings={"set_min_active_partitions": 2})
        write(raw, "t", b"of the other", partition=1)
        session = DirectSession(raw, "t", credit=1)
        streams = {}
        for _ in range(2):
            started = session.started()
            data = streams[started.partition_session.partition_id] = session.data()
            data.begin(number_of(started), started.partition_location.generation)
        session.stream.send(partition_session_status_request={"partition_session_id": number_of(started)})
        session.receive("partition_session_status_response")
        assert len(begun) == 1
        loop.call_soon_threadsafe(go_on.set)
        first = begun[0]
        assert len(streams[first].read(1)) == 1
        session.stream.send(read_request={"bytes_size": 1 << 20})
        assert [one.data for one in streams[1 - first].read(1)]
        session.end()

    monkeypatch.setattr(PartitionLog, "read_committed", slowly)
    await of_client(read, node)


async def test_an_end_is_told_when_all_before_it_was_acknowledged(node: Node) -> None:
    await of_client(make, node)
    await allow_splits(node)
    loop = asyncio.get_running_loop()

    def read(raw: RawClient) -> None:
        with reading(raw, "t", auto_partitioning_support=True) as (session, data, number, _):
            assert len(data.read(1)) == 3
            asyncio.run_coroutine_threadsafe(split(node), loop).result(PATIENCE)
            session.stream.send(update_token_request={"token": ""})
            session.receive("update_token_response")
            assert session.nothing_but(), "the client has not acknowledged the messages before the end"
            session.ack(number, 1)
            assert list(session.receive("end_partition_session").child_partition_ids) == [1, 2]

    await of_client(read, node)


async def test_a_read_that_fails_ends_the_session(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await of_client(make, node)
    log = node.logs.get("t", 0)
    assert log is not None

    async def corrupt(offset: int, max_bytes: int) -> None:
        raise AssertionError("the stored bytes are broken")

    def read(raw: RawClient) -> None:
        session = DirectSession(raw, "t")
        started = session.started()
        data = session.data()
        data.begin(number_of(started), started.partition_location.generation)
        assert data.refusal() == Status.INTERNAL_ERROR
        assert session.refusal()[0] == Status.INTERNAL_ERROR

    monkeypatch.setattr(type(log), "read_committed", lambda *_: corrupt(0, 0))
    await of_client(read, node)
