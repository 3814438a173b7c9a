"""Sinks of the data pipeline over two nodes: a query has one owner, whichever node is asked, and whoever follows it
carries out what it had decided."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bridges.cluster.slots import SLOTS, slot_of_key
from spark_pipeline.core.client.node_client import NodeClient, NodeOptions
from spark_pipeline.core.client.sink_client import SinkBatch, SinkDriver, SinkTask, Written
from spark_pipeline.node.messages import QUERY
from spark_pipeline.node.sinks.tables import AttemptState
from tests.cluster.load import PARTITIONS, PATIENCE, TOPIC, await_leaders, read_all
from tests.cluster.test_failover import commanded
from tests.cluster.test_transactions import listed, transaction_command
from tests.cluster.together import together
from tests.kit.waiting import wait_until
from tests.node_process import FRONTS, NodeProcess
from tests.postgres import Postgres
from tests.spark_pipeline.node.pipeline_lab import batch_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Two:
    """The nodes, 1 and 2, and their database."""

    def __init__(self, nodes: list[NodeProcess], database: str) -> None:
        self.nodes = nodes
        self.database = psycopg.connect(database, options="-c search_path=anabranch", autocommit=True)
        self.admin = AdminClient({"bootstrap.servers": ",".join(node.kafka for node in nodes)})
        self.admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(PATIENCE)
        await_leaders(self.admin, {1, 2})

    def client(self, number: int) -> NodeClient:
        """Of a node, which leads elsewhere where it has to."""
        node = self.nodes[number - 1]
        return NodeClient(NodeOptions.parse(f"anabranch://{node.addresses['pipeline']}", {"patienceMs": "60000"}))

    def asked(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.database.execute(query.encode(), values or None).fetchall()

    def query_of(self, number: int) -> SinkBatch:
        """The first batch of a query that a node owns."""
        owned = {
            slot
            for (slot,) in self.asked(
                "SELECT slot FROM cluster_slots JOIN cluster_nodes ON owner = start WHERE node_id = %s", number
            )
        }
        return next(
            SinkBatch(name, 0, target=TOPIC)
            for name in map("query-{}".format, range(1000))
            if slot_of_key(QUERY, name, SLOTS) in owned
        )

    def await_states(self, *wanted: AttemptState) -> None:
        """Return when the attempts that the database knows are so."""
        wait_until(lambda: sorted(self._states()) == sorted(wanted))

    def await_ended(self) -> None:
        """Return when no attempt has anything left to be done."""
        wait_until(lambda: not self._states())

    def _states(self) -> list[int]:
        return [state for (state,) in self.asked("SELECT state FROM front_pipeline_attempts")]

    def read(self) -> list[bytes]:
        """What whoever reads committed data sees, once no transaction is open."""
        self.await_ended()
        return sorted(read_all(",".join(node.kafka for node in self.nodes if node.process is not None)).values())


@pytest.fixture
def two(tmp_path: Path, postgres: Postgres) -> Iterator[Two]:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    stored = {"sbp.durability": "object", "sbp.objects": f"file://{bucket}", "sbp.object_linger_ms": "10"}
    database = postgres.made()
    fronts = (*FRONTS, "pipeline")
    with together(tmp_path, 2, database, fronts, lambda n: stored | {"sbp.object_log": f"{n}"}) as nodes:
        found = Two(nodes, database)
        with found.database:
            yield found


def write(client: NodeClient, batch: SinkBatch, word: str, timeout_ms: int = 60_000) -> Written:
    """A task that writes to each partition."""
    task = SinkTask(client, batch, 0, timeout_ms=timeout_ms, request_bytes=1 << 20)
    if not task.begin():
        return Written(None, committed=True)
    for partition in range(PARTITIONS):
        task.add(TOPIC, partition, batch_of(f"{word} {partition}".encode()))
    return task.finish()


def expected(*words: str) -> list[bytes]:
    return sorted(f"{word} {partition}".encode() for word in words for partition in range(PARTITIONS))


@pytest.mark.parametrize("owner", [1, 2])
def test_any_node_takes_a_query_that_writes_everywhere(two: Two, owner: int) -> None:
    first = two.query_of(owner)
    driver = SinkDriver(two.client(2))
    lost = write(two.client(1), first, "lost")
    written = write(two.client(1), first, "first")
    assert driver.commit(first, [written]) is False
    assert write(two.client(2), first, "again").committed
    second = SinkBatch(first.query, 1, target=TOPIC)
    assert SinkDriver(two.client(1)).abort(second, [write(two.client(2), second, "aborted")]) is False
    assert driver.commit(second, [write(two.client(1), second, "second")]) is False
    assert driver.commit(first, [lost]) is True, "it had been committed, and not this attempt"
    assert two.read() == expected("first", "second")


def test_what_a_killed_owner_has_decided_is_carried_out_by_the_next(two: Two) -> None:
    batch = two.query_of(2)
    client = two.client(1)
    zombie = write(client, batch, "zombie")
    written = write(client, batch, "value")
    assert zombie.attempt != written.attempt
    with (
        psycopg.connect(two.database.info.dsn, options="-c search_path=anabranch") as held,
        ThreadPoolExecutor() as other,
    ):
        # Whoever writes a marker asks whose the partition's slot is: from here on it has to wait.
        query = slot_of_key(QUERY, batch.query, SLOTS)
        held.execute("SELECT 1 FROM cluster_slots WHERE slot <> %s FOR UPDATE", (query,))
        committing = other.submit(SinkDriver(two.client(2)).commit, batch, [written])
        two.await_states(AttemptState.COMMITTING, AttemptState.ABORTING)
        two.nodes[1].kill()
        held.rollback()
        # The client that was led there goes back to where it came from.
        assert SinkDriver(client).commit(batch, [written]) is True
        assert write(client, batch, "again").committed
        assert two.read() == expected("value")
        two.nodes[1].start()
        assert committing.result(PATIENCE) is True


def test_an_attempt_goes_on_at_the_next_owner_of_its_query(two: Two) -> None:
    batch = two.query_of(2)
    silent = SinkBatch(two.query_of(2).query + "-other", 0, target=TOPIC)
    client = two.client(1)
    task = SinkTask(client, batch, 0, timeout_ms=60_000, request_bytes=1 << 20)
    assert task.begin()
    task.add(TOPIC, 0, batch_of(b"before"))
    task.flush()
    write(two.client(1), silent, "silent", timeout_ms=5_000)
    two.nodes[1].kill()
    task.add(TOPIC, 0, batch_of(b"after"))
    task.add(TOPIC, 1, batch_of(b"elsewhere"))
    written = task.finish()
    assert SinkDriver(client).commit(batch, [written]) is False
    # Who is not heard of is aborted by whoever has its query then.
    assert two.read() == [b"after", b"before", b"elsewhere"]


def test_a_query_is_moved_while_it_is_written(two: Two) -> None:
    batch = two.query_of(1)
    client = two.client(1)
    for number in range(4):
        name = SinkBatch(batch.query, number, target=TOPIC)
        written = write(client, name, f"batch {number}")
        commanded(two.nodes[0], "move", f"{2 - number % 2}", "--slot", f"{slot_of_key(QUERY, batch.query, SLOTS)}")
        assert SinkDriver(client).commit(name, [written]) is False
    assert two.read() == expected(*(f"batch {number}" for number in range(4)))


def test_any_node_tells_of_what_is_open_and_has_it_aborted(two: Two) -> None:
    batch = two.query_of(2)
    first, second = two.nodes
    lost = write(NodeClient(NodeOptions.parse(f"anabranch://{second.addresses['pipeline']}", {})), batch, "lost")
    assert lost.attempt is not None
    # The first has met no sink, and the second is the only one that can abort what it owns.
    (here,) = listed(first, "list")
    assert (here["state"], here["front"]) == ("Open", "pipeline")
    assert listed(second, "list") == [here | {"open_ms": pytest.approx(here["open_ms"], abs=PATIENCE * 1000)}]
    name = str(here["transactional_id"])
    assert name.startswith(f"{batch.query}/0/0/")
    for number in (1, 2):  # what was not, is not
        wrong = transaction_command(two.nodes[number - 1], "abort", name + "0", "--yes")
        assert wrong.returncode != 0
        assert "no transactional id" in wrong.stderr
    listed(first, "abort", name, "--yes")
    two.await_ended()
    assert not listed(first, "list")
    assert SinkDriver(two.client(2)).commit(batch, [write(two.client(1), batch, "value")]) is False
    assert two.read() == expected("value")
