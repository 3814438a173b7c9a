"""YDB's SDK over TLS: who is let in, and certificates that change while the node serves."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import ydb

from tests.kafka_front.test_tls import Authority, Files
from tests.node_process import NodeProcess
from tests.ydb_topic_front.conftest import LISTEN
from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.methods import METHODS

PATIENCE = 60.0


class Place:
    """A node whose YDB listener has TLS."""

    def __init__(self, path: Path, **more: str) -> None:
        self.ours, self.others = Authority(path, "ours"), Authority(path, "others")
        self.files = Files(path)
        self.files.put(self.ours.issue("node"))
        settings = {"tls.ydb.cert": str(self.files.cert), "tls.ydb.key": str(self.files.key), **more}
        listen = {name: address if name == "ydb" else "off" for name, address in LISTEN.items()}
        self.node = NodeProcess(path / "data", settings=settings, listen=listen)

    def config(self, authority: Authority) -> ydb.DriverConfig:
        return ydb.DriverConfig(f"grpcs://{self.node.ydb}", "/local", root_certificates=authority.cert.read_bytes())

    def reaches(self, authority: Authority, pair: tuple[Path, Path] | None = None) -> str | None:
        """As whom somebody who believes this authority, and has this certificate, gets a connection; None if not."""
        chain, key = (None, None) if pair is None else (pair[0].read_bytes(), pair[1].read_bytes())
        credentials = grpc.ssl_channel_credentials(authority.cert.read_bytes(), key, chain)
        method = METHODS["WhoAmI"]
        # A new connection each time: channels of a process share what they have to the same place.
        with grpc.secure_channel(self.node.ydb, credentials, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.unary_unary(method.path).future(b"", timeout=PATIENCE)
            assert call.code() in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE), call
            if call.code() is not grpc.StatusCode.OK:
                return None
            found = messages[method.result]()
            assert messages[method.response].FromString(call.result()).operation.result.Unpack(found)
            return str(found.user)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    made.node.start()
    yield made
    assert made.node.terminate() == 0
    assert "Traceback" not in made.node.log.read_text()


def test_the_sdk_writes_and_reads_and_certificates_change_meanwhile(place: Place) -> None:
    with ydb.Driver(place.config(place.ours)) as driver:
        driver.wait(timeout=PATIENCE, fail_fast=True)
        driver.topic_client.create_topic("t", consumers=["c"])
        with driver.topic_client.writer("t", producer_id="p") as writer:
            writer.write_with_ack(b"x" * 1_000_000, timeout=PATIENCE)
            assert not place.reaches(place.others)
            place.files.put(place.others.issue("node"))
            os.kill(place.node.pid, signal.SIGHUP)
            deadline = time.monotonic() + PATIENCE
            while not place.reaches(place.others):
                assert time.monotonic() < deadline, "the new certificate was never seen"
            assert not place.reaches(place.ours)
            # Who was connected stays so.
            writer.write_with_ack(b"y", timeout=PATIENCE)
        with driver.topic_client.reader("t", "c") as reader:
            assert [len(reader.receive_message(timeout=PATIENCE).data) for _ in range(2)] == [1_000_000, 1]


def test_clients_show_certificates_where_they_must(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "clients")
    place = Place(tmp_path, **{"tls.ydb.client_ca": str(authority.cert)})
    try:
        place.node.start()
        assert place.reaches(place.ours, authority.issue("client")) == "client", "the certificate says who it is"
        assert not place.reaches(place.ours)
        assert not place.reaches(place.ours, place.others.issue("client"))
    finally:
        place.node.dispose()
