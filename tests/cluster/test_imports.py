"""Replays and migrations into a cluster: partitions of all nodes, through any of them, and a node that is killed."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from spark_pipeline.core.errors import Conflict, Fenced
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.endpoints.importer import Importer
from spark_pipeline.jobs.audit.audit import Audit, Side
from spark_pipeline.jobs.engine import LocalEngine
from spark_pipeline.jobs.replay.replay import Replay
from spark_pipeline.lake.archive import Archive, Description
from tests.cluster.load import PATIENCE
from tests.cluster.together import together
from tests.kit.waiting import wait_until
from tests.node_process import FRONTS, NodeProcess
from tests.postgres import Postgres
from tests.spark_pipeline.jobs.migrations import migrate
from tests.spark_pipeline.lake.records import records, written

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PARTITIONS = 6
COUNT = 2_000
KNOWN = "known"
"""A topic by which a test sees that both nodes own partitions."""
OPTIONS = {"patienceMs": "60000"}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[list[NodeProcess]]:
    path = tmp_path_factory.mktemp("imports")
    bucket = path / "bucket"
    bucket.mkdir()
    stored = {"sbp.durability": "object", "sbp.objects": f"file://{bucket}", "sbp.object_linger_ms": "10"}
    fronts = (*FRONTS, "pipeline")
    with together(path, 2, postgres.made(), fronts, lambda n: stored | {"sbp.object_log": f"{n}"}) as made:
        admin = AdminClient({"bootstrap.servers": made[0].kafka})
        admin.create_topics([NewTopic(KNOWN, PARTITIONS)])[KNOWN].result(PATIENCE)
        yield made


def url_of(node: NodeProcess) -> str:
    return f"anabranch://{node.addresses['pipeline']}"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("archive") / "archive"
    made = Archive.make(str(place), Description(partitioning="none"))
    made.learn({"flights": tuple(range(PARTITIONS))})
    for number in range(PARTITIONS):
        part = TopicPartition("flights", number)
        some = [records(0, COUNT, part, every=timedelta(milliseconds=20))]
        made.begin({part: 0})
        made.records.commit(written(made.records, some, part, "none"), {}, {part: COUNT})
    return f"archive://{place}"


def replay(archive: str, node: NodeProcess, name: str, **named: Any) -> Replay:
    return Replay(archive, {}, url_of(node), OPTIONS, ["flights"], LocalEngine(2), name, {"flights": name}, **named)


def assert_whole(node: NodeProcess, name: str) -> None:
    """Every record of the archive is there once, as the node tells."""
    report = Audit(LocalEngine(2)).whole(Side(url_of(node), OPTIONS), [name], 3)
    assert report["equal"], report
    assert report["records"] == PARTITIONS * COUNT
    assert {one["stable"] for one in report["partitions"]} == {COUNT}


def owners_of(node: NodeProcess, topic: str) -> set[int]:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    described = admin.list_topics(topic, timeout=PATIENCE).topics[topic]
    return {partition.leader for partition in described.partitions.values()}


@pytest.mark.parametrize("number", [0, 1])
def test_records_come_back_into_partitions_of_all_nodes(nodes: list[NodeProcess], archive: str, number: int) -> None:
    name = f"back-{uuid.uuid4().hex[:8]}"
    report = replay(archive, nodes[number], name).run()
    assert (report["records"], report["handed_over"]) == (PARTITIONS * COUNT, True)
    assert owners_of(nodes[0], name) == {1, 2}
    for node in nodes:
        assert_whole(node, name)


def test_a_later_run_fences_an_earlier_one_at_every_node(nodes: list[NodeProcess]) -> None:
    name = f"fenced-{uuid.uuid4().hex[:8]}"
    first, second = (Importer(url_of(node), OPTIONS, "again") for node in nodes)
    begun = first.begin(name, PARTITIONS, {})
    for number in range(PARTITIONS):
        assert first.bounds(TopicPartition(name, number), begun.epoch, end=number + 1).high_watermark == number + 1
    later = second.begin(name, PARTITIONS, {})
    assert [one.high_watermark for one in later.partitions] == list(range(1, PARTITIONS + 1))
    assert [one.high_watermark for one in first.state(name).partitions] == list(range(1, PARTITIONS + 1))
    for number in range(PARTITIONS):
        with pytest.raises(Fenced):
            first.bounds(TopicPartition(name, number), begun.epoch, end=10)
    with pytest.raises(Conflict, match=r"ends at \d, not at 9"):
        second.cutover({name: [9] * PARTITIONS})
    second.cutover({name: list(range(1, PARTITIONS + 1))})
    first.close()
    second.close()


@pytest.fixture
def make_source(node: NodeProcess) -> Callable[[str], str]:
    def make(topic: str) -> str:
        admin = AdminClient({"bootstrap.servers": node.kafka})
        admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(PATIENCE)
        producer = Producer({"bootstrap.servers": node.kafka})
        for number in range(COUNT):
            producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(PATIENCE) == 0
        return f"kafka://{node.kafka}"

    return make


@pytest.fixture
def kill_an_owner(nodes: list[NodeProcess], monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Kills the second node as soon as records go to the third partition; set then. The node is back at the end."""
    wait_until(lambda: owners_of(nodes[0], KNOWN) == {1, 2})
    append = Importer.append
    killed = threading.Event()

    def killing(self: Importer, part: TopicPartition, *arguments: Any) -> int:
        if part.partition == 2 and not killed.is_set():
            killed.set()
            nodes[1].kill()
        return append(self, part, *arguments)

    monkeypatch.setattr(Importer, "append", killing)
    yield killed
    nodes[1].launch()
    nodes[1].await_ready()


def test_a_replay_goes_on_when_an_owner_is_killed(
    nodes: list[NodeProcess], archive: str, kill_an_owner: threading.Event
) -> None:
    name = f"killed-{uuid.uuid4().hex[:8]}"
    replay(archive, nodes[0], name).run()
    assert kill_an_owner.is_set()
    assert_whole(nodes[0], name)


@pytest.mark.long
def test_a_migration_goes_on_when_an_owner_is_killed(
    nodes: list[NodeProcess], make_source: Callable[[str], str], kill_an_owner: threading.Event, tmp_path: Path
) -> None:
    topic = f"moved-{uuid.uuid4().hex[:8]}"
    plan = tmp_path / "plan.json"
    migrate("plan", "--from", make_source(topic), "--to", url_of(nodes[0]), "-o", plan, "--topics", topic)
    assert migrate("run", plan, "--quiet")["lag"] == 0
    assert kill_an_owner.is_set()
    migrate("cutover", plan, "--silence", "0.2", "--quiet")
    assert migrate("verify", plan, "--quiet")["differences"] == []
