"""``anabranch serve``: runs a node until it is asked to stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bridges.commands.common import listen_option, node_flags, service_options
from bridges.commands.servers import process

if TYPE_CHECKING:
    from bridges.node.assembly import Node
    from bridges.node.settings.config import Settings


@click.command("serve")
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="Data directory (setting data_dir).")
@listen_option
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    help="Number of worker processes, about one per core (setting node.workers).",
)
@service_options
def command(
    data: Path | None,
    listen: tuple[str, ...],
    workers: int | None,
    sets: tuple[str, ...],
    config: Path | None,
    ready_file: Path | None,
) -> None:
    """Run a node.

    Without options it listens on this machine's loopback address only, and keeps its data in ./anabranch-data.
    """
    flags = node_flags(data, sets, listen)
    if workers is not None:
        flags["node.workers"] = str(workers)

    def make(settings: Settings, give_up: Callable[[str], None]) -> Node:
        from bridges.node.assembly import Node

        node = Node(settings, on_failed=give_up, checkup=process.check_running)
        process.reload_on_hangup(settings, node.reload)
        return node

    def several(settings: Settings, ready: Path | None) -> None:
        from bridges.commands.servers.workers import Workers  # imported only with several workers

        Workers(settings, ready).run()

    process.run(flags, config, make, ready=ready_file, several=several)
