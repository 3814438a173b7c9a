"""``anabranch node``: status, whoami, health, promises, users, jobs, history."""

from __future__ import annotations

from typing import Any

import click

from bridges.commands.client import NodeClient, asks_node
from bridges.commands.common import NOTHING, escape, format_time, print_facts, print_table
from bridges.commands.history import history_options, print_history


@click.group("node")
def command() -> None:
    """Show the status, promises, users and jobs of a running node."""


@command.command("status")
@asks_node
def status(client: NodeClient) -> None:
    """Show the node's identity, its addresses, and the work of each protocol."""
    found = client.show("GET", "/api/status")
    about = ("node_id", "cluster_id", "version", "phase", "durability", "data_dir", "topics", "partitions", "groups")
    facts = [(key.replace("_", " "), found[key]) for key in about]
    if restored := found["restored"]:
        facts.append(("restored", f"{restored['restored']} from a backup of {restored['backup_taken']}"))
    facts += (("listens", f"{name} {address}") for name, address in sorted(found["listeners"].items()))
    print_facts(facts)
    click.echo()
    keys = ("name", "connections", "requests", "errors", "records_in", "records_out")
    print_table(
        ["PROTOCOL", "CONNECTIONS", "REQUESTS", "ERRORS", "RECORDS-IN", "RECORDS-OUT"],
        ([one[key] for key in keys] for one in found["fronts"]),
    )


@command.command("whoami")
@asks_node
def whoami(client: NodeClient) -> None:
    """Show who you are to the node, and what you may do with it."""
    found = client.show("GET", "/api/me")
    topics = "those that rules allow" if found["restricted"] else "all"
    print_facts([("user", escape(found["user"])), ("node", ", ".join(found["node"]) or NOTHING), ("topics", topics)])


@command.command("health")
@asks_node
def health(client: NodeClient) -> None:
    """Check whether the node works and accepts clients; exit code 1 if not."""
    told = client.call("GET", "/healthz") | client.call("GET", "/readyz")
    client.end_with_json(told)
    click.echo(f"healthy, {told['phase']}")


@command.command("promises")
@asks_node
def promises(client: NodeClient) -> None:
    """Show the guarantees that the node does not give with its settings."""
    found = client.show("GET", "/api/promises")
    click.echo(f"durability: {found['durability']}")
    for one in found["not_promised"]:
        click.echo(f"not promised{' (a setting)' if one['chosen'] else ''}: {one['sentence']}")


@command.command("users")
@asks_node
def users(client: NodeClient) -> None:
    """Show the users that the node knows; 'anabranch user' changes them."""
    found = client.show("GET", "/api/users", part="users")
    print_table(["USER", "SCRAM"], ([escape(one["user"]), ", ".join(one["scram"]) or NOTHING] for one in found))


@command.command("jobs")
@asks_node
def jobs(client: NodeClient) -> None:
    """Show migrations and other jobs, with their progress."""
    found = client.show("GET", "/api/jobs", part="jobs")
    print_table(
        ["JOB", "KIND", "STATE", "DONE", "OF", "UNIT", "SECONDS-LEFT", "HEARD"],
        (
            [
                escape(one["name"]),
                escape(one["kind"]),
                one["state"],
                *(NOTHING if one[key] is None else f"{one[key]:.0f}" for key in ("done", "total")),
                escape(one["unit"]),
                _seconds(one),
                format_time(one["heard_ms"]),
            ]
            for one in found
        ),
    )


def _seconds(job: dict[str, Any]) -> str:
    left = job["seconds_left"]
    return NOTHING if left is None or job["state"] != "running" else f"{left:.0f}"


@command.command("history")
@history_options
def history(span: str, client: NodeClient) -> None:
    """Show the node's recent processor time, memory, and the traffic of each protocol."""
    print_history(client, "/api/history", span=span)
