"""The console's first screen at nodes of a cluster: a node that does not answer comes first until it is back."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import urlopen

from tests.kit.waiting import wait_until
from tests.node_process import NodeProcess


def problems(node: NodeProcess) -> list[dict[str, Any]]:
    with urlopen(f"{node.console}/api/problems", timeout=30) as answer:
        found: list[dict[str, Any]] = json.load(answer)["problems"]
    return found


def test_every_node_names_a_killed_node_first_until_it_is_back(nodes: list[NodeProcess]) -> None:
    *others, killed = nodes
    for node in nodes:
        wait_until(lambda node=node: not [one for one in problems(node) if one["about"] == "Down"])
    killed.kill()
    for node in others:
        wait_until(lambda node=node: [one["sentence"] for one in problems(node)][:1] == ["node 3 does not answer"])
    # Others have taken over and removed it from the members: it is still not there.
    for node in others:
        wait_until(lambda node=node: json.load(urlopen(f"{node.console}/api/cluster"))["nodes"][2:] == [])
        assert [*json.load(urlopen(f"{node.console}/api/cluster"))["gone"]] == ["3"]
        assert [one["sentence"] for one in problems(node)][:1] == ["node 3 does not answer"]
    killed.start()
    for node in nodes:
        wait_until(lambda node=node: not [one for one in problems(node) if one["about"] == "Down"])
