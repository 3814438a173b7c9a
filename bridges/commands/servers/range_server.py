"""``anabranch range-server``: runs a range server in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bridges.commands.common import key_values, service_options
from bridges.commands.servers import process

if TYPE_CHECKING:
    from bridges.node.settings.config import Settings
    from bridges.node.storage.backend_process import RangeServerProcess


@click.command("range-server")
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the range server's store.",
)
@click.option(
    "--listen", metavar="HOST:PORT", help="Address to listen on (default 127.0.0.1:10911). Port 0: any free port."
)
@click.option("--pd", metavar="HOST:PORT", help="Address of the placement driver (setting sbp.pd).")
@click.option(
    "--metrics", metavar="HOST:PORT", help="Address for health and metrics over HTTP. Without it: not served."
)
@service_options
def command(
    data: Path,
    listen: str | None,
    pd: str | None,
    metrics: str | None,
    sets: tuple[str, ...],
    config: Path | None,
    ready_file: Path | None,
) -> None:
    """Run a range server: it keeps ranges of streams on its disk.

    At its first start it waits for the placement driver, which assigns it a number.
    """
    flags = {**key_values(sets, "--set"), "data_dir": str(data)}
    for key, value in (("listen.sbp-range-server", listen), ("sbp.pd", pd), ("listen.metrics", metrics)):
        if value is not None:
            flags[key] = value

    def make(settings: Settings, give_up: Callable[[str], None]) -> RangeServerProcess:
        from bridges.node.storage.backend_process import RangeServerProcess

        service = RangeServerProcess(settings, give_up)
        process.reload_on_hangup(settings, service.reload)
        return service

    process.run(flags, config, make, ready=ready_file)
