"""Nodes over one database, started together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import NodeFactory
from tests.node_process import ANY, NodeProcess


@contextmanager
def together(
    directory: Path,
    count: int,
    database: str,
    listeners: Iterable[str],
    settings: Callable[[int], dict[str, str]],
    python: Sequence[str] = (sys.executable,),
) -> Iterator[list[NodeProcess]]:
    """``count`` nodes with ids from 1, each with the settings for its id; they end with the block."""
    factory = NodeFactory(directory)
    try:
        made = [
            factory(
                f"node{number}",
                settings={"cluster.database": database, "node.id": f"{number}"} | settings(number),
                listen=dict.fromkeys(listeners, ANY),
                start=False,
            )
            for number in range(1, count + 1)
        ]
        for node in made:
            node.python = [*python]
            node.launch()
        for node in made:
            node.await_ready()
        yield made
    finally:
        factory.dispose()
