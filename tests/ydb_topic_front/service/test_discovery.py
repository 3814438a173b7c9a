"""Clients find the node."""

from __future__ import annotations

import ydb

from tests.node_process import NodeProcess
from tests.ydb_topic_front.raw import RawClient


def test_the_node_tells_where_it_listens(ydb_node: NodeProcess, raw: RawClient) -> None:
    (endpoint,) = raw.result("ListEndpoints", database="/local").endpoints
    assert f"{endpoint.address}:{endpoint.port}" == ydb_node.ydb
    assert endpoint.node_id >= 1
    assert not endpoint.ssl


def test_an_endpoint_has_the_services_that_are_asked_for(raw: RawClient) -> None:
    for services, count in ((["topic", "discovery"], 1), (["topic", "coordination"], 0)):
        endpoints = raw.result("ListEndpoints", database="/local", service=services).endpoints
        assert len(endpoints) == count
        assert all(set(services) <= set(endpoint.service) for endpoint in endpoints)


def test_the_sdk_connects(ydb_node: NodeProcess) -> None:
    with ydb.Driver(endpoint=f"grpc://{ydb_node.ydb}", database="/local") as driver:
        driver.wait(timeout=30, fail_fast=True)
