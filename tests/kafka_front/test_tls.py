"""Listeners with TLS, seen by client libraries: who is let in, and certificates that change while a node serves."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from bridges.commands.cli import main
from tests.certificates import Authority
from tests.node_process import ANY, NodeFailed, NodeProcess

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 60.0


class Files:
    """What a node is given, in places whose content changes."""

    def __init__(self, path: Path) -> None:
        self.cert, self.key = path / "node.pem", path / "node.key"

    def put(self, pair: tuple[Path, Path]) -> None:
        self.cert.write_bytes(pair[0].read_bytes())
        self.key.write_bytes(pair[1].read_bytes())


class Place:
    """A node with TLS on Kafka's listener and the console, both with the same certificate."""

    def __init__(self, path: Path) -> None:
        self.ours, self.others = Authority(path, "ours"), Authority(path, "others")
        self.files = Files(path)
        self.files.put(self.ours.issue("node"))
        self.settings = {
            f"tls.{name}.{what}": str(file)
            for name in ("kafka", "console")
            for what, file in (("cert", self.files.cert), ("key", self.files.key))
        }
        self.node = NodeProcess(
            path / "data",
            settings=self.settings,
            listen={"kafka": ANY, "console": ANY, "sbp-pd": "off", "sbp-range-server": "off"},
        )

    def client(self, **more: Any) -> dict[str, Any]:
        """Settings of a librdkafka client."""
        return {
            "bootstrap.servers": self.node.kafka,
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.ours.cert),
            **{name.replace("_", "."): value for name, value in more.items()},
        }

    def log_says(self, text: str) -> bool:
        """Whether the node's log says it within the time that tests are patient."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text not in self.node.log.read_text():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    if made.node.process is not None:
        assert made.node.terminate() == 0
        assert "Traceback" not in made.node.log.read_text()


def reaches(settings: dict[str, Any]) -> bool:
    """Whether a client gets to know the cluster; if not it has said so, however long that takes."""
    errors: list[Any] = []
    admin = AdminClient({**settings, "error_cb": errors.append, "logger": _QUIET})
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return bool(admin.list_topics(timeout=3).brokers)
        except Exception:  # noqa: BLE001 - librdkafka tells of the handshake through its error callback only
            admin.poll(0)
            if errors:
                return False
            assert time.monotonic() < deadline, "refused, but nobody said so"


class _Quiet:
    def log(self, *args: object) -> None:
        pass


_QUIET: Any = _Quiet()


def test_records_of_megabytes_go_in_and_out(place: Place) -> None:
    place.node.start()
    values = [bytes([n]) * 700_000 + os.urandom(200_000) for n in range(20)]
    producer = Producer(place.client(linger_ms=0))
    for value in values:
        producer.produce("large", value, partition=0)
        producer.poll(0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    consumer = Consumer(place.client(group_id="g", auto_offset_reset="earliest"))
    consumer.subscribe(["large"])
    got: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(got) < len(values) and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None:
            assert message.error() is None
            got.append(message.value())
    consumer.close()
    assert got == values


async def test_aiokafka_writes_and_reads(place: Place) -> None:
    await asyncio.to_thread(place.node.start)
    context = ssl.create_default_context(cafile=str(place.ours.cert))
    common: dict[str, Any] = {
        "bootstrap_servers": place.node.kafka,
        "security_protocol": "SSL",
        "ssl_context": context,
    }
    async with aiokafka.AIOKafkaProducer(**common) as producer:
        for n in range(100):
            await producer.send_and_wait("small", b"%d" % n, partition=0)
    async with aiokafka.AIOKafkaConsumer("small", auto_offset_reset="earliest", **common) as consumer:
        got = [(await asyncio.wait_for(consumer.getone(), PATIENCE_SECONDS)).value for _ in range(100)]
    assert got == [b"%d" % n for n in range(100)]


def test_who_does_not_trust_the_authority_does_not_stay(place: Place) -> None:
    place.node.start()
    assert not reaches(place.client(ssl_ca_location=str(place.others.cert)))
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        fetch_health(place, place.others)
    assert reaches(place.client())


def fetch_health(place: Place, authority: Authority) -> int:
    context = ssl.create_default_context(cafile=str(authority.cert))
    address = place.node.addresses["console"]
    with urllib.request.urlopen(f"https://{address}/readyz", context=context, timeout=30) as answer:
        return int(answer.status)


def test_the_console_and_its_commands_speak_https(place: Place) -> None:
    place.node.start()
    assert fetch_health(place, place.ours) == 200
    command = ["topic", "list", "--node", f"https://{place.node.addresses['console']}"]
    told = CliRunner().invoke(main, command, env={"SSL_CERT_FILE": str(place.ours.cert)})
    assert told.exit_code == 0, told.output
    told = CliRunner().invoke(main, command, env={"SSL_CERT_FILE": str(place.others.cert)})
    assert told.exit_code == 3
    assert "certificate verify failed" in told.output


def test_what_is_no_tls_is_closed_and_not_worth_a_traceback(place: Place) -> None:
    place.node.start()
    for name in ("kafka", "console"):
        host, _, port = place.node.addresses[name].rpartition(":")
        for sent in (b"\0\0\0\x11\0\x12\0\0\0\0\0\x01\0\x07plain!!", b"GET / HTTP/1.1\r\n\r\n", b""):
            with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as plain:
                plain.sendall(sent)
                plain.shutdown(socket.SHUT_WR)
                try:
                    while plain.recv(1000):  # an alert of TLS at most
                        pass
                except ConnectionResetError:
                    pass
        told = [line for line in place.node.tail().splitlines() if f"at port {port} failed: " in line]
        assert len(told) == 2, "who sends nothing has only looked whether the port is open"
    assert reaches(place.client())


def test_clients_must_show_certificates_where_that_is_set(place: Place) -> None:
    place.node.settings["tls.kafka.client_ca"] = str(place.ours.cert)
    place.node.start()
    assert not reaches(place.client())
    for authority, welcome in ((place.others, False), (place.ours, True)):
        cert, key = authority.issue("client")
        assert reaches(place.client(ssl_certificate_location=str(cert), ssl_key_location=str(key))) is welcome
    assert fetch_health(place, place.ours) == 200  # only Kafka's listener asks


def test_clients_may_show_certificates_where_that_is_optional(place: Place) -> None:
    place.node.settings.update({"tls.kafka.client_ca": str(place.ours.cert), "tls.kafka.client": "optional"})
    place.node.start()
    assert reaches(place.client())
    cert, key = place.others.issue("client")
    assert not reaches(place.client(ssl_certificate_location=str(cert), ssl_key_location=str(key)))


def test_certificates_are_read_again_on_sighup(place: Place) -> None:
    place.node.start()
    host, _, port = place.node.kafka.rpartition(":")
    old = ssl.create_default_context(cafile=str(place.ours.cert))
    with old.wrap_socket(socket.create_connection((host, int(port)), 30), server_hostname=host) as before:
        place.files.cert.write_text("no certificate")
        os.kill(place.node.pid, signal.SIGHUP)
        assert place.log_says("could not read a listener's certificate; the former one stays")
        assert reaches(place.client())

        place.files.put(place.others.issue("node"))
        os.kill(place.node.pid, signal.SIGHUP)
        assert place.log_says("the certificate of a listener was read again")
        assert reaches(place.client(ssl_ca_location=str(place.others.cert)))
        assert not reaches(place.client())

        before.sendall(b"\0\0\0\x0f\0\x12\0\0\0\0\0\x07\0\x05still")  # ApiVersions 0, on the connection from before
        assert before.recv(8)[4:] == b"\0\0\0\x07"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tls.kafka.cert": "/nowhere/node.pem"}, "tls.kafka: /nowhere/node.pem: No such file or directory"),
        ({"tls.kafka.key": ""}, "tls.kafka needs key"),
        ({"tls.kafka.client": "optional"}, "tls.kafka.client needs client_ca"),
        ({"tls.kafka.colour": "blue"}, "tls.kafka.colour is none of tls.LISTENER"),
        ({"tls.gopher.cert": "a", "tls.gopher.key": "b"}, "tls.gopher: there is no such listener that may have TLS"),
    ],
)
def test_wrong_settings_end_the_start_in_a_sentence(place: Place, change: dict[str, str], says: str) -> None:
    place.node.settings.update(change)
    with pytest.raises(NodeFailed, match="ended with 2") as failed:
        place.node.start()
    assert says in str(failed.value)
    assert "Traceback" not in str(failed.value)


def test_a_key_of_another_certificate_is_refused(place: Place) -> None:
    place.files.key.write_bytes(place.others.issue("node")[1].read_bytes())
    with pytest.raises(NodeFailed, match="are no certificate and its key"):
        place.node.start()
