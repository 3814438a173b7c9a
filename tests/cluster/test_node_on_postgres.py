"""A node whose metadata is in PostgreSQL, as its clients see it."""

from __future__ import annotations

import shutil
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import TEST_SETTINGS, NodeFactory
from tests.node_process import ANY, NodeFailed, NodeProcess
from tests.postgres import Postgres

PATIENCE = 60


def settings(url: str, objects: Path | None = None) -> dict[str, str]:
    """Of a node over a database, with its data in its own directory or in ``objects``."""
    if objects is None:
        return {"cluster.database": url}
    objects.mkdir(exist_ok=True)
    stored = {"sbp.durability": "object", "sbp.objects": f"file://{objects}", "sbp.object_linger_ms": "10"}
    return {"cluster.database": url, **stored}


def produce(node: NodeProcess, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": node.kafka, "enable.idempotence": True})
    failed: list[object] = []
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(PATIENCE) == 0
    assert not failed


def take(node: NodeProcess, topic: str, count: int) -> list[bytes]:
    """The next records for the group, which are then committed."""
    options = {"bootstrap.servers": node.kafka, "group.id": "readers", "auto.offset.reset": "earliest"}
    consumer = Consumer({**options, "enable.auto.commit": False})
    try:
        consumer.subscribe([topic])
        found: list[bytes] = []
        while len(found) < count:
            message = consumer.poll(PATIENCE)
            assert message is not None
            assert message.error() is None, message.error()
            found.append(message.value())
        consumer.commit(asynchronous=False)
        return found
    finally:
        consumer.close()


def make(node: NodeProcess, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(topic, 2)])[topic].result(PATIENCE)


@pytest.mark.parametrize("stored", [pytest.param("disk", marks=pytest.mark.long), "objects"])
def test_topics_records_and_positions_survive_restarts_and_kill_9(
    node_factory: NodeFactory, postgres: Postgres, tmp_path: Path, stored: str
) -> None:
    url = postgres.made()
    node = node_factory(settings=settings(url, tmp_path / "bucket" if stored == "objects" else None))
    make(node, "flights")
    values = [b"%d" % number for number in range(300)]
    at = 0
    for kill in (False, True, True):
        produce(node, "flights", values[at : at + 100])
        assert take(node, "flights", 50) == values[at : at + 50]
        node.kill() if kill else node.terminate()
        if stored == "objects":
            shutil.rmtree(node.data)  # all that is true lies elsewhere
        node.start()
        assert take(node, "flights", 50) == values[at + 50 : at + 100]
        at += 100
    with psycopg.connect(url) as connection:
        (topics,) = connection.execute("SELECT count(*) FROM anabranch.topics WHERE name = 'flights'").fetchone() or ()
        (streams,) = connection.execute("SELECT count(*) FROM anabranch_pd.streams").fetchone() or ()
    assert (topics, streams) == (1, 2)
    assert not (node.data / "node.db").exists()
    assert not (node.data / "sbp" / "pd.sqlite").exists()


def test_a_directory_with_metadata_of_its_own_is_refused(node_factory: NodeFactory, postgres: Postgres) -> None:
    node = node_factory()
    node.terminate()
    node.settings["cluster.database"] = postgres.made()
    with pytest.raises(NodeFailed, match="has the metadata of a node by itself"):
        node.start()


@pytest.mark.parametrize("stored", ["disk", "objects"])
def test_two_clusters_do_not_share_a_database_a_directory_or_a_bucket(
    node_factory: NodeFactory, postgres: Postgres, tmp_path: Path, stored: str
) -> None:
    objects = tmp_path / "bucket" if stored == "objects" else None
    url, other = postgres.made(), postgres.made()
    node = node_factory(settings=settings(url, objects))
    node.terminate()
    node.settings["cluster.database"] = other
    with pytest.raises(NodeFailed, match=r"is of a node of cluster .*, and cluster.database leads to cluster "):
        node.start()
    del node.settings["cluster.database"]
    with pytest.raises(NodeFailed, match=r"start the node with cluster.database"):
        node.start()
    # What lies in the store is known by itself, too.
    node.settings["cluster.database"] = other
    (node.data / "cluster").unlink()
    if objects is not None:
        shutil.rmtree(node.data)
    with pytest.raises(NodeFailed, match="placement driver"):
        node.start()
    node.settings["cluster.database"] = url
    node.start()


def test_a_log_has_one_node(node_factory: NodeFactory, postgres: Postgres, tmp_path: Path) -> None:
    """A second one would fence the first, which would fence that one when it starts again, and so on."""
    told = settings(postgres.made(), tmp_path / "bucket")
    first = node_factory("one", settings=told | {"node.id": "1"})
    second = node_factory("two", settings=told | {"node.id": "2"}, start=False)
    with pytest.raises(NodeFailed, match=r"node 1 of this cluster .* has the log that this node 2 is to open"):
        second.start()
    make(first, "flights")
    produce(first, "flights", [b"a"])
    first.kill()
    second.start()  # the log of a node that is past is anybody's
    assert take(second, "flights", 1) == [b"a"]


def test_a_database_that_is_not_there_is_told_without_its_password(tmp_path: Path) -> None:
    url = "postgresql://anabranch:hunter2@127.0.0.1:1/anabranch"
    node = NodeProcess(tmp_path / "node", settings={**TEST_SETTINGS, "cluster.database": url}, listen={"kafka": ANY})
    with pytest.raises(NodeFailed, match=r"cannot use database anabranch at 127.0.0.1, schema anabranch: "):
        node.start()
    assert "hunter2" not in node.tail()
