"""Who was removed, or whose password was changed, is gone within a second or two, whatever protocol it speaks, with the
connections and streams that it has; everybody else stays."""

from __future__ import annotations

import base64
import http.client
import select
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Event
from typing import Any, NamedTuple
from uuid import uuid4

import grpc
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bridges.auth.passwords import Cost, PasswordHash
from bridges.auth.users import User, change
from pravega_front.wire import commands as wire
from tests.conftest import TEST_SETTINGS
from tests.node_process import ANY, NodeProcess
from tests.pravega_front.controller_client import ControllerClient
from tests.pravega_front.raw_client import RawClient
from ydb_topic_front.wire.messages import (
    StreamReadFromClient,
    StreamReadFromServer,
    StreamWriteFromClient,
    StreamWriteFromServer,
    messages,
)

SECONDS = 30.0
SOON = 4.0
"""Seconds: the file is looked at every second, and the machine may be busy."""
LISTENERS = ("kafka", "ydb", "console", "pravega", "pravega-segmentstore")


def user(name: str, password: str) -> User:
    return User(name, PasswordHash.from_password(password, Cost(16, 1, 1)), {})


def secret(name: str) -> str:
    return f"{name}'s secret"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    data = tmp_path_factory.mktemp("ends") / "data"
    data.mkdir()
    change(data / "users.json", lambda users: users.update(root=user("root", secret("root"))))
    settings = {**TEST_SETTINGS, "auth.required": "true"}
    made = NodeProcess(data, settings=settings, listen=dict.fromkeys(LISTENERS, ANY))
    made.start()
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "root"}
    admin = AdminClient({"bootstrap.servers": made.kafka, "sasl.password": secret("root"), **login})
    admin.create_topics([NewTopic("t", 1)])["t"].result(SECONDS)
    client = ControllerClient(made.addresses["pravega"], (("authorization", basic("root")),))
    client.createScope(scope="s")
    stream = {"streamInfo": {"scope": "s", "stream": "one"}, "scalingPolicy": {"minNumSegments": 1}}
    assert client.createStream(**stream).status == 0
    client.close()
    yield made
    made.dispose()


def basic(name: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{secret(name)}".encode()).decode()


class Open(NamedTuple):
    """A connection or stream."""

    ended: Callable[[], None]
    """Returns when it has ended as it should; raises if it does not in time."""
    lives: Callable[[], bool]


def follower(node: NodeProcess, name: str, held: ExitStack) -> Open:
    """One who follows a topic through the console."""
    host, _, port = node.addresses["console"].rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=SOON)
    held.callback(connection.close)
    connection.request("GET", "/api/topics/t/records?follow=true", headers={"Authorization": basic(name)})
    response = connection.getresponse()
    assert response.status == 200
    socket = connection.sock

    def ended() -> None:
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            response.read()

    return Open(ended, lambda: not select.select([socket], [], [], 0)[0])


def ydb_stream(method: str, said: Any, heard: Any, **first: object) -> Callable[[NodeProcess, str, ExitStack], Open]:
    def opened(node: NodeProcess, name: str, held: ExitStack) -> Open:
        channel = held.enter_context(grpc.insecure_channel(node.ydb))
        login = channel.unary_unary(
            "/Ydb.Auth.V1.AuthService/Login",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=messages["Ydb.Auth.LoginResponse"].FromString,
        )
        answer = login(messages["Ydb.Auth.LoginRequest"](user=name, password=secret(name)), timeout=SECONDS)
        result = messages["Ydb.Auth.LoginResult"]()
        answer.operation.result.Unpack(result)
        stream = channel.stream_stream(
            f"/Ydb.Topic.V1.TopicService/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=heard.FromString,
        )
        over = Event()

        def talk() -> Iterator[object]:
            yield said(init_request=first)
            over.wait()

        answers = stream(talk(), metadata=(("x-ydb-auth-ticket", result.token),))
        held.callback(over.set)
        assert next(answers).HasField("init_response")

        def ended() -> None:
            began = time.monotonic()
            with pytest.raises(grpc.RpcError) as refused:
                deque(answers, 0)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert time.monotonic() < began + SOON

        return Open(ended, answers.is_active)

    return opened


def pravega_writer(node: NodeProcess, name: str, held: ExitStack) -> Open:
    client = ControllerClient(node.addresses["pravega"], (("authorization", basic(name)),))
    held.callback(client.close)
    token = client.getDelegationToken(scope="s", stream="one").delegationToken
    raw = held.enter_context(RawClient(node.addresses["pravega-segmentstore"]))
    raw.ask(wire.SetupAppend(1, uuid4().bytes, "s/one/0.#epoch.0", token), wire.AppendSetup)

    def ended() -> None:
        began = time.monotonic()
        assert raw.ends()
        assert time.monotonic() < began + SOON

    return Open(ended, lambda: raw.ask(wire.KeepAlive(), wire.KeepAlive) is not None)


OPENED = (
    follower,
    ydb_stream(
        "StreamRead",
        StreamReadFromClient,
        StreamReadFromServer,
        topics_read_settings=[{"path": "/local/t", "partition_ids": [0]}],
    ),
    ydb_stream("StreamWrite", StreamWriteFromClient, StreamWriteFromServer, path="/local/t"),
    pravega_writer,
)


@pytest.mark.parametrize("how", ["removed", "another password"])
def test_what_is_open_ends_with_its_user(node: NodeProcess, how: str) -> None:
    def let_in(users: dict[str, User]) -> None:
        users["gone"] = user("gone", secret("gone"))

    def put_out(users: dict[str, User]) -> None:
        del users["gone"]
        if how == "another password":
            users["gone"] = user("gone", "another")

    path = node.data / "users.json"
    change(path, let_in)
    known(node, "gone")
    with ExitStack() as held:
        others = [opened(node, "root", held) for opened in OPENED]
        ending = [opened(node, "gone", held) for opened in OPENED]
        assert all(one.lives() for one in (*others, *ending))
        change(path, put_out)
        for one in ending:
            one.ended()
        assert all(one.lives() for one in others)


def known(node: NodeProcess, name: str) -> None:
    """Return when the node knows a user."""
    deadline = time.monotonic() + SECONDS
    while True:
        asked = urllib.request.Request(f"{node.console}/api/topics", headers={"Authorization": basic(name)})
        try:
            with urllib.request.urlopen(asked, timeout=SECONDS):
                return
        except urllib.error.HTTPError as error:
            if error.code != 401 or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
