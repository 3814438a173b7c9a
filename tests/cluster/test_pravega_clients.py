"""Pravega's clients in a cluster: every node's controller leads them to the owners of segments."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pravega_client import StreamManager, StreamReader

from pravega_front.names import SegmentName
from pravega_front.wire import commands as wire
from tests.cluster.test_failover import PATIENCE, commanded
from tests.conftest import NodeFactory
from tests.node_process import ANY, NodeProcess
from tests.postgres import Postgres
from tests.pravega_front.controller_client import ControllerClient, scale, stream
from tests.pravega_front.raw_client import RawClient

SCOPE = "cluster"
SEGMENTS = 6


LISTENERS = ("pravega", "pravega-segmentstore", "console", "sbp-pd", "sbp-range-server", "cluster")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[list[NodeProcess]]:
    """Three, that tests may end and start again."""
    directory = tmp_path_factory.mktemp("nodes")
    factory = NodeFactory(directory)
    bucket = directory / "bucket"
    bucket.mkdir()
    stored = {"sbp.durability": "object", "sbp.objects": f"file://{bucket}", "sbp.object_linger_ms": "10"}
    url = postgres.made()
    listen = dict.fromkeys(LISTENERS, ANY)
    try:
        made = []
        for number in (1, 2, 3):
            own = {"cluster.database": url, "node.id": f"{number}", "sbp.object_log": f"{number}"}
            made.append(factory(f"node{number}", settings=stored | own, listen=listen, start=False))
        for node in made:
            node.launch()
        for node in made:
            node.await_ready()
        until(lambda: is_shared(made))
        yield made
    finally:
        factory.dispose()


@pytest.fixture
def controllers(nodes: list[NodeProcess]) -> Iterator[list[ControllerClient]]:
    clients = [ControllerClient(node.addresses["pravega"]) for node in nodes]
    yield clients
    for client in clients:
        client.close()


def owners(controller: ControllerClient, name: str) -> dict[int, str]:
    """Where the controller says that the active segments of a stream are, by their ids."""
    found = controller.getCurrentSegments(scope=SCOPE, stream=name).segmentRanges
    return {one.segmentId.segmentId: place(controller, name, one.segmentId.segmentId) for one in found}


def place(controller: ControllerClient, name: str, segment: int) -> str:
    told = controller.getURI(streamInfo=stream(SCOPE, name), segmentId=segment)
    return f"{told.endpoint}:{told.port}"


def make(controller: ControllerClient, name: str, segments: int = SEGMENTS) -> None:
    controller.createScope(scope=SCOPE)
    policy = {"scaleType": 0, "minNumSegments": segments}
    assert controller.createStream(streamInfo=stream(SCOPE, name), scalingPolicy=policy).status == 0


def stores(nodes: list[NodeProcess]) -> set[str]:
    return {node.addresses["pravega-segmentstore"] for node in nodes}


def read(reader: StreamReader, count: int) -> list[int]:
    """The numbers that the next events are."""

    async def events() -> list[int]:
        found: list[int] = []
        while len(found) < count:
            part = await reader.get_segment_slice_async()
            found += [int(event.data()) for event in part]
            reader.release_segment(part)
        return found

    return asyncio.run(asyncio.wait_for(events(), PATIENCE))


def is_shared(nodes: list[NodeProcess]) -> bool:
    """Whether all of them own as much as the others, as each knows it."""
    for node in nodes:
        told = json.loads(commanded(node, "status", "--json"))["nodes"]
        slots = [one["slots"] for one in told]
        if len(slots) < len(nodes) or sum(slots) < 1024 or max(slots) - min(slots) > 1:
            return False
    return True


def until(condition: Any) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_controller_leads_to_the_owners(nodes: list[NodeProcess], controllers: list[ControllerClient]) -> None:
    one, two, three = controllers
    make(one, "led")
    led = owners(two, "led")
    assert set(led.values()) == stores(nodes), "neighbouring segments are of different nodes"
    assert owners(one, "led") == owners(three, "led") == led
    told = three.getControllerServerList().nodeURI
    assert {f"{one.endpoint}:{one.port}" for one in told} == {node.addresses["pravega"] for node in nodes}
    for number, address in led.items():
        name = str(SegmentName(SCOPE, "led", number, 0))
        (other,) = sorted(stores(nodes) - {address})[:1]
        with RawClient(other) as client:
            # The store of another node says whose it is, and goes on with the connection.
            for command in (
                wire.SetupAppend(7, bytes(16), name, ""),
                wire.ReadSegment(name, 0, 1000, "", 7),
                wire.GetStreamSegmentInfo(7, name, ""),
                wire.TruncateSegment(7, name, 0, ""),
                wire.CreateTransientSegment(7, bytes(16), name, ""),
            ):
                assert client.ask(command, wire.WrongHost) == wire.WrongHost(7, name, address)
        with RawClient(address) as client:
            assert client.ask(wire.SetupAppend(7, bytes(16), name, ""), wire.AppendSetup).segment == name
    # What is made at one node is known to whoever asks another one next, and so is that there is no such thing.
    for number in range(10):
        make(controllers[number % 3], f"next{number}", 1)
        assert len(owners(controllers[(number + 1) % 3], f"next{number}")) == 1
    with RawClient(next(iter(stores(nodes)))) as client:
        client.ask(wire.SetupAppend(7, bytes(16), f"{SCOPE}/none/0.#epoch.0", ""), wire.NoSuchSegment)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_wheel_works_through_a_node_that_owns_nothing(
    nodes: list[NodeProcess], controllers: list[ControllerClient]
) -> None:
    commanded(nodes[1], "drain", "2")
    streams = StreamManager(f"tcp://{nodes[1].addresses['pravega']}")
    streams.create_scope(SCOPE)
    streams.create_stream(SCOPE, "events", SEGMENTS)
    led = owners(controllers[1], "events")
    assert set(led.values()) == stores([nodes[0], nodes[2]])
    writer = streams.create_writer(SCOPE, "events")
    for number in range(300):
        writer.write_event(f"{number}", routing_key=f"key-{number % 17}")
    writer.flush()
    # Segments of two nodes become one of a third number, at whichever node it lies.
    scale(controllers[0], SCOPE, "events", [0, 1], [[0.0, 0.1], [0.1, 2 / SEGMENTS]])
    for number in range(300, 600):
        writer.write_event(f"{number}", routing_key=f"key-{number % 17}")
    writer.flush()
    reader = streams.create_reader_group("group", SCOPE, "events").create_reader("reader")
    found = read(reader, 600)
    assert sorted(found) == list(range(600))
    for key in range(17):
        assert [one for one in found if one % 17 == key] == list(range(key, 600, 17)), "in the order of their key"
    reader.reader_offline()
