"""A node with the Pravega front, shared by the tests of a module.

The tests of unchanged clients also run against another Pravega, whose controller is at ANABRANCH_TEST_PRAVEGA
(host:port): `python -m benchmarks.pravega_standalone` starts a real one. What it does not do is not to be demanded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.node_process import ANY, FRONTS, NodeProcess
from tests.pravega_front.controller_client import ControllerClient

LISTENERS = (*FRONTS, "ydb", "pravega", "pravega-segmentstore")


GIVEN = os.environ.get("ANABRANCH_TEST_PRAVEGA")

needs_node = pytest.mark.skipif(bool(GIVEN), reason="needs a node: tells of kills, or of other protocols")
"""Of tests that cannot run against another Pravega."""


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that a test kills."""
    process = NodeProcess(tmp_path_factory.mktemp("mortal") / "data", listen=dict.fromkeys(LISTENERS, ANY))
    try:
        yield process.start()
    finally:
        process.dispose()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    directory = tmp_path_factory.mktemp("node") / "data"
    settings = {"pravega.watermark_interval_ms": "500"}
    process = NodeProcess(directory, settings=settings, listen=dict.fromkeys(LISTENERS, ANY))
    try:
        yield process.start()
    finally:
        process.dispose()


@pytest.fixture(scope="module")
def segment_store(node: NodeProcess) -> str:
    """``host:port`` of the segment store."""
    return node.addresses["pravega-segmentstore"]


@pytest.fixture(scope="module")
def controller_address(request: pytest.FixtureRequest) -> str:
    """``host:port`` of the controller that clients are told: of a node, unless another one is given."""
    if GIVEN:
        return GIVEN
    node: NodeProcess = request.getfixturevalue("node")
    return node.addresses["pravega"]


@pytest.fixture(scope="module")
def controller(controller_address: str) -> Iterator[ControllerClient]:
    client = ControllerClient(controller_address)
    try:
        yield client
    finally:
        client.close()
