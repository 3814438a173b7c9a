"""``anabranch backup`` and ``anabranch restore``: the data of a single node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bridges.commands.common import json_option, print_result
from bridges.commands.failure import fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridges.node.storage.backup import Manifest

_DIRECTORY = click.Path(path_type=Path, file_okay=False)


@click.command("backup")
@click.option("--data", required=True, type=_DIRECTORY, help="Data directory of the node.")
@click.argument("backup", type=_DIRECTORY)
@json_option
def backup(data: Path, backup: Path, as_json: bool) -> None:
    """Copy the data directory of a node into BACKUP, an empty directory or a new one.

    The node may serve meanwhile. Everything it acknowledged before this command began is in the backup. Settings, and
    files outside of the data directory (users, certificates), are not.
    """
    from bridges.node.storage.backup import back_up

    _run(lambda: back_up(data, backup), f"{backup} is a backup of {data}", as_json=as_json)


@click.command("restore")
@click.argument("backup", type=_DIRECTORY)
@click.option("--data", required=True, type=_DIRECTORY, help="Data directory to make: empty, or a new one.")
@json_option
def restore(backup: Path, data: Path, as_json: bool) -> None:
    """Make a data directory of BACKUP, for a node that takes the place of the original. Never serve both.

    What was acknowledged after the backup is gone: clients that have seen it are ahead of the restored node.
    """
    from bridges.node.storage.backup import restore

    _run(lambda: restore(backup, data), f"{data} has the data of {backup}, and can be served", as_json=as_json)


def _run(work: Callable[[], Manifest], done: str, *, as_json: bool) -> None:
    import sqlite3

    from anabranch_kit.errors import StoreError
    from bridges.errors import LogError

    try:
        manifest = work()
    except (StoreError, LogError, OSError, sqlite3.Error) as error:
        fail(str(error))
    size = sum(one.size for one in manifest.files.values())
    count = len(manifest.files)
    text = f"{done}: {count} files, {size / 1e6:.1f} MB, as of {manifest.taken}"
    print_result({"taken": manifest.taken, "files": count, "bytes": size}, text, as_json=as_json)
