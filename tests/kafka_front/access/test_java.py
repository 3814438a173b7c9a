"""Java's consumer of KIP-848 subscribes to a pattern that matches a topic which it may not describe."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic, ResourceType

from benchmarks.java_server import SHORT_LIVED_JAVA
from benchmarks.kafka_broker import install_jars
from tests.conftest import NodeFactory
from tests.node_users import login, rule, ruled, with_users

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("PatternReader.java")
SECONDS = 30
RULES = {"auth.required": "true", "auth.rules": "deny", "auth.super_users": "User:root"}


def test_it_reads_what_it_may_and_does_not_ask_without_pause(node_factory: NodeFactory) -> None:
    jars = install_jars()
    with_users(node_factory.directory / "node", ["root", "alice"])
    node = node_factory(settings=RULES)
    root = AdminClient(login(node.kafka, "root"))
    for future in root.create_topics([NewTopic("seen", 2), NewTopic("hidden", 2)]).values():
        future.result(SECONDS)
    ruled(root, rule("seen", "User:alice", AclOperation.READ), SECONDS)
    ruled(root, rule("g", "User:alice", AclOperation.READ, kind=ResourceType.GROUP), SECONDS)
    producer = Producer(login(node.kafka, "root"))
    for topic in ("seen", "hidden"):
        for partition in (0, 1):
            producer.produce(topic, b"v", partition=partition)
    assert producer.flush(SECONDS) == 0
    command = ["java", "-Xmx256m", *SHORT_LIVED_JAVA, "-cp", f"{jars}/*", str(PROGRAM), node.kafka, "alice", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    topics, requests = done.stdout.split()
    assert topics == "seen"
    assert int(requests) < 200
