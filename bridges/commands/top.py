"""``anabranch top``: what a node does, refreshed in place."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, NoReturn

import click

from bridges.commands.common import NodeClient, json_option, node_option, print_json

if TYPE_CHECKING:
    from bridges.commands.top_figures import Scrape


@click.command("top")
@click.option(
    "--interval", type=click.FloatRange(0.2, 3600), default=2.0, show_default=True, help="Seconds between two looks."
)
@click.option("--once", is_flag=True, help="Print one look and end; so it is where nothing can be refreshed.")
@node_option
@json_option
def command(interval: float, once: bool, node: str, as_json: bool) -> None:
    """Show what a node does: rates of protocols and topics, who falls behind, memory, stalls. Ctrl-C ends it."""
    from msgspec import to_builtins
    from rich.console import Console

    from bridges.commands.top_figures import figures
    from bridges.commands.top_screen import screen

    before = look(NodeClient(node, as_json=as_json))
    if once or as_json or not sys.stdout.isatty():
        time.sleep(interval)
        seen = figures(before, look(NodeClient(node, as_json=as_json)))
        if as_json:
            print_json(to_builtins(seen))
        else:
            Console().print(screen(seen, node, 10_000))
        return
    try:
        _refresh(node, interval, before)
    except KeyboardInterrupt:
        return


def look(client: NodeClient) -> Scrape:
    """A scrape of the node, now."""
    from bridges.commands.top_figures import scrape

    at = time.monotonic()
    lines = (line.decode("utf-8", "replace") for line in client.lines("/metrics"))
    try:
        return scrape(lines, at)
    finally:
        client.close()


class _Gone(Exception):
    """No node answers at the moment."""


class _Patient(NodeClient):
    """For whom a node that does not answer is nothing to end for."""

    def unreachable(self, message: str) -> NoReturn:
        raise _Gone(message)


def _refresh(node: str, interval: float, before: Scrape) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from bridges.commands.top_figures import figures
    from bridges.commands.top_screen import screen

    console = Console()
    with Live(Text("..."), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            try:
                now = look(_Patient(node))
            except _Gone as error:
                live.update(Text(f"{error}; asked again every {interval:g} s", "yellow"), refresh=True)
                continue
            live.update(screen(figures(before, now), node, console.height), refresh=True)
            before = now
