"""Apache Kafka, which `make test-all` runs some tests against: what it does not do is a mistake in the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from benchmarks.java_server import SHORT_LIVED_JAVA
from benchmarks.kafka_broker import KafkaBroker
from tests.kafka_front.groups.wire_client import WireClient
from tests.kafka_front.place import Place
from tests.node_process import NodeProcess

SETTINGS = {"group.min.session.timeout.ms": "1000", "group.max.size": "4", "auto.create.topics.enable": "false"}


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker of these tests' own."""
    directory = tmp_path_factory.mktemp("kafka")
    with KafkaBroker(directory, heap="512m", settings=SETTINGS, options=SHORT_LIVED_JAVA) as broker:
        yield broker


@pytest.fixture(params=["node", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.long])])
async def place(request: pytest.FixtureRequest, shared_node: NodeProcess) -> AsyncIterator[Place]:
    ours = request.param == "node"
    if ours:
        host, _, port = shared_node.kafka.rpartition(":")
    else:
        host, port = "127.0.0.1", request.getfixturevalue("apache_kafka").port
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(WireClient(host, int(port)))
        yield Place(client, ours, 0 if ours else 1, stack)
