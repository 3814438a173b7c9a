"""``anabranch version``: prints the version."""

from __future__ import annotations

import platform

import click

from bridges.commands.common import json_option, print_result
from bridges.version import VERSION, find_commit, version_line


@click.command("version")
@json_option
def command(as_json: bool) -> None:
    """Print the version, and the commit if it was installed from one."""
    found = {"version": VERSION, "commit": find_commit(), "python": platform.python_version()}
    print_result(found, version_line(), as_json=as_json)
