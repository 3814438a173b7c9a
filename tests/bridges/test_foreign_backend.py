"""A node on servers of elastic-stream, as far as their faults are known (tests/sbp_back/foreign.py), over TCP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridges.config import Settings, load
from bridges.node import Node
from sbp_back.errors import StoreError
from sbp_back.model import CreateStreamRequest
from tests.sbp_back.foreign import ForeignCluster


@pytest.fixture
async def cluster() -> AsyncIterator[ForeignCluster]:
    made = ForeignCluster(servers=1)
    await made.serve()
    yield made
    await made.close()


def settings(path: Path, pd: str, flavor: str = "elastic-stream", **more: str) -> Settings:
    flags = {
        "data_dir": str(path / "node"),
        "listen.console": "off",
        "sbp.mode": "external",
        "sbp.pd": pd,
        "sbp.flavor": flavor,
        "sbp.timeout_ms": "15s",
        **more,
    }
    return load(flags, environ={}, directory=path).settings


async def test_a_foreign_placement_driver_is_refused_unless_the_flavor_says_so(
    tmp_path: Path, cluster: ForeignCluster
) -> None:
    with pytest.raises(StoreError) as refused:
        await Node(settings(tmp_path, cluster.address, "anabranch"), fronts=[]).start()
    sentence = str(refused.value)
    assert "does not say which one it is" in sentence
    assert "sbp.flavor=elastic-stream" in sentence
    assert "\n" not in sentence
    node = Node(settings(tmp_path, cluster.address), fronts=[])
    await node.start()
    await node.catalog.create_topic("t", 1)
    await node.stop()
    # Also when the node has topics there: the setting was taken away.
    with pytest.raises(StoreError, match="does not say which one it is"):
        await Node(settings(tmp_path, cluster.address, "anabranch"), fronts=[]).start()
    assert cluster.pd.asked(CreateStreamRequest) == 1


async def test_a_foreign_placement_driver_met_later_gets_no_request(tmp_path: Path, cluster: ForeignCluster) -> None:
    """None answered when the node started, and the one that comes then is foreign."""
    address = cluster.address
    await cluster.close()
    node = Node(settings(tmp_path, address, "anabranch"), fronts=[])
    await node.start()
    again = ForeignCluster(servers=1)
    host, port = address.rsplit(":", 1)
    await again.serve(host, int(port))
    try:
        with pytest.raises(Exception, match="does not say which one it is"):
            await node.catalog.create_topic("t", 1)
        assert again.pd.asked(CreateStreamRequest) == 0
    finally:
        await node.stop()
        await again.close()
