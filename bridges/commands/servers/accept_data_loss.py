"""``anabranch accept-data-loss``: gives up lost data, so that a node can start.

A node does not start when its stored data is damaged, or when its database or bucket has gone back.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bridges.commands.common import json_option, key_values, load_settings, print_result, settings_options
from bridges.commands.failure import EXIT_CANNOT_START, EXIT_FAILED, fail

if TYPE_CHECKING:
    from bridges.node.settings.config import Settings


@click.command("accept-data-loss")
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Data directory of a stopped node or range server.",
)
@settings_options
@click.option("--check", is_flag=True, help="Show what would be lost, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def command(data: Path, sets: tuple[str, ...], config: Path | None, check: bool, yes: bool, as_json: bool) -> None:
    """Accept the permanent loss of data that is damaged, or that went back to an older state.

    A node or a range server whose acknowledged data is damaged does not start (code 4). This command shows what would
    be lost, asks, and gives it up: the log ends before the damage, and the data behind it is set aside. Take a copy of
    the directory first, if there may be another way. The losses are recorded in accepted-losses.json beside the data.

    A node does not start either when its data is in a bucket, and the database (of a cluster, or in the data directory)
    or the bucket has gone back to an older state. Stop all nodes, and give this command the settings that 'serve' has.
    The nodes then continue with both as they are, and give no number twice.
    """
    from anabranch_kit.errors import StoreError
    from sbp_back.range_server import loss
    from sbp_back.range_server.store.opening.recovery import LOSSES
    from sbp_back.range_server.store.options import StoreOptions

    settings = load_settings({**key_values(sets, "--set"), "data_dir": str(data)}, config).settings
    if _went_back(settings, check=check, yes=yes, as_json=as_json):
        return
    store = next((path for path in (data / "sbp", data) if (path / "wal").is_dir()), None)
    if store is None and settings.sbp.durability == "object":
        _nothing(f"{settings.sbp.objects} and the database", as_json=as_json)
        return
    if store is None:
        fail(f"{data} has no store: neither sbp/wal nor wal is in it", EXIT_CANNOT_START)
    try:
        found = loss.find_loss(store, StoreOptions())
        if not found.damage:
            _nothing(str(store), as_json=as_json)
            return
        if not as_json:
            click.echo(f"This is lost for good if {store} is opened as it is:")
            for line in found.sentences():
                click.echo(f"  {line}")
        if check:
            print_result({"lost": found.sentences(), "accepted": False}, as_json=as_json)
            return
        if not yes and not (not as_json and click.confirm("Give it up?", default=False)):
            fail("nothing was changed", EXIT_FAILED, lost=found.sentences())
        done = loss.accept(store, StoreOptions(), found)
    except (StoreError, OSError) as error:
        fail(f"{store}: {error}", EXIT_CANNOT_START)
    there = f"The store can be opened now; {store / LOSSES} says what was given up."
    print_result({"lost": found.sentences(), "accepted": True, "log": done}, *done, there, as_json=as_json)


def _nothing(where: str, *, as_json: bool) -> None:
    nothing = f"nothing that was acknowledged is damaged in {where}: there is nothing to accept"
    print_result({"lost": [], "accepted": False}, nothing, as_json=as_json)


def _went_back(settings: Settings, *, check: bool, yes: bool, as_json: bool) -> bool:
    """Report whether the database or the bucket has gone back; accept the loss unless ``check`` or the user declines.

    Return whether it has gone back.
    """
    import asyncio

    from anabranch_kit.errors import StoreError
    from bridges.errors import LogError
    from bridges.node.storage import going_back

    try:
        lost = asyncio.run(going_back.describe_loss(settings))
        if not lost:
            return False
        if not as_json:
            click.echo(lost)
        if not check:
            if not yes and not (not as_json and click.confirm("Go on without what is lost?", default=False)):
                fail("nothing was changed", EXIT_FAILED, lost=[lost])
            asyncio.run(going_back.accept(settings))
    except (StoreError, LogError, OSError) as error:
        fail(str(error), EXIT_CANNOT_START)
    done = [] if check else ["Every node can be started now."]
    print_result({"lost": [lost], "accepted": not check}, *done, as_json=as_json)
    return True
