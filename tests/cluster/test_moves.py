"""Partitions and groups are moved to chosen nodes under load, and stay there; a drained node is undrained."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.load import PARTITIONS, PATIENCE, TOPIC, Load, await_acknowledged, await_leaders, leaders
from tests.cluster.test_failover import commanded, states
from tests.cluster.together import await_like_shares
from tests.kit.waiting import wait_until
from tests.node_process import NodeProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

_MOVE_S = 1.0
"""For which a client is without an answer of a partition that is moved, at most; where others have the machine, now and
then for longer."""


def status(node: NodeProcess) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(commanded(node, "status", "--json"))
    return found


@pytest.fixture
def admin(nodes: list[NodeProcess]) -> AdminClient:
    made = AdminClient({"bootstrap.servers": ",".join(node.kafka for node in nodes)})
    made.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(PATIENCE)
    await_leaders(made, {1, 2, 3})
    return made


def move(node: NodeProcess, **what: object) -> None:
    """Without a command of its own, which would take a processor from those that are measured."""
    request = Request(
        f"{node.console}/api/cluster/move", json.dumps(what).encode(), {"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=PATIENCE) as answer:
        assert json.load(answer)["asked"]


def await_leader(admin: AdminClient, partition: int, node_id: int) -> None:
    wait_until(lambda: leaders(admin)[partition] == node_id)


def test_clients_go_on_while_a_partition_and_their_group_are_moved(
    nodes: list[NodeProcess], admin: AdminClient
) -> None:
    longest: list[float] = []
    with Load(",".join(node.kafka for node in nodes)) as load:
        await_acknowledged(load.writer, 300)
        before = leaders(admin)
        for turn in range(3):
            to = 1 + (before[0] + turn) % 3
            load.writer.longest = 0.0  # first openings are not what this is about
            for reader in load.readers:
                reader.longest = 0.0
            move(nodes[turn], node_id=to, topic=TOPIC, partitions=[0])
            await_leader(admin, 0, to)
            await_acknowledged(load.writer, 100)
            longest.append(max(load.writer.longest, *(reader.longest for reader in load.readers)))
        # Of others at most what balance gives back for it, a slot of 1,024 each time.
        assert len({number for number, leader in leaders(admin).items() if leader != before[number]} - {0}) <= 3
        move(nodes[0], node_id=2, group="readers")
        await_acknowledged(load.writer, 100)
        load.end()
    load.judge()
    print("without an answer for", *(f"{one:.2f}" for one in longest))
    assert sorted(longest)[1] < _MOVE_S
    assert max(longest) < 5 * _MOVE_S
    assert set(load.seen.values()) == {1}


def test_where_a_partition_ends_is_told_while_it_moves(nodes: list[NodeProcess], admin: AdminClient) -> None:
    """librdkafka asks whom it takes for the leader once, and shows its user whatever that says."""
    producer = Producer({"bootstrap.servers": nodes[0].kafka})
    for number in range(5):
        producer.produce(TOPIC, b"%d" % number, partition=0)
    assert producer.flush(PATIENCE) == 0
    asking = Consumer({"bootstrap.servers": nodes[0].kafka, "group.id": "nobody"})
    place = TopicPartition(TOPIC, 0)
    first = leaders(admin)[0]
    for turn in range(1, 7):
        to = 1 + (first + turn) % 3
        move(nodes[turn % 3], node_id=to, topic=TOPIC, partitions=[0])
        asked = 0
        while leaders(admin)[0] != to or asked < 5:
            assert asking.get_watermark_offsets(place, timeout=PATIENCE) == (0, 5)
            asked += 1
    asking.close()


def test_what_was_moved_stays_until_it_is_unpinned(nodes: list[NodeProcess], admin: AdminClient) -> None:
    assert "does not serve" in commanded(nodes[0], "move", "9", "--slot", "1", code=1)
    assert "no partition 99" in commanded(nodes[0], "move", "2", "--topic", TOPIC, "--partition", "99", code=1)
    printed = commanded(nodes[0], "move", "2", "--topic", TOPIC)
    assert set(leaders(admin).values()) == {2}
    assert f" {PARTITIONS} " in printed
    # Others have it while its node is not there.
    nodes[1].stop()
    assert 2 not in leaders(admin).values()
    assert "pinned to node 2, which is not there" in commanded(nodes[0], "status")
    nodes[1].start()
    await_leaders(admin, {2})
    commanded(nodes[2], "unpin", "--of", "2")
    assert status(nodes[2])["pins"] == {}
    await_like_shares(nodes[0])


def test_a_drained_node_stays_drained_until_it_is_undrained(nodes: list[NodeProcess], admin: AdminClient) -> None:
    assert "is not drained" in commanded(nodes[0], "undrain", "2", code=1)
    commanded(nodes[0], "drain", "2")
    nodes[1].stop()
    assert "node 2 is drained, and not there" in commanded(nodes[0], "status")
    nodes[1].start()
    assert states(nodes[1])[2] == ("leaving", False)
    assert set(leaders(admin).values()) == {1, 3}
    assert "node 2 does not serve, or is drained" in commanded(nodes[1], "move", "2", "--slot", "0", code=1)
    commanded(nodes[1], "undrain", "2")
    await_leaders(admin, {1, 2, 3})
    assert states(nodes[0])[2] == ("up", True)
