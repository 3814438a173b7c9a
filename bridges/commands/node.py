"""``anabranch node``: status, health, promises, users, jobs, history."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from bridges.commands.common import (
    NOTHING,
    NodeClient,
    history_options,
    json_option,
    node_option,
    print_history,
    print_json,
    print_table,
    shown,
)


@click.group("node")
def command() -> None:
    """Show the status, promises, users and jobs of a running node."""


@command.command("status")
@node_option
@json_option
def status(node: str, as_json: bool) -> None:
    """Show the node's identity, its addresses, and the work of each protocol."""
    found = NodeClient(node, as_json=as_json).call("GET", "/api/status")
    if as_json:
        print_json(found)
        return
    for key in (
        "node_id",
        "cluster_id",
        "version",
        "phase",
        "durability",
        "data_dir",
        "topics",
        "partitions",
        "groups",
    ):
        click.echo(f"{key.replace('_', ' '):<11} {found[key]}")
    for name, address in sorted(found["listeners"].items()):
        click.echo(f"listens     {name} {address}")
    click.echo()
    keys = ("name", "connections", "requests", "errors", "records_in", "records_out")
    print_table(
        ["PROTOCOL", "CONNECTIONS", "REQUESTS", "ERRORS", "RECORDS-IN", "RECORDS-OUT"],
        ([one[key] for key in keys] for one in found["fronts"]),
    )


@command.command("health")
@node_option
@json_option
def health(node: str, as_json: bool) -> None:
    """Check whether the node works and accepts clients; exit code 1 if not."""
    client = NodeClient(node, as_json=as_json)
    told = client.call("GET", "/healthz") | client.call("GET", "/readyz")
    if as_json:
        print_json(told)
    else:
        click.echo(f"healthy, {told['phase']}")


@command.command("promises")
@node_option
@json_option
def promises(node: str, as_json: bool) -> None:
    """Show the guarantees that the node does not give with its settings."""
    found = NodeClient(node, as_json=as_json).call("GET", "/api/promises")
    if as_json:
        print_json(found)
        return
    click.echo(f"durability: {found['durability']}")
    for one in found["not_promised"]:
        click.echo(f"not promised{' (a setting)' if one['chosen'] else ''}: {one['sentence']}")


@command.command("users")
@node_option
@json_option
def users(node: str, as_json: bool) -> None:
    """Show the users that the node knows; 'anabranch user' changes them."""
    found = NodeClient(node, as_json=as_json).call("GET", "/api/users")["users"]
    if as_json:
        print_json(found)
    else:
        print_table(["USER", "SCRAM"], ([shown(one["user"]), ", ".join(one["scram"]) or NOTHING] for one in found))


@command.command("jobs")
@node_option
@json_option
def jobs(node: str, as_json: bool) -> None:
    """Show migrations and other jobs, with their progress."""
    found = NodeClient(node, as_json=as_json).call("GET", "/api/jobs")["jobs"]
    if as_json:
        print_json(found)
        return
    print_table(
        ["JOB", "KIND", "STATE", "DONE", "OF", "UNIT", "SECONDS-LEFT", "HEARD"],
        (
            [
                shown(one["name"]),
                shown(one["kind"]),
                one["state"],
                *(NOTHING if one[key] is None else f"{one[key]:.0f}" for key in ("done", "total")),
                shown(one["unit"]),
                _seconds(one),
                datetime.fromtimestamp(one["heard_ms"] / 1000, UTC).isoformat(timespec="seconds"),
            ]
            for one in found
        ),
    )


def _seconds(job: dict[str, Any]) -> str:
    left = job["seconds_left"]
    return NOTHING if left is None or job["state"] != "running" else f"{left:.0f}"


@command.command("history")
@history_options
def history(span: str, node: str, as_json: bool) -> None:
    """Show the node's recent processor time, memory, and the traffic of each protocol."""
    print_history(node, "/api/history", as_json=as_json, span=span)
