"""The node's authorizer is asked before anything is told of what there is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bridges.node.assembly import Node
from bridges.node.settings.config import load
from tests.doorman import Doorman
from tests.ydb_topic_front.raw import RawClient
from ydb_topic_front.front import YdbFront
from ydb_topic_front.wire.statuses import Status

OPEN, SHUT, ABSENT = "open", "shut/there", "shut/not-so"
"""A topic for everybody, one that nobody may do anything with, and one that is not there and would be like it."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    flags = dict.fromkeys(("listen.ydb", "listen.sbp-pd", "listen.sbp-range-server"), "127.0.0.1:0")
    flags |= {"data_dir": str(tmp_path / "data"), "listen.console": "off"}
    node = Node(load(flags, environ={}, directory=tmp_path).settings, fronts=[YdbFront])
    node.authorizer = Doorman()
    await node.start()
    await node.catalog.create_topic(OPEN, 1)
    await node.catalog.create_topic(SHUT.replace("/", "."), 1)
    yield node
    await node.stop()


def answers(address: str, path: str, consumer: str) -> dict[str, Any]:
    """What every method that names a topic says of it: status and text, without its name."""
    found: dict[str, Any] = {}
    dotted = path.replace("/", ".")

    def note(kind: str, answer: Any) -> None:
        texts = [one.message.replace(path, "X").replace(dotted, "X") for one in answer.issues]
        found[kind] = (answer.status, texts)

    with RawClient(address) as raw:
        for kind in ("DescribeTopic", "DescribePartition", "AlterTopic", "DropTopic", "DescribePath", "ListDirectory"):
            note(kind, raw.call(kind, path=path))
        note("CreateTopic", raw.call("CreateTopic", path=path))
        note("DescribeConsumer", raw.call("DescribeConsumer", path=path, consumer=consumer))
        note("CommitOffset", raw.call("CommitOffset", path=path, consumer=consumer))
        reader = raw.stream("StreamRead")
        reader.send(init_request={"topics_read_settings": [{"path": path}], "consumer": consumer})
        note("StreamRead", reader.receive())
        writer = raw.stream("StreamWrite")
        writer.send(init_request={"path": path})
        note("StreamWrite", writer.receive())
    return found


@pytest.mark.parametrize("node_is_open", [True, False])
async def test_who_has_no_rights_does_not_learn_which_topics_there_are(node: Node, node_is_open: bool) -> None:
    node.authorizer.node_is_open = node_is_open  # type: ignore[attr-defined]
    address = str(node.addresses["ydb"])
    there = await asyncio.to_thread(answers, address, SHUT, "c")
    absent = await asyncio.to_thread(answers, address, ABSENT, "c")
    assert there == absent
    assert {status for status, _ in there.values()} == {Status.UNAUTHORIZED}


async def test_who_has_no_rights_does_not_learn_which_consumers_there_are(node: Node) -> None:
    def ask() -> tuple[dict[str, Any], dict[str, Any]]:
        address = str(node.addresses["ydb"])
        with RawClient(address) as raw:
            raw.result("AlterTopic", path=OPEN, add_consumers=[{"name": "shut-there"}])

        def of(consumer: str) -> dict[str, Any]:
            found: dict[str, Any] = {}
            with RawClient(address) as raw:
                fields = {"path": OPEN, "consumer": consumer}
                found["describe"] = raw.call("DescribeConsumer", **fields)
                found["commit"] = raw.call("CommitOffset", **fields)
                reader = raw.stream("StreamRead")
                reader.send(init_request={"topics_read_settings": [{"path": OPEN}], "consumer": consumer})
                found["read"] = reader.receive()
            return {
                kind: (one.status, [issue.message.replace(consumer, "X") for issue in one.issues])
                for kind, one in found.items()
            }

        return of("shut-there"), of("shut-not-so")

    there, absent = await asyncio.to_thread(ask)
    assert there == absent
    assert {status for status, _ in there.values()} == {Status.UNAUTHORIZED}


async def test_who_has_rights_learns_that_there_is_no_topic(node: Node) -> None:
    def ask() -> list[int]:
        with RawClient(str(node.addresses["ydb"])) as raw:
            return [raw.call(kind, path="absent").status for kind in ("DescribeTopic", "DropTopic", "DescribePath")]

    assert set(await asyncio.to_thread(ask)) == {Status.SCHEME_ERROR}
