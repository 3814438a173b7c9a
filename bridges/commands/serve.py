"""``anabranch serve``: run a node until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from pathlib import Path

import click

from bridges.cli import EXIT_CANNOT_START, EXIT_NODE_FAILED, EXIT_USAGE
from bridges.commands.common import fail, key_values


@click.command("serve")
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="Data directory (setting data_dir).")
@click.option(
    "--listen",
    multiple=True,
    metavar="NAME=HOST:PORT",
    help="Address of a listener; port 0 picks one, 'off' closes it.",
)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any setting; see 'anabranch config'.")
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), envvar="ANABRANCH_CONFIG", help="Settings file."
)
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Written once everything listens: JSON with the addresses; removed when the node stops.",
)
def command(
    data: Path | None, listen: tuple[str, ...], sets: tuple[str, ...], config: Path | None, ready_file: Path | None
) -> None:
    """Run a node.

    Without options everything is served on this machine's loopback address with data in ./anabranch-data.
    """
    # Nothing made while starting is garbage worth looking for; the collector is switched on once the node serves.
    gc.disable()
    from bridges.config import SettingsError, load

    flags = key_values(sets, "--set")
    flags.update({f"listen.{name}": address for name, address in key_values(listen, "--listen").items()})
    if data is not None:
        flags["data_dir"] = str(data)
    try:
        settings = load(flags, environ=os.environ, file=config).settings
    except SettingsError as error:
        fail(str(error), EXIT_USAGE)

    from bridges import log
    from bridges.node import Node
    from sbp_back.errors import StoreError

    log.configure(settings.logging.level, settings.logging.format)
    failed: list[str] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        urgent = asyncio.Event()

        def asked() -> None:
            # A second signal says that waiting for requests in flight takes too long.
            (urgent if stop.is_set() else stop).set()

        def give_up(reason: str) -> None:
            failed.append(reason)
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked)
        node = Node(settings, on_failed=give_up)
        starting = asyncio.ensure_future(node.start(ready_file))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()  # it stops again what it has started
            await asyncio.wait({starting})
            return
        starting.result()
        # What exists now lives as long as the process: the collector need not look at it again, and seldom at the rest
        # (reference/kafka.md, section 6 rule 8).
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        gc.enable()
        await stopping
        draining = asyncio.ensure_future(node.stop())
        hurrying = asyncio.ensure_future(urgent.wait())
        await asyncio.wait({draining, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            node.hurry()
        await draining
        hurrying.cancel()
        if node.failure is not None and not failed:
            failed.append(node.failure)

    try:
        asyncio.run(run())
    except (StoreError, OSError) as error:
        fail(str(error), EXIT_CANNOT_START)
    except SettingsError as error:
        fail(str(error), EXIT_USAGE)
    if failed:
        fail(failed[0], EXIT_NODE_FAILED)
