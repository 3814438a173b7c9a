"""``anabranch transaction``: list, describe, find-hanging, abort, commit, forget."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click
from click.core import ParameterSource

from bridges.commands.client import NodeClient, asks_node, topic_argument, topic_path
from bridges.commands.common import NOTHING, confirm, escape, partition_option, print_facts, print_table, yes_option
from bridges.commands.failure import EXIT_USAGE, fail
from bridges.node.settings.quantities import parse_duration


@click.group("transaction")
def command() -> None:
    """List the transactions of producers, and end those without a coordinator."""


@command.command("list")
@click.option("--open", "only_open", is_flag=True, help="List only ids with an open transaction.")
@asks_node
def list_(only_open: bool, client: NodeClient) -> None:
    """List transactional ids."""
    path = "/api/transactions?open=true" if only_open else "/api/transactions"
    found = client.show("GET", path, part="transactions")
    heads = ["TRANSACTIONAL-ID", "PROTOCOL", "STATE", "PRODUCER", "EPOCH", "OPEN-FOR", "TIMEOUT"]
    keys = ("front", "state", "producer_id", "epoch")
    print_table(
        heads,
        (
            [escape(one["transactional_id"]), *(one[key] for key in keys), _open_for(one), _seconds(one["timeout_ms"])]
            for one in found
        ),
    )


@command.command("describe")
@click.argument("transactional_id", metavar="ID")
@asks_node
def describe(transactional_id: str, client: NodeClient) -> None:
    """Show a transactional id, with the partitions and groups of its open transaction."""
    found = client.show("GET", _path(transactional_id))
    print_facts(
        [
            ("transactional id", escape(found["transactional_id"])),
            ("protocol", found["front"]),
            ("state", found["state"]),
            ("producer", f"{found['producer_id']}, epoch {found['epoch']}"),
            ("open for", _open_for(found)),
            ("timeout", _seconds(found["timeout_ms"])),
            ("groups", ", ".join(map(escape, found["groups"])) or NOTHING),
        ]
    )
    if found["partitions"]:
        click.echo()
        print_table(["TOPIC", "PARTITION"], ([escape(one["topic"]), one["partition"]] for one in found["partitions"]))


def _path(transactional_id: str) -> str:
    return f"/api/transactions/{quote(transactional_id, safe='')}"


def _open_for(one: dict[str, Any]) -> str:
    return NOTHING if one["open_ms"] is None else _seconds(one["open_ms"])


def _seconds(ms: int) -> str:
    return f"{ms / 1000:g}s"


@command.command("find-hanging")
@click.argument("topic", required=False)
@partition_option
@asks_node
def find_hanging(topic: str | None, partition: int, client: NodeClient) -> None:
    """Show a partition's open transactions. Readers of committed data wait for the first one. Without TOPIC: show all
    open transactions of the node that have no coordinator.
    """
    if topic is None:
        _find_all(client)
        return
    path = topic_path(topic, "partitions", str(partition), "transactions")
    found = client.show("GET", path)
    print_table(
        ["PRODUCER", "FIRST-OFFSET", "TRANSACTIONAL-ID", "STATE", "OPEN-FOR"],
        ([one["producer_id"], one["first_offset"], *_cells(one["transaction"])] for one in found["transactions"]),
    )
    click.echo(f"readers of committed data get as far as {found['last_stable_offset']}, of {found['end_offset']}")


def _find_all(client: NodeClient) -> None:
    found = client.show("GET", "/api/open-transactions?hanging=true", part="transactions")
    keys = ("partition", "producer_id", "first_offset", "held")
    heads = ["TOPIC", "PARTITION", "PRODUCER", "FIRST-OFFSET", "HELD-RECORDS"]
    print_table(heads, ([escape(one["topic"]), *(one[key] for key in keys)] for one in found))


def _cells(transaction: dict[str, Any] | None) -> list[str]:
    """Return the cells of a transaction. A producer unknown to all fronts has no coordinator, or no
    transactional id.
    """
    if transaction is None:
        return [NOTHING] * 3
    return [escape(transaction["transactional_id"]), transaction["state"], _open_for(transaction)]


@command.command("abort")
@click.argument("name", metavar="ID | TOPIC")
@click.argument("producer", type=click.IntRange(0), required=False)
@partition_option
@yes_option
@asks_node
def abort(name: str, producer: int | None, partition: int, yes: bool, client: NodeClient) -> None:
    """Abort the open transaction of a transactional id in all partitions and fence its producer. Readers of committed
    data never get its records. With TOPIC and PRODUCER (an id): abort a transaction without a coordinator in one
    partition.
    """
    if producer is not None:
        _end(client, name, producer, partition, yes, commit=False)
        return
    if click.get_current_context().get_parameter_source("partition") is not ParameterSource.DEFAULT:
        fail("--partition is for the transaction of a TOPIC and PRODUCER", EXIT_USAGE)
    confirm(f"Hide what {escape(name)} wrote in its open transaction, for good?", yes=yes)
    done = client.show("POST", f"{_path(name)}/abort")
    if done["open_ms"] is None:
        click.echo(f"aborted; the state of {escape(name)} is {done['state']}")
    else:
        click.echo(f"being aborted; the state of {escape(name)} is {done['state']}")


@command.command("commit")
@topic_argument
@click.argument("producer", type=click.IntRange(0))
@partition_option
@yes_option
@asks_node
def commit(topic: str, producer: int, partition: int, yes: bool, client: NodeClient) -> None:
    """Commit the open transaction of PRODUCER (an id). Use it only if the transaction is known to be committed."""
    _end(client, topic, producer, partition, yes, commit=True)


@command.command("forget")
@click.argument("name", metavar="ID")
@click.option("--prefix", is_flag=True, help="Forget all ids that begin with ID.")
@click.option(
    "--idle-for", default="0s", show_default=True, help="Forget only ids unused for this time, for example 1d."
)
@yes_option
@asks_node
def forget(name: str, prefix: bool, idle_for: str, yes: bool, client: NodeClient) -> None:
    """Forget unused transactional ids. Ids with an open transaction stay. A running producer of a forgotten id must
    start again.
    """
    try:
        idle_ms = parse_duration(idle_for)
    except ValueError as error:
        fail(f"--idle-for {error}", EXIT_USAGE)
    which = f"all ids that begin with {escape(name)}" if prefix else escape(name)
    confirm(f"Forget {which}, where nothing is open?", yes=yes)
    asked = {"name": name, "prefix": prefix, "idle_ms": idle_ms}
    done = client.show("POST", "/api/transactions/forget", asked)
    click.echo(f"{done['forgotten']} forgotten")


def _end(client: NodeClient, topic: str, producer: int, partition: int, yes: bool, *, commit: bool) -> None:
    what = "Show" if commit else "Hide"
    question = f"{what} what producer {producer} wrote to {topic}-{partition} in its open transaction, for good?"
    confirm(question, yes=yes)
    path = topic_path(topic, "partitions", str(partition), "transactions", str(producer), "end")
    done = client.show("POST", path, {"commit": commit})
    how = "committed" if commit else "aborted"
    click.echo(f"{how}; readers of committed data get as far as {done['last_stable_offset']} now")
