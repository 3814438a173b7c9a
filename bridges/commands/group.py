"""``anabranch group``: consumer groups and their lag."""

from __future__ import annotations

from urllib.parse import quote

import click

from bridges.commands.common import NodeClient, json_option, node_option, print_json, print_table


@click.group("group")
def command() -> None:
    """Show consumer groups and their lag."""


@command.command("list")
@node_option
@json_option
def list_(node: str, as_json: bool) -> None:
    """List groups that have committed positions."""
    groups = NodeClient(node, as_json=as_json).call("GET", "/api/groups")["groups"]
    if as_json:
        print_json(groups)
    else:
        print_table(["GROUP", "PARTITIONS", "LAG"], ([g["group"], len(g["positions"]), g["lag"]] for g in groups))


@command.command("describe")
@click.argument("group")
@node_option
@json_option
def describe(group: str, node: str, as_json: bool) -> None:
    """Show the committed positions of a group."""
    found = NodeClient(node, as_json=as_json).call("GET", f"/api/groups/{quote(group, safe='')}")
    if as_json:
        print_json(found)
    else:
        print_table(
            ["TOPIC", "PARTITION", "OFFSET", "LAG", "METADATA"],
            (
                [p["topic"], p["partition"], p["offset"], "-" if p["lag"] is None else p["lag"], p["metadata"]]
                for p in found["positions"]
            ),
        )
