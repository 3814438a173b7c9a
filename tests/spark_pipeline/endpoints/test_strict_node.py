"""YDB and Pravega where everybody must say who he is, over TLS: the endpoints' names, passwords and authorities."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ydb

from spark_pipeline.core.errors import EndpointUnavailable, PipelineError
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import endpoint
from tests.certificates import Authority
from tests.conftest import NodeFactory
from tests.node_process import ANY, FRONTS, SELDOM, NodeProcess

USER, PASSWORD = "reader", "a pass:word"
ENCRYPTED = ("ydb", "pravega", "pravega-segmentstore")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[NodeProcess]:
    """A node with one message in the topic ``told``."""
    directory = tmp_path_factory.mktemp("strict")
    command = [sys.executable, "-m", "bridges", "user", "add", USER, "--data", str(directory / "node")]
    subprocess.run(command, input=f"{PASSWORD}\n", text=True, check=True, capture_output=True)
    cert, key = authority.issue("node")
    settings = {"auth.required": "true"}
    for listener in ENCRYPTED:
        settings |= {f"tls.{listener}.cert": str(cert), f"tls.{listener}.key": str(key)}
    factory = NodeFactory(directory)
    listen = {**dict.fromkeys((*FRONTS, *SELDOM), "off"), **dict.fromkeys(ENCRYPTED, ANY)}
    try:
        made = factory("node", settings=settings, listen=listen)
        write(made, authority)
        yield made
    finally:
        factory.dispose()


def write(node: NodeProcess, authority: Authority) -> None:
    credentials = ydb.StaticCredentials.from_user_password(USER, PASSWORD)
    root = authority.cert.read_bytes()
    config = ydb.DriverConfig(f"grpcs://{node.ydb}", "/local", credentials=credentials, root_certificates=root)
    with ydb.Driver(config) as driver:
        driver.wait(timeout=30, fail_fast=True)
        driver.topic_client.create_topic("told")
        with driver.topic_client.writer("told") as writer:
            writer.write("in confidence")
            writer.flush()


def url(node: NodeProcess, protocol: str) -> str:
    place = {"ydb": "local", "pravega": "default"}[protocol]
    return f"{protocol}+tls://{node.addresses[protocol]}/{place}"


@pytest.mark.parametrize("protocol", ["ydb", "pravega"])
def test_who_has_name_and_password_reads(node: NodeProcess, authority: Authority, protocol: str) -> None:
    good = {"user": USER, "password": PASSWORD, "tls.ca": str(authority.cert)}
    source = endpoint(url(node, protocol), good)
    (at,) = source.positions([TopicPartition("told", 0)]).values()
    (batch,) = source.read(OffsetRange("told", 0, at.start, at.stable), Columns(("value",)))
    assert batch.column("value").to_pylist() == [b"in confidence"]
    source.close()
    for wrong in ({"password": "wrong"}, {"user": "", "password": ""}):
        source = endpoint(url(node, protocol), {**good, **wrong, "timeoutMs": "2000"})
        with pytest.raises(PipelineError):
            source.positions([TopicPartition("told", 0)])
        source.close()


@pytest.mark.parametrize("protocol", ["ydb", "pravega"])
def test_a_server_of_another_authority_is_not_believed(node: NodeProcess, tmp_path: Path, protocol: str) -> None:
    other = Authority(tmp_path, "other")
    options = {"user": USER, "password": PASSWORD, "tls.ca": str(other.cert), "timeoutMs": "1000"}
    source = endpoint(url(node, protocol), options)
    with pytest.raises(EndpointUnavailable):
        source.positions([TopicPartition("told", 0)])
    source.close()
