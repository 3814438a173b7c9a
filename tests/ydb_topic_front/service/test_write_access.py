"""Writers of a node that wants to know who its clients are."""

from __future__ import annotations

import grpc
import pytest
import ydb

from tests.node_process import NodeProcess
from tests.ydb_topic_front.raw import RawClient
from tests.ydb_topic_front.service.test_auth import PASSWORD, USER, config, strict_node
from tests.ydb_topic_front.service.test_write import Session

__all__ = ["strict_node"]


def test_the_sdk_writes_with_a_password(strict_node: NodeProcess, topic: str) -> None:
    with ydb.Driver(config(strict_node)) as driver:
        driver.wait(timeout=30, fail_fast=True)
        driver.topic_client.create_topic(topic)
        with driver.topic_client.writer(topic) as writer:
            writer.write_with_ack("text", timeout=30)


def test_a_stream_without_a_token_is_ended(strict_node: NodeProcess) -> None:
    with RawClient(strict_node.ydb) as raw:
        stream = raw.stream("StreamWrite")
        stream.send(init_request={"path": "any"})
        with pytest.raises(grpc.RpcError) as refused:
            stream.receive()
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_token_is_looked_at_when_it_is_updated(strict_node: NodeProcess, topic: str) -> None:
    with RawClient(strict_node.ydb) as raw:
        token = raw.result("Login", user=USER, password=PASSWORD).token
    with RawClient(strict_node.ydb, x_ydb_auth_ticket=token) as raw:
        raw.result("CreateTopic", path=topic)
        session = Session(raw, topic, producer_id="p")
        session.stream.send(update_token_request={"token": token})
        assert session.stream.receive().HasField("update_token_response")
        assert session.write(1) == [(1, 0)]
        session.stream.send(update_token_request={"token": "worthless"})
        with pytest.raises(grpc.RpcError) as refused:
            session.stream.receive()
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
