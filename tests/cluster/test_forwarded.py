"""What arrives at a node that does not own the partition is appended by the one that does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import NodeFactory
from tests.node_process import ANY, NodeProcess
from tests.postgres import Postgres

PATIENCE = 60
PARTITIONS = 8
LISTENERS = ("kafka", "ydb", "console", "sbp-pd", "sbp-range-server")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[list[NodeProcess]]:
    factory = NodeFactory(tmp_path_factory.mktemp("forwarded"))
    url = postgres.made()
    try:
        made = [
            factory(
                f"node{number}",
                settings={"cluster.database": url, "node.id": f"{number}"},
                listen=dict.fromkeys(LISTENERS, ANY),
                start=False,
            )
            for number in (1, 2)
        ]
        for node in made:
            node.launch()
        for node in made:
            node.await_ready()
        yield made
    finally:
        factory.dispose()


def made(nodes: list[NodeProcess], topic: str) -> dict[int, int]:
    """A topic of which each node has some partitions: whose each of them is."""
    admins = [AdminClient({"bootstrap.servers": node.kafka}) for node in nodes]
    admins[0].create_topics([NewTopic(topic, PARTITIONS)])[topic].result(PATIENCE)
    until = time.monotonic() + PATIENCE
    while True:
        told = [admin.list_topics(timeout=PATIENCE).topics.get(topic) for admin in admins]
        leaders = [{} if one is None else {n: p.leader for n, p in one.partitions.items()} for one in told]
        if leaders[0] == leaders[1] and set(leaders[0].values()) == {1, 2}:
            return leaders[0]
        assert time.monotonic() < until, leaders
        time.sleep(0.05)


def posted(node: NodeProcess, topic: str, lines: list[dict[str, object]]) -> dict[str, object]:
    body = "".join(json.dumps(line) + "\n" for line in lines).encode()
    with urlopen(Request(f"{node.console}/api/topics/{topic}/records", body), timeout=PATIENCE) as answer:
        found: dict[str, object] = json.loads(answer.read())
    return found


def values(nodes: list[NodeProcess], topic: str, counts: dict[int, int]) -> dict[int, list[bytes]]:
    """The values of each partition, of so many records in each."""
    bootstrap = ",".join(node.kafka for node in nodes)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in counts])
    found: dict[int, list[bytes]] = {partition: [] for partition in counts}
    while any(len(found[partition]) < count for partition, count in counts.items()):
        message = consumer.poll(PATIENCE)
        assert message is not None
        assert message.error() is None, message.error()
        assert message.offset() == len(found[message.partition()])
        found[message.partition()].append(message.value())
    consumer.close()
    return found


def test_records_over_http_go_to_their_owners_from_any_node(nodes: list[NodeProcess]) -> None:
    leaders = made(nodes, "posted")
    for turn in range(3):
        for node in nodes:
            lines = [{"value": f"{turn}.{n}", "partition": n % PARTITIONS} for n in range(200)]
            answer = posted(node, "posted", lines)
            assert answer["records"] == 200, answer
    found = values(nodes, "posted", dict.fromkeys(leaders, 150))
    for partition in leaders:
        turns = [f"{turn}.{n}".encode() for turn in range(3) for _ in nodes for n in range(200) if n % 8 == partition]
        assert found[partition] == turns


def test_many_at_once_through_the_wrong_node_keep_their_order(nodes: list[NodeProcess]) -> None:
    leaders = made(nodes, "ordered")
    (elsewhere, *_) = [partition for partition, leader in leaders.items() if leader == 2]
    lines = [{"value": f"{number}", "partition": elsewhere} for number in range(30_000)]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: posted(nodes[0], "ordered", lines), range(2)))
    assert [answer["records"] for answer in answers] == [30_000, 30_000]
    found = [int(value) for value in values(nodes, "ordered", {elsewhere: 60_000})[elsewhere]]
    assert sorted(found) == sorted([*range(30_000)] * 2)
    # Each of the two in its order: where one is behind, it has not skipped anything.
    first, second = 0, 0
    for value in found:
        assert value in (first, second), (value, first, second)
        if value == first:
            first += 1
        else:
            second += 1
