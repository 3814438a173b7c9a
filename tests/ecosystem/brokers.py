"""The two servers that the ecosystem runs against: a node of ours, and one broker of Apache Kafka, set up alike."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.java_server import SHORT_LIVED_JAVA, JavaServer, free_port
from benchmarks.kafka_broker import KafkaBroker
from tests.node_process import NodeProcess

KINDS = ("node", "kafka")
NODE_SETTINGS = {
    "kafka.group.initial_rebalance_delay_ms": "0",
    "kafka.group.min_session_timeout_ms": "1000",
    "auth.rules": "allow",
    "auth.super_users": "User:ANONYMOUS",
    "log.cleaner_interval_ms": "1000",
}
KAFKA_SETTINGS = {
    "node.id": "0",
    "group.min.session.timeout.ms": "1000",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:ANONYMOUS",
    "log.cleaner.backoff.ms": "1000",
    "share.coordinator.state.topic.num.partitions": "4",
}


def broker(kind: str, directory: Path) -> NodeProcess | KafkaBroker:
    """One that is not started yet, with its data below ``directory``; both have number 0."""
    if kind == "node":
        return NodeProcess(directory / "node", settings=NODE_SETTINGS)
    made = KafkaBroker(directory / "kafka", heap="512m", settings=KAFKA_SETTINGS, options=SHORT_LIVED_JAVA)
    controller = free_port()
    listeners = f"PLAINTEXT://127.0.0.1:{made.port},CONTROLLER://127.0.0.1:{controller}"
    made.settings |= {"controller.quorum.voters": f"0@127.0.0.1:{controller}", "listeners": listeners}
    return made


@contextlib.contextmanager
def serving(kind: str, directory: Path) -> Iterator[NodeProcess | KafkaBroker]:
    """One that serves until the end."""
    with broker(kind, directory) as running:
        yield running


def kill(server: NodeProcess | JavaServer) -> None:
    """`kill -9`, and started again at the same place."""
    os.kill(server.pid, signal.SIGKILL)
    server.stop()
    server.start()


def topics(bootstrap: str, *names: str, partitions: int = 2) -> None:
    """Make topics; returns when they are there. Raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(name, partitions, 1) for name in names], operation_timeout=30)
    for outcome in made.values():
        outcome.result(60)
