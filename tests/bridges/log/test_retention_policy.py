"""Which topics are trimmed by age and size: all whose cleanup policy names delete, compacted or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridges.node.assembly import Node
from bridges.node.floors.retention import limits_of
from bridges.node.settings.config import load


@pytest.mark.parametrize(
    ("policy", "limits"),
    [
        ("delete", (1000, 2000)),
        ("compact,delete", (1000, 2000)),
        ("delete,compact", (1000, 2000)),
        ("compact", (-1, -1)),
    ],
)
async def test_what_is_kept(tmp_path: Path, policy: str, limits: tuple[int, int]) -> None:
    flags = {
        "data_dir": str(tmp_path / "data"),
        "listen.console": "off",
        "listen.sbp-pd": "off",
        "listen.sbp-range-server": "off",
        "sbp.segment_bytes": "4MiB",
        "sbp.low_water_bytes": "1MiB",
    }
    node = Node(load(flags, environ={}, directory=tmp_path).settings, fronts=[])
    await node.start()
    config = {"cleanup.policy": policy, "retention.ms": "1000", "retention.bytes": "2000"}
    await node.catalog.create_topic("t", 1, config)
    assert limits_of(node.catalog, "t") == limits
    await node.stop()
