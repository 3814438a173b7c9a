"""``anabranch config``: shows the settings, and where each is set."""

from __future__ import annotations

from pathlib import Path

import click
from msgspec.structs import asdict

from bridges.commands.common import json_option, key_values, load_settings, print_json, print_table, settings_options


@click.command("config")
@settings_options
@click.option("--markdown", is_flag=True, help="Print the reference table of all settings and their defaults.")
@json_option
def command(sets: tuple[str, ...], config: Path | None, markdown: bool, as_json: bool) -> None:
    """Show every setting, its value, its default and where the value comes from."""
    from bridges.node.settings.config import schema

    if markdown:
        click.echo("| setting | kind | default | meaning |\n|---|---|---|---|")
        for row in schema():
            default = f"`{row.default}`" if row.default else ""
            click.echo(f"| `{row.key}` | {row.kind} | {default} | {row.description} |")
        return
    loaded = load_settings(key_values(sets, "--set"), config)
    for warning in loaded.warnings:
        click.echo(f"anabranch: {warning}", err=True)
    rows = loaded.table()
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        print_table(
            ["SETTING", "VALUE", "DEFAULT", "FROM"], ([row.key, row.value, row.default, row.origin] for row in rows)
        )
