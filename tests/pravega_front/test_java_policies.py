"""What streams' policies ask of a node, with Pravega's Java client: retention, and scaling by rate in both directions.

A real Pravega looks at either once in many minutes, so these run against a node only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from tests.node_process import ANY, NodeProcess
from tests.pravega_front.conftest import LISTENERS
from tests.pravega_front.controller_client import ControllerClient
from tests.pravega_front.java_client import Java, b64, events, numbers

SCOPE = "policies"
EVENT = 10_000

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that looks at rates and at what is past its retention all the time."""
    settings = {
        "pravega.scale_interval_ms": "100ms",
        "pravega.scale_up_intervals": "2",
        "pravega.scale_down_intervals": "5",
        "log.retention_check_interval_ms": "50ms",
        "pravega.retention_interval_ms": "50ms",
    }
    directory = tmp_path_factory.mktemp("policies") / "data"
    process = NodeProcess(directory, settings=settings, listen=dict.fromkeys(LISTENERS, ANY))
    try:
        yield process.start()
    finally:
        process.dispose()


@pytest.fixture(scope="module")
def java(eager: NodeProcess) -> Iterator[Java]:
    client = Java(eager.addresses["pravega"], SCOPE)
    try:
        yield client
    finally:
        client.close()


def write(java: Java, name: str, first: int, last: int) -> None:
    """Events of 10 KB, each acknowledged before the next: they are batches of their own."""
    for number in range(first, last):
        java("write", name=name, events=[["key", b64(b"%-*d" % (EVENT, number))]])


def head(java: Java, stream: str) -> int:
    """Where a stream of one segment begins."""
    positions: dict[str, int] = java("head", stream=stream, name="head")
    return positions["0"]


def await_head(java: Java, stream: str, wanted: int) -> None:
    while head(java, stream) < wanted:
        time.sleep(0.02)


def test_retention_by_time(java: Java) -> None:
    java("create", stream="times", keep_ms=1)
    java("writer", name="times", stream="times")
    write(java, "times", 0, 10)
    await_head(java, "times", 10 * (EVENT + 8))
    # From now on everything is kept, and readers begin where the stream does.
    assert java("update", stream="times")
    write(java, "times", 10, 15)
    java("group", name="times", stream="times")
    java("reader", name="times", reader="times")
    assert numbers(java("read", reader="times", count=5)) == list(range(10, 15))
    assert head(java, "times") == 10 * (EVENT + 8)
    java("close_reader", reader="times")
    java("close_writer", name="times")


def test_retention_by_size(java: Java) -> None:
    kept = 20 * (EVENT + 8)
    java("create", stream="sizes", keep_bytes=kept)
    java("writer", name="sizes", stream="sizes")
    write(java, "sizes", 0, 60)
    await_head(java, "sizes", 1)
    assert java("update", stream="sizes")  # from now on everything is kept
    begun = head(java, "sizes")
    found = numbers(java("batch", stream="sizes"))
    assert found == list(range(begun // (EVENT + 8), 60)), "what is left is the end, and nothing is missing of it"
    assert len(found) * (EVENT + 8) >= kept, "no more is removed than has to be"
    java("close_writer", name="sizes")


def test_retention_by_size_over_scales(java: Java, eager: NodeProcess) -> None:
    kept = 20 * (EVENT + 8)
    java("create", stream="scaled-sizes", keep_bytes=kept)
    java("writer", name="scaled-sizes", stream="scaled-sizes")

    def share() -> int:
        resource = ConfigResource(ConfigResource.Type.TOPIC, f"{SCOPE}.scaled-sizes")
        admin = AdminClient({"bootstrap.servers": eager.kafka})
        return int(admin.describe_configs([resource])[resource].result(30)["retention.bytes"].value)

    def left() -> list[int]:
        return sorted(numbers(java("batch", stream="scaled-sizes")))

    write(java, "scaled-sizes", 0, 15)
    java("scale", stream="scaled-sizes", sealed=[0], ranges=[[0.0, 0.5], [0.5, 1.0]])
    assert share() == kept // 2
    # All of them go to one of the two, and what was sealed stays until there is enough behind it.
    write(java, "scaled-sizes", 15, 25)
    assert left() == list(range(25))
    java("scale", stream="scaled-sizes", sealed=[1 << 32 | 1, 1 << 32 | 2], ranges=[[0.0, 1.0]])
    assert share() == kept
    write(java, "scaled-sizes", 25, 40)
    while "0" in java("head", stream="scaled-sizes", name="head"):
        time.sleep(0.02)  # who reads it meanwhile is told that it is truncated
    assert left() == list(range(15, 40)), "the oldest segment is not needed for what is to be kept, the next one is"
    java("close_writer", name="scaled-sizes")


@pytest.mark.parametrize("by", ["events", "bytes"])
def test_a_stream_is_scaled_by_its_rate_up_and_down(java: Java, eager: NodeProcess, by: str) -> None:
    name = f"by-{by}"
    calls = ControllerClient(eager.addresses["pravega"])
    java("create", stream=name, by=by, rate=10, segments=1)
    java("writer", name=name, stream=name)
    java("group", name=name, stream=name)
    java("reader", name=name, reader=name)

    def segments() -> int:
        return len(calls.getCurrentSegments(scope=SCOPE, stream=name).segmentRanges)

    written = 0
    found: list[int] = []
    filler = " " * 500
    while segments() < 2:
        made = [[f"key-{number % 20}", b64(f"{number}{filler}".encode())] for number in range(written, written + 100)]
        written += java("write", name=name, events=made)
    while segments() > 1:
        found += numbers(java("read", reader=name, count=written - len(found), seconds=1))
    # The writer and the reader go on in what the segments have become.
    written += java("write", name=name, events=events(written, written + 100, 20))
    found += numbers(java("read", reader=name, count=written - len(found)))
    assert sorted(found) == list(range(written))
    for key in range(20):
        of_key = [one for one in found if one % 20 == key]
        assert of_key == sorted(of_key), "in the order of their key"
    java("close_reader", reader=name)
    java("close_writer", name=name)
    calls.close()
