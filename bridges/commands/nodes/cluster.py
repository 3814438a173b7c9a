"""``anabranch cluster``: status, move, unpin, drain, undrain."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from bridges.commands.client import NodeClient, asks_node, complete_groups, complete_topics
from bridges.commands.common import escape, join_neighbours, print_table, space_option
from bridges.commands.failure import fail

_LOOK_S = 0.2


@click.group("cluster")
def command() -> None:
    """Show the nodes of a cluster, move slots between nodes, drain nodes."""


def print_cluster(found: dict[str, Any]) -> None:
    print_table(
        ["NODE", "STATE", "SLOTS", "PINNED", "SILENT", "VERSION", "RACK", "ADDRESSES"],
        (
            [
                one["node_id"],
                _state(one),
                f"{one['slots']}/{found['slots']}",
                one["pinned"] or "",
                f"{one['silent_seconds']:.1f} s",
                _version(one["version"]),
                escape(one["rack"]),
                escape(" ".join(f"{name}={address}" for name, address in sorted(one["addresses"].items()))),
            ]
            for one in found["nodes"]
        ),
    )
    newer = [one["node_id"] for one in found["nodes"] if one["version"] != found["level"]]
    if newer:
        click.echo(
            f"version {_version(found['level'])} is what nodes say and store, until all are of a newer one: "
            f"{', '.join(f'node {node_id}' for node_id in newer)} could do more"
        )
    there = {one["node_id"] for one in found["nodes"]}
    for node_id, slots in sorted(found["pins"].items(), key=lambda item: int(item[0])):
        if int(node_id) not in there:
            click.echo(f"{_slots(slots)} pinned to node {node_id}, which is not there: others have them until it is")
    for node_id in found.get("drained", ()):  # nodes of an earlier version do not send it
        if node_id not in there:
            click.echo(f"node {node_id} is drained, and not there")
    if found["moving"]:
        click.echo(f"{_slots(found['moving'])} on the way to where they are pinned")


def _version(one: dict[str, int]) -> str:
    """Return the version that a node speaks, and the version of what it stores."""
    return f"{one['says']}.{one['stores']}"


def _state(one: dict[str, Any]) -> str:
    if one["suspected"]:
        return f"{one['state']} (suspected)"
    return f"{one['state']} (drained)" if one.get("drained") else str(one["state"])


def _slots(slots: list[int]) -> str:
    """Return the numbers of slots as text, neighbours as a range: 1024 slots fit into a line."""
    numbers = ", ".join(join_neighbours(slots))
    return f"slot {numbers} is" if len(slots) == 1 else f"slots {numbers} are"


def _await(
    client: NodeClient,
    found: dict[str, Any],
    over: Callable[[dict[str, Any]], bool],
    wait: float,
    late: str,
) -> None:
    until = time.monotonic() + wait
    while not over(found):
        if time.monotonic() >= until:
            fail(f"{late} in {wait:g} s, and goes on")
        time.sleep(_LOOK_S)
        found = client.call("GET", "/api/cluster")
    client.end_with_json(found)
    print_cluster(found)


wait_option = click.option(
    "--wait", type=click.FloatRange(min=0), default=60.0, show_default=True, help="Maximum seconds to wait."
)


def which_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select slots."""
    for option in (
        space_option,
        click.option("--group", shell_complete=complete_groups, help="Select the slot of this group."),
        click.option(
            "--partition",
            "partitions",
            type=int,
            multiple=True,
            help="Partition of --topic; may be repeated. Without it: all partitions.",
        ),
        click.option("--topic", shell_complete=complete_topics, help="Select the slots of this topic's partitions."),
        click.option("--slot", "slots", type=int, multiple=True, help="Number of a slot; may be repeated."),
    ):
        command = option(command)
    return command


def _which(
    slots: tuple[int, ...], topic: str | None, partitions: tuple[int, ...], group: str | None, space: str
) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if slots:
        told["slots"] = slots
    if topic is not None:
        told["topic"] = topic
    elif partitions:
        raise click.UsageError("--partition needs --topic")
    if partitions:
        told["partitions"] = partitions
    if group is not None:
        told |= {"group": group, "space": space}
    return told


@command.command("status")
@asks_node
def status(client: NodeClient) -> None:
    """Show all nodes of the cluster, as this node sees them."""
    print_cluster(client.show("GET", "/api/cluster"))


@command.command("move")
@click.argument("node_id", type=click.IntRange(min=0), metavar="NODE")
@which_options
@wait_option
@asks_node
def move(node_id: int, wait: float, client: NodeClient, **which: Any) -> None:
    """Move slots to node NODE, by number, topic or group, and wait until the node owns them.

    Everything in a slot moves with it. The slots are pinned: balancing leaves them there, and the node gets them back
    when it starts, until they are unpinned. While the node is down, other nodes own them.
    """
    told = _which(**which)
    if not told:
        raise click.UsageError("what is to be moved? Give --slot, --topic or --group")
    found = client.call("POST", "/api/cluster/move", {"node_id": node_id, **told})
    asked = set(found["asked"])
    late = f"node {node_id} has not got everything"
    _await(client, found, lambda one: asked.isdisjoint(one["moving"]), wait, late)


@command.command("unpin")
@which_options
@click.option(
    "--of", "node_id", type=click.IntRange(min=0), metavar="NODE", help="Unpin all slots that are pinned to this node."
)
@click.option("--all", "everything", is_flag=True, help="Unpin all slots.")
@asks_node
def unpin(node_id: int | None, everything: bool, client: NodeClient, **which: Any) -> None:
    """Unpin slots that were moved, so that balancing assigns them again."""
    told = _which(**which)
    if node_id is not None:
        told["node_id"] = node_id
    if everything:
        told["all"] = True
    print_cluster(client.show("POST", "/api/cluster/unpin", told))


@command.command("drain")
@click.argument("node_id", type=click.IntRange(min=0), metavar="NODE")
@wait_option
@asks_node
def drain(node_id: int, wait: float, client: NodeClient) -> None:
    """Move all slots away from node NODE (its node.id), and wait until they are moved.

    The node serves without owning anything, also after a restart, until it is undrained.
    """
    found = client.call("POST", f"/api/cluster/nodes/{node_id}/drain")

    def over(one: dict[str, Any]) -> bool:
        return not any(that["slots"] or that["state"] == "up" for that in one["nodes"] if that["node_id"] == node_id)

    _await(client, found, over, wait, f"node {node_id} has not handed over everything")


@command.command("undrain")
@click.argument("node_id", type=click.IntRange(min=0), metavar="NODE")
@asks_node
def undrain(node_id: int, client: NodeClient) -> None:
    """Let a drained node own its share of slots again, now or when it starts."""
    print_cluster(client.show("POST", f"/api/cluster/nodes/{node_id}/undrain"))
