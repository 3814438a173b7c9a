"""A node whose old data moves to objects, after a megabyte or two."""

from __future__ import annotations

import random
import re
import time
import urllib.request

from confluent_kafka import Producer

from tests.conftest import TEST_SETTINGS
from tests.node_process import NodeProcess
from tests.test_three_protocols import PATIENCE

MIB = 1024 * 1024
SIZE = 10_000


def settings(objects: str) -> dict[str, str]:
    return {
        **TEST_SETTINGS,
        "sbp.objects": objects,
        "sbp.segment_bytes": str(MIB),
        "sbp.local_bytes": str(2 * MIB),
        "sbp.object_range_bytes": str(MIB),
        "sbp.object_cache_bytes": str(3 * MIB),
        "log.tail_cache_bytes": str(MIB),
    }


def texts(name: str, count: int) -> list[bytes]:
    """Values that no codec makes smaller."""
    rng = random.Random(name)
    return [f"{name} {number} ".encode() + rng.randbytes(SIZE) for number in range(count)]


def metric(node: NodeProcess, name: str) -> float:
    with urllib.request.urlopen(f"{node.console}/metrics", timeout=PATIENCE) as answer:
        found = re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def until(node: NodeProcess, name: str, least: float, most: float = float("inf")) -> None:
    """A metric of the node is between these."""
    deadline = time.monotonic() + PATIENCE
    while not least <= metric(node, name) <= most:
        assert time.monotonic() < deadline, f"{name} is {metric(node, name)}"
        time.sleep(0.1)


def write_kafka(node: NodeProcess, topic: str, values: list[bytes]) -> None:
    told: list[object] = []
    # A batch has to fit a segment.
    producer = Producer({"bootstrap.servers": node.kafka, "enable.idempotence": True, "batch.size": 200_000})
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _message: told.append(error))
        producer.poll(0)
    assert producer.flush(PATIENCE) == 0
    assert told == [None] * len(values)
