"""Clients that must say who they are, and tokens that the segment store asks for; both ports with TLS."""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import grpc
import pytest

from pravega_front.wire import commands as wire
from tests import drivers
from tests.certificates import Authority
from tests.node_process import ANY, NodeProcess
from tests.pravega_front.conftest import LISTENERS
from tests.pravega_front.controller_client import ControllerClient
from tests.pravega_front.java_client import PROGRAM, Java, events, numbers
from tests.pravega_front.raw_client import RawClient

USER, PASSWORD = "writer", "a pass:word"
TOKEN_S = 2
LOGIN = (("authorization", "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()),)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that takes nobody who does not say who it is."""
    data = tmp_path_factory.mktemp("pravega-auth") / "data"
    command = [sys.executable, "-m", "bridges", "user", "add", USER, "--data", str(data)]
    subprocess.run(command, input=f"{PASSWORD}\n", text=True, check=True, capture_output=True)
    listen = {name: ANY if name.startswith("pravega") else "off" for name in LISTENERS}
    settings = {"auth.required": "true", "pravega.token_ms": f"{TOKEN_S}s"}
    with NodeProcess(data, settings=settings, listen=listen).lent() as node:
        yield node


def test_calls_need_a_name_and_a_password(strict: NodeProcess) -> None:
    wrong = (("authorization", "Basic " + base64.b64encode(b"writer:wrong").decode()),)
    for metadata in ((), wrong, (("authorization", "Basic ?"),), (("authorization", "Bearer a.b.c"),)):
        client = ControllerClient(strict.addresses["pravega"], metadata)
        with pytest.raises(grpc.RpcError) as refused:
            client.listScopes()
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        client.close()
    client = ControllerClient(strict.addresses["pravega"], LOGIN)
    assert "_system" in client.listScopes().scopes
    client.close()


def test_commands_need_a_token_of_their_stream(strict: NodeProcess) -> None:
    client = ControllerClient(strict.addresses["pravega"], LOGIN)
    client.createScope(scope="strict")
    for stream in ("one", "two"):
        config = {"streamInfo": {"scope": "strict", "stream": stream}, "scalingPolicy": {"minNumSegments": 1}}
        assert client.createStream(**config).status == 0
    writer, segment = uuid4().bytes, "strict/one/0.#epoch.0"
    tokens = {name: client.getDelegationToken(scope="strict", stream=name).delegationToken for name in ("one", "two")}
    assert tokens["one"].count(".") == 2
    assert client.getCurrentSegments(scope="strict", stream="one").delegationToken.count(".") == 2
    with RawClient(strict.addresses["pravega-segmentstore"]) as raw:
        for bad in ("", "x.y.z", tokens["two"], tokens["one"][:-2] + "AA"):
            answer = raw.ask(wire.SetupAppend(5, writer, segment, bad), wire.AuthTokenCheckFailed)
            assert (answer.request_id, answer.error_code) == (5, 0)
            raw.ask(wire.ReadSegment(segment, 0, 10, bad, 6), wire.AuthTokenCheckFailed)
            raw.ask(wire.SealSegment(7, segment, bad), wire.AuthTokenCheckFailed)
        # What is merged goes away, and can be read where it goes.
        other = "strict/two/0.#epoch.0"
        raw.ask(wire.MergeSegments(8, segment, other, tokens["one"]), wire.AuthTokenCheckFailed)
        raw.ask(wire.MergeSegmentsBatch(9, segment, [other], tokens["one"]), wire.AuthTokenCheckFailed)
        raw.ask(wire.SetupAppend(5, writer, segment, tokens["one"]), wire.AppendSetup)
        raw.ask(wire.AppendBlockEnd(writer, 4, b"data", 1, 1, 1), wire.DataAppended)
        # It ends while the writer is set up.
        number = 1
        while True:
            number += 1
            last = raw.ask(wire.AppendBlockEnd(writer, 4, b"data", 1, number, 1), wire.Command)
            if not isinstance(last, wire.DataAppended):
                break
        assert isinstance(last, wire.AuthTokenCheckFailed)
        assert (last.request_id, last.error_code) == (1, 1)
        assert raw.ends()
    client.close()


def wheel(uri: str, group: str, *words: str, **environment: str) -> None:
    """Have a client write and read events; see ``wheel_events.py``."""
    command = [sys.executable, "-m", "tests.pravega_front.wheel_events", uri, group, *words]
    done = subprocess.run(command, env=environment or None, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def logged_in(uri: str, trusted: Path) -> None:
    """The same over TLS, by who has a password; ``trusted`` is a directory of certificates and nothing else."""
    wheel(
        uri,
        "group",
        "write",
        "login",
        "tls",
        pravega_client_auth_method="Basic",
        pravega_client_auth_username=USER,
        pravega_client_auth_password=PASSWORD,
        pravega_client_tls_cert_path=str(trusted),
    )


class Secured(NamedTuple):
    """A node that speaks TLS on both ports and takes nobody who does not say who it is; ``trust`` is its authority."""

    port: int
    trust: Path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    tmp_path = tmp_path_factory.mktemp("secured")
    authority = Authority(tmp_path, "ours")
    cert, key = authority.issue("node")
    data = tmp_path / "data"
    command = [sys.executable, "-m", "bridges", "user", "add", USER, "--data", str(data)]
    subprocess.run(command, input=f"{PASSWORD}\n", text=True, check=True, capture_output=True)
    settings = {"auth.required": "true"}
    for name in ("pravega", "pravega-segmentstore"):
        settings |= {f"tls.{name}.cert": str(cert), f"tls.{name}.key": str(key)}
    listen = {name: ANY if name.startswith("pravega") else "off" for name in LISTENERS}
    node = NodeProcess(data, settings=settings, listen=listen)
    # The wheel compares names only, not addresses.
    node.start()
    store = node.addresses["pravega-segmentstore"].replace("127.0.0.1", "localhost")
    node.settings["advertise.pravega-segmentstore"] = store
    try:
        node.restart()
        yield Secured(int(node.addresses["pravega"].rpartition(":")[2]), authority.cert)
    finally:
        node.dispose()


def test_the_wheel_logs_in_over_tls(secured: Secured, tmp_path: Path) -> None:
    certs = tmp_path / "certs"  # a directory of nothing else
    certs.mkdir()
    shutil.copy(secured.trust, certs)
    logged_in(f"tls://localhost:{secured.port}", certs)


@pytest.fixture(scope="module")
def driver() -> Iterator[drivers.Driver]:
    """A program with Java's client, for any controller."""
    found = PROGRAM.start()
    try:
        yield found
    finally:
        found.close()


@pytest.mark.java
def test_java_logs_in_over_tls(secured: Secured, driver: drivers.Driver) -> None:
    who = {"user": USER, "password": PASSWORD, "trust": str(secured.trust)}
    java = Java(f"localhost:{secured.port}", "secret", "tls", driver, **who)
    assert java("create", stream="events", segments=2)
    java("writer", name="w", stream="events")
    assert java("write", name="w", events=events(0, 100, 5)) == 100
    assert java("transact", stream="events", rounds=[[True, events(100, 110, 5)]]) == ["COMMITTED"]
    java("group", name="group", stream="events")
    java("reader", name="group", reader="r")
    assert sorted(numbers(java("read", reader="r", count=110))) == list(range(110))
    found = java("tables", name="table", partitions=2, count=3)
    assert (found["made"], found["value"], found["deleted"]) == (True, "new", True)
    java("close_reader", reader="r")
    java("close_writer", name="w")


@pytest.mark.java
def test_java_goes_on_when_its_tokens_have_expired(strict: NodeProcess, driver: drivers.Driver) -> None:
    java = Java(strict.addresses["pravega"], "expiring", "tcp", driver, user=USER, password=PASSWORD)
    java("create", stream="events")
    java("writer", name="w", stream="events")
    began, written = time.monotonic(), 0
    while time.monotonic() < began + 1.5 * TOKEN_S:
        written += java("write", name="w", events=events(written, written + 1))
    java("group", name="group", stream="events")
    java("reader", name="group", reader="r")
    assert numbers(java("read", reader="r", count=written)) == list(range(written))
    java("close_reader", reader="r")
    java("close_writer", name="w")
