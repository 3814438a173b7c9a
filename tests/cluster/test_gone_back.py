"""A database or a bucket that goes back under a cluster: every node refuses in one sentence, and there is a way on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.cluster.test_node_on_postgres import PATIENCE, make, produce, settings
from tests.conftest import NodeFactory
from tests.node_process import NodeFailed, NodeProcess
from tests.postgres import Postgres

DATABASE = "the database has gone back"


@pytest.fixture
def server() -> Iterator[Postgres]:
    """One of its own, as it goes back as a whole."""
    made = Postgres()
    yield made
    made.close()


@pytest.fixture
def nodes(node_factory: NodeFactory, server: Postgres, tmp_path: Path) -> list[NodeProcess]:
    told = settings(server.made(), tmp_path / "bucket")
    return [node_factory(f"n{n}", settings=told | {"node.id": f"{n}", "sbp.object_log": f"{n}"}) for n in (1, 2)]


def accepted(node: NodeProcess, *arguments: str) -> dict[str, object]:
    told = [part for key, value in node.settings.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "bridges", "accept-data-loss", "--data", str(node.data), *told]
    done = subprocess.run([*command, "--json", *arguments], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def numbers(node: NodeProcess, topic: str, last: bytes) -> dict[int, bytes]:
    """The values of a partition up to ``last``, by offset."""
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "numbers"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: dict[int, bytes] = {}
    try:
        while last not in found.values():
            message = consumer.poll(PATIENCE)
            assert message is not None
            assert message.error() is None, message.error()
            found[message.offset()] = message.value()
    finally:
        consumer.close()
    return found


def put(node: NodeProcess, topic: str, values: range) -> None:
    produce(node, topic, [b"%d" % value for value in values])


def test_a_database_that_goes_back_ends_all_nodes_until_its_loss_is_accepted(
    nodes: list[NodeProcess], server: Postgres, tmp_path: Path
) -> None:
    one, two = nodes
    make(one, "before")
    put(one, "before", range(20))
    server.save(tmp_path / "saved")
    two.kill()
    two.start()
    make(one, "later")
    put(one, "later", range(20))
    server.go_back(tmp_path / "saved")
    for node in nodes:
        assert node.process is not None
        assert node.process.wait(PATIENCE) == 5
        assert DATABASE in node.tail()
        node.kill()
        shutil.rmtree(node.data)  # the bucket alone knows it as well
        with pytest.raises(NodeFailed, match=DATABASE):
            node.start()
    assert not accepted(one, "--check")["accepted"]
    with pytest.raises(NodeFailed, match=DATABASE):
        two.start()
    assert accepted(one, "--yes")["accepted"]
    for node in nodes:
        node.start()
    put(two, "before", range(100, 110))
    found = numbers(one, "before", b"109")
    assert [found[offset] for offset in range(20)] == [b"%d" % value for value in range(20)]
    make(two, "later")  # and it has nothing of what the lost topic had
    put(two, "later", range(100, 110))
    assert numbers(one, "later", b"109") == {offset: b"%d" % (100 + offset) for offset in range(10)}


def test_a_bucket_that_went_back_is_refused_until_its_loss_is_accepted(
    nodes: list[NodeProcess], server: Postgres, tmp_path: Path
) -> None:
    one, two = nodes
    make(one, "before")
    put(one, "before", range(20))
    server.save(tmp_path / "database")
    one.terminate()
    two.kill()
    shutil.copytree(tmp_path / "bucket", tmp_path / "saved")
    one.start()
    two.start()
    put(one, "before", range(20, 40))
    one.terminate()
    two.kill()
    shutil.rmtree(tmp_path / "bucket")
    shutil.copytree(tmp_path / "saved", tmp_path / "bucket")
    for node in nodes:
        with pytest.raises(NodeFailed, match=r"bucket\S* has gone back"):
            node.start()
    # Its logs were taken over since, as the database says and the bucket does not.
    with pytest.raises(AssertionError, match="have the database go back as well"):
        accepted(two, "--yes")
    server.go_back(tmp_path / "database")
    assert accepted(two, "--yes")["accepted"]
    for node in nodes:
        node.start()
    put(two, "before", range(100, 110))
    found = numbers(one, "before", b"109")
    assert [found[offset] for offset in range(20)] == [b"%d" % value for value in range(20)]


def test_nothing_is_accepted_while_a_node_of_the_cluster_runs(
    nodes: list[NodeProcess], server: Postgres, tmp_path: Path
) -> None:
    one, two = nodes
    one.terminate()
    mark = one.data / "mark"
    told = json.loads(mark.read_bytes())
    told[1][2][2] += 10  # an epoch that the database does not know
    mark.write_text(json.dumps(told))
    with pytest.raises(AssertionError, match="node 2 of this cluster runs"):
        accepted(one, "--yes")
    with pytest.raises(NodeFailed, match=DATABASE):
        one.start()
    two.terminate()
    accepted(one, "--yes")
    one.start()
    assert accepted(two, "--check") == {"lost": [], "accepted": False}


@pytest.mark.parametrize(
    ("older", "workers", "durability"),
    [
        ("directory", 1, "object"),
        ("database", 1, "object"),
        ("bucket", 1, "object"),
        ("directory", 2, "object"),
        ("bucket", 2, "object"),
        ("directory", 2, "fsync"),
    ],
)
def test_a_database_file_and_its_bucket_go_back_together_or_not_at_all(
    node_factory: NodeFactory, tmp_path: Path, older: str, workers: int, durability: str
) -> None:
    bucket, saved = tmp_path / "bucket", tmp_path / "saved"
    several = {} if workers == 1 else {"node.workers": f"{workers}", "node.worker_port_step": "0"}
    stored = {"sbp.durability": durability, "sbp.objects": f"file://{bucket}", "sbp.object_linger_ms": "10"}
    node = node_factory(settings=stored | several)
    make(node, "before")
    put(node, "before", range(20))
    node.terminate()
    shutil.copytree(node.data, saved / "directory")
    shutil.copytree(bucket, saved / "bucket")
    node.start()
    put(node, "before", range(20, 40))
    make(node, "later")
    put(node, "later", range(20))
    node.kill()
    if older == "database":
        shutil.copy(saved / "directory" / "node.db", node.data)
        (node.data / "node.db-wal").unlink()
    else:
        place = bucket if older == "bucket" else node.data
        shutil.rmtree(place)
        shutil.copytree(saved / older, place)
    went_back = r"bucket\S* has gone back" if older == "bucket" else DATABASE
    for _ in range(2):  # however often its supervisor tries
        with pytest.raises(NodeFailed, match=went_back):
            node.start()
    assert not accepted(node, "--check")["accepted"]
    assert accepted(node, "--yes")["accepted"]
    node.start()
    # Neither a topic nor a producer gets a number that was given out: what is in the bucket stays as it was.
    kept = range(20) if older == "bucket" or durability == "fsync" else range(40)
    put(node, "before", range(100, 110))
    assert list(numbers(node, "before", b"109").values()) == [b"%d" % value for value in [*kept, *range(100, 110)]]
    if older != "bucket":
        make(node, "later")
    put(node, "later", range(100, 110))
    assert numbers(node, "later", b"109") == {offset: b"%d" % (100 + offset) for offset in range(10)}
    node.restart(kill=True)
    assert len(numbers(node, "before", b"109")) == len(kept) + 10
