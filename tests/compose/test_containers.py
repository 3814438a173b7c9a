"""The image, PostgreSQL, an S3 server and Kafka, started one by one through testcontainers, as the tests of an
application start what it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network
from testcontainers.core.wait_strategies import ExecWaitStrategy, HealthcheckWaitStrategy, WaitStrategy

from benchmarks import kafka_broker
from tests.compose.clients import consume, produce
from tests.compose.engine import Engine, engine
from tests.ports import free_port
from tests.s3_server import PROGRAM

pytestmark = [pytest.mark.compose, pytest.mark.java, pytest.mark.timeout(1800)]

PASSWORD = "for-tests-only"
DATABASE = {"POSTGRES_USER": "anabranch", "POSTGRES_PASSWORD": PASSWORD, "POSTGRES_DB": "anabranch"}
STORE = {"ROOT_ACCESS_KEY": "anabranch", "ROOT_SECRET_KEY": PASSWORD}
KAFKA = {
    "CLUSTER_ID": "MkU3OEVBNTcwNTJENDM2Qk",
    "KAFKA_NODE_ID": "1",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_LISTENERS": "INSIDE://:19092,OUTSIDE://:9092,CONTROLLER://:9093",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "INSIDE",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
    "KAFKA_LOG_DIRS": "/var/lib/kafka/data",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_HEAP_OPTS": "-Xmx512m",
}
NODE = {
    "ANABRANCH_CLUSTER__DATABASE": f"postgresql://anabranch:{PASSWORD}@database/anabranch",
    "ANABRANCH_SBP__DURABILITY": "object",
    "ANABRANCH_SBP__OBJECTS": "s3://anabranch/log",
    "ANABRANCH_SBP__OBJECT_CACHE_BYTES": "1GiB",
    "AWS_ENDPOINT_URL": "http://store:7070",
    "AWS_ACCESS_KEY_ID": "anabranch",
    "AWS_SECRET_ACCESS_KEY": PASSWORD,
    "AWS_REGION": "us-east-1",
    "ANABRANCH_LISTEN__CLUSTER": "0.0.0.0:10912",
}


class Containers:
    """Containers of one network, each by its name there."""

    def __init__(self, docker: Engine, until: ExitStack) -> None:
        testcontainers_config.ryuk_disabled = True  # its image comes from a registry, and this removes its own
        self.docker = docker
        self._until = until
        self._network = until.enter_context(Network(docker_client_kw=docker.options))
        self.at: dict[str, str] = {}
        """Addresses on this machine at which Kafka's clients are served."""

    def start(
        self,
        name: str,
        image: str,
        environment: Mapping[str, str],
        ready: WaitStrategy | None = None,
        command: Sequence[str] = (),
        entrypoint: Sequence[str] = (),
        objects: Path | None = None,
    ) -> DockerContainer:
        """Start a container and wait until it is ready."""
        container = DockerContainer(image, docker_client_kw=self.docker.options).with_envs(**environment)
        container = container.with_network(self._network).with_network_aliases(name)
        if name in self.at:
            container = container.with_bind_ports(9092, int(self.at[name].rpartition(":")[2]))
        if objects is not None:
            container = container.with_volume_mapping(objects, "/objects", "rw")
        if entrypoint:
            container = container.with_kwargs(entrypoint=list(entrypoint))
        if command:
            container = container.with_command(list(command))
        if ready is not None:
            container = container.waiting_for(ready.with_startup_timeout(240))
        return self._until.enter_context(container)

    def start_node(self, number: int) -> DockerContainer:
        name = f"node{number}"
        self.at[name] = f"127.0.0.1:{free_port()}"
        own = {
            "ANABRANCH_NODE__ID": str(number),
            "ANABRANCH_NODE__HTTP_NAMES": name,
            "ANABRANCH_SBP__OBJECT_LOG": name,
            "ANABRANCH_ADVERTISE__KAFKA": self.at[name],
            "ANABRANCH_ADVERTISE__CLUSTER": f"{name}:10912",
            "ANABRANCH_ADVERTISE__SBP_PD": f"{name}:12378",
            "ANABRANCH_ADVERTISE__SBP_RANGE_SERVER": f"{name}:10911",
        }
        return self.start(name, self.docker.build("node", "anabranch-test"), NODE | own, HealthcheckWaitStrategy())

    def start_kafka(self) -> None:
        self.at["kafka"] = f"127.0.0.1:{free_port()}"
        own = {"KAFKA_ADVERTISED_LISTENERS": f"INSIDE://kafka:19092,OUTSIDE://{self.at['kafka']}"}
        image = self.docker.published("kafka", kafka_broker.install_jars())
        ready = ExecWaitStrategy(["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/19092"])
        self.start("kafka", image, KAFKA | own, ready)


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    objects = tmp_path_factory.mktemp("objects")
    (objects / "anabranch").mkdir()  # a bucket of this S3 server is a directory
    with engine() as docker, ExitStack() as until:
        containers = Containers(docker, until)
        ready = ExecWaitStrategy(["pg_isready", "--username", "anabranch", "--host", "127.0.0.1"])
        containers.start("database", docker.published("postgres"), DATABASE, ready)
        store = docker.published("versitygw", Path(PROGRAM.command()[0]))
        served = ["--port", ":7070", "posix", "/objects"]
        containers.start("store", store, STORE, command=served, objects=objects)
        containers.start_node(1)
        yield containers


def test_two_nodes_and_one_of_them_is_killed(containers: Containers) -> None:
    second = containers.start_node(2)
    values = [b"%d" % number for number in range(1000)]
    produce(containers.at["node2"], "orders", values[:500])
    assert consume(containers.at["node1"], "orders", 500) == values[:500]
    second.get_wrapped_container().kill()
    produce(containers.at["node1"], "orders", values[500:])
    assert consume(containers.at["node1"], "orders", 1000) == values


def test_a_topic_of_kafka_is_migrated(containers: Containers) -> None:
    containers.start_kafka()
    values = [b"%d" % number for number in range(500)]
    produce(containers.at["kafka"], "invoices", values)
    steps = [
        "anabranch migrate plan --from kafka://kafka:19092 --to anabranch://node1:8090 --topics invoices -o /tmp/plan",
        "anabranch migrate run /tmp/plan",
        "anabranch migrate verify /tmp/plan",
    ]
    spark = containers.docker.build("spark", "anabranch-spark-test")
    job = containers.start("job", spark, {}, command=[" && ".join(steps)], entrypoint=["sh", "-ec"])
    assert job.wait() == 0, job.get_logs()
    assert consume(containers.at["node1"], "invoices", 500) == values
