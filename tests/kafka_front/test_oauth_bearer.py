"""Clients that say who they are by a token of a server of logins: OAUTHBEARER (KIP-255, RFC 7628), and elsewhere."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import kafka
import pytest
import ydb
from aiokafka.abc import AbstractTokenProvider as AioTokens
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from kafka.net.sasl.oauth import AbstractTokenProvider

from kafka_front.service.oauth_bearer import BadFirstMessage, token_of
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode
from tests.clients.api import Rec
from tests.clients.client_remote import REMOTES, RemoteClient
from tests.kafka_front.groups.wire_client import WireClient
from tests.kafka_front.test_sasl import METADATA, put
from tests.logins import AUDIENCE, ISSUER, Logins
from tests.node_process import ANY, NodeProcess

SECONDS = 60.0


class Place:
    """A node that takes a server's tokens, of whose users alice may do everything and nobody else anything."""

    def __init__(self, path: Path) -> None:
        self.logins = Logins("RS256")
        (path / "keys.json").write_text(self.logins.text())
        put(path / "data" / "users.json", bob="builder")
        settings = {
            "auth.required": "true",
            "auth.rules": "deny",
            "auth.super_users": "User:alice",
            "auth.oauth_keys": str(path / "keys.json"),
            "auth.oauth_issuer": ISSUER,
            "auth.oauth_audience": AUDIENCE,
        }
        listen = {"kafka": ANY, "console": ANY, "ydb": ANY, "sbp-pd": "off", "sbp-range-server": "off"}
        self.node = NodeProcess(path / "data", settings=settings, listen=listen)

    def wire(self) -> WireClient:
        host, _, port = self.node.kafka.rpartition(":")
        return WireClient(host, int(port))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("oauth"))
    made.node.start()
    yield made
    assert made.node.terminate() == 0
    assert "Traceback" not in made.node.log.read_text()


def first(token: str, acting_for: str = "") -> m.SaslAuthenticateRequest:
    given = f"a={acting_for}" if acting_for else ""
    return m.SaslAuthenticateRequest(auth_bytes=f"n,{given},\x01auth=Bearer {token}\x01\x01".encode())


async def log_in(client: WireClient, token: str, acting_for: str = "") -> Any:
    shaken = await client.call(1, m.SaslHandshakeRequest("OAUTHBEARER"))
    assert shaken.error_code == 0
    assert "OAUTHBEARER" in shaken.mechanisms
    return await client.call(2, first(token, acting_for))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (b"n,,\x01auth=Bearer x.y.z\x01\x01", ("x.y.z", "")),
        (b"n,a=alice,\x01auth=bearer x\x01\x01", ("x", "alice")),
        (b"n,a=a=2Cb=3D,\x01host=h\x01auth=Bearer x\x01port=9\x01\x01", ("x", "a,b=")),
    ],
)
def test_what_a_first_message_says(message: bytes, said: tuple[str, str]) -> None:
    assert token_of(message) == said


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,\x01\x01",
        b"y,,\x01auth=Bearer x\x01\x01",
        b"n,,\x01auth=Basic x\x01\x01",
        b"n,,\x01auth=Bearer x\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"n,a=\xff,\x01auth=Bearer x\x01\x01",
    ],
)
def test_what_is_no_first_message(message: bytes) -> None:
    with pytest.raises(BadFirstMessage):
        token_of(message)


async def test_a_login_ends_with_its_token_and_can_be_renewed(place: Place) -> None:
    async with place.wire() as client, place.wire() as silent:
        for one in (client, silent):
            answer = await log_in(one, place.logins.token("alice", seconds=2))
            assert (answer.error_code, answer.auth_bytes) == (0, b"")
            assert 0 < answer.session_lifetime_ms <= 2000
        assert (await client.call(9, METADATA)).brokers
        assert (await log_in(client, place.logins.token("alice"))).session_lifetime_ms > 500_000
        await asyncio.sleep(2.1)  # that is what is shown: the end of a token
        assert (await client.call(9, METADATA)).brokers
        with pytest.raises(asyncio.IncompleteReadError):
            await silent.call(9, METADATA)


async def test_who_renews_is_who_it_was(place: Place) -> None:
    async with place.wire() as client:
        await log_in(client, place.logins.token("alice"))
        answer = await log_in(client, place.logins.token("carol"))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize("wrong", ["made for others", "of others", "ended", "nonsense", "acting for others"])
async def test_a_refusal_is_told_in_two_steps(place: Place, wrong: str) -> None:
    """RFC 7628, section 3.2.2: an error in JSON, one byte of the client, and the end."""
    tokens = {
        "made for others": place.logins.token("alice", aud="others"),
        "of others": Logins().token("alice"),
        "ended": place.logins.token("alice", seconds=-60),
    }
    async with place.wire() as client:
        answer = await log_in(client, tokens.get(wrong, "x"), "bob" if wrong.startswith("acting") else "")
        assert answer.error_code == 0
        assert json.loads(answer.auth_bytes) == {"status": "invalid_token"}
        answer = await client.call(2, m.SaslAuthenticateRequest(auth_bytes=b"\x01"))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.reader is not None
        assert await client.reader.read() == b""


async def test_a_good_token_after_a_bad_one_is_too_late(place: Place) -> None:
    async with place.wire() as client:
        assert (await log_in(client, "x")).auth_bytes
        answer = await client.call(2, first(place.logins.token("alice")))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_librdkafka_logs_in_and_goes_on_with_new_tokens(place: Place) -> None:
    given: list[float] = []

    def token(_: str) -> tuple[str, float]:
        given.append(time.time())
        return place.logins.token("alice", seconds=4), time.time() + 4

    settings: dict[str, Any] = {
        "bootstrap.servers": place.node.kafka,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": token,
    }
    producer = Producer(settings)
    count = 0
    deadline = time.monotonic() + SECONDS
    while len(given) < 3:
        assert time.monotonic() < deadline
        producer.produce("librdkafka", str(count).encode(), partition=0)
        count += 1
        producer.poll(0.1)
    assert producer.flush(SECONDS) == 0
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["librdkafka"])
    read: list[bytes] = []
    while len(read) < count:
        assert time.monotonic() < deadline + SECONDS
        message = consumer.poll(1)
        if message is not None:
            assert message.error() is None
            read.append(message.value())
    consumer.close()
    assert read == [str(n).encode() for n in range(count)]
    refused: list[Any] = []
    wrong = {**settings, "oauth_cb": lambda _: (Logins().token("alice"), time.time() + 60), "error_cb": refused.append}
    admin = AdminClient(wrong)
    while not refused:
        assert time.monotonic() < deadline + SECONDS
        admin.poll(0.1)
    assert "_AUTHENTICATION" in {error.name() for error in refused}


def test_kafka_python_logs_in(place: Place) -> None:
    class Tokens(AbstractTokenProvider):
        def token(self) -> str:
            return place.logins.token("alice")

    settings = {
        "bootstrap_servers": place.node.kafka,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": Tokens(),
    }
    producer = kafka.KafkaProducer(**settings)
    producer.send("kafka-python", b"value", partition=0).get(SECONDS)
    producer.close()
    consumer = kafka.KafkaConsumer("kafka-python", auto_offset_reset="earliest", **settings)
    assert next(iter(consumer)).value == b"value"
    consumer.close()


async def test_aiokafka_logs_in(place: Place) -> None:
    class Tokens(AioTokens):
        async def token(self) -> str:
            return place.logins.token("alice")

    settings = {
        "bootstrap_servers": place.node.kafka,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": Tokens(),
    }
    async with aiokafka.AIOKafkaProducer(**settings) as producer:
        await producer.send_and_wait("aiokafka", b"value", partition=0)


@pytest.mark.java
def test_java_logs_in(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_text(place.logins.token("alice"))
    allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"{allowed}.urls={token.as_uri()} {allowed}.files={token}")
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLogin"
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": f"{module}CallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
        "sasl.jaas.config": f"{module}Module required;",
    }
    remote = next(remote for remote in REMOTES if remote.name == "java-new")
    driver = remote.program.start()
    try:
        client = RemoteClient(place.node.kafka, remote.name, remote.abilities, driver, settings)
        client.produce("java", 0, [Rec(value=b"value")])
        assert [got.value for got in client.consume_group("java", "java", 1)] == [b"value"]
        token.write_text(place.logins.token("alice", aud="others"))
        with pytest.raises(Exception, match=r"SaslAuthenticationException.*the token is not valid"):
            client.topics()
    finally:
        driver.close()


def test_rules_are_asked_of_a_tokens_user_and_other_protocols_take_it_too(place: Place) -> None:
    def asked(path: str, token: str | None) -> int:
        request = urllib.request.Request(f"{place.node.console}{path}")
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    alice, carol = (place.logins.token(name) for name in ("alice", "carol"))
    assert asked("/api/status", alice) == 200
    assert asked("/api/status", carol) == 403
    assert asked("/api/status", None) == 401
    assert asked("/api/status", Logins().token("alice")) == 401

    def made(token: str) -> None:
        config = ydb.DriverConfig(f"grpc://{place.node.ydb}", "/local", credentials=ydb.AccessTokenCredentials(token))
        with ydb.Driver(config) as driver:
            driver.wait(timeout=SECONDS, fail_fast=True)
            driver.topic_client.create_topic("by-token")

    with pytest.raises(ydb.issues.Error):
        made(carol)
    made(alice)
