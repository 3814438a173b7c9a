"""The node's authorizer is asked before anything is told of which streams there are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from bridges.node.assembly import Node
from bridges.node.settings.config import load
from pravega_front.controller.dispatch import ON_GROUP, ON_NODE
from pravega_front.front import PravegaFront
from pravega_front.wire.controller import METHODS, message
from tests.doorman import Doorman
from tests.pravega_front.controller_client import ControllerClient

SCOPE, OPEN, SHUT, ABSENT = "scope", "open", "shut-there", "shut-not-so"
FOR_EVERYBODY = {"getControllerServerList", "getControllerToBucketMapping", "getURI"}
"""Methods that say the same of every stream."""


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[str]:
    listeners = ("listen.pravega", "listen.pravega-segmentstore", "listen.sbp-pd", "listen.sbp-range-server")
    flags = dict.fromkeys(listeners, "127.0.0.1:0")
    flags |= {"data_dir": str(tmp_path / "data"), "listen.console": "off"}
    for_a_while = Node(load(flags, environ={}, directory=tmp_path).settings, fronts=[PravegaFront])
    await for_a_while.start()
    await asyncio.to_thread(fill, str(for_a_while.addresses["pravega"]))
    await for_a_while.stop()
    node = Node(load(flags, environ={}, directory=tmp_path).settings, fronts=[PravegaFront])
    node.authorizer = Doorman()
    await node.start()
    yield str(node.addresses["pravega"])
    await node.stop()


def fill(address: str) -> None:
    client = ControllerClient(address)
    client.createScope(scope=SCOPE)
    for name in (OPEN, SHUT):
        config = {"streamInfo": {"scope": SCOPE, "stream": name}, "scalingPolicy": {"minNumSegments": 1}}
        assert client.createStream(**config).status == 0
        table = {"scope": SCOPE, "kvtName": f"{name}-table", "partitionCount": 1}
        assert client.createKeyValueTable(**table, primaryKeyLength=8).status == 0
    client.close()


def about(request: str, stream: str) -> dict[str, Any]:
    """The fields with which a request names a stream, wherever it does."""
    fields = {field.name: field for field in message(request).DESCRIPTOR.fields}
    info = {"scope": SCOPE, "stream": stream}
    if "streamInfo" in fields:
        return {"streamInfo": info}
    if "streamCut" in fields:
        return {"streamCut": {"streamInfo": info}}
    if "position" in fields:
        return {"position": {"streamInfo": info}}
    if "kvtName" in fields:
        return {"scope": SCOPE, "kvtName": f"{stream}-table"}
    return info if fields["stream"].message_type is None else {"stream": info}


async def test_who_has_no_rights_does_not_learn_which_streams_there_are(controller: str) -> None:
    def ask() -> dict[str, tuple[Any, Any]]:
        client = ControllerClient(controller)
        found: dict[str, tuple[Any, Any]] = {}
        for method in sorted(METHODS.keys() - ON_NODE.keys() - ON_GROUP.keys() - FOR_EVERYBODY):
            answers = []
            for stream in (SHUT, ABSENT):
                try:
                    answers.append(str(getattr(client, method)(**about(METHODS[method][0], stream))))
                except grpc.RpcError as error:
                    answers.append(f"{error.code()} {error.details()}".replace(stream, "X"))
            found[method] = answers[0], answers[1]
        client.close()
        return found

    for method, (there, absent) in (await asyncio.to_thread(ask)).items():
        assert there == absent, method
        if method != "getDelegationToken":  # nobody needs one here
            assert there.startswith(str(grpc.StatusCode.PERMISSION_DENIED)), (method, there)


async def test_lists_hold_what_one_may_see(controller: str) -> None:
    def ask() -> tuple[list[str], list[str]]:
        client = ControllerClient(controller)
        scope = {"scope": {"scope": SCOPE}}
        streams = [one.stream for one in client.listStreamsInScope(**scope).streams]
        tables = [one.kvtName for one in client.listKeyValueTablesInScope(**scope).kvtables]
        client.close()
        return streams, tables

    assert await asyncio.to_thread(ask) == ([OPEN], [f"{OPEN}-table"])
