"""Logins that last for a time (KIP-368), and those that end with their user or its password."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from bridges.auth.users import change
from bridges.node.assembly import Node
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode
from tests.clients.client_remote import REMOTES, RemoteClient
from tests.kafka_front.groups.wire_client import WireClient
from tests.kafka_front.node_lab import serving
from tests.kafka_front.test_sasl import METADATA, Place, plain, put
from tests.node_process import ANY

LIFETIME_MS = 1000
SECONDS = 30.0
LOAD_S = 6.0


@pytest.fixture
async def node(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    """Its logins last for as long as a test says."""
    put(tmp_path / "data" / "users.json", alice="wonder", bob="builder")
    lifetime = getattr(request, "param", 0)
    async with serving(tmp_path, {"auth.required": "true", "kafka.sasl_max_reauth_ms": f"{lifetime}ms"}) as made:
        yield made


brief = pytest.mark.parametrize("node", [LIFETIME_MS], indirect=True)


def client(node: Node) -> WireClient:
    address = node.addresses["kafka"]
    return WireClient(address.host, address.port)


async def log_in(client: WireClient, name: str, password: str) -> Any:
    shaken = await client.call(1, m.SaslHandshakeRequest("PLAIN"))
    assert shaken.error_code == 0
    return await client.call(2, plain(name, password))


async def scram(client: WireClient, name: str, password: str, extension: str = "") -> tuple[bytes, bytes]:
    """Begin a login with SCRAM-SHA-256; gives its last message, and the one before."""
    assert (await client.call(1, m.SaslHandshakeRequest("SCRAM-SHA-256"))).error_code == 0
    bare = f"n={name},r=nonce{extension}".encode()
    first = (await client.call(2, m.SaslAuthenticateRequest(auth_bytes=b"n,," + bare))).auth_bytes
    nonce, salt, iterations = (field[2:] for field in first.split(b",", 2))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(salt), int(iterations))
    key = hmac.digest(salted, b"Client Key", "sha256")
    last = b"c=biws,r=" + nonce
    signature = hmac.digest(hashlib.sha256(key).digest(), b",".join((bare, first, last)), "sha256")
    return last + b",p=" + base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))), first


async def ended(client: WireClient, seconds: float) -> None:
    """Return when the server has closed the connection, of which nothing is asked."""
    assert client.reader is not None
    assert await asyncio.wait_for(client.reader.read(), seconds) == b""


@brief
async def test_a_login_lasts_for_a_time_and_can_be_renewed(node: Node) -> None:
    async with client(node) as renewed, client(node) as silent:
        for one in (renewed, silent):
            began = time.monotonic()
            done = await log_in(one, "alice", "wonder")
            assert (done.error_code, done.session_lifetime_ms) == (0, LIFETIME_MS)
        for _ in range(3):
            assert (await renewed.call(9, METADATA)).brokers
            await asyncio.sleep(LIFETIME_MS / 1000 * 0.6)
            assert (await log_in(renewed, "alice", "wonder")).session_lifetime_ms == LIFETIME_MS
        assert time.monotonic() - began > LIFETIME_MS / 1000
        with pytest.raises(asyncio.IncompleteReadError):
            await silent.call(9, METADATA)
        assert (await renewed.call(9, METADATA)).brokers, "which another one's end is nothing to"
        assert len(node.authenticator.sessions) == 1
        await asyncio.sleep(LIFETIME_MS / 1000 * 1.2)  # until the session has expired
        assert (await log_in(renewed, "alice", "wonder")).error_code == 0, "who is late may still say who it is"
        assert (await renewed.call(9, METADATA)).brokers


@brief
async def test_who_logs_in_again_is_who_it_was(node: Node) -> None:
    async with client(node) as other, client(node) as wrong, client(node) as way:
        for one in (other, wrong, way):
            await log_in(one, "alice", "wonder")
        for one, answer in ((other, await log_in(other, "bob", "builder")), (wrong, await log_in(wrong, "alice", "?"))):
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            await ended(one, SECONDS)
        last, _ = await scram(way, "alice", "wonder")
        answer = await way.call(2, m.SaslAuthenticateRequest(auth_bytes=last))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        await ended(way, SECONDS)
    await nobody_left(node)


async def nobody_left(node: Node) -> None:
    """Nothing is kept of connections that have ended."""
    deadline = time.monotonic() + SECONDS
    while len(node.authenticator.sessions):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_login_ends_with_its_user(node: Node, tmp_path: Path) -> None:
    async with client(node) as alice, client(node) as bob, client(node) as late:
        assert (await log_in(alice, "alice", "wonder")).session_lifetime_ms == 0
        await log_in(bob, "bob", "builder")
        last, _ = await scram(late, "alice", "wonder")
        before = node.authenticator.users["bob"]
        change(tmp_path / "data" / "users.json", lambda users: users.pop("alice") and None)
        await ended(alice, 3.0)
        assert node.authenticator.users["bob"] == before
        assert (await bob.call(9, METADATA)).brokers
        refused = await late.call(2, m.SaslAuthenticateRequest(auth_bytes=last))
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED, "it has begun as somebody who is gone now"
    await nobody_left(node)


async def test_a_login_ends_with_the_password_it_was_made_with(node: Node, tmp_path: Path) -> None:
    async with client(node) as by_password, client(node) as by_scram, client(node) as bob:
        await log_in(by_password, "alice", "wonder")
        last, _ = await scram(by_scram, "alice", "wonder")
        assert (await by_scram.call(2, m.SaslAuthenticateRequest(auth_bytes=last))).error_code == 0
        await log_in(bob, "bob", "builder")
        path = tmp_path / "other" / "users.json"
        put(path, alice="land")
        others = {}
        change(path, others.update)
        change(tmp_path / "data" / "users.json", lambda users: users.update(others))
        await ended(by_password, 3.0)
        await ended(by_scram, 3.0)
        assert (await bob.call(9, METADATA)).brokers
        async with client(node) as again:
            assert (await log_in(again, "alice", "land")).error_code == 0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("sasl"))
    made.node.settings["kafka.sasl_max_reauth_ms"] = "2s"
    made.node.listen["console"] = ANY
    made.node.start()
    yield made
    assert made.node.terminate() == 0


def closed(place: Place) -> list[str]:
    return [line for line in place.node.log.read_text().splitlines() if "connection closed" in line]


def logins(place: Place) -> int:
    with urllib.request.urlopen(f"{place.node.console}/metrics", timeout=SECONDS) as response:
        text = response.read().decode()
    return int(float(re.findall(r"^anabranch_authentications_total{.*succeeded.*} (.*)$", text, re.M)[0]))


def written(place: Place, mechanism: str, topic: str, count: int) -> None:
    """Write records for some seconds, none of which may be refused or sent twice."""
    failed: list[object] = []
    errors: list[str] = []
    told = {"error_cb": lambda error: errors.append(str(error)), "retries": 0}
    producer = Producer({**place.librdkafka(mechanism), **told})
    began = time.monotonic()
    for number in range(count):
        producer.produce(topic, b"value", on_delivery=lambda error, _: failed.append(error) if error else None)
        while time.monotonic() < began + LOAD_S * number / count:
            producer.poll(0.001)
    assert producer.flush(SECONDS) == 0
    assert not failed
    assert not errors


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_librdkafka_logs_in_again_while_it_writes(place: Place, mechanism: str) -> None:
    before = logins(place)
    written(place, mechanism, "t", 500)
    assert logins(place) >= before + 3
    assert not closed(place)


@pytest.mark.java
def test_java_logs_in_again_while_it_reads(place: Place) -> None:
    remote = next(remote for remote in REMOTES if remote.name == "java-new")
    driver = remote.program.start()
    try:
        java = RemoteClient(place.node.kafka, remote.name, remote.abilities, driver, place.java("SCRAM-SHA-256"))
        java.create_topic("java", 1)
        before = logins(place)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(written, place, "PLAIN", "java", 500)
            assert len(java.consume_group("java", "java", 500)) == 500
            writing.result(SECONDS)
        assert logins(place) >= before + 6, "those of the one that writes are about half"
    finally:
        driver.close()
    assert not closed(place)
