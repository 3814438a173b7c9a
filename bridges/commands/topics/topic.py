"""``anabranch topic``: all that is done with topics, besides their records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import click

from bridges.commands.client import NodeClient, asks_node, topic_argument, topic_path, topics_argument
from bridges.commands.common import (
    NOTHING,
    confirm,
    escape,
    format_time,
    key_values,
    lag,
    partition_option,
    print_facts,
    print_table,
    yes_option,
)
from bridges.commands.failure import EXIT_USAGE, fail
from bridges.commands.history import history_options, print_history
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
    client.end_with_json(topics)
    print_table(
        ["TOPIC", "PARTITIONS", "RECORDS", "BYTES"],
        ([one["name"], one["partitions"], one["records"], one["bytes"]] for one in topics),
    )


@command.command("create")
@topics_argument
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
    made = []
    for topic in topics:
        made.append(client.call("POST", "/api/topics", {"name": topic, **body}))
        if not client.as_json:
            click.echo(f"created {topic} with {len(made[-1]['partitions'])} partitions")
    client.end_with_json(made)


@command.command("describe")
@topic_argument
@click.option("--all", "everything", is_flag=True, help="Show configuration with default values, too.")
@asks_node
def describe(topic: str, everything: bool, client: NodeClient) -> None:
    """Show a topic's partitions, offsets, names and configuration."""
    found = client.show("GET", topic_path(topic))
    print_facts(_facts(found, "effective_config" if everything else "config"))
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


def _facts(found: Mapping[str, Any], config: str) -> Iterator[tuple[str, str]]:
    yield "topic", found["name"]
    yield "id", found["id"]
    yield from sorted(found["names"].items())
    if found["importing"] is not None:
        yield "state", f"importing, by migration {found['importing']}: others may read it only"
    for key, value in sorted(found[config].items()):
        yield "config", f"{key} = {value}"


def _compaction(view: Mapping[str, Any]) -> str:
    """Return the state of a partition's compaction, in a line."""
    told = f"{view['state']}, up to offset {view['clean_offset']}, {view['dirty_bytes']} bytes are new"
    if view["passed_ms"]:
        told += f", last pass {format_time(view['passed_ms'])}"
    return f"{told}: {view['why']}" if view["why"] else told


@command.command("groups")
@topic_argument
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
@topic_argument
@history_options
def history(topic: str, span: str, client: NodeClient) -> None:
    """Show a topic's recent traffic in and out, by protocol, and the groups that fell behind."""
    print_history(client, topic_path(topic, "history"), span=span)


@command.command("record")
@topic_argument
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
@topic_argument
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
        fail("nothing to change: give --partitions, --config or --delete-config", EXIT_USAGE)
    body = {"partitions": partitions, "config": changes}
    client.show("PATCH", topic_path(topic), body)
    click.echo(f"altered {topic}")


@command.command("delete")
@topics_argument
@yes_option
@asks_node
def delete(topics: tuple[str, ...], yes: bool, client: NodeClient) -> None:
    """Delete topics and their data, for good."""
    what = f"topic {topics[0]} and all its" if len(topics) == 1 else f"the topics {', '.join(topics)} and all their"
    confirm(f"Delete {what} records?", yes=yes)
    deleted = []
    for topic in topics:
        deleted.append(client.call("DELETE", topic_path(topic)))
        if not client.as_json:
            click.echo(f"deleted {topic}")
    client.end_with_json(deleted)


@command.command("empty")
@topics_argument
@yes_option
@asks_node
def empty(topics: tuple[str, ...], yes: bool, client: NodeClient) -> None:
    """Delete all records that topics have now, for good. The topics stay, and go on at their offsets."""
    confirm(f"Delete all records of {', '.join(topics)}?", yes=yes)
    emptied = []
    for topic in topics:
        emptied.append(client.call("DELETE", topic_path(topic, "records")))
        if not client.as_json:
            click.echo(f"emptied {topic} of {emptied[-1]['deleted']} offsets")
    client.end_with_json(emptied)


@command.command("configs")
@asks_node
def configs(client: NodeClient) -> None:
    """Show the keys of topics' configuration, their defaults, and what each means here."""
    found = client.show("GET", "/api/topic-configs", part="configs")
    print_table(
        ["KEY", "DEFAULT", "MEANING"],
        (
            [one["key"], one["default"], one["meaning"] + ("" if one["effect"] else " (Kept, without effect here.)")]
            for one in found
        ),
    )


@command.command("skip")
@topic_argument
@click.argument("offset", type=click.IntRange(0))
@partition_option
@click.option("--force", is_flag=True, help="Skip the batch even if it can be read.")
@yes_option
@asks_node
def skip(topic: str, offset: int, partition: int, force: bool, yes: bool, client: NodeClient) -> None:
    """Make readers skip the unreadable batch at OFFSET, permanently."""
    confirm(f"Give up the batch at offset {offset} of {topic}-{partition}?", yes=yes)
    path = topic_path(topic, "partitions", str(partition), "skip")
    done = client.show("POST", path, {"offset": offset, "force": force})
    click.echo(f"skipped offsets {done['first']} to {done['end'] - 1} of {topic}-{partition}: {done['reason']}")
