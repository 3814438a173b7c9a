"""What a client may keep without using it: streams that never begin, connections."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import psutil
import pytest

from tests.conftest import TEST_SETTINGS
from tests.node_process import NodeProcess
from tests.ydb_topic_front.conftest import LISTEN
from tests.ydb_topic_front.raw import RawClient, RawStream
from tests.ydb_topic_front.reading import Session, write
from ydb_topic_front.service.read.session_states import RANGE_BYTES, READING_BYTES
from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.methods import METHODS
from ydb_topic_front.wire.statuses import Status

CONNECTIONS = 2
MEMORY = 1024**2
READINGS, RANGES = MEMORY // 4 // READING_BYTES, MEMORY // 4 // RANGE_BYTES
"""What all sessions together may have."""


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    settings = {
        **TEST_SETTINGS,
        "ydb.max_connections": str(CONNECTIONS),
        "limits.connections_memory_bytes": str(MEMORY),
    }
    with NodeProcess(tmp_path_factory.mktemp("bounded") / "data", settings=settings, listen=LISTEN).lent() as node:
        yield node


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    settings = {**TEST_SETTINGS, "ydb.init_timeout_ms": "200"}
    with NodeProcess(tmp_path_factory.mktemp("impatient") / "data", settings=settings, listen=LISTEN).lent() as node:
        yield node


def begun(raw: RawClient, kind: str, **init: object) -> RawStream:
    """A stream that has said in time what it wants; on a busy machine one may come too late, and comes again."""
    while True:
        stream = raw.stream(kind)
        stream.send(init_request=init)
        status = stream.receive().status
        if status == Status.SUCCESS:
            return stream
        assert status == Status.TIMEOUT


@pytest.mark.parametrize("kind", ["StreamWrite", "StreamRead"])
def test_a_stream_that_does_not_say_what_it_wants_ends_in_time(impatient: NodeProcess, kind: str) -> None:
    """And one that has said it goes on, however long it is silent."""
    with RawClient(impatient.ydb) as raw:
        raw.result("CreateTopic", path=kind, consumers=[{"name": "c"}])
        writer = begun(raw, "StreamWrite", path=kind, producer_id="p")
        reader = begun(raw, "StreamRead", topics_read_settings=[{"path": kind}], consumer="c")
        (last,) = raw.stream(kind).rest()
        assert last.status == Status.TIMEOUT
        assert "no init_request" in last.issues[0].message
        writer.send(write_request={"messages": [{"seq_no": 1, "data": b"x"}], "codec": 1})
        assert writer.receive().write_response.acks[0].written.offset == 0
        reader.send(update_token_request={"token": ""})
        kinds = {reader.receive().WhichOneof("server_message") for _ in range(2)}
        assert kinds == {"start_partition_session_request", "update_token_response"}
        writer.cancel()
        reader.cancel()


@pytest.mark.parametrize("consumer", ["c", ""])
def test_partitions_of_readers_are_bounded(bounded: NodeProcess, consumer: str) -> None:
    path = f"many{consumer}"
    with RawClient(bounded.ydb) as raw:
        settings = {"min_active_partitions": READINGS + 20}
        raw.result("CreateTopic", path=path, partitioning_settings=settings, consumers=[{"name": "c"}])

        def reader(partitions: int) -> Session:
            wanted = {"path": path, "partition_ids": list(range(partitions))}
            return Session(raw, consumer=consumer, topics_read_settings=[wanted])

        status, message = reader(READINGS + 20).refusal()
        assert (status, message) == (
            Status.OVERLOADED,
            "read sessions hold their part of limits.connections_memory_bytes: close some, or retry later",
        )
        if consumer:
            return  # readers of one consumer share what there is
        half = reader(READINGS // 2)
        half.started()
        assert reader(READINGS // 2 + 20).refusal()[0] == Status.OVERLOADED
        half.end()
        again = reader(READINGS // 2 + 20)
        again.started()
        again.end()


def test_commits_with_holes_before_them_are_bounded(bounded: NodeProcess) -> None:
    with RawClient(bounded.ydb) as raw:
        raw.result("CreateTopic", path="holes", consumers=[{"name": "c"}])
        for _ in range(3):
            write(raw, "holes", *[b""] * RANGES)
        session = Session(raw, "holes")
        number = session.started().partition_session.partition_session_id
        session.commit(number, *((start, start + 1) for start in range(1, RANGES, 2)))
        session.commit(number, (0, 1))
        assert session.committed() == {number: 2}
        session.commit(number, *((start, start + 1) for start in range(RANGES + 1, 3 * RANGES, 2)))
        assert session.refusal()[0] == Status.OVERLOADED
        again = Session(raw, "holes")
        assert again.started().committed_offset == 2
        again.end()


def served(client: RawClient) -> None:
    """It has a connection, as soon as the node has seen that those before it have gone."""
    while True:
        try:
            client.result("ListEndpoints", database="/local")
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:  # type: ignore[attr-defined]
                raise
        else:
            return


def test_connections_are_bounded(bounded: NodeProcess) -> None:
    clients = [RawClient(bounded.ydb) for _ in range(CONNECTIONS + 1)]
    try:
        for client in clients[:CONNECTIONS]:
            served(client)
        with pytest.raises(grpc.RpcError) as refused:
            clients[-1].result("ListEndpoints", database="/local")
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
        clients[0].result("ListEndpoints", database="/local")
    finally:
        for client in clients:
            client.__exit__(None, None, None)


REFUSED, SIZE = 60, 2 * 1024**2


def test_nothing_of_refused_requests_is_kept(impatient: NodeProcess) -> None:
    """Neither of calls nor of streams, though the collector does not come: it counts objects, not their bytes."""
    garbage = b"\xff" * SIZE
    create = METHODS["CreateTopic"]
    with RawClient(impatient.ydb) as raw:
        raw.result("CreateTopic", path="refusing", consumers=[{"name": "c"}])

        def refuse() -> None:
            answer = messages[create.response].FromString(raw.bytes(create.path, garbage))
            assert answer.operation.status == Status.BAD_REQUEST
            writer = begun(raw, "StreamWrite", path="refusing")
            reader = begun(raw, "StreamRead", topics_read_settings=[{"path": "refusing"}], consumer="c")
            for stream in writer, reader:
                stream.send_raw(garbage)
                assert stream.rest()[-1].status == Status.BAD_REQUEST
                stream.cancel()

        for _ in range(5):
            refuse()
        process = psutil.Process(impatient.pid)
        before = process.memory_info().rss
        for _ in range(REFUSED):
            refuse()
        assert process.memory_info().rss - before < REFUSED * SIZE // 2
