"""``anabranch cluster``: status, drain."""

from __future__ import annotations

import time
from typing import Any

import click

from bridges.commands.common import NodeClient, fail, json_option, node_option, print_json, print_table, shown

_LOOK_S = 0.2


@click.group("cluster")
def command() -> None:
    """Show the nodes of a cluster, and have one of them give away what it owns."""


def _print(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print_table(
        ["NODE", "STATE", "SLOTS", "SILENT", "RACK", "ADDRESSES"],
        (
            [
                one["node_id"],
                one["state"] + (" (suspected)" if one["suspected"] else ""),
                f"{one['slots']}/{found['slots']}",
                f"{one['silent_seconds']:.1f} s",
                shown(one["rack"]),
                shown(" ".join(f"{name}={address}" for name, address in sorted(one["addresses"].items()))),
            ]
            for one in found["nodes"]
        ),
    )


@command.command("status")
@node_option
@json_option
def status(node: str, as_json: bool) -> None:
    """Show all nodes, as the one that is asked sees them."""
    _print(NodeClient(node, as_json=as_json).call("GET", "/api/cluster"), as_json)


@command.command("drain")
@click.argument("node_id", type=click.IntRange(min=0), metavar="NODE")
@click.option("--wait", type=click.FloatRange(min=0), default=60.0, show_default=True, help="Seconds to wait at most.")
@node_option
@json_option
def drain(node_id: int, wait: float, node: str, as_json: bool) -> None:
    """Have node NODE (its node.id) hand over all it owns, and wait until it has.

    It goes on serving without owning anything, until it is started again.
    """
    client = NodeClient(node, as_json=as_json)
    found = client.call("POST", f"/api/cluster/nodes/{node_id}/drain")
    until = time.monotonic() + wait
    while any(one["slots"] or one["state"] == "up" for one in found["nodes"] if one["node_id"] == node_id):
        if time.monotonic() >= until:
            fail(f"node {node_id} has not handed over everything in {wait:g} s, and goes on", as_json=as_json)
        time.sleep(_LOOK_S)
        found = client.call("GET", "/api/cluster")
    _print(found, as_json)
