"""``anabranch top``: shows the activity of a node or of a cluster, refreshed in place."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from bridges.commands.client import NodeClient, Unreachable, asks_node

if TYPE_CHECKING:
    from bridges.commands.nodes.top_figures import Figures, Scrape


@click.command("top")
@click.option(
    "--interval", type=click.FloatRange(0.2, 3600), default=2.0, show_default=True, help="Seconds between refreshes."
)
@click.option("--once", is_flag=True, help="Print once and end. The default if the output is no terminal.")
@click.option("--alone", is_flag=True, help="Show this node only, without its cluster and the other workers.")
@asks_node
def command(interval: float, once: bool, alone: bool, client: NodeClient) -> None:
    """Show the activity of a node, its cluster and all workers: rates of protocols and topics, lagging groups,
    memory, stalls. Ctrl-C ends it.
    """
    from msgspec import to_builtins
    from rich.console import Console

    from bridges.commands.nodes.top_screen import screen

    look = _Looks(client, alone=alone)
    look.next()
    if once or client.as_json or not sys.stdout.isatty():
        time.sleep(interval)
        seen = look.next()
        assert seen is not None  # the second call
        client.end_with_json(to_builtins(seen))
        Console().print(screen(seen, client.url, 10_000))
        return
    try:
        _refresh(client.url, interval, look)
    except KeyboardInterrupt:
        return


class _Looks:
    """Scrapes a node, and the others of its cluster, repeatedly; each call returns the activity since the one
    before.
    """

    def __init__(self, client: NodeClient, *, alone: bool) -> None:
        self._client = client
        self._alone = alone
        self._before: dict[str, Scrape] = {}
        self._known: dict[str, str] = {}

    def next(self) -> Figures | None:
        """Return the activity since the last call, None at the first. Raises Unreachable."""
        from bridges.commands.nodes.top_figures import all_figures, figures

        others = {} if self._alone else self._list_nodes()
        now, unheard = {}, 0
        for name, address in (others or {"": ""}).items():
            try:
                now[name] = _scraped(self._client.another(address))
            except Unreachable:
                if not others:
                    raise
                unheard += 1
        before, self._before = self._before, now
        if not before.keys() & now.keys():
            return None
        return all_figures(before, now, unheard) if others else figures(before[""], now[""])

    def _list_nodes(self) -> dict[str, str]:
        """Return the console addresses of all nodes of the cluster by name; empty for a single node."""
        client = self._client.another()
        try:
            told = client.try_get("/api/cluster")
        except Unreachable:
            if self._known:
                return self._known  # the other nodes may still answer
            raise
        finally:
            client.close()
        found = {}
        for one in (told or {}).get("nodes", ()):
            where = one["addresses"].get("console")
            if where is not None and one["state"] != "ending":
                found[f"node {one['node_id']}"] = where
        self._known = found if len(found) > 1 else {}
        return self._known


def _scraped(client: NodeClient) -> Scrape:
    from bridges.commands.nodes.top_figures import scrape

    at = time.monotonic()
    lines = (line.decode("utf-8", "replace") for line in client.lines("/metrics?alone"))
    try:
        return scrape(lines, at)
    finally:
        client.close()


def _refresh(node: str, interval: float, look: _Looks) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from bridges.commands.nodes.top_screen import screen

    console = Console()
    with Live(Text("..."), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            try:
                seen = look.next()
            except Unreachable as error:
                live.update(Text(f"{error.message}; asked again every {interval:g} s", "yellow"), refresh=True)
                continue
            if seen is not None:
                live.update(screen(seen, node, console.height), refresh=True)
