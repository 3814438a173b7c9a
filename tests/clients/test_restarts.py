"""What was acknowledged before `kill -9` is there after it, for clients that just reconnect."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.api import LATEST, Client, Rec
from tests.clients.raw import stored_batches
from tests.clients.registry import Opener, clients
from tests.clients.sharing import await_topic
from tests.conftest import BACKENDS, NodeFactory
from tests.node_process import NodeProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # the first use of a driver builds it


@pytest.fixture(scope="module")
def opener() -> Iterator[Opener]:
    """Drivers for nodes of these tests' own, whatever broker the other tests talk to."""
    opened = Opener("")
    try:
        yield opened
    finally:
        opened.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kill", [True, False], ids=["kill -9", "orderly"])
def test_topics_records_and_positions_survive(
    node_factory: NodeFactory, opener: Opener, kill: bool, backend: str
) -> None:
    node = node_factory.on(backend)
    client = opener.at("confluent-kafka", node.kafka)
    client.create_topic("kept", 3, {"retention.ms": "98765432"})
    await_topic(client, "kept", 3)
    written = {part: [Rec(f"{part}/{n}".encode(), b"k", (("h", b"v"),)) for n in range(50)] for part in range(3)}
    for partition, records in written.items():
        client.produce("kept", partition, records, codec="lz4", idempotent=True)
    client.consume_group("reader", "kept", 150)
    before = [stored_batches(node.kafka, "kept", partition, 0, 50) for partition in range(3)]

    node_factory.restart(kill=kill)

    client = opener.at("confluent-kafka", node.kafka)
    assert client.config("kept")["retention.ms"] == "98765432"
    assert [stored_batches(node.kafka, "kept", partition, 0, 50) for partition in range(3)] == before
    got = client.consume("kept", dict.fromkeys(range(3), 50))
    for partition, records in written.items():
        values = [(record.value, record.headers) for record in got if record.partition == partition]
        assert values == [(record.value, record.headers) for record in records]
    assert [client.committed("reader", "kept", partition) for partition in range(3)] == [50, 50, 50]
    assert client.produce("kept", 0, [Rec(b"after")]) == [50]
    assert client.consume_group("reader", "kept", 1)[0].value == b"after"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeFactory]:
    """One node that is killed again and again."""
    factory = NodeFactory(tmp_path_factory.mktemp("killed"))
    try:
        factory()
        yield factory
    finally:
        factory.dispose()


@pytest.mark.parametrize("name", clients())
def test_every_client_finds_what_it_wrote(name: str, killed: NodeFactory, opener: Opener) -> None:
    (node,) = killed.nodes
    admin: Client = opener.at("confluent-kafka", node.kafka)
    admin.create_topic(name, 1)
    await_topic(admin, name, 1)
    records = [Rec(f"value {number}".encode() * 20, b"key") for number in range(30)]
    opener.at(name, node.kafka).produce(name, 0, records, codec="gzip")
    killed.restart(kill=True)
    client = opener.at(name, node.kafka)
    assert [(record.offset, record.value) for record in client.consume(name, {0: 30})] == [
        (number, record.value) for number, record in enumerate(records)
    ]
    client.produce(name, 0, records[:5])
    assert opener.at("confluent-kafka", node.kafka).offset(name, 0, LATEST) == 35


def test_the_same_node_under_two_names_is_refused(node: NodeProcess) -> None:
    second = NodeProcess(node.data, start_seconds=30)
    second.ready_file = node.data.with_name("second.ready")
    second.log = node.data.with_name("second.log")
    second.launch()
    assert second.process is not None
    assert second.process.wait(30) != 0
    said = second.tail().strip()
    assert "Traceback" not in said, said
    assert "lock" in said.lower() or "in use" in said.lower(), said
