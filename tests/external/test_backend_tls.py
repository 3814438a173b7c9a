"""A node and the servers of its backend, each in a process of its own, with TLS and certificates on all sides."""

from __future__ import annotations

import os
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from sbp_back.client.leader import pd_carrier
from sbp_back.errors import ConnectionLost
from sbp_back.transport.tcp_carrier import TcpOptions
from sbp_back.wire.model import DescribePdRequest
from tests.certificates import Authority
from tests.external.cluster import ANY, NODE_TIMEOUT_MS, PATIENCE, SERVER_SETTINGS, Server
from tests.kit.waiting import wait_until
from tests.node_process import NodeFailed, NodeProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


class Place:
    """A placement driver, a range server and a node; whoever connects shows a certificate of ``authority``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.authority, self.strangers = Authority(path, "ours"), Authority(path, "others")
        # The same for both, as with a file of settings that they share.
        both = {**SERVER_SETTINGS, **self.tls("pd"), **self.tls("range-server")}
        self.pd = Server("pd", path / "pd", [], both)
        self.server = Server("range-server", path / "rs", [], both)
        self.node = NodeProcess(
            path / "node",
            settings={
                "sbp.mode": "external",
                "sbp.timeout_ms": str(NODE_TIMEOUT_MS),
                **self.peers("node"),
            },
            listen={"kafka": ANY, "console": "off"},
        )

    def tls(self, kind: str) -> dict[str, str]:
        cert, key = self.authority.issue(kind)
        files = {"cert": cert, "key": key, "client_ca": self.authority.cert}
        return {f"tls.sbp-{kind}.{what}": str(file) for what, file in files.items()} | self.peers(kind)

    def peers(self, name: str) -> dict[str, str]:
        cert, key = self.authority.issue(f"{name}-outwards")
        return {
            "sbp.tls": "true",
            "sbp.tls_ca": str(self.authority.cert),
            "sbp.tls_cert": str(cert),
            "sbp.tls_key": str(key),
        }

    def start(self) -> None:
        self.pd.start()
        self.server.arguments = ["--pd", self.pd.address]
        self.server.start()
        self.node.settings["sbp.pd"] = self.pd.address
        self.node.start()

    def context(self, trusts: Authority, shows: Authority | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(trusts.cert))
        if shows is not None:
            context.load_cert_chain(*shows.issue("client"))
        return context


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("tls"))
    try:
        made.start()
        yield made
        for process in (made.node, made.server, made.pd):
            assert process.terminate() == 0
            assert "Traceback" not in process.log.read_text()
    finally:
        for process in (made.node, made.server, made.pd):
            process.dispose()


def write(place: Place, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": place.node.kafka, "linger.ms": 0})
    for value in values:
        producer.produce("t", value, partition=0)
    assert producer.flush(PATIENCE) == 0


def read(place: Place, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": place.node.kafka, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    got: list[bytes] = []

    def more() -> bool:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            got.append(message.value())
        return len(got) >= count

    wait_until(more, "all records read")
    consumer.close()
    return got


def test_records_go_in_and_out_also_after_a_server_was_killed(place: Place) -> None:
    values = [bytes([n]) * 600_000 + os.urandom(300_000) for n in range(10)]
    write(place, values[:5])
    place.server.restart(kill=True)
    write(place, values[5:])
    assert read(place, 10) == values


async def asks(address: str, tls: ssl.SSLContext | None) -> str:
    """What a placement driver answers somebody who connects so: "ok", or why there is no answer."""
    carrier = pd_carrier(address, options=TcpOptions(tls=tls, connect_timeout=10.0))
    try:
        return "ok" if (await carrier.call(DescribePdRequest(), 20.0)).status.ok else "refused"
    except ConnectionLost as error:
        return error.message
    finally:
        await carrier.close()


async def test_only_those_with_certificates_get_an_answer(place: Place) -> None:
    for server in (place.pd, place.server):
        assert await asks(server.address, None) != "ok"
        assert await asks(server.address, place.context(place.authority, None)) != "ok"
        assert await asks(server.address, place.context(place.authority, place.strangers)) != "ok"
        trusting_others = place.context(place.strangers, place.authority)
        assert "CERTIFICATE_VERIFY_FAILED" in await asks(server.address, trusting_others)
    assert await asks(place.pd.address, place.context(place.authority, place.authority)) == "ok"


async def test_certificates_are_read_again_on_sighup(place: Place) -> None:
    theirs = place.context(place.strangers, place.authority)
    assert await asks(place.pd.address, theirs) != "ok"
    cert, key = (Path(place.pd.settings[f"tls.sbp-pd.{what}"]) for what in ("cert", "key"))
    before = cert.read_bytes(), key.read_bytes()
    for content in ([file.read_bytes() for file in place.strangers.issue("pd")], before):
        cert.write_bytes(content[0])
        key.write_bytes(content[1])
        told = place.pd.log.read_text().count("was read again")
        os.kill(place.pd.pid, signal.SIGHUP)
        wait_until(lambda told=told: place.pd.log.read_text().count("was read again") == told + 2, "read again")
        answers = (await asks(place.pd.address, theirs)) == "ok"
        assert answers is (content is not before)
    write(place, [b"still"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tls.sbp-pd.cert": "/nowhere"}, "tls.sbp-pd: /nowhere: No such file"),
        ({"sbp.tls_ca": "/nowhere"}, "sbp.tls: /nowhere: No such file"),
        ({"sbp.tls_key": ""}, "sbp.tls_cert and sbp.tls_key are needed together"),
        ({"sbp.tls": "false"}, "make no difference without sbp.tls = true"),
    ],
)
def test_wrong_settings_end_the_start_in_a_sentence(place: Place, change: dict[str, str], says: str) -> None:
    wrong = Server("pd", place.path / "wrong", [], {**place.pd.settings, **change})
    with pytest.raises(NodeFailed, match="ended with 2") as failed:
        wrong.start()
    assert says in str(failed.value)
    assert "Traceback" not in str(failed.value)
