"""``anabranch transaction``: find-hanging, abort, commit."""

from __future__ import annotations

import sys

import click

from bridges.commands.common import NodeClient, json_option, node_option, print_json, print_table, topic_path


@click.group("transaction")
def command() -> None:
    """Find transactions that nobody ends any more, and end them."""


@command.command("find-hanging")
@click.argument("topic")
@click.option("--partition", type=click.IntRange(0), default=0, show_default=True, help="Which partition.")
@node_option
@json_option
def find_hanging(topic: str, partition: int, node: str, as_json: bool) -> None:
    """Show a partition's open transactions: readers of committed data wait for the first."""
    path = topic_path(topic, "partitions", str(partition), "transactions")
    found = NodeClient(node, as_json=as_json).call("GET", path)
    if as_json:
        print_json(found)
        return
    print_table(
        ["PRODUCER", "FIRST OFFSET"], ([one["producer_id"], one["first_offset"]] for one in found["transactions"])
    )
    click.echo(f"readers of committed data get as far as {found['last_stable_offset']}, of {found['end_offset']}")


def _ends(name: str, outcome: str, *, commit: bool) -> None:
    """Make the command ``name``, which ends a transaction so."""

    @command.command(name, help=f"End the open transaction of PRODUCER (an id){outcome}.")
    @click.argument("topic")
    @click.argument("producer", type=click.IntRange(0))
    @click.option("--partition", type=click.IntRange(0), default=0, show_default=True, help="Which partition.")
    @click.option("--yes", is_flag=True, help="Do not ask.")
    @node_option
    @json_option
    def end(topic: str, producer: int, partition: int, yes: bool, node: str, as_json: bool) -> None:
        if not yes and sys.stdin.isatty():
            what = "Show" if commit else "Hide"
            question = (
                f"{what} what producer {producer} wrote to {topic}-{partition} in its open transaction, for good?"
            )
            click.confirm(question, abort=True, err=True)
        path = topic_path(topic, "partitions", str(partition), "transactions", str(producer), "end")
        done = NodeClient(node, as_json=as_json).call("POST", path, {"commit": commit})
        if as_json:
            print_json(done)
        else:
            how = "committed" if commit else "aborted"
            click.echo(f"{how}; readers of committed data get as far as {done['last_stable_offset']} now")


_ends("abort", ": what it wrote is never shown", commit=False)
_ends("commit", " as committed, where that is known to be its outcome", commit=True)
