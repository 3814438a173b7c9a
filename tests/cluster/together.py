"""Nodes over one database, started together."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from tests.conftest import NodeFactory
from tests.kit.waiting import wait_until
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
    """``count`` nodes with ids from 1, each with the settings for its id; they end with the block.

    Each has its share of the slots by then: until a slot has moved, its clients are told to ask again.
    """
    factory = NodeFactory(directory)
    try:
        made = [
            factory(
                f"node{number}",
                settings={"cluster.database": database, "node.id": f"{number}"} | settings(number),
                listen=dict.fromkeys((*listeners, "console"), ANY),
                start=False,
            )
            for number in range(1, count + 1)
        ]
        for node in made:
            node.python = [*python]
            node.launch()
        for node in made:
            node.await_ready()
        await_like_shares(made[0])
        yield made
    finally:
        factory.dispose()


def await_like_shares(node: NodeProcess) -> None:
    """Return when balance has nothing to move any more."""

    def are_alike() -> bool:
        with urlopen(f"{node.console}/api/cluster") as answer:
            sizes: list[int] = [one["slots"] for one in json.load(answer)["nodes"]]
        return max(sizes) - min(sizes) <= 1

    wait_until(are_alike)
