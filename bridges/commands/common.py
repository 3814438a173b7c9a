"""Shared parts of commands: options, and output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bridges.catalog.views.groups import CONSUMERS
from bridges.commands.failure import EXIT_USAGE, fail

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bridges.node.settings.config import Loaded

F = TypeVar("F", bound=Callable[..., Any])

NOTHING = "-"
"""A table's cell without a value."""


def json_option(function: F) -> F:
    """Add ``--json``: output for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(function)


space_option = click.option(
    "--space",
    default=CONSUMERS,
    show_default=True,
    help="Namespace of the group's name, for protocols with groups of another kind.",
)
partition_option = click.option(
    "--partition", type=click.IntRange(0), default=0, show_default=True, help="Partition of TOPIC."
)


def listen_option(function: F) -> F:
    """Add ``--listen``: addresses of listeners; see :func:`node_flags`."""
    return click.option(
        "--listen",
        multiple=True,
        metavar="NAME=HOST:PORT",
        help="Address of the listener NAME. Port 0: any free port; 'off': no such listener.",
    )(function)


def node_flags(data: Path | None, sets: Iterable[str], listen: Iterable[str]) -> dict[str, str]:
    """Return the settings given by the options ``--data``, ``--set`` and ``--listen``, by key."""
    flags = key_values(sets, "--set")
    flags.update({f"listen.{name}": address for name, address in key_values(listen, "--listen").items()})
    if data is not None:
        flags["data_dir"] = str(data)
    return flags


def yes_option(function: F) -> F:
    """Add ``--yes``: see :func:`confirm`."""
    return click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(function)


def confirm(question: str, *, yes: bool) -> None:
    """Ask on the terminal before something that cannot be undone, unless ``yes``.

    Ends the command if there is no terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        fail(f"nothing was changed: give --yes, there is no terminal to ask on: {question}", EXIT_USAGE)
    click.confirm(question, abort=True, err=True)


def read_password(name: str, *, confirm: bool = True) -> str:
    """Return a password: asked for on a terminal, otherwise the first line of standard input."""
    if sys.stdin.isatty():
        return str(click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=confirm, err=True))
    # Refuse bytes that are not UTF-8: no client could send them.
    line = sys.stdin.buffer.readline()
    try:
        return line.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        fail("the password is not UTF-8", EXIT_USAGE)


def settings_options(function: F) -> F:
    """Add ``--set`` and ``--config``: where settings come from beside the environment."""
    config = click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="ANABRANCH_CONFIG",
        help="File with settings (TOML).",
    )
    sets = click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="KEY=VALUE",
        help="Value of a setting; 'anabranch config' lists all settings.",
    )
    return sets(config(function))


def load_settings(flags: Mapping[str, str], file: Path | None) -> Loaded:
    """Return the settings of options, environment and ``file``; a wrong one ends the command."""
    from bridges.node.settings.config import load
    from bridges.node.settings.sections import SettingsError

    try:
        return load(flags, environ=os.environ, file=file)
    except SettingsError as error:
        fail(str(error), EXIT_USAGE)


def service_options(function: F) -> F:
    """Add the options of every command that runs a server: ``--set``, ``--config`` and ``--ready-file``."""
    ready_file = click.option(
        "--ready-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="JSON file with the addresses, written once all listeners are open. Removed when the process stops.",
    )
    return settings_options(ready_file(function))


def print_json(value: object) -> None:
    """Print a JSON document on standard output."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def print_result(document: object, *lines: str, as_json: bool) -> None:
    """Print what a command has done: a JSON document, or lines of text."""
    if as_json:
        print_json(document)
        return
    for line in lines:
        click.echo(line)


def print_table(heads: list[str], rows: Iterable[Iterable[object]]) -> None:
    """Print columns aligned with spaces, readable for people and for awk."""
    lines = [heads, *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names with their values, a line each."""
    rows = [(name, str(value)) for name, value in facts]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name.ljust(width)}  {value}")


def lag(group: dict[str, Any]) -> list[str]:
    """Return the lag of a group in records, in seconds, and its growth in records per second.

    ``+``: the lag is larger, because the ends of some partitions are unknown. ``>=``: the seconds are a lower bound.
    """
    if group["lag"] is None:
        return [NOTHING] * 3
    seconds, trend = group.get("lag_seconds"), group.get("trend")
    exact = "" if group.get("lag_exact", True) else ">="
    return [
        f"{group['lag']}{'+' if group['unknown_lags'] else ''}",
        NOTHING if seconds is None else f"{exact}{seconds:g}",
        NOTHING if trend is None else f"{trend:+g}",
    ]


def format_time(ms: float) -> str:
    """Return a time in milliseconds since 1970 as text, in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def parse_time(text: str) -> int | None:
    """Return a time such as 2026-01-31T12:00:00Z (default zone: UTC) in milliseconds since 1970; None if it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000))


def join_neighbours(numbers: Iterable[int]) -> list[str]:
    """Return numbers as text in ascending order, neighbours as a range such as ``0-3``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ["-".join(map(str, run)) for run in runs]


def escape(text: str | None) -> str:
    """Return text that a client chose, with characters escaped that would move the cursor or break a table."""
    if not text:
        return NOTHING
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def key_values(pairs: Iterable[str], option: str) -> dict[str, str]:
    """Return ``KEY=VALUE`` arguments as a dictionary."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            fail(f"{option} {pair!r} is not KEY=VALUE", EXIT_USAGE)
        found[key.strip()] = value
    return found
