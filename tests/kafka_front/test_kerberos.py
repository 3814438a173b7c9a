"""Clients that log in with tickets of a Kerberos realm: GSSAPI (RFC 4752), beside MIT's KDC and with real clients."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import kafka
import pytest

from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode
from tests.clients.api import Rec
from tests.clients.client_remote import REMOTES, RemoteClient
from tests.kafka_front.groups.wire_client import WireClient
from tests.kafka_front.test_sasl import METADATA, put
from tests.node_process import ANY, NodeFailed, NodeProcess
from tests.realm import REALM, Realm

pytestmark = pytest.mark.kerberos
SECONDS = 60.0
SKEW_MS = 300_000
"""By how much clocks may differ: the library takes a ticket for so much longer."""
RULES = "RULE:[2:$1](batch),DEFAULT"


class Place:
    """A realm, and a node in it: alice may do everything, and nobody else anything."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.realm = Realm(path)
        for name, value in self.realm.environment.items():
            patch.setenv(name, value)  # for the node, and for clients in this process
        hosts = ("127.0.0.1", "localhost")
        self.keytab = self.realm.keytab("node", *(f"kafka/{host}" for host in hosts))
        self.alice = self.realm.keytab("alice", "alice")
        self.others = self.realm.keytab("others", "bob", "batch/host", "other/127.0.0.1", "c/d/e")
        put(path / "data" / "users.json", bob="builder")
        settings = {
            "auth.required": "true",
            "auth.rules": "deny",
            "auth.super_users": "User:alice",
            "auth.kerberos_keytab": str(self.keytab),
            "auth.kerberos_rules": RULES,
        }
        listen = {"kafka": ANY, "console": ANY, "sbp-pd": "off", "sbp-range-server": "off"}
        self.node = NodeProcess(path / "data", settings=settings, listen=listen)

    def log_in(self, principal: str = "alice", keytab: Path | None = None, life: str = "30m") -> None:
        """Get a ticket, with which this process and its children log in from now on."""
        self.realm.run("kinit", "-l", life, "-k", "-t", str(keytab or self.alice), principal)

    def wire(self) -> WireClient:
        host, _, port = self.node.kafka.rpartition(":")
        return WireClient(host, int(port))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with pytest.MonkeyPatch.context() as patch:
        made = Place(tmp_path_factory.mktemp("kerberos"), patch)
        try:
            made.node.start()
            made.log_in()
            yield made
            assert made.node.terminate() == 0
            assert "Traceback" not in made.node.log.read_text()
        finally:
            made.realm.close()


class Initiator:
    """The client's side of a login, of which a test may spoil every message."""

    def __init__(self, client: WireClient, service: str = "kafka@127.0.0.1", *, mutual: bool = True) -> None:
        import gssapi

        name = gssapi.Name(service, gssapi.NameType.hostbased_service)
        flags = [gssapi.RequirementFlag.integrity, *([gssapi.RequirementFlag.mutual_authentication] if mutual else [])]
        mechanism = gssapi.MechType.kerberos
        self.context = gssapi.SecurityContext(name=name, mech=mechanism, flags=flags, usage="initiate")
        self._client = client

    async def send(self, message: bytes) -> Any:
        return await self._client.call(2, m.SaslAuthenticateRequest(auth_bytes=message))

    async def offered(self) -> bytes:
        """Show the ticket, and return the layers that the server offers."""
        shaken = await self._client.call(1, m.SaslHandshakeRequest("GSSAPI"))
        assert (shaken.error_code, "GSSAPI" in shaken.mechanisms) == (0, True)
        answer = await self.send(self.context.step(None))
        if not self.context.complete:
            assert answer.error_code == 0, answer.error_message
            assert not self.context.step(answer.auth_bytes)
            answer = await self.send(b"")
        assert answer.error_code == 0, answer.error_message
        return bytes(self.context.unwrap(answer.auth_bytes).message)

    async def choose(self, layer: int = 1, acting_for: str = "") -> Any:
        return await self.send(self.context.wrap(bytes((layer, 0, 0, 0)) + acting_for.encode(), False).message)


async def logged_in(client: WireClient, acting_for: str = "", *, mutual: bool = True) -> Any:
    initiator = Initiator(client, mutual=mutual)
    assert await initiator.offered() == b"\x01\0\0\0"
    return await initiator.choose(acting_for=acting_for)


@pytest.mark.parametrize("mutual", [True, False])
@pytest.mark.parametrize("acting_for", ["", f"alice@{REALM}", "kafka@127.0.0.1"])
async def test_a_ticket_logs_in(place: Place, acting_for: str, mutual: bool) -> None:
    async with place.wire() as client:
        answer = await logged_in(client, acting_for, mutual=mutual)
        assert (answer.error_code, answer.auth_bytes) == (0, b"")
        assert 1_000_000 < answer.session_lifetime_ms <= 1_800_000 + SKEW_MS
        assert (await client.call(9, METADATA)).brokers


async def test_a_login_lasts_as_long_as_its_ticket_and_can_be_renewed(place: Place) -> None:
    async with place.wire() as client:
        place.log_in(life="5s")
        try:
            assert 0 < (await logged_in(client)).session_lifetime_ms <= 5_000 + SKEW_MS
        finally:
            place.log_in()
        assert (await logged_in(client)).session_lifetime_ms > 1_000_000
        place.log_in("bob", place.others)
        try:
            assert (await logged_in(client)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        finally:
            place.log_in()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("nonsense", "Kerberos says: "),
        ("a ticket for another service", "Kerberos says: "),
        ("no empty message", "an empty message was expected"),
        ("a layer", "no security layer of SASL is offered; use TLS"),
        ("a short choice", "no security layer of SASL is offered"),
        ("acting for another", "nobody may act for somebody else"),
    ],
)
async def test_a_refusal_says_why_and_ends_the_connection(place: Place, wrong: str, said: str) -> None:
    async with place.wire() as client:
        service = "other@127.0.0.1" if "another service" in wrong else "kafka@127.0.0.1"
        initiator = Initiator(client, service)
        if wrong in ("nonsense", "a ticket for another service", "no empty message"):
            assert (await client.call(1, m.SaslHandshakeRequest("GSSAPI"))).error_code == 0
            answer = await initiator.send(b"x" if wrong == "nonsense" else initiator.context.step(None))
            if wrong == "no empty message":
                answer = await initiator.send(b"x")
        else:
            await initiator.offered()
            if wrong == "a short choice":
                answer = await initiator.send(initiator.context.wrap(b"\x01", False).message)
            else:
                answer = await initiator.choose(4 if wrong == "a layer" else 1, "bob" if "acting" in wrong else "")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message.startswith(f"Authentication failed: {said}")
        assert client.reader is not None
        assert await client.reader.read() == b""


async def test_rules_name_a_principal_and_access_rules_are_asked_of_that_name(place: Place) -> None:
    try:
        place.log_in("batch/host", place.others)
        async with place.wire() as client:
            assert (await logged_in(client)).error_code == 0
        place.log_in("c/d/e", place.others)
        async with place.wire() as client:
            assert "no rule of auth.kerberos_rules gives" in (await logged_in(client)).error_message
        place.log_in("bob", place.others)
        async with place.wire() as client:
            assert (await logged_in(client)).error_code == 0
            made = await client.call(7, m.CreateTopicsRequest(topics=[m.CreateTopicsRequest.CreatableTopic("bobs")]))
            assert made.topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    finally:
        place.log_in()


async def test_a_ticket_that_was_shown_before_is_no_login(place: Place) -> None:
    """As at a broker the connection just ends: the next attempt of an honest client has another authenticator."""
    async with place.wire() as first, place.wire() as second:
        ticket = Initiator(first).context.step(None)
        for client in (first, second):
            assert (await client.call(1, m.SaslHandshakeRequest("GSSAPI"))).error_code == 0
        shown = m.SaslAuthenticateRequest(auth_bytes=ticket)
        assert (await first.call(2, shown)).error_code == 0
        with pytest.raises(asyncio.IncompleteReadError):
            await second.call(2, shown)


@pytest.mark.kcat
def test_librdkafka_logs_in(place: Place) -> None:
    """kcat is Debian's: confluent-kafka's wheels come without GSSAPI."""
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.keytab": str(place.alice),
        "sasl.kerberos.principal": f"alice@{REALM}",
    }
    common = ["kcat", "-b", place.node.kafka, *(f"-X{key}={value}" for key, value in settings.items())]
    produced = [*common, "-P", "-t", "librdkafka", "-p", "0"]
    subprocess.run(produced, input=b"value\n", check=True, timeout=SECONDS)
    consumed = [*common, "-C", "-t", "librdkafka", "-p", "0", "-e", "-q"]
    assert subprocess.run(consumed, capture_output=True, check=True, timeout=SECONDS).stdout == b"value\n"


async def test_aiokafka_logs_in(place: Place) -> None:
    settings = {
        "bootstrap_servers": place.node.kafka,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
    }
    async with aiokafka.AIOKafkaProducer(**settings) as producer:
        await producer.send_and_wait("aiokafka", b"value", partition=0)
    consumer = aiokafka.AIOKafkaConsumer("aiokafka", auto_offset_reset="earliest", **settings)
    async with consumer:
        assert (await asyncio.wait_for(consumer.getone(), SECONDS)).value == b"value"


def test_kafka_python_logs_in(place: Place) -> None:
    settings = {
        "bootstrap_servers": place.node.kafka,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_service_name": "kafka",
    }
    producer = kafka.KafkaProducer(**settings)
    producer.send("kafka-python", b"value", partition=0).get(SECONDS)
    producer.close()


@pytest.mark.java
def test_java_logs_in(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.krb5.conf={place.realm.directory / 'krb5.conf'}")

    def settings(principal: str, keytab: Path) -> dict[str, str]:
        module = "com.sun.security.auth.module.Krb5LoginModule"
        options = f'useKeyTab=true storeKey=true keyTab="{keytab}" principal="{principal}@{REALM}"'
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "sasl.jaas.config": f"{module} required {options};",
        }

    remote = next(remote for remote in REMOTES if remote.name == "java-new")
    driver = remote.program.start()
    try:
        given = settings("alice", place.alice)
        client = RemoteClient(place.node.kafka, remote.name, remote.abilities, driver, given)
        client.produce("java", 0, [Rec(value=b"value")])
        assert [got.value for got in client.consume_group("java", "java", 1)] == [b"value"]
        nameless = settings("c/d/e", place.others)
        client = RemoteClient(place.node.kafka, remote.name, remote.abilities, driver, nameless)
        with pytest.raises(Exception, match=r"SaslAuthenticationException.*no rule of auth.kerberos_rules gives"):
            client.topics()
    finally:
        driver.close()


async def test_the_node_says_which_logins_and_rules_it_has(place: Place) -> None:
    async with place.wire() as client:
        await logged_in(client)
        resource = m.DescribeConfigsRequest.DescribeConfigsResource(resource_type=4, resource_name="0")
        (found,) = (await client.call(4, m.DescribeConfigsRequest(resources=[resource]))).results
        values = {one.name: one.value for one in found.configs}
        assert values["sasl.enabled.mechanisms"].split(",")[-1] == "GSSAPI"
        assert values["sasl.kerberos.principal.to.local.rules"] == RULES


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"auth.kerberos_keytab": "/nowhere"}, "auth.kerberos_keytab: /nowhere: "),
        ({"auth.kerberos_rules": "RULE:[1:$2]"}, "names a part that a principal of 1 parts does not have"),
    ],
)
def test_a_node_refuses_to_start_without_its_keys(
    place: Place, tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    given = {"auth.kerberos_keytab": str(place.keytab), **settings}
    node = NodeProcess(tmp_path / "data", settings=given)
    with pytest.raises(NodeFailed):
        node.start()
    assert said in node.log.read_text()
    assert "Traceback" not in node.log.read_text()
