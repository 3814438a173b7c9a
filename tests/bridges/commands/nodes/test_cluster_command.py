"""What ``anabranch cluster`` prints of a node's answer."""

from __future__ import annotations

import pytest

from bridges.commands.nodes.cluster import print_cluster


def test_the_answer_of_a_node_of_an_earlier_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    node = {
        "node_id": 1,
        "state": "up",
        "slots": 1024,
        "pinned": 0,
        "suspected": False,
        "silent_seconds": 0.003,
        "version": {"says": 1, "stores": 1},
        "rack": "",
        "addresses": {"kafka": "h:9092"},
    }
    print_cluster({"nodes": [node], "slots": 1024, "level": {"says": 1, "stores": 1}, "pins": {}, "moving": []})
    assert "kafka=h:9092" in capsys.readouterr().out
