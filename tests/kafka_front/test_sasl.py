"""Clients that say who they are: with a password, with SCRAM, with a certificate; and those that do not."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from kafka.errors import KafkaError

from bridges.auth import Operation, Principal, Resource, ResourceKind
from bridges.auth.passwords import Cost, PasswordHash
from bridges.auth.scram import MECHANISMS, ScramKeys
from bridges.auth.users import User, change
from bridges.node.assembly import Node
from bridges.node.settings.config import load
from kafka_front.front import KafkaFront
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode
from tests.certificates import Authority
from tests.clients.api import Rec
from tests.clients.client_remote import REMOTES, RemoteClient
from tests.kafka_front.groups.wire_client import WireClient
from tests.node_process import ANY, NodeProcess

SECONDS = 60.0


def put(path: Path, **passwords: str) -> None:
    """Have the file hold these users and no others, with keys for SCRAM."""

    def edit(users: dict[str, User]) -> None:
        users.clear()
        for name, text in passwords.items():
            keys = {mechanism: ScramKeys.from_password(text, mechanism, 4096) for mechanism in MECHANISMS}
            users[name] = User(name, PasswordHash.from_password(text, Cost(16, 1, 1)), keys)

    path.parent.mkdir(parents=True, exist_ok=True)
    change(path, edit)


class Place:
    """A node with TLS that lets nobody in who does not say who it is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.authority = Authority(path, "ours")
        cert, key = self.authority.issue("node")
        put(path / "data" / "users.json", alice="wonder=land,", bob="builder")
        self.node = NodeProcess(
            path / "data",
            settings={
                "auth.required": "true",
                "logging.repeated_lines": "1000000",  # those of one test must not hide another's
                "tls.kafka.cert": str(cert),
                "tls.kafka.key": str(key),
                "tls.kafka.client_ca": str(self.authority.cert),
                "tls.kafka.client": "optional",
            },
            listen={"kafka": ANY, "console": "off", "sbp-pd": "off", "sbp-range-server": "off"},
        )

    def librdkafka(self, mechanism: str, password: str = "wonder=land,", **more: Any) -> dict[str, Any]:
        login = {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": password}
        return {
            "bootstrap.servers": self.node.kafka,
            "security.protocol": "sasl_ssl" if mechanism else "ssl",
            "ssl.ca.location": str(self.authority.cert),
            **(login if mechanism else {}),
            **{name.replace("_", "."): value for name, value in more.items()},
        }

    def python(self, mechanism: str, password: str = "wonder=land,") -> dict[str, Any]:
        """Settings of kafka-python and aiokafka."""
        return {
            "bootstrap_servers": self.node.kafka,
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cafile=str(self.authority.cert)),
            "sasl_mechanism": mechanism,
            "sasl_plain_username": "alice",
            "sasl_plain_password": password,
        }

    def java(self, mechanism: str, password: str = "wonder=land,") -> dict[str, str]:
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        return {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.cert),
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f"org.apache.kafka.common.security.{module} required "
            f'username="alice" password="{password}";',
        }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("sasl"))
    made.node.start()
    yield made
    if made.node.process is not None:
        assert made.node.terminate() == 0
        assert "Traceback" not in made.node.log.read_text()


def confluent(place: Place, mechanism: str, topic: str) -> bytes:
    producer = Producer(place.librdkafka(mechanism))
    producer.produce(topic, b"value", partition=0)
    assert producer.flush(SECONDS) == 0
    consumer = Consumer(place.librdkafka(mechanism, group_id=topic, auto_offset_reset="earliest"))
    consumer.subscribe([topic])
    message = consumer.poll(SECONDS)
    consumer.close()
    assert message is not None
    assert message.error() is None
    return message.value()


def kafka_python(place: Place, mechanism: str, topic: str) -> bytes:
    producer = kafka.KafkaProducer(**place.python(mechanism))
    producer.send(topic, b"value", partition=0).get(SECONDS)
    producer.close()
    consumer = kafka.KafkaConsumer(topic, auto_offset_reset="earliest", **place.python(mechanism))
    value = next(iter(consumer)).value
    consumer.close()
    return value


def aio(place: Place, mechanism: str, topic: str) -> bytes:
    async def run() -> bytes:
        async with aiokafka.AIOKafkaProducer(**place.python(mechanism)) as producer:
            await producer.send_and_wait(topic, b"value", partition=0)
        reading = aiokafka.AIOKafkaConsumer(topic, auto_offset_reset="earliest", **place.python(mechanism))
        async with reading as consumer:
            return (await asyncio.wait_for(consumer.getone(), SECONDS)).value

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("client", "mechanism"),
    [
        (confluent, "PLAIN"),
        (confluent, "SCRAM-SHA-256"),
        (kafka_python, "PLAIN"),
        (kafka_python, "SCRAM-SHA-512"),
        (aio, "PLAIN"),
        (aio, "SCRAM-SHA-256"),
    ],
)
def test_clients_log_in(place: Place, client: Callable[[Place, str, str], bytes], mechanism: str) -> None:
    assert client(place, mechanism, f"{client.__name__}-{mechanism}") == b"value"


@pytest.mark.java
def test_java_logs_in(place: Place) -> None:
    remote = next(remote for remote in REMOTES if remote.name == "java-new")
    driver = remote.program.start()
    try:
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            client = RemoteClient(place.node.kafka, remote.name, remote.abilities, driver, place.java(mechanism))
            topic = f"java-{mechanism}"
            client.produce(topic, 0, [Rec(value=b"value")])
            assert [got.value for got in client.consume_group(topic, topic, 1)] == [b"value"]
            assert topic in client.topics()
        wrong = RemoteClient(place.node.kafka, remote.name, remote.abilities, driver, place.java("PLAIN", "wrong"))
        with pytest.raises(Exception, match=r"SaslAuthenticationException.*Authentication failed"):
            wrong.topics()
    finally:
        driver.close()


class _Quiet:
    def log(self, *args: object) -> None:
        pass


def errors_of(settings: dict[str, Any]) -> list[str]:
    """What a client that is not let in says of it, however long it takes until it says so."""
    errors: list[Any] = []
    admin = AdminClient({**settings, "error_cb": errors.append, "logger": _Quiet()})
    deadline = time.monotonic() + SECONDS
    while not errors and time.monotonic() < deadline:
        with pytest.raises(Exception, match=r"_TRANSPORT|_TIMED_OUT|Broker transport failure|authentication"):
            admin.list_topics(timeout=0.5)
        admin.poll(0)
    return [error.name() for error in errors]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_told_and_ends_the_connection(place: Place, mechanism: str) -> None:
    assert "_AUTHENTICATION" in errors_of(place.librdkafka(mechanism, "wrong"))
    with pytest.raises(KafkaError):
        kafka.KafkaAdminClient(**place.python(mechanism, "wrong"), bootstrap_timeout_ms=3000)


def test_who_does_not_say_who_it_is_is_not_served(place: Place) -> None:
    assert errors_of(place.librdkafka(""))
    context = ssl.create_default_context(cafile=str(place.authority.cert))
    host, _, port = place.node.kafka.rpartition(":")
    with context.wrap_socket(socket.create_connection((host, int(port)), SECONDS), server_hostname=host) as raw:
        raw.sendall(b"\0\0\0\x0f\0\x12\0\0\0\0\0\x07\0\x05quiet")  # ApiVersions 0
        assert raw.recv(8)[4:] == b"\0\0\0\x07"
        raw.sendall(b"\0\0\0\x13\0\x03\0\0\0\0\0\x08\0\x05quiet\0\0\0\0")  # Metadata 0
        while raw.recv(1000):
            pass
    assert "the client has not said who it is" in place.node.log.read_text()


def test_a_certificate_says_who_its_owner_is(place: Place) -> None:
    cert, key = place.authority.issue("carol")
    settings = place.librdkafka("", ssl_certificate_location=str(cert), ssl_key_location=str(key))
    assert AdminClient(settings).list_topics(timeout=SECONDS).brokers


# --- requests by hand, against a node in this process --------------------------------------------------------------


@dataclass
class Doorman:
    """Allows everything and remembers who asked."""

    asked: set[str] = field(default_factory=set)

    def allows_any(self, principal: Principal, operation: Operation, kind: ResourceKind) -> bool:
        return False

    def stand_in(self, principal: Principal) -> Principal | None:
        return principal

    def allows(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        self.asked.add(str(principal))
        return True


@dataclass
class Lab:
    node: Node
    doorman: Doorman

    def client(self) -> WireClient:
        address = self.node.addresses["kafka"]
        return WireClient(address.host, address.port)


@pytest.fixture(params=[True, False], ids=["required", "optional"])
async def lab(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Lab]:
    put(tmp_path / "data" / "users.json", alice="wonder")
    flags = {f"listen.{name}": "off" for name in ("console", "sbp-pd", "sbp-range-server")}
    flags |= {"data_dir": str(tmp_path / "data"), "listen.kafka": ANY, "auth.required": str(request.param).lower()}
    node = Node(load(flags, environ={}, directory=tmp_path).settings, fronts=[KafkaFront])
    node.authorizer = doorman = Doorman()
    await node.start()
    yield Lab(node, doorman)
    await node.stop()


def plain(name: str, password: str, acting_for: str = "") -> m.SaslAuthenticateRequest:
    return m.SaslAuthenticateRequest(auth_bytes=f"{acting_for}\0{name}\0{password}".encode())


METADATA = m.MetadataRequest(topics=None)


async def test_what_a_client_may_do_is_asked_in_its_name(lab: Lab) -> None:
    await lab.node.catalog.create_topic("t", 1)
    for acting_for in ("", "alice"):
        async with lab.client() as client:
            shaken = await client.call(1, m.SaslHandshakeRequest("PLAIN"))
            assert (shaken.error_code, shaken.mechanisms) == (0, ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
            done = await client.call(2, plain("alice", "wonder", acting_for))
            assert (done.error_code, done.session_lifetime_ms) == (0, 0)
            assert len((await client.call(9, METADATA)).topics) == 1
    assert lab.doorman.asked == {"User:alice"}
    assert lab.node.authenticator.succeeded == 2


NOT_PLAIN = [
    b"",
    b"\0",
    b"\0alice",
    b"\0alice\0wrong",
    b"\0bob\0wonder",
    b"bob\0alice\0wonder",
    b"\0alice\0\xff",
    b"\0\0wonder",
]
NOT_SCRAM = [
    b"",
    b"n,,",
    b"y,,n=alice,r=x",
    b"p=tls-unique,,n=alice,r=x",
    b"n,a=bob,n=alice,r=x",
    b"n,,n=\xff,r=x",
]


async def test_who_it_is_not_is_told_and_closed(lab: Lab) -> None:
    tokens = [("PLAIN", token) for token in NOT_PLAIN] + [("SCRAM-SHA-256", token) for token in NOT_SCRAM]
    for mechanism, token in tokens:
        async with lab.client() as client:
            await client.call(1, m.SaslHandshakeRequest(mechanism))
            refused = await client.call(1, m.SaslAuthenticateRequest(auth_bytes=token))
            assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED, token
            assert "no such user, or the password" in refused.error_message
            with pytest.raises(asyncio.IncompleteReadError):
                await client.call(9, METADATA)
    assert lab.node.authenticator.failed == len(tokens)
    assert lab.doorman.asked == set()


async def test_scram_does_not_tell_who_there_is(lab: Lab) -> None:
    for mechanism in MECHANISMS:
        for name in ("alice", "nobody", "a=2Cb", "\N{GREEK SMALL LETTER ALPHA}"):
            salts = {await refused_by_scram(lab, mechanism, name) for _ in range(2)}
            assert len(salts) == 1, "a salt that changes would tell that there is nobody"


async def refused_by_scram(lab: Lab, mechanism: str, name: str) -> bytes:
    """Log in with a wrong proof; gives the salt that was told."""
    async with lab.client() as client:
        await client.call(1, m.SaslHandshakeRequest(mechanism))
        first = await client.call(2, m.SaslAuthenticateRequest(auth_bytes=f"n,,n={name},r=nonce".encode()))
        nonce, salt, iterations = first.auth_bytes.split(b",")
        assert nonce.startswith(b"r=nonce")
        assert len(nonce) > 20
        assert iterations.startswith(b"i=")
        last = b"c=biws," + nonce + b",p=" + b"AAAA" * 8
        refused = await client.call(2, m.SaslAuthenticateRequest(auth_bytes=last))
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        return salt


async def test_steps_out_of_order_are_refused(lab: Lab) -> None:
    async with lab.client() as client:
        early = await client.call(1, plain("alice", "wonder"))
        assert early.error_code == ErrorCode.ILLEGAL_SASL_STATE
        for mechanism in ("GSSAPI", "plain", ""):
            refused = await client.call(1, m.SaslHandshakeRequest(mechanism))
            assert refused.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert "PLAIN" in refused.mechanisms
        assert (await client.call(0, m.SaslHandshakeRequest("PLAIN"))).error_code == ErrorCode.UNSUPPORTED_VERSION
        await client.call(1, m.SaslHandshakeRequest("PLAIN"))
        await client.call(1, plain("alice", "wonder"))
        again = await client.call(1, m.SaslHandshakeRequest("PLAIN"))
        assert again.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await client.call(1, plain("alice", "wonder"))).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await client.call(9, METADATA)).brokers, "it is still who it was"


async def test_a_stranger_may_not_send_much(lab: Lab) -> None:
    async with lab.client() as client:
        assert client.writer is not None
        assert client.reader is not None
        size = 512 * 1024 + 1
        client.writer.write(struct.pack(">ihhih", size, 18, 0, 0, -1))
        if lab.node.authenticator.required:
            assert await client.reader.read() == b""
        else:
            client.writer.write(bytes(size - 10))
            assert await client.reader.readexactly(4)
    async with lab.client() as client:
        await client.call(1, m.SaslHandshakeRequest("PLAIN"))
        await client.call(1, plain("alice", "wonder"))
        assert client.writer is not None
        assert client.reader is not None
        client.writer.write(struct.pack(">ihhih", size, 18, 0, 0, -1) + bytes(size - 10))
        assert await client.reader.readexactly(4), "who is known may"
