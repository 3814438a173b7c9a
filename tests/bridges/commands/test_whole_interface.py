"""All of the JSON interface is on the command line: a command sends each of its requests, and each command is tried."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner

from bridges.catalog.progress import Committed
from bridges.commands.cli import main
from bridges.console import FRONT
from bridges.console.api import ROUTES
from bridges.node.assembly import Node
from tests.bridges.console.groups.test_console_groups import Directory, GroupFront
from tests.bridges.node.test_node import append, settings_of

COMMANDS = """
topic create words --partitions 2
produce words FILE --records
topic list
topic describe words
topic alter words --config retention.ms=1000000
topic configs
topic groups words
topic clients words
topic history words
topic record words 0
tail words --limit 1
consume words --group readers
bench --seconds 0.1 --size 10
bench words --seconds 0.1 --size 10 --connections 1
status
group list
group describe readers
group history readers --span day
group reset readers --all-topics --to-datetime 2001-01-01
group reset readers --topic words --to latest
group delete readers --yes
transaction list
transaction describe none: 1
transaction abort none --yes: 1
transaction find-hanging
transaction find-hanging words
transaction commit words 7 --yes: 1
transaction forget none --yes
acl add --resource topic --name words --principal User:a --operation read
acl list
acl remove --principal User:a --yes
quota set --user a producer_byte_rate=1000
quota list
quota remove --user a
cluster status: 1
cluster drain 0: 1
cluster undrain 0: 1
cluster move 0 --slot 1: 1
cluster unpin --all: 1
connection list
connection end 0-999 --yes: 1
node status
node health
node promises
node users
node whoami
node jobs
node history
api GET /api/openapi.json
api GET /api/problems
api GET /api/connect
top --once --interval 0.2
topic skip words 0 --force --yes
topic empty words --yes
topic delete words --yes
"""
"""Commands, with the code that they end with where that is none of success."""
LINES = ("tail", "consume")
"""Commands that print a line of JSON for each record, as records come."""
LISTS = ("list", "groups", "clients", "users", "jobs", "configs", "create", "empty", "add", "remove")
"""Words of commands about several things: their JSON is a list."""


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Commands that ask a node."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from leaves(found, (*path, name))
    elif any("--context" in one.opts for one in command.params):
        yield path


async def test_every_request_is_sent_by_a_command_and_every_command_is_tried(tmp_path: Path) -> None:
    known = Directory()

    class One(GroupFront):
        name = "one"
        directory = known

    node = Node(settings_of(tmp_path, auth__rules="allow"), fronts=[One])
    await node.start()
    lines = tmp_path / "lines"
    lines.write_text('{"key": "k", "value": "v", "partition": 0}\n')
    tried = []
    for line, as_json in [(line, as_json) for as_json in (False, True) for line in filter(None, COMMANDS.splitlines())]:
        words, _, code = line.partition(": ")
        tried.append(words)
        options = ["--node", str(node.addresses["console"]), *(["--json"] if as_json else [])]
        result = await asyncio.to_thread(
            CliRunner().invoke, main, [*words.replace("FILE", str(lines)).split(), *options]
        )
        assert result.exit_code == int(code or 0), (line, result.output)
        if as_json and code:
            assert isinstance(json.loads(result.stderr)["error"], str), line
        elif as_json and words.split()[0] not in LINES:
            found = json.loads(result.stdout.splitlines()[-1])  # behind what the node logs here
            is_list = words.split()[1] in LISTS if len(words.split()) > 1 else False
            assert isinstance(found, list if is_list else dict | list), line
        if words.startswith("produce"):
            await append(node, "words", 1, 1_000)
            await node.progress.front("one").commit("readers", [("words", 0, Committed(0))])
            await node.floors.host.recorder.sample()
    asked = set(node.metrics.front(FRONT).kinds)
    assert {f"{one.method} {one.path}" for one in ROUTES} - asked == set()
    commands = {" ".join(path) for path in leaves(main) if path[0] not in ("archive", "audit", "migrate", "replay")}
    assert {name for name in commands if not any(one.startswith(name) for one in tried)} == set()
    await node.stop()
