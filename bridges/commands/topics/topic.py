"""``anabranch topic``: list, create, describe, clients, groups, history, record, alter, delete, skip."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import click

from bridges.commands.cli import EXIT_USAGE
from bridges.commands.common import (
    NOTHING,
    NodeClient,
    asks_node,
    confirm,
    escape,
    format_time,
    history_options,
    key_values,
    lag,
    partition_option,
    print_history,
    print_json,
    print_table,
    topic_path,
    yes_option,
)
from bridges.commands.topics.connection import clients


class _Topics(click.Group):
    """A group in which ``ls`` is ``list``, and ``rm`` is ``delete``."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, {"ls": "list", "rm": "delete"}.get(cmd_name, cmd_name))


@click.group("topic", cls=_Topics)
def command() -> None:
    """List, create, describe, alter and delete topics; show their clients; skip batches that cannot be read."""


command.add_command(clients)


@command.command("list")
@click.argument("pattern", required=False)
@asks_node
def list_(pattern: str | None, client: NodeClient) -> None:
    """List all topics, or those whose name matches PATTERN: shell wildcards, or a part of the name."""
    answer = client.call("GET", "/api/topics")
    topics = answer["topics"]
    if pattern is not None:
        wanted = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
        topics = [one for one in topics if fnmatchcase(one["name"], wanted)]
    for node_id in answer.get("unanswered", ()):
        click.echo(f"without the partitions of node {node_id}, which does not answer", err=True)
    if client.as_json:
        print_json(topics)
    else:
        print_table(
            ["TOPIC", "PARTITIONS", "RECORDS", "BYTES"],
            ([one["name"], one["partitions"], one["records"], one["bytes"]] for one in topics),
        )


@command.command("create")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--partitions", type=click.IntRange(1), help="Number of partitions (default: the node's default).")
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Topic configuration; the keys are Kafka's. May be repeated.",
)
@asks_node
def create(topics: tuple[str, ...], partitions: int | None, configs: tuple[str, ...], client: NodeClient) -> None:
    """Create topics."""
    body: dict[str, Any] = {"config": key_values(configs, "--config")}
    if partitions is not None:
        body["partitions"] = partitions
    for topic in topics:
        made = client.call("POST", "/api/topics", {"name": topic, **body})
        if client.as_json:
            print_json(made)
        else:
            click.echo(f"created {topic} with {len(made['partitions'])} partitions")


@command.command("describe")
@click.argument("topic")
@click.option("--all", "everything", is_flag=True, help="Show configuration with default values, too.")
@asks_node
def describe(topic: str, everything: bool, client: NodeClient) -> None:
    """Show a topic's partitions, offsets, names and configuration."""
    found = client.show("GET", topic_path(topic))
    click.echo(f"topic   {found['name']}")
    click.echo(f"id      {found['id']}")
    for protocol, name in sorted(found["names"].items()):
        click.echo(f"{protocol:<8}{name}")
    if found["importing"] is not None:
        click.echo(f"state   importing, by migration {found['importing']}: others may read it only")
    config = found["effective_config"] if everything else found["config"]
    for key, value in sorted(config.items()):
        click.echo(f"config  {key} = {value}")
    click.echo()
    print_table(
        ["PARTITION", "START", "END", "BYTES", "EPOCH", "STREAM"],
        (
            [one["partition"], one["start_offset"], one["end_offset"], one["bytes"], one["epoch"], one["stream_id"]]
            for one in found["partitions"]
        ),
    )
    for one in found["partitions"]:
        if one["compaction"] is not None:
            click.echo(f"compaction of partition {one['partition']}: {_compaction(one['compaction'])}")
    for one in found["partitions"]:
        for span in one["skipped"]:
            click.echo(f"skipped in partition {one['partition']}: offsets {span['first']} to {span['end'] - 1}")


def _compaction(view: Mapping[str, Any]) -> str:
    """Return the state of a partition's compaction, in a line."""
    told = f"{view['state']}, up to offset {view['clean_offset']}, {view['dirty_bytes']} bytes are new"
    if view["passed_ms"]:
        told += f", last pass {format_time(view['passed_ms'])}"
    return f"{told}: {view['why']}" if view["why"] else told


@command.command("groups")
@click.argument("topic")
@asks_node
def groups(topic: str, client: NodeClient) -> None:
    """Show the groups that read a topic, with their lag in it."""
    found = client.show("GET", topic_path(topic, "groups"), part="groups")
    print_table(
        ["GROUP", "PROTOCOL", "STATE", "MEMBERS", "PARTITIONS", "LAG", "SECONDS", "TREND/s"],
        (
            [
                escape(one["group"]),
                ",".join(one["fronts"]) or NOTHING,
                *(one[key] for key in ("state", "members", "partitions")),
                *lag(one),
            ]
            for one in found
        ),
    )


@command.command("history")
@click.argument("topic")
@history_options
def history(topic: str, span: str, client: NodeClient) -> None:
    """Show a topic's recent traffic in and out, by protocol, and the groups that fell behind."""
    print_history(client, topic_path(topic, "history"), span=span)


@command.command("record")
@click.argument("topic")
@click.argument("offset", type=click.IntRange(0))
@partition_option
@asks_node
def record(topic: str, offset: int, partition: int, client: NodeClient) -> None:
    """Show a record as it is stored, and as each protocol's readers get it."""
    path = topic_path(topic, "partitions", str(partition), "records", str(offset))
    found = client.show("GET", path)
    for side in ("stored", "kafka", "pravega", "ydb"):
        click.echo(side)
        for key, value in found[side].items():
            click.echo(f"  {key:<16} {escape(json.dumps(value, ensure_ascii=False))}")


@command.command("alter")
@click.argument("topic")
@click.option("--partitions", type=click.IntRange(1), help="New, larger number of partitions.")
@click.option(
    "--config", "configs", multiple=True, metavar="KEY=VALUE", help="Set a topic configuration. May be repeated."
)
@click.option(
    "--delete-config",
    "deleted",
    multiple=True,
    metavar="KEY",
    help="Reset a topic configuration to its default. May be repeated.",
)
@asks_node
def alter(
    topic: str, partitions: int | None, configs: tuple[str, ...], deleted: tuple[str, ...], client: NodeClient
) -> None:
    """Change a topic's configuration or give it more partitions."""
    changes: dict[str, str | None] = dict(key_values(configs, "--config"))
    changes.update(dict.fromkeys(deleted))
    if not changes and partitions is None:
        client.fail("nothing to change: give --partitions, --config or --delete-config", EXIT_USAGE)
    body = {"partitions": partitions, "config": changes}
    client.show("PATCH", topic_path(topic), body)
    click.echo(f"altered {topic}")


@command.command("delete")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@yes_option
@asks_node
def delete(topics: tuple[str, ...], yes: bool, client: NodeClient) -> None:
    """Delete topics and their data, for good."""
    what = f"topic {topics[0]} and all its" if len(topics) == 1 else f"the topics {', '.join(topics)} and all their"
    confirm(f"Delete {what} records?", yes=yes, as_json=client.as_json)
    for topic in topics:
        done = client.call("DELETE", topic_path(topic))
        if client.as_json:
            print_json(done)
        else:
            click.echo(f"deleted {topic}")


@command.command("skip")
@click.argument("topic")
@click.argument("offset", type=click.IntRange(0))
@partition_option
@click.option("--force", is_flag=True, help="Skip the batch even if it can be read.")
@yes_option
@asks_node
def skip(topic: str, offset: int, partition: int, force: bool, yes: bool, client: NodeClient) -> None:
    """Make readers skip the unreadable batch at OFFSET, permanently."""
    confirm(f"Give up the batch at offset {offset} of {topic}-{partition}?", yes=yes, as_json=client.as_json)
    path = topic_path(topic, "partitions", str(partition), "skip")
    done = client.show("POST", path, {"offset": offset, "force": force})
    click.echo(f"skipped offsets {done['first']} to {done['end'] - 1} of {topic}-{partition}: {done['reason']}")
