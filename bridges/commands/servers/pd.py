"""``anabranch pd``: runs a placement driver in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bridges.commands.common import key_values, service_options
from bridges.commands.servers import process

if TYPE_CHECKING:
    from bridges.node.settings.config import Settings
    from bridges.node.storage.backend_process import PdProcess


@click.command("pd")
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the placement driver's state.",
)
@click.option(
    "--listen", metavar="HOST:PORT", help="Address to listen on (default 127.0.0.1:12378). Port 0: any free port."
)
@click.option(
    "--metrics", metavar="HOST:PORT", help="Address for health and metrics over HTTP. Without it: not served."
)
@service_options
def command(
    data: Path,
    listen: str | None,
    metrics: str | None,
    sets: tuple[str, ...],
    config: Path | None,
    ready_file: Path | None,
) -> None:
    """Run a placement driver: it knows which range servers keep which streams.

    Range servers ('anabranch range-server') report to it; nodes with sbp.mode=external ask it.
    """
    flags = {**key_values(sets, "--set"), "data_dir": str(data)}
    if listen is not None:
        flags["listen.sbp-pd"] = listen
    if metrics is not None:
        flags["listen.metrics"] = metrics

    def make(settings: Settings, give_up: Callable[[str], None]) -> PdProcess:
        from bridges.node.storage.backend_process import PdProcess

        service = PdProcess(settings, give_up)
        process.reload_on_hangup(settings, service.reload)
        return service

    process.run(flags, config, make, ready=ready_file)
