"""Where a soak runs: one node, one node as two workers, three nodes over PostgreSQL and object storage."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import psutil

from tests.cluster.conftest import three
from tests.conftest import NodeFactory
from tests.node_process import ANY, NodeProcess
from tests.postgres import Postgres
from tests.s3_server import ACCESS, s3_server

LISTENERS = ("kafka", "ydb", "pravega", "pravega-segmentstore", "console", "pipeline", "sbp-pd", "sbp-range-server")

SETTINGS = {"log.tail_cache_bytes": "4MiB", "limits.translated_bytes": "4MiB", "sbp.segment_bytes": "8MiB"}
"""Caches that are full within minutes, so that what grows behind that is seen, and what they do when they are."""


@contextmanager
def _node(directory: Path, settings: dict[str, str]) -> Iterator[list[NodeProcess]]:
    factory = NodeFactory(directory)
    try:
        yield [factory(settings=SETTINGS | settings, listen=dict.fromkeys(LISTENERS, ANY))]
    finally:
        factory.dispose()


def _one(directory: Path) -> AbstractContextManager[list[NodeProcess]]:
    return _node(directory, {})


def _workers(directory: Path) -> AbstractContextManager[list[NodeProcess]]:
    return _node(directory, {"node.workers": "2", "node.worker_port_step": "0"})


@contextmanager
def _cluster(directory: Path) -> Iterator[list[NodeProcess]]:
    """Objects lie in a server of S3's protocol, or in a directory where there is no Go to build that with."""
    with ExitStack() as stack:
        postgres = Postgres()
        stack.callback(postgres.close)
        settings = {name.replace(".", "__"): value for name, value in SETTINGS.items()}
        if shutil.which("go"):
            (directory / "store" / "bucket").mkdir(parents=True)
            os.environ |= {**ACCESS, "AWS_ENDPOINT_URL": stack.enter_context(s3_server(directory / "store"))}
            settings["sbp__objects"] = "s3://bucket/prefix"
        yield stack.enter_context(three(directory, postgres, LISTENERS, **settings))


DEPLOYMENTS: dict[str, Callable[[Path], AbstractContextManager[list[NodeProcess]]]] = {
    "one": _one,
    "workers": _workers,
    "cluster": _cluster,
}
"""Each gives the nodes it has started; they end with the block."""


def addresses(nodes: Sequence[NodeProcess], listener: str) -> dict[str, str]:
    """Every process's address of a listener, by the name of the process: ``node``, ``node/1`` (a worker), ``node2``."""
    return {
        node.data.name + name.removeprefix(listener): address
        for node in nodes
        for name, address in node.addresses.items()
        if name.partition("/")[0] == listener
    }


def pids(nodes: Sequence[NodeProcess]) -> dict[str, int]:
    """Every process's pid, by the same names."""
    found: dict[str, int] = {}
    for node in nodes:
        workers = sorted(psutil.Process(node.pid).children(), key=lambda one: one.create_time())
        for number, process in enumerate(workers or [psutil.Process(node.pid)]):
            found[node.data.name + (f"/{number}" if number else "")] = process.pid
    return found
