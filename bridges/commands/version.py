"""``anabranch version``: prints the version."""

from __future__ import annotations

import platform

import click

from bridges.commands.common import json_option, print_json
from bridges.version import VERSION


@click.command("version")
@json_option
def command(as_json: bool) -> None:
    """Print the version."""
    if as_json:
        print_json({"version": VERSION, "python": platform.python_version()})
    else:
        click.echo(f"anabranch {VERSION}")
