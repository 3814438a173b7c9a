"""Share groups with Java's KafkaShareConsumer and its admin client, against a node process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import drivers
from tests.clients.api import Client, Rec
from tests.clients.registry import Opener
from tests.conftest import NodeFactory
from tests.drivers import Driver
from tests.node_process import NodeProcess

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]  # the first use of a driver builds it

PROGRAM = drivers.java(
    "java-share",
    Path(__file__).parent / "java" / "pom.xml",
    "anabranch.tests.ShareDriver",
    properties={"kafka.version": "4.4.0"},
)
PATIENCE_MS = 40_000


@pytest.fixture
def node(node_factory: NodeFactory) -> NodeProcess:
    return node_factory(settings={"kafka.group.share_record_lock_duration_ms": "3s"})


@pytest.fixture
def client(node: NodeProcess) -> Iterator[Client]:
    """Which makes topics and writes."""
    opener = Opener("")
    try:
        yield opener.at("confluent-kafka", node.kafka)
    finally:
        opener.close()


class Group:
    """A share group that reads the topic t, and the driver with its members."""

    def __init__(self, driver: Driver, node: NodeProcess) -> None:
        self._driver = driver
        self._node = node

    def call(self, op: str, **arguments: Any) -> Any:
        return self._driver.call({"op": op, "bootstrap": self._node.kafka, "group": "g", "topic": "t", **arguments})

    def open(self, member: str, records: int = 500) -> None:
        self.call("open", member=member, records=records)

    def read(self, member: str, count: int, kind: str = "ACCEPT", patience_ms: int = PATIENCE_MS) -> list[list[Any]]:
        """What happened, in order: ``got`` or ``acknowledged``, the value, how often it was delivered."""
        events: list[list[Any]] = self.call("read", member=member, count=count, kind=kind, patience_ms=patience_ms)
        return events


@pytest.fixture
def group(node: NodeProcess) -> Iterator[Group]:
    driver = PROGRAM.start()
    try:
        made = Group(driver, node)
        assert made.call("configure", name="share.auto.offset.reset", value="earliest") == "earliest"
        yield made
    finally:
        driver.close()


def of(kind: str, events: list[list[Any]]) -> list[str]:
    return [value for what, value, _ in events if what == kind]


def write(client: Client, count: int, start: int = 0) -> list[str]:
    values = [str(number) for number in range(start, start + count)]
    for first in range(0, count, 50):
        client.produce("t", 0, [Rec(value.encode()) for value in values[first : first + 50]])
    return values


def test_two_members_share_one_partition(client: Client, group: Group) -> None:
    client.create_topic("t", 1)
    values = write(client, 200)
    group.open("a", 20)
    group.open("b", 20)
    seen: list[str] = []
    parts: dict[str, int] = {"a": 0, "b": 0}
    deadline = time.monotonic() + 60
    while len(seen) < 200 and time.monotonic() < deadline:
        for member in parts:
            part = of("acknowledged", group.read(member, 20, patience_ms=2_000))
            parts[member] += len(part)
            seen += part
    assert sorted(seen, key=int) == values, "each once"
    assert all(parts.values()), parts
    assert group.call("describe") == ["Stable", 2]
    group.call("close", member="a")
    group.call("close", member="b")
    assert group.call("offsets") == [[0, 200]]
    group.call("alter", offset=190)
    group.open("c")
    assert sorted(of("acknowledged", group.read("c", 10)), key=int) == values[190:]
    group.call("close", member="c")
    group.call("forget")
    group.call("delete")


def test_released_records_come_again_until_they_were_delivered_often_enough(client: Client, group: Group) -> None:
    client.create_topic("t", 1)
    write(client, 3)
    group.open("a")
    deliveries: Counter[str] = Counter()
    for _ in range(8):
        deliveries.update(of("got", group.read("a", 3, "RELEASE", 1_500)))
    assert deliveries == {"0": 5, "1": 5, "2": 5}
    write(client, 1, 3)
    assert of("acknowledged", group.read("a", 1)) == ["3"]


def test_what_was_acknowledged_is_not_delivered_again_after_kill_9(
    client: Client, group: Group, node: NodeProcess
) -> None:
    client.create_topic("t", 1)
    values = write(client, 1_500)
    group.open("a", 20)
    events = group.read("a", 100)
    left = 2_500 - len(of("acknowledged", events))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(group.read, "a", left, "ACCEPT", 60_000)
        for _ in range(2):
            time.sleep(0.4)  # into the midst of its reading, wherever that is: there is more to come
            node.restart(kill=True)
            values += write(client, 500, len(values))
        events += reading.result()
    acknowledged: set[str] = set()
    for what, value, _ in events:
        if what == "acknowledged":
            acknowledged.add(value)
        else:
            assert value not in acknowledged, f"{value} was acknowledged and came again"
    rest = group.read("a", 1, patience_ms=4_000)  # whose acknowledgement was durable, but not answered
    assert set(of("got", [*events, *rest])) == set(values)
