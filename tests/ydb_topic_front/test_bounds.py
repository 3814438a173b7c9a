"""What a client may keep without using it: streams that never begin, connections."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from tests.conftest import TEST_SETTINGS
from tests.node_process import NodeProcess
from tests.ydb_topic_front.conftest import LISTEN
from tests.ydb_topic_front.raw import RawClient
from ydb_topic_front.wire.statuses import Status

CONNECTIONS = 2


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    settings = {**TEST_SETTINGS, "ydb.init_timeout_ms": "200", "ydb.max_connections": str(CONNECTIONS)}
    node = NodeProcess(tmp_path_factory.mktemp("bounded") / "data", settings=settings, listen=LISTEN)
    try:
        yield node.start()
    finally:
        node.dispose()


@pytest.mark.parametrize("kind", ["StreamWrite", "StreamRead"])
def test_a_stream_that_does_not_say_what_it_wants_ends_in_time(bounded: NodeProcess, kind: str) -> None:
    """And one that has said it goes on, however long it is silent."""
    with RawClient(bounded.ydb) as raw:
        raw.result("CreateTopic", path=kind, consumers=[{"name": "c"}])
        writer, reader = raw.stream("StreamWrite"), raw.stream("StreamRead")
        writer.send(init_request={"path": kind, "producer_id": "p"})
        reader.send(init_request={"topics_read_settings": [{"path": kind}], "consumer": "c"})
        assert [writer.receive().status, reader.receive().status] == [Status.SUCCESS, Status.SUCCESS]
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


def test_connections_are_bounded(bounded: NodeProcess) -> None:
    clients = [RawClient(bounded.ydb) for _ in range(CONNECTIONS + 1)]
    try:
        for client in clients[:CONNECTIONS]:
            client.result("ListEndpoints", database="/local")
        with pytest.raises(grpc.RpcError) as refused:
            clients[-1].result("ListEndpoints", database="/local")
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
        clients[0].result("ListEndpoints", database="/local")
    finally:
        for client in clients:
            client.__exit__(None, None, None)
