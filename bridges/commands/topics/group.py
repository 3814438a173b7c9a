"""``anabranch group``: consumer groups, their members and their lag."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import click

from bridges.catalog.views.groups import CONSUMERS
from bridges.commands.client import NodeClient, asks_node, complete_topics, group_argument
from bridges.commands.common import (
    NOTHING,
    confirm,
    escape,
    join_neighbours,
    lag,
    parse_time,
    print_facts,
    print_table,
    space_option,
    yes_option,
)
from bridges.commands.failure import EXIT_USAGE, fail
from bridges.commands.history import history_options, print_history


class _Groups(click.Group):
    """A group in which the words ``list`` and ``describe`` may be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        place = self._first_word(args)
        if place is None:
            if not set(args) & set(ctx.help_option_names):
                args = ["list", *args]
        elif args[place] in self.commands:
            args = [args[place], *args[:place], *args[place + 1 :]]
        else:
            args = ["describe", *args]
        return super().parse_args(ctx, args)

    def _first_word(self, args: list[str]) -> int | None:
        """Return the index of the first argument that is neither an option nor an option's value."""
        valued = {
            name
            for command in self.commands.values()
            for option in command.params
            if isinstance(option, click.Option) and not option.is_flag
            for name in option.opts
        }
        skip = False
        for place, argument in enumerate(args):
            if skip:
                skip = False
            elif argument == "--":
                return place + 1 if place + 1 < len(args) else None
            elif argument in valued:
                skip = True
            elif not argument.startswith("-"):
                return place
        return None


@click.group("group", cls=_Groups, subcommand_metavar="[[list] | [describe] GROUP]")
def command() -> None:
    """List consumer groups, or show the members of one and its lag.

    A group that is itself called "list", "describe", "history", "reset" or "delete" is shown with "describe".
    """


@command.command("list")
@asks_node
def list_(client: NodeClient) -> None:
    """List all groups: those with members and those with committed positions."""
    answer = client.call("GET", "/api/groups")
    groups = answer["groups"]
    for node_id in answer.get("unanswered", ()):
        click.echo(f"without the groups of node {node_id}, which does not answer", err=True)
    client.end_with_json(groups)
    heads = ["GROUP", "PROTOCOL", "STATE", "MEMBERS", "TOPICS", "PARTITIONS", "LAG", "SECONDS", "TREND/s"]
    with_space = any(group["space"] != CONSUMERS for group in groups)
    print_table(
        ["SPACE", *heads] if with_space else heads,
        (
            [
                *([group["space"]] if with_space else ()),
                escape(group["group"]),
                _fronts(group),
                group["state"],
                group["members"],
                len(group["topics"]),
                group["partitions"],
                *lag(group),
            ]
            for group in groups
        ),
    )


@command.command("describe")
@group_argument
@space_option
@asks_node
def describe(group: str, space: str, client: NodeClient) -> None:
    """Show the members of a group, and how far it has read each partition."""
    path = f"/api/groups/{quote(group, safe='')}"
    if space != CONSUMERS:
        path += f"?space={quote(space, safe='')}"
    found = client.show("GET", path)
    members = found["members"]
    print_facts(_facts(found))
    if found["positions"]:
        click.echo()
        _print_positions(found)
    if members:
        click.echo()
        _print_members(members)


@command.command("history")
@group_argument
@space_option
@history_options
def history(group: str, space: str, span: str, client: NodeClient) -> None:
    """Show the recent lag of a group, in records and seconds, and of its partitions."""
    print_history(client, f"/api/groups/{quote(group, safe='')}/history", span=span, space=space)


@command.command("reset")
@group_argument
@click.option(
    "--topic",
    "topics",
    multiple=True,
    shell_complete=complete_topics,
    help="Topic whose positions are set; may be repeated.",
)
@click.option("--all-topics", is_flag=True, help="Set the positions in all topics that the group has positions in.")
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    type=click.IntRange(0),
    help="Partition to set; may be repeated. Without it: all partitions.",
)
@click.option(
    "--to",
    "--to-datetime",
    "to",
    required=True,
    metavar="PLACE",
    help="New position: 'earliest', 'latest', an offset, or a time such as 2026-01-31T12:00:00Z (default zone: UTC).",
)
@space_option
@click.option("--dry-run", is_flag=True, help="Show the new positions, and change nothing.")
@asks_node
def reset(
    group: str,
    topics: tuple[str, ...],
    all_topics: bool,
    partitions: tuple[int, ...],
    to: str,
    space: str,
    dry_run: bool,
    client: NodeClient,
) -> None:
    """Set the positions of a group without members."""
    if bool(topics) == all_topics:
        fail("say which topics: --topic NAME, or --all-topics", EXIT_USAGE)
    body: dict[str, object] = {"topics": list(topics) or None, "space": space, "dry_run": dry_run}
    if partitions:
        body["partitions"] = list(partitions)
    if to in ("earliest", "latest"):
        body["to"] = to
    elif to.isascii() and to.isdigit():
        body |= {"to": "offset", "offset": int(to)}
    else:
        moment = parse_time(to)
        if moment is None:
            fail(f"--to {to!r} is neither 'earliest' nor 'latest', an offset or a time", EXIT_USAGE)
        body |= {"to": "time", "time_ms": moment}
    found = client.show("POST", f"/api/groups/{quote(group, safe='')}/reset", body)
    print_table(
        ["TOPIC", "PARTITION", "BEFORE", "THEN" if dry_run else "NOW", "CHANGE", "LAG"],
        (
            [
                escape(one["topic"]),
                one["partition"],
                *(NOTHING if one[key] is None else one[key] for key in ("before", "offset", "change", "lag")),
            ]
            for one in found["positions"]
        ),
    )
    if (more := found["partitions"] - len(found["positions"])) > 0:
        click.echo(f"and {more} partitions more", err=True)
    if dry_run:
        click.echo("nothing was changed (--dry-run)")


@command.command("delete")
@group_argument
@space_option
@yes_option
@asks_node
def delete(group: str, space: str, yes: bool, client: NodeClient) -> None:
    """Delete a group without members: its positions, and what each protocol keeps of it."""
    confirm(f"Delete group {group} and its positions?", yes=yes)
    client.show("DELETE", f"/api/groups/{quote(group, safe='')}?{urlencode({'space': space})}")
    click.echo(f"deleted {escape(group)}")


def _facts(found: dict[str, Any]) -> Iterator[tuple[str, object]]:
    yield "group", escape(found["group"])
    yield "protocol", _fronts(found)
    yield "state", found["state"]
    for name, key in (
        ("kind", "kind"),
        ("type", "protocol_type"),
        ("strategy", "protocol"),
        ("dead letters", "dead_letter_topic"),
    ):
        if found[key]:
            yield name, escape(found[key])
    if found["generation"] is not None:
        yield "generation", found["generation"]
    yield "members", len(found["members"])
    yield "lag", lag(found)[0]


def _print_positions(found: dict[str, Any]) -> None:
    members = {member["member_id"]: member for member in found["members"]}
    heads = [
        "TOPIC",
        "PARTITION",
        "CURRENT-OFFSET",
        "LOG-END-OFFSET",
        "LAG",
        "SECONDS",
        "CONSUMER-ID",
        "HOST",
        "CLIENT-ID",
    ]
    if any("acquired" in one for one in found["positions"]):
        _print_shared(found["positions"])
        return
    with_metadata = any(one["metadata"] for one in found["positions"])
    rows = []
    for one in found["positions"]:
        member = members.get(one["member_id"], {})
        numbers = [NOTHING if one[key] is None else one[key] for key in ("offset", "end_offset", "lag")]
        reader = [escape(member.get(key)) for key in ("member_id", "host", "client_id")]
        row = [escape(one["topic"]), one["partition"], *numbers, lag({**one, "unknown_lags": 0})[1], *reader]
        rows.append([*row, escape(one["metadata"])] if with_metadata else row)
    print_table([*heads, "METADATA"] if with_metadata else heads, rows)


def _print_shared(positions: list[dict[str, Any]]) -> None:
    """Print the partitions of a share group; DELIVERIES has the unfinished records by the number of deliveries."""
    rows = []
    for one in positions:
        numbers = [NOTHING if one[key] is None else one[key] for key in ("offset", "end_offset", "lag")]
        seconds = lag({**one, "unknown_lags": 0})[1]
        deliveries = ", ".join(f"{records} x {count}" for count, records in one["deliveries"].items())
        row = [escape(one["topic"]), one["partition"], *numbers, seconds, one["acquired"], deliveries or NOTHING]
        rows.append(row)
    heads = ["START-OFFSET", "LOG-END-OFFSET", "LAG", "SECONDS", "ACQUIRED", "RECORDS x DELIVERIES"]
    print_table(["TOPIC", "PARTITION", *heads], rows)


def _print_members(members: list[dict[str, Any]]) -> None:
    columns = [("CONSUMER-ID", "member_id")]
    columns += [("GROUP-INSTANCE-ID", "instance_id")] if any(one["instance_id"] is not None for one in members) else []
    columns += [("HOST", "host"), ("CLIENT-ID", "client_id")]
    # Columns that not every protocol or client has.
    columns += [
        (head, key) for head, key in (("SOFTWARE", "software"), ("USER", "user")) if any(one[key] for one in members)
    ]
    rows = []
    for member in members:
        partitions = member["partitions"]
        row = [escape(member[key]) for _, key in columns]
        if partitions is None:
            row += [NOTHING, NOTHING]
        else:
            assigned = (
                f"{escape(topic)}({','.join(join_neighbours(indexes))})" for topic, indexes in partitions.items()
            )
            row += [str(sum(map(len, partitions.values()))), ", ".join(assigned) or NOTHING]
        rows.append(row)
    print_table([*(head for head, _ in columns), "#PARTITIONS", "ASSIGNMENT"], rows)


def _fronts(group: dict[str, Any]) -> str:
    fronts = ",".join(group["fronts"]) or NOTHING
    return f"{fronts}/share" if group["kind"] == "share" else fronts
