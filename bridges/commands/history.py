"""Histories of nodes, topics and groups: the option ``--span``, and a table of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import click

from bridges.commands.client import NodeClient, asks_node
from bridges.commands.common import NOTHING, escape, format_time, print_table


def history_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``--span``, and what :func:`asks_node` adds."""
    return click.option("--span", type=click.Choice(["hour", "day"]), default="hour", show_default=True)(
        asks_node(function)
    )


def print_history(client: NodeClient, path: str, **query: str) -> None:
    """Print a history of the node: a line per step, a column per series that is not empty."""
    found = client.show("GET", f"{path}?{urlencode(query)}")
    columns = {name: points for name, points in _series("", found) if any(points)}
    steps = max(map(len, columns.values()), default=0)
    step_ms = 1000 * found["step_s"]
    first = found["end_ms"] - steps * step_ms
    rows = []
    for step, values in enumerate(zip(*columns.values(), strict=True), 1):
        if any(value is not None for value in values):
            at = format_time(first + step * step_ms)
            rows.append([at, *(NOTHING if value is None else f"{value:g}" for value in values)])
    print_table(["UNTIL", *map(str.upper, columns)], rows)


def _series(name: str, value: Any) -> Iterator[tuple[str, list[float | None]]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _series(f"{name}.{key}" if name else key, one)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for one in value:
            told = ".".join(escape(str(one[key])) for key in ("group", "topic", "partition") if key in one)
            yield from _series(told, {key: points for key, points in one.items() if isinstance(points, list)})
    elif isinstance(value, list):
        yield name, value
