"""``anabranch doctor``: checks an installation, and reports each problem as a sentence with its remedy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bridges.commands.common import (
    escape,
    json_option,
    listen_option,
    load_settings,
    node_flags,
    print_json,
    settings_options,
)
from bridges.commands.failure import EXIT_FAILED

if TYPE_CHECKING:
    from bridges.node.finding import Finding
    from bridges.node.settings.config import Settings

_COLOURS = {"ok": "green", "note": "blue", "warning": "yellow", "wrong": "red"}


@click.command("doctor")
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="Data directory (setting data_dir).")
@listen_option
@settings_options
@json_option
def command(
    data: Path | None, listen: tuple[str, ...], sets: tuple[str, ...], config: Path | None, as_json: bool
) -> None:
    """Check whether a node with these settings could run well on this machine.

    Says what is wrong, what could be better and what to do, and ends with code 1 if anything is wrong. Changes nothing:
    files written for a test are removed again. Give it the settings that 'serve' is given.
    """
    from bridges.node.finding import warning

    loaded = load_settings(node_flags(data, sets, listen), config)
    found = [
        *(warning("settings", told, "correct or remove it") for told in loaded.warnings),
        *run_checks(loaded.settings),
    ]
    if as_json:
        from msgspec import to_builtins

        print_json(to_builtins(found))
    else:
        for one in found:
            mark = click.style(one.severity.value.ljust(7), fg=_COLOURS[one.severity.value])
            click.echo(f"{mark}  {one.about}: {escape(one.sentence)}")
            if one.remedy:
                click.echo(f"         -> {one.remedy}")
    if any(one.severity.value == "wrong" for one in found):
        raise SystemExit(EXIT_FAILED)


def run_checks(settings: Settings) -> Iterator[Finding]:
    """Run all checks."""
    from bridges.checkup import clock, contents, database, doors, machine, objects, storage

    now_s = time.time()
    yield from storage.check(settings)
    yield from machine.check(settings)
    yield from clock.check(settings.data_dir, kept=clock.is_kept(), now_s=now_s)
    yield from database.check(settings.cluster.database)
    yield from contents.check(settings)
    yield from objects.check(settings)
    yield from doors.check(settings, running=storage.holder_of(settings.data_dir) is not None, now_s=now_s)
