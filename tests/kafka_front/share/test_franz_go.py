"""Share groups with franz-go, against a node process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from tests.clients.registry import REMOTES
from tests.conftest import NodeFactory
from tests.drivers import Driver
from tests.node_process import NodeProcess

pytestmark = [pytest.mark.go, pytest.mark.timeout(600)]  # the first use of a driver builds it

PER_PARTITION, PARTITIONS = 100, 2


@pytest.fixture
def node(node_factory: NodeFactory) -> NodeProcess:
    node = node_factory()
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic("t", PARTITIONS)])["t"].result(30)
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    group = ConfigResource(ResourceType.GROUP, "g", incremental_configs=[earliest])
    admin.incremental_alter_configs([group])[group].result(30)
    producer = Producer({"bootstrap.servers": node.kafka})
    for number in range(PER_PARTITION * PARTITIONS):
        producer.produce("t", str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(30) == 0
    return node


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = next(remote for remote in REMOTES if remote.name == "franz-go").program.start()
    yield made
    made.close()


def _ends(event: dict[str, Any]) -> bool:
    """Whether the driver has accepted or rejected it, and not released it."""
    return _offset(event) % 10 != 3 or event["times"] > 1


def _offset(event: dict[str, Any]) -> int:
    return int(event["value"]) // PARTITIONS


def test_released_comes_again_what_is_accepted_or_rejected_does_not(node: NodeProcess, driver: Driver) -> None:
    """The member accepts nine of ten in the end; over a kill of the node nothing is forgotten."""
    ask = {"op": "share_group", "bootstrap": node.kafka, "topic": "t", "group": "g"}
    events = driver.call({**ask, "total": 90})
    accepted = sum(_ends(one) and _offset(one) % 10 != 7 for one in events)
    node.restart(kill=True)
    events += driver.call({**ask, "total": PER_PARTITION * PARTITIONS * 9 // 10 - accepted})
    ended = Counter(int(one["value"]) for one in events if _ends(one))
    rejected = {number for number in ended if number // PARTITIONS % 10 == 7}  # perhaps not all: nobody waits for them
    everything = {n for n in range(PER_PARTITION * PARTITIONS) if n // PARTITIONS % 10 != 7} | rejected
    assert ended == dict.fromkeys(everything, 1)
    assert {one["times"] for one in events} >= {1, 2}
