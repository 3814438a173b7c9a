"""compose/migrate, started as a user does it: Apache Kafka and Pravega are brought to a node while applications write
to them, and then these move."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from benchmarks import kafka_broker, pravega_standalone
from benchmarks.java_server import fetch_jars
from tests.compose.engine import engine
from tests.compose.services import Services
from tests.kit.waiting import wait_until
from tests.ports import free_port

pytestmark = [pytest.mark.compose, pytest.mark.java, pytest.mark.timeout(1800)]

_PORTS = ("KAFKA", "OLD_KAFKA", "YDB", "PRAVEGA", "SEGMENTSTORE", "CONSOLE")


class Migrate(Services):
    """Its services, and what they hold."""

    def jobs(self) -> dict[str, str]:
        """The states of the migrations that the node knows, by their sources."""
        with urlopen(f"http://127.0.0.1:{self.ports['CONSOLE']}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return {line: line.split()[-1] for line in lines if line.startswith('anabranch_jobs{kind="migrate"')}

    def records(self, port: str, topic: str) -> dict[tuple[int, int], bytes | None]:
        """All records of a topic, by partition and offset."""
        options = {
            "bootstrap.servers": f"127.0.0.1:{self.ports[port]}",
            "group.id": "none",
            "enable.auto.commit": False,
        }
        consumer = Consumer({**options, "enable.partition.eof": True, "auto.offset.reset": "earliest"})
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: dict[tuple[int, int], bytes | None] = {}
        ended: set[int] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(60)
            assert message is not None, "not read to its end"
            error = message.error()
            if error is None:
                found[message.partition() or 0, message.offset() or 0] = message.value()
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition() or 0)
        consumer.close()
        return found

    def found(self, service: str, command: str) -> Any:
        """What a command of a migration found."""
        ran = self.compose("run", "--rm", "--no-deps", "-T", service, command, seconds=600)
        return json.loads(ran[ran.rindex("\n{") if "\n{" in ran else 0 :])


@pytest.fixture(scope="module")
def migrate() -> Iterator[Migrate]:
    with engine() as docker:
        more = {
            "ANABRANCH_IMAGE": docker.build("node", "anabranch-test"),
            "SPARK_IMAGE": docker.build("spark", "anabranch-spark-test"),
            "LOAD_IMAGE": docker.build("load", "anabranch-load-test"),
            "KAFKA_IMAGE": docker.published("kafka", kafka_broker.install_jars()),
            "PRAVEGA_IMAGE": docker.published(
                "pravega", fetch_jars(pravega_standalone.POM, pravega_standalone.TOOLS, pravega_standalone.UNWANTED)
            ),
        }
        running = Migrate(docker, "migrate", {name: free_port() for name in _PORTS}, f"migrate{free_port()}", more)
        try:
            running.compose("up", "--detach", seconds=600)
            yield running
        finally:
            running.compose("down", "--volumes")


def test_kafka_and_pravega_are_followed_and_cut_over(migrate: Migrate) -> None:
    migrate.healthy("node")
    migrate.healthy("load")
    migrate.healthy("events")
    wait_until(lambda: sum(map(float, migrate.jobs().values())) >= 2, "both migrations run", seconds=180)
    before = len(migrate.records("KAFKA", "orders"))
    wait_until(lambda: len(migrate.records("KAFKA", "orders")) > before, "what is new comes", seconds=240)
    print("kafka-migration", migrate.found("kafka-migration", "verify"))
    migrate.compose("stop", "load", "events", "kafka-migration", "pravega-migration")
    events = json.loads(migrate.container("events").logs(tail=1))["acknowledged"]
    for service in ("kafka-migration", "pravega-migration"):
        print(service, migrate.found(service, "cutover"))
    orders = migrate.records("OLD_KAFKA", "orders")
    assert len(orders) > 200
    assert migrate.records("KAFKA", "orders") == orders
    clicks = Counter(migrate.records("KAFKA", "shop.clicks").values())
    assert len(clicks) == events > 100
    assert set(clicks.values()) == {1}
    # The application goes on at the node.
    migrate.environment["LOAD_BOOTSTRAP"] = "node:19092"
    migrate.compose("up", "--detach", "--no-deps", "load")
    wait_until(
        lambda: len(migrate.records("KAFKA", "orders")) > len(orders) + 100, "the application writes to the node"
    )
    migrate.container("load").stop(timeout=120)
    assert migrate.exit_code("load") == 0
