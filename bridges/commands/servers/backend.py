"""``anabranch pd`` and ``anabranch range-server``: parts of the backend in processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridges.commands.common import key_values, service_options
from bridges.commands.servers import process

if TYPE_CHECKING:
    from bridges.node.settings.config import Settings
    from bridges.node.storage.backend_process import PdProcess, RangeServerProcess

    Make = Callable[[Settings, Callable[[str], None]], PdProcess | RangeServerProcess]


def _server_options(content: str, address: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of a part of the backend: its directory's content, and its default address."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        directory = click.Path(path_type=Path, file_okay=False)
        for option in (
            click.option(
                "--metrics",
                metavar="HOST:PORT",
                help="Address for health and metrics over HTTP. Without it: not served.",
            ),
            click.option(
                "--listen",
                metavar="HOST:PORT",
                help=f"Address to listen on (default {address}). Port 0: any free port.",
            ),
            click.option("--data", required=True, type=directory, help=f"Directory of {content}."),
        ):
            function = option(function)
        return function

    return add


@click.command("pd")
@_server_options("the placement driver's state", "127.0.0.1:12378")
@service_options
def pd(listen: str | None, **given: Any) -> None:
    """Run a placement driver: it knows which range servers keep which streams.

    Range servers ('anabranch range-server') report to it; nodes with sbp.mode=external ask it.
    """

    def make(settings: Settings, give_up: Callable[[str], None]) -> PdProcess:
        from bridges.node.storage.backend_process import PdProcess

        return PdProcess(settings, give_up)

    _run(make, {"listen.sbp-pd": listen}, **given)


@click.command("range-server")
@_server_options("the range server's store", "127.0.0.1:10911")
@click.option("--pd", metavar="HOST:PORT", help="Address of the placement driver (setting sbp.pd).")
@service_options
def range_server(listen: str | None, pd: str | None, **given: Any) -> None:
    """Run a range server: it keeps ranges of streams on its disk.

    At its first start it waits for the placement driver, which assigns it a number.
    """

    def make(settings: Settings, give_up: Callable[[str], None]) -> RangeServerProcess:
        from bridges.node.storage.backend_process import RangeServerProcess

        return RangeServerProcess(settings, give_up)

    _run(make, {"listen.sbp-range-server": listen, "sbp.pd": pd}, **given)


def _run(
    make: Make,
    own: dict[str, str | None],
    *,
    data: Path,
    metrics: str | None,
    sets: tuple[str, ...],
    config: Path | None,
    ready_file: Path | None,
) -> None:
    given = {"data_dir": str(data), "listen.metrics": metrics, **own}
    flags = key_values(sets, "--set") | {key: value for key, value in given.items() if value is not None}

    def serve(settings: Settings, give_up: Callable[[str], None]) -> PdProcess | RangeServerProcess:
        service = make(settings, give_up)
        process.reload_on_hangup(settings, service.reload)
        return service

    process.run(flags, config, serve, ready=ready_file)
