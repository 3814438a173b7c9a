"""Several listeners of one protocol: plaintext for those inside, and for those outside TLS, names and passwords, and
another address that answers tell; all of it at the same time, with the clients that users have.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import ydb
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from bridges.node.assembly import Node
from bridges.node.front import listener_kind
from bridges.node.settings.config import load
from bridges.node.settings.sections import SettingsError
from pravega_front.front import PravegaFront
from pravega_front.wire.controller import METHODS as CONTROLLER_METHODS
from pravega_front.wire.controller import SERVICE, message
from spark_pipeline.core.client.node_client import NodeClient, NodeError, NodeOptions
from tests.certificates import Authority
from tests.node_process import ANY, NodeProcess
from tests.pravega_front.controller_client import ControllerClient
from tests.pravega_front.test_access import LOGIN, PASSWORD, USER, logged_in, wheel
from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.methods import METHODS

pytestmark = pytest.mark.slow

KINDS = ("kafka", "ydb", "pravega", "pravega-segmentstore", "pipeline")
PATIENCE = 60.0


class Place:
    """A node with a listener of each kind for those inside, and one for those outside, who are told another host."""

    def __init__(self, path: Path) -> None:
        self.authority = Authority(path, "ours")
        cert, key = self.authority.issue("node")
        command = [sys.executable, "-m", "bridges", "user", "add", USER, "--data", str(path / "data")]
        subprocess.run(command, input=f"{PASSWORD}\n", text=True, check=True, capture_output=True)
        settings = {"kafka.group.initial_rebalance_delay_ms": "0"}
        for kind in KINDS:
            settings |= {f"tls.{kind}-outside.cert": str(cert), f"tls.{kind}-outside.key": str(key)}
            settings[f"auth_required.{kind}-outside"] = "true"
        listen = dict.fromkeys((*KINDS, *(f"{kind}-outside" for kind in KINDS)), ANY)
        closed = dict.fromkeys(("console", "sbp-pd", "sbp-range-server"), "off")
        self.node = NodeProcess(path / "data", settings=settings, listen={**listen, **closed})
        self.node.start()
        for kind in KINDS:
            self.node.settings[f"advertise.{kind}-outside"] = self.outside(kind)
        self.node.restart()

    def inside(self, kind: str) -> str:
        return self.node.addresses[kind]

    def outside(self, kind: str) -> str:
        """The address that those outside use, which is not the one listened on."""
        return self.node.addresses[f"{kind}-outside"].replace("127.0.0.1", "localhost")

    def kafka(self, outside: bool, **more: Any) -> dict[str, Any]:
        if not outside:
            return {"bootstrap.servers": self.inside("kafka"), **more}
        return {
            "bootstrap.servers": self.outside("kafka"),
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(self.authority.cert),
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            **more,
        }

    def channel(self, address: str, outside: bool) -> grpc.Channel:
        if not outside:
            return grpc.insecure_channel(address)
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(self.authority.cert.read_bytes()))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("named"))
    try:
        yield made
        assert made.node.terminate() == 0
        assert "Traceback" not in made.node.log.read_text()
    finally:
        made.node.dispose()


def test_a_name_goes_on_from_that_of_its_kind() -> None:
    kinds = ("pravega", "pravega-segmentstore", "kafka")
    assert listener_kind("kafka", kinds) == "kafka"
    assert listener_kind("kafka-external-2", kinds) == "kafka"
    assert listener_kind("pravega-segmentstore", kinds) == "pravega-segmentstore"
    assert listener_kind("pravega-segmentstore-x", kinds) == "pravega-segmentstore"
    assert listener_kind("pravega-x", kinds) == "pravega"
    for other in ("kafkaexternal", "kafka-", "kafka-Outside", "sbp-pd", "console"):
        assert listener_kind(other, kinds) is None, other


def test_kafkas_clients_inside_and_outside_read_what_the_others_write(place: Place) -> None:
    for outside, address in ((False, place.inside("kafka")), (True, place.outside("kafka"))):
        told = AdminClient(place.kafka(outside)).list_topics(timeout=PATIENCE).brokers
        assert [f"{broker.host}:{broker.port}" for broker in told.values()] == [address]
    for outside in (False, True):
        producer = Producer(place.kafka(outside, **{"enable.idempotence": True}))
        producer.produce("both", b"of those outside" if outside else b"of those inside")
        assert producer.flush(PATIENCE) == 0
    for outside in (False, True):
        more = {"group.id": f"of {outside}", "auto.offset.reset": "earliest"}
        consumer = Consumer(place.kafka(outside, **more))
        consumer.subscribe(["both"])
        found = []
        while len(found) < 2:
            record = consumer.poll(PATIENCE)
            assert record is not None
            assert record.error() is None
            found.append(record.value())
        consumer.commit(asynchronous=False)
        consumer.close()
        assert found == [b"of those inside", b"of those outside"]


def test_kafkas_clients_outside_must_say_who_they_are(place: Place) -> None:
    nobody = place.kafka(True, **{"security.protocol": "ssl"})
    wrong = place.kafka(True, **{"sasl.password": "another"})
    for config in (nobody, wrong, {"bootstrap.servers": place.outside("kafka")}):
        with pytest.raises(KafkaException):
            AdminClient(config).list_topics(timeout=1)


def ydb_config(place: Place, outside: bool) -> ydb.DriverConfig:
    if not outside:
        return ydb.DriverConfig(f"grpc://{place.inside('ydb')}", "/local")
    config = ydb.DriverConfig(
        f"grpcs://{place.outside('ydb')}", "/local", root_certificates=place.authority.cert.read_bytes()
    )
    config.credentials = ydb.StaticCredentials(config, USER, PASSWORD)
    return config


def endpoints(place: Place, outside: bool) -> list[tuple[str, bool]]:
    """What discovery tells: address and whether it wants TLS."""
    address = place.outside("ydb") if outside else place.inside("ydb")
    method = METHODS["ListEndpoints"]
    token = ydb.StaticCredentials(ydb_config(place, True), USER, PASSWORD).get_auth_token() if outside else ""
    metadata = [("x-ydb-auth-ticket", token)] if token else []
    with place.channel(address, outside) as channel:
        raw = channel.unary_unary(method.path)(b"", timeout=PATIENCE, metadata=metadata)
    found = messages[method.result]()
    assert messages[method.response].FromString(raw).operation.result.Unpack(found)
    return [(f"{one.address}:{one.port}", one.ssl) for one in found.endpoints]


def test_ydbs_clients_inside_and_outside_read_what_the_others_write(place: Place) -> None:
    assert endpoints(place, False) == [(place.inside("ydb"), False)]
    assert endpoints(place, True) == [(place.outside("ydb"), True)]
    for outside in (False, True):
        with ydb.Driver(ydb_config(place, outside)) as driver:
            driver.wait(timeout=PATIENCE, fail_fast=True)
            if not outside:
                driver.topic_client.create_topic("ydb-both", consumers=["of False", "of True"])
            with driver.topic_client.writer("ydb-both", producer_id=f"p {outside}") as writer:
                writer.write_with_ack(f"of {outside}".encode(), timeout=PATIENCE)
    for outside in (False, True):
        with ydb.Driver(ydb_config(place, outside)) as driver:
            driver.wait(timeout=PATIENCE, fail_fast=True)
            with driver.topic_client.reader("ydb-both", f"of {outside}") as reader:
                found = [reader.receive_message(timeout=PATIENCE).data for _ in range(2)]
        assert found == [b"of False", b"of True"]


def test_ydbs_clients_outside_must_say_who_they_are(place: Place) -> None:
    method = METHODS["WhoAmI"]
    with place.channel(place.outside("ydb"), True) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(method.path)(b"", timeout=PATIENCE)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_pravegas_clients_inside_and_outside_are_told_their_own_segment_store(place: Place, tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    certs.mkdir()
    (certs / "ours.pem").write_bytes(place.authority.cert.read_bytes())
    inside = ControllerClient(place.inside("pravega"))
    told = inside.getURI()
    assert f"{told.endpoint}:{told.port}" == place.inside("pravega-segmentstore")
    inside.close()
    request, answer = CONTROLLER_METHODS["getURI"]
    with place.channel(place.outside("pravega"), True) as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/getURI",
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=message(answer).FromString,
        )
        told = call(message(request)(), timeout=PATIENCE, metadata=LOGIN)
        assert f"{told.endpoint}:{told.port}" == place.outside("pravega-segmentstore")
        with pytest.raises(grpc.RpcError) as refused:
            call(message(request)(), timeout=PATIENCE)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    logged_in(f"tls://{place.outside('pravega')}", certs)
    wheel(f"tcp://{place.inside('pravega')}", "inside")


def test_the_pipelines_clients_outside_must_say_who_they_are(place: Place) -> None:
    def asked(url: str, **options: str) -> object:
        return NodeClient(NodeOptions.parse(url, options)).get("/v1/topics")["topics"]

    inside = asked(f"anabranch://{place.inside('pipeline')}")
    outside, ca = f"anabranch+tls://{place.outside('pipeline')}", {"tls.ca": str(place.authority.cert)}
    assert asked(outside, **ca, user=USER, password=PASSWORD) == inside
    with pytest.raises(NodeError) as refused:
        asked(outside, **ca)
    assert refused.value.status == 401


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"listen.pravega-x": "127.0.0.1:0"}, "listen.pravega-x needs listen.pravega-segmentstore-x"),
        ({"listen.paravega-x": "127.0.0.1:0"}, "there is no listener 'paravega-x'"),
        ({"listen.pravega-x": "127.0.0.1:0", "tls.pravega-y.cert": "c", "tls.pravega-y.key": "k"}, "tls.pravega-y"),
        ({"auth_required.sbp-pd": "true"}, "auth_required.sbp-pd"),
    ],
)
async def test_what_is_wrong_with_a_further_listener_is_said_at_the_start(
    flags: dict[str, str], complaint: str, tmp_path: Path
) -> None:
    closed = dict.fromkeys((f"listen.{name}" for name in ("console", "sbp-pd", "sbp-range-server")), "off")
    free = {f"listen.{name}": "127.0.0.1:0" for name in ("pravega", "pravega-segmentstore")}
    given = {"data_dir": str(tmp_path / "data"), **closed, **free, **flags}
    node = Node(load(given, environ={}, directory=tmp_path).settings, fronts=[PravegaFront])
    with pytest.raises(SettingsError, match=complaint):
        await node.start()


def test_whether_clients_must_say_who_they_are_is_true_or_false(tmp_path: Path) -> None:
    assert load({"auth_required.kafka": "yes"}, environ={}, directory=tmp_path).settings.auth_required == {
        "kafka": "true"
    }
    environ = {"ANABRANCH_AUTH_REQUIRED__KAFKA_OUTSIDE": "false"}
    assert load({}, environ=environ, directory=tmp_path).settings.auth_required == {"kafka-outside": "false"}
    with pytest.raises(SettingsError, match="true or false"):
        load({"auth_required.kafka": "perhaps"}, environ={}, directory=tmp_path)
