"""Every command takes ``--json``, and fails in one shape: a walk over all commands, so the next one is covered too."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from bridges.commands.cli import main

SERVERS = {("serve",), ("pd",), ("range-server",)}
TEXT = {("completion",)}
"""Their only output is a script."""


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands that do something."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from leaves(found, (*path, name))
    elif path not in SERVERS | TEXT:
        yield path, command


COMMANDS = dict(leaves(main))


def failure(path: tuple[str, ...], *words: str) -> tuple[int, dict[str, object]]:
    done = CliRunner().invoke(main, [*path, *words, "--json"], env={"ANABRANCH_NODE": None, "ANABRANCH_CONTEXT": None})
    assert done.stdout == "", path
    error = json.loads(done.stderr)
    assert isinstance(error["error"], str)
    assert error["error"]
    return done.exit_code, error


def arguments(command: click.Command) -> list[str]:
    """Values for the arguments of a command, and the options that it cannot do without."""
    found = []
    for one in command.params:
        if not one.required:
            continue
        kind = one.type
        value = kind.choices[0] if isinstance(kind, click.Choice) else "1"
        found += [value] if isinstance(one, click.Argument) else [one.opts[0], value]
    return [str(value) for value in found]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_wrong_usage_is_an_object_with_an_error(path: tuple[str, ...]) -> None:
    assert any("--json" in one.opts for one in COMMANDS[path].params), "every command has --json"
    code, error = failure(path, "--no-such-option")
    assert code == 2
    assert "no-such-option" in str(error["error"])


ASKS = [path for path, command in COMMANDS.items() if any("--context" in one.opts for one in command.params)]


@pytest.mark.parametrize("path", ASKS, ids=" ".join)
def test_a_node_that_does_not_answer_is_named(path: tuple[str, ...], nobody: str) -> None:
    words = [*WORDS.get(path, arguments(COMMANDS[path])), *MORE.get(path, [])]
    if any("--yes" in one.opts for one in COMMANDS[path].params):
        words.append("--yes")
    code, error = failure(path, *words, "--node", nobody)
    assert code == 3
    assert nobody in str(error["error"])


MORE = {
    ("topic", "alter"): ["--partitions", "2"],
    ("group", "reset"): ["--all-topics"],
    ("cluster", "move"): ["--slot", "1"],
}
"""What a command needs beyond its arguments."""
WORDS = {("api",): ["GET", "/x"], ("quota", "set"): ["--user", "a", "x=1"]}
"""Arguments that not every text can be."""


@pytest.fixture(scope="module")
def nobody() -> Iterator[str]:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))  # bound, but it does not listen
        yield f"http://127.0.0.1:{one.getsockname()[1]}"
