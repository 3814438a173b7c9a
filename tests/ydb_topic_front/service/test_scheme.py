"""Paths and directories, through YDB's SDK and as bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ydb
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import TEST_SETTINGS
from tests.node_process import NodeProcess
from tests.ydb_topic_front.conftest import LISTEN
from tests.ydb_topic_front.raw import RawClient
from ydb_topic_front.wire.statuses import Status


@pytest.fixture
def driver(ydb_node: NodeProcess) -> Iterator[ydb.Driver]:
    with ydb.Driver(endpoint=f"grpc://{ydb_node.ydb}", database="/local") as driver:
        driver.wait(timeout=30, fail_fast=True)
        yield driver


def names(directory: ydb.scheme.Directory) -> list[tuple[str, ydb.SchemeEntryType]]:
    return [(one.name, one.type) for one in directory.children]


def test_directories_of_the_sdk(driver: ydb.Driver, topic: str) -> None:
    scheme, top = driver.scheme_client, f"/local/{topic}"
    assert scheme.describe_path("/local").is_directory_or_database()
    with pytest.raises(ydb.SchemeError):
        scheme.describe_path(top)
    scheme.make_directory(f"{top}/a/b")
    scheme.make_directory(f"{top}/a/b")
    driver.topic_client.create_topic(f"{top}/c/t")
    driver.topic_client.create_topic(f"{top}/u")
    assert names(scheme.list_directory(top)) == [
        ("a", ydb.SchemeEntryType.DIRECTORY),
        ("c", ydb.SchemeEntryType.DIRECTORY),
        ("u", ydb.SchemeEntryType.TOPIC),
    ]
    assert (topic, ydb.SchemeEntryType.DIRECTORY) in names(scheme.list_directory("/local"))
    found = scheme.describe_path(f"{top}/c/t")
    assert (found.name, found.type) == ("t", ydb.SchemeEntryType.TOPIC)
    for path in (top, f"{top}/a", f"{top}/c"):
        with pytest.raises(ydb.SchemeError):
            scheme.remove_directory(path)  # something lies there
    # A directory stays when what lay in it is gone, until it is removed itself.
    driver.topic_client.drop_topic(f"{top}/c/t")
    assert names(scheme.list_directory(f"{top}/c")) == []
    driver.topic_client.drop_topic(f"{top}/u")
    for path in (f"{top}/a/b", f"{top}/a", f"{top}/c", top):
        scheme.remove_directory(path)
    with pytest.raises(ydb.SchemeError):
        scheme.describe_path(top)
    with pytest.raises(ydb.SchemeError):
        scheme.remove_directory(top)


def test_topics_of_kafka_lie_in_directories(ydb_node: NodeProcess, raw: RawClient, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": ydb_node.kafka})
    for future in admin.create_topics([NewTopic(f"{topic}.x.y", 1), NewTopic(f"{topic}.x", 1)]).values():
        future.result(30)
    found = raw.result("ListDirectory", path=topic)
    # One name that is both a directory and a topic: it is told once, as what it is to writers and readers.
    assert [(one.name, one.type) for one in found.children] == [("x", 17)]
    assert [one.name for one in raw.result("ListDirectory", path=f"{topic}/x").children] == ["y"]


@pytest.mark.parametrize(
    ("kind", "path", "status"),
    [
        ("MakeDirectory", "", Status.BAD_REQUEST),
        ("MakeDirectory", "a b", Status.SCHEME_ERROR),
        ("MakeDirectory", "/elsewhere/a", Status.SCHEME_ERROR),
        ("MakeDirectory", "/local", Status.SUCCESS),
        ("RemoveDirectory", "/local", Status.SCHEME_ERROR),
        ("DescribePath", "/elsewhere", Status.SCHEME_ERROR),
        ("ListDirectory", "nothing/here", Status.SCHEME_ERROR),
    ],
)
def test_what_is_asked_of_odd_paths(raw: RawClient, kind: str, path: str, status: Status) -> None:
    assert raw.call(kind, path=path).status == status


def test_a_topic_is_no_directory(raw: RawClient, topic: str) -> None:
    raw.result("CreateTopic", path=topic)
    assert raw.call("MakeDirectory", path=topic).status == Status.SCHEME_ERROR
    assert raw.call("MakeDirectory", path=f"{topic}/below").status == Status.SCHEME_ERROR
    assert not raw.result("ListDirectory", path=topic).children


def test_every_database_has_the_same_topics(ydb_node: NodeProcess, raw: RawClient, topic: str) -> None:
    raw.result("CreateTopic", path=f"/local/d/{topic}")
    with RawClient(ydb_node.ydb, x_ydb_database="/ru/b1/own") as other:
        assert other.result("DescribeTopic", path=f"/ru/b1/own/d/{topic}").self.name == topic
        assert other.result("DescribeTopic", path=f"d/{topic}").self.name == topic
        assert other.result("DescribePath", path="/ru/b1/own").self.name == "own"
        assert other.call("DescribeTopic", path=f"/local/d/{topic}").status == Status.SCHEME_ERROR


def test_directories_survive_the_death_of_the_node(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data", settings=TEST_SETTINGS, listen=LISTEN)
    try:
        with RawClient(node.start().ydb) as raw:
            raw.result("MakeDirectory", path="a/b")
            raw.result("MakeDirectory", path="gone")
            raw.result("RemoveDirectory", path="gone")
            raw.result("CreateTopic", path="c/t")
            raw.result("DropTopic", path="c/t")
        node.restart(kill=True)
        with RawClient(node.ydb) as raw:
            assert [one.name for one in raw.result("ListDirectory", path="/local").children] == ["a", "c"]
            assert raw.result("DescribePath", path="a/b").self.type == 1
    finally:
        node.dispose()
