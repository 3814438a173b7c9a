"""A range server that is gone: what others have is trimmed as soon as without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.external.cluster import PATIENCE, Cluster, value
from tests.kit.waiting import wait_until

MANY = 600
"""Partitions; about half of them are on the server that is gone."""


def test_a_node_that_starts_without_a_server_retains_what_others_have(cluster_of: Callable[[int], Cluster]) -> None:
    cluster = cluster_of(2)
    cluster.create_topic("t", MANY, {"retention.ms": "1"})
    producer = Producer({"bootstrap.servers": cluster.node.kafka})
    for number in range(MANY):
        producer.produce("t", value(number), partition=number)
    assert producer.flush(PATIENCE) == 0
    placement = asyncio.run(cluster.placement("t", MANY))
    cluster.node.settings["log.retention_check_interval_ms"] = "500"
    cluster.node.terminate()
    cluster.server_of(1).kill()
    cluster.node.start()
    admin = AdminClient({"bootstrap.servers": cluster.node.kafka})
    left = [TopicPartition("t", number) for number, servers in placement.items() if servers == [0]]

    def trimmed() -> bool:
        answers = admin.list_offsets(dict.fromkeys(left, OffsetSpec.earliest()), request_timeout=PATIENCE).values()
        return all(answer.result(PATIENCE).offset == 1 for answer in answers)

    # Those that are gone take most of a second each: eight at a time that would be twice as long.
    wait_until(trimmed, "what others have is trimmed", seconds=(MANY - len(left)) / 8 * 0.4)
