"""``anabranch accept-data-loss``: the way on for a node that does not start because stored data is damaged."""

from __future__ import annotations

from pathlib import Path

import click

from bridges.commands.cli import EXIT_CANNOT_START, EXIT_FAILED
from bridges.commands.common import fail, json_option, print_json


@click.command("accept-data-loss")
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Data directory of a node, or of a range server, that does not run.",
)
@click.option("--check", is_flag=True, help="Only tell what would be lost.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def command(data: Path, check: bool, yes: bool, as_json: bool) -> None:
    """Go on without data that is damaged, for good.

    A node or a range server whose acknowledged data is damaged does not start (code 4). This tells what would be lost,
    asks, and gives that up: the log ends before the damage, and what lies behind it is set aside. Take a copy of the
    directory first, if there may be another way. What was given up is kept in accepted-losses.json beside the data.
    """
    from sbp_back.errors import StoreError
    from sbp_back.range_server import loss
    from sbp_back.range_server.store.options import StoreOptions
    from sbp_back.range_server.store.recovery import LOSSES

    store = next((path for path in (data / "sbp", data) if (path / "wal").is_dir()), None)
    if store is None:
        fail(f"{data} has no store: neither sbp/wal nor wal is in it", EXIT_CANNOT_START, as_json=as_json)
    try:
        found = loss.look(store, StoreOptions())
        if not found.damage:
            if as_json:
                print_json({"lost": [], "accepted": False})
            else:
                click.echo(f"nothing that was acknowledged is damaged in {store}: there is nothing to accept")
            return
        if not as_json:
            click.echo(f"This is lost for good if {store} is opened as it is:")
            for line in found.sentences():
                click.echo(f"  {line}")
        if check:
            if as_json:
                print_json({"lost": found.sentences(), "accepted": False})
            return
        if not yes and not (not as_json and click.confirm("Give it up?", default=False)):
            fail("nothing was changed", EXIT_FAILED, as_json=as_json, lost=found.sentences())
        done = loss.accept(store, StoreOptions(), found)
    except (StoreError, OSError) as error:
        fail(f"{store}: {error}", EXIT_CANNOT_START, as_json=as_json)
    if as_json:
        print_json({"lost": found.sentences(), "accepted": True, "log": done})
        return
    for line in done:
        click.echo(line)
    click.echo(f"The store can be opened now; {store / LOSSES} says what was given up.")
