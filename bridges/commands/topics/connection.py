"""``anabranch connection``: list the connections of all nodes, end one; and the table of a topic's clients."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import click

from bridges.commands.client import NodeClient, asks_node, complete_topics, topic_argument, topic_path
from bridges.commands.common import NOTHING, confirm, escape, format_time, join_neighbours, print_table, yes_option


@click.group("connection")
def command() -> None:
    """List clients' connections at all nodes, and end one."""


@command.command("list")
@click.argument("search", required=False, default="")
@click.option(
    "--topic", default="", shell_complete=complete_topics, help="Only those that write to this topic or read it."
)
@click.option("--user", default="", help="Only those of this user.")
@click.option("--protocol", default="", help="Only those of this protocol: kafka, pravega, ydb or http.")
@click.option("--address", default="", help="Only those whose address and port contain this text.")
@asks_node
def list_(search: str, client: NodeClient, **query: str) -> None:
    """List open connections and streams, the busiest first; with SEARCH, those with this text in client id, software,
    user or address.
    """
    asked = {key: value for key, value in {"search": search, **query}.items() if value}
    found = _ask(client, f"/api/connections?{urlencode(asked)}", "connections")
    print_table(
        ["ID", "PROTOCOL", "CLIENT", "SOFTWARE", "USER", "ADDRESS", "IN-B/s", "OUT-B/s", "WRITES", "READS"],
        (
            [
                one["id"],
                *_names(one),
                f"{one['bytes_in_per_s']:.0f}",
                f"{one['bytes_out_per_s']:.0f}",
                *(",".join(map(escape, one[way])) or NOTHING for way in ("writes", "reads")),
            ]
            for one in found
        ),
    )


@command.command("end")
@click.argument("connection", metavar="ID")
@yes_option
@asks_node
def end(connection: str, yes: bool, client: NodeClient) -> None:
    """End one connection, once: its client may connect again at once. To keep a client out, take away its rights or
    its password.
    """
    confirm(f"End connection {escape(connection)}?", yes=yes)
    client.show("DELETE", f"/api/connections/{quote(connection, safe='')}")
    click.echo(f"ended connection {escape(connection)}")


@click.command("clients")
@topic_argument
@asks_node
def clients(topic: str, client: NodeClient) -> None:
    """Show who writes to a topic and who reads it, at all nodes, with partitions and rates. A client without an ID has
    left in the last ten minutes.
    """
    found = _ask(client, topic_path(topic, "clients"), "clients")
    heads = ["DIRECTION", "PROTOCOL", "CLIENT", "SOFTWARE", "USER", "ADDRESS", "PARTITIONS", "RECORDS/s", "BYTES/s"]
    print_table(
        [*heads, "LAST-SEEN", "ID"],
        (
            [
                one["direction"],
                *_names(one),
                _partitions(one),
                f"{one['records_per_s']:g}",
                f"{one['bytes_per_s']:.0f}",
                format_time(one["last_ms"]),
                one["id"] or NOTHING,
            ]
            for one in found
        ),
    )


def _names(one: dict[str, Any]) -> list[str]:
    return [one["protocol"], *(escape(one[key]) for key in ("client", "software", "user", "address"))]


def _partitions(one: dict[str, Any]) -> str:
    """Return partitions as ranges; the node names the first hundred."""
    more = one["partition_count"] - len(one["partitions"])
    return ",".join([*join_neighbours(one["partitions"]), *([f"+{more}"] if more > 0 else [])]) or NOTHING


def _ask(client: NodeClient, path: str, part: str) -> list[dict[str, Any]]:
    """Return the clients of an answer, after saying on standard error which are missing in it."""
    answer = client.call("GET", path)
    if answer["more"]:
        click.echo(f"without {answer['more']} more, which the nodes do not remember or do not list", err=True)
    for node_id in answer.get("unanswered", ()):
        click.echo(f"without the clients of node {node_id}, which does not answer", err=True)
    client.end_with_json(answer[part])
    found: list[dict[str, Any]] = answer[part]
    return found
