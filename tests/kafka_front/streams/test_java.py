"""Kafka Streams itself with ``group.protocol=streams``, exactly once, against a node process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kafka_front.wire import messages as m
from tests.conftest import NodeFactory
from tests.ecosystem.brokers import kill, topics
from tests.ecosystem.passage import Reader, Writer
from tests.ecosystem.streams import APPLICATION, STREAMS, WordCount, counted_once, policies
from tests.kafka_front.groups.wire_client import WireClient
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]  # the first use of the program builds it

QUICK = {"kafka.group.initial_rebalance_delay_ms": "0", "kafka.group.consumer_heartbeat_interval_ms": "500"}
CHANGELOG, REPARTITION = (f"{APPLICATION}-counts-{kind}" for kind in ("changelog", "repartition"))
LINES = [b"one two", b"two three", b"three one", b"four four"] * 10
WORDS = 2 * len(LINES)


async def described(address: str) -> m.StreamsGroupDescribeResponse.DescribedGroup:
    """The group as tools see it."""
    host, _, port = address.rpartition(":")
    async with WireClient(host, int(port)) as client:
        (group,) = (await client.call(1, m.StreamsGroupDescribeRequest([APPLICATION]))).groups
    assert isinstance(group, m.StreamsGroupDescribeResponse.DescribedGroup)
    return group


def test_applications_share_the_tasks_and_go_on_when_one_ends_and_the_node_is_killed(
    node_factory: NodeFactory, tmp_path: Path
) -> None:
    node = node_factory(settings=QUICK)
    topics(node.kafka, "lines", "counts")
    reader = Reader(node.kafka, "counts")
    first, second = (WordCount(tmp_path / name, node.kafka, STREAMS) for name in ("first", "second"))
    with first:
        Writer(node.kafka, "lines", LINES, 400).finish()
        reader.until(WORDS, first)
        assert policies(node.kafka, [CHANGELOG, REPARTITION]) == {CHANGELOG: "compact", REPARTITION: "delete"}
        with second:

            def is_shared() -> bool:
                group = asyncio.run(described(node.kafka))
                tasks = [[one.partitions for one in member.assignment.active_tasks] for member in group.members]
                return group.group_state == "Stable" and len(tasks) == 2 and all(tasks)

            wait_until(is_shared, "both applications have tasks", seconds=60)
            first.stop()
            kill(node)
            Writer(node.kafka, "lines", LINES, 400).finish()
            reader.until(2 * WORDS, second)
            counted_once(reader.rest(), LINES * 2)
    reader.close()
