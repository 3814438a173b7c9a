"""One topic read from its beginning by clients of three protocols."""

from __future__ import annotations

import asyncio

import ydb
from pravega_client import StreamManager

from tests.kit.wheel import read_events
from tests.node_process import NodeProcess
from tests.test_three_protocols import PATIENCE, consumed


def read_ydb(node: NodeProcess, topic: str, count: int) -> list[bytes]:
    with ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local") as driver:
        driver.wait(timeout=PATIENCE, fail_fast=True)
        with driver.topic_client.reader(topic, "readers") as reader:
            found: list[bytes] = []
            while len(found) < count:
                found += [one.data for one in reader.receive_batch(timeout=PATIENCE).messages]
        return found


def read_all(node: NodeProcess, topic: str, expected: list[bytes], group: str) -> None:
    """By each protocol, from the beginning."""
    assert [value for _, value in consumed(node, topic, len(expected))] == expected
    assert read_ydb(node, topic, len(expected)) == expected
    streams = StreamManager(f"tcp://{node.addresses['pravega']}")
    readers = streams.create_reader_group(group, "default", topic)
    assert asyncio.run(read_events(readers.create_reader("one"), len(expected))) == expected
