"""``anabranch topic``: list, create, describe, groups, history, record, alter, delete, skip."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click

from bridges.commands.cli import EXIT_USAGE
from bridges.commands.common import (
    NOTHING,
    NodeClient,
    confirm,
    fail,
    history_options,
    json_option,
    key_values,
    lag,
    node_option,
    print_history,
    print_json,
    print_table,
    shown,
    topic_path,
    yes_option,
)


@click.group("topic")
def command() -> None:
    """List, create, describe, alter and delete topics; skip batches that cannot be read."""


@command.command("list")
@node_option
@json_option
def list_(node: str, as_json: bool) -> None:
    """List all topics."""
    answer = NodeClient(node, as_json=as_json).call("GET", "/api/topics")
    topics = answer["topics"]
    for node_id in answer.get("unanswered", ()):
        click.echo(f"without the partitions of node {node_id}, which does not answer", err=True)
    if as_json:
        print_json(topics)
    else:
        print_table(
            ["TOPIC", "PARTITIONS", "RECORDS", "BYTES"],
            ([one["name"], one["partitions"], one["records"], one["bytes"]] for one in topics),
        )


@command.command("create")
@click.argument("topic")
@click.option("--partitions", type=click.IntRange(1), help="Number of partitions (default: the node's default).")
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Topic configuration; the keys are Kafka's. May be repeated.",
)
@node_option
@json_option
def create(topic: str, partitions: int | None, configs: tuple[str, ...], node: str, as_json: bool) -> None:
    """Create a topic."""
    body: dict[str, Any] = {"name": topic, "config": key_values(configs, "--config")}
    if partitions is not None:
        body["partitions"] = partitions
    made = NodeClient(node, as_json=as_json).call("POST", "/api/topics", body)
    if as_json:
        print_json(made)
    else:
        click.echo(f"created {topic} with {len(made['partitions'])} partitions")


@command.command("describe")
@click.argument("topic")
@click.option("--all", "everything", is_flag=True, help="Show configuration with default values, too.")
@node_option
@json_option
def describe(topic: str, everything: bool, node: str, as_json: bool) -> None:
    """Show a topic's partitions, offsets, names and configuration."""
    found = NodeClient(node, as_json=as_json).call("GET", topic_path(topic))
    if as_json:
        print_json(found)
        return
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
        passed = datetime.fromtimestamp(view["passed_ms"] / 1000, UTC)
        told += f", last pass {passed.isoformat(timespec='seconds')}"
    return f"{told}: {view['why']}" if view["why"] else told


@command.command("groups")
@click.argument("topic")
@node_option
@json_option
def groups(topic: str, node: str, as_json: bool) -> None:
    """Show the groups that read a topic, with their lag in it."""
    found = NodeClient(node, as_json=as_json).call("GET", topic_path(topic, "groups"))["groups"]
    if as_json:
        print_json(found)
        return
    print_table(
        ["GROUP", "PROTOCOL", "STATE", "MEMBERS", "PARTITIONS", "LAG", "SECONDS", "TREND/s"],
        (
            [
                shown(one["group"]),
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
def history(topic: str, span: str, node: str, as_json: bool) -> None:
    """Show a topic's recent traffic in and out, by protocol, and the groups that fell behind."""
    print_history(node, topic_path(topic, "history"), as_json=as_json, span=span)


@command.command("record")
@click.argument("topic")
@click.argument("offset", type=click.IntRange(0))
@click.option("--partition", type=click.IntRange(0), default=0, show_default=True, help="Partition of TOPIC.")
@node_option
@json_option
def record(topic: str, offset: int, partition: int, node: str, as_json: bool) -> None:
    """Show a record as it is stored, and as each protocol's readers get it."""
    path = topic_path(topic, "partitions", str(partition), "records", str(offset))
    found = NodeClient(node, as_json=as_json).call("GET", path)
    if as_json:
        print_json(found)
        return
    for side in ("stored", "kafka", "pravega", "ydb"):
        click.echo(side)
        for key, value in found[side].items():
            click.echo(f"  {key:<16} {shown(json.dumps(value, ensure_ascii=False))}")


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
@node_option
@json_option
def alter(
    topic: str, partitions: int | None, configs: tuple[str, ...], deleted: tuple[str, ...], node: str, as_json: bool
) -> None:
    """Change a topic's configuration or give it more partitions."""
    changes: dict[str, str | None] = dict(key_values(configs, "--config"))
    changes.update(dict.fromkeys(deleted))
    if not changes and partitions is None:
        fail("nothing to change: give --partitions, --config or --delete-config", EXIT_USAGE, as_json=as_json)
    body = {"partitions": partitions, "config": changes}
    changed = NodeClient(node, as_json=as_json).call("PATCH", topic_path(topic), body)
    if as_json:
        print_json(changed)
    else:
        click.echo(f"altered {topic}")


@command.command("delete")
@click.argument("topic")
@yes_option
@node_option
@json_option
def delete(topic: str, yes: bool, node: str, as_json: bool) -> None:
    """Delete a topic and its data, for good."""
    confirm(f"Delete topic {topic} and all its records?", yes=yes, as_json=as_json)
    answer = NodeClient(node, as_json=as_json).call("DELETE", topic_path(topic))
    if as_json:
        print_json(answer)
    else:
        click.echo(f"deleted {topic}")


@command.command("skip")
@click.argument("topic")
@click.argument("offset", type=click.IntRange(0))
@click.option("--partition", type=click.IntRange(0), default=0, show_default=True, help="Partition of TOPIC.")
@click.option("--force", is_flag=True, help="Skip the batch even if it can be read.")
@yes_option
@node_option
@json_option
def skip(topic: str, offset: int, partition: int, force: bool, yes: bool, node: str, as_json: bool) -> None:
    """Make readers skip the unreadable batch at OFFSET, permanently."""
    confirm(f"Give up the batch at offset {offset} of {topic}-{partition}?", yes=yes, as_json=as_json)
    path = topic_path(topic, "partitions", str(partition), "skip")
    done = NodeClient(node, as_json=as_json).call("POST", path, {"offset": offset, "force": force})
    if as_json:
        print_json(done)
    else:
        click.echo(f"skipped offsets {done['first']} to {done['end'] - 1} of {topic}-{partition}: {done['reason']}")
