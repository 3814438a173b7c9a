"""Members of a cluster that ask its database for what real nodes ask, many in one process, for
:mod:`benchmarks.cluster_database`.

Each has what a node has there: the catalog and the positions over one connection, heartbeats and slots over another,
one that nothing is asked of as a placement driver's at rest, and one that listens for each of the two channels. Only
what is below is missing: streams are numbers. The process says a line of JSON when all have joined, and one with what
it has measured for each ``measure SECONDS`` it reads; it ends with its input.

    python -m benchmarks.cluster_members URL FIRST COUNT COMMITS CHANGES
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from anabranch_kit.run.barrier import Barrier
from bridges.catalog.database.sql import Connection, Database
from bridges.catalog.progress import Committed, Progress
from bridges.catalog.topics.catalog import Catalog, CatalogOptions
from bridges.cluster import tables, versions
from bridges.cluster.members import Patience
from bridges.cluster.service import Cluster
from bridges.errors import LogError
from bridges.node.storage import databases
from sbp_back.wire.model import RangeInfo, StreamInfo

T = TypeVar("T")

PATIENCE = Patience()
STREAMS = 1_000_000
"""Numbers of streams that each member may give."""


class Timed(Database):
    """One that knows how long each closure took, from being asked for to being answered, by what it was."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.took: dict[str, list[float]] = {}

    async def run(self, fn: Callable[[Connection], T], **how: Any) -> T:
        began = time.monotonic()
        try:
            return await super().run(fn, **how)
        finally:
            kind = getattr(getattr(fn, "func", fn), "__name__", "")
            self.took.setdefault(kind, []).append(time.monotonic() - began)


class Numbers:
    """A placement driver that only counts."""

    def __init__(self, first: int) -> None:
        self._next = itertools.count(first)

    async def create_stream(self, replica: int = 1, ack_count: int = 1, retention_ms: int = 0) -> StreamInfo:
        return StreamInfo(next(self._next))

    async def describe_stream(self, stream_id: int) -> StreamInfo:
        return StreamInfo(stream_id)

    async def delete_stream(self, stream_id: int) -> None:
        pass

    async def list_ranges(self, stream_id: int) -> list[RangeInfo]:
        return []


class Node:
    """A member; ``commits`` of positions and ``changes`` of the catalog a second."""

    def __init__(self, url: str, number: int, commits: float, changes: float) -> None:
        self.db = Timed(databases.in_postgres(url))
        self.beats = Timed(databases.in_postgres(url, second=True))
        self.idle = Database(databases.in_postgres(url))
        self.ended = ""
        self.failed = 0
        self.barrier = Barrier()
        self.progress = Progress(self.db)
        self.catalog = Catalog(
            self.db, Numbers(number * STREAMS), CatalogOptions(owns_streams=False, node=number, max_partitions=10**9)
        )
        self.cluster = Cluster(self.beats, number, PATIENCE, self.barrier, self._ended, versions.OURS)
        self._number = number
        self._rates = (commits, changes)
        self._tasks: list[asyncio.Task[None]] = []

    def _ended(self, why: str) -> None:
        self.ended = why

    async def start(self) -> None:
        """As a node starts."""
        await self.db.open()
        await self.db.changes.begin()
        await self.cluster.enter()
        await self.idle.open()
        await self.progress.load()
        await self.catalog.load()
        self.cluster.place = self.catalog.place_of
        await self.db.changes.follow(self.barrier)
        addresses = {
            name: f"node{self._number}.example:{9092 + n}" for n, name in enumerate(("kafka", "cluster", "ydb"))
        }
        await self.cluster.join(-1, addresses, "")
        commits, changes = self._rates
        for rate, work in ((commits, self._commit), (changes, self._change)):
            if rate:
                self._tasks.append(asyncio.create_task(self._again(rate, work)))

    async def _again(self, rate: float, work: Callable[[int], Any]) -> None:
        await asyncio.sleep(random.random() / rate)
        for count in itertools.count():
            began = time.monotonic()
            try:
                await work(count)
            except LogError:
                self.failed += 1
            await asyncio.sleep(max(0.0, 1 / rate - (time.monotonic() - began)))

    async def _commit(self, count: int) -> None:
        group = f"group-{self._number}-{count % 20}"
        slot = self.cluster.slot_of_key("group", group)
        front = self.progress.front("kafka")
        if self.cluster.is_mine(slot):
            front.holding = lambda _: self.cluster.holding(slot)
        place = Committed(count, 0, "", time.time_ns() // 1_000_000, -1)
        await front.commit(group, [(f"topic-{count % 7}", 0, place)])

    async def _change(self, count: int) -> None:
        name = f"changed-{self._number}"
        if name in self.catalog.topics:
            await self.catalog.set_config(name, {"retention.ms": str(100_000 + count)})
        else:
            await self.catalog.create_topic(name, 1)

    async def stop(self) -> None:
        """Let go of everything."""
        for task in self._tasks:
            task.cancel()
        await self.db.changes.close()
        await self.catalog.close()
        await self.cluster.close()
        await self.idle.close()
        await self.db.close()


def measured(nodes: list[Node], seconds: float, cpu: float) -> dict[str, Any]:
    """What happened in the last ``seconds``."""
    beats = sorted(took for node in nodes for took in node.beats.took.get(tables.beat.__name__, []))
    commits = sorted(took for node in nodes for took in node.db.took.get("write", []))
    return {
        "beats": beats,
        "commits": commits,
        "failed": sum(node.failed for node in nodes),
        "ended": sum(bool(node.ended) for node in nodes),
        "cpu": cpu / seconds,
    }


async def run(url: str, first: int, count: int, commits: float, changes: float) -> None:
    """All of it."""
    nodes = [Node(url, first + number, commits, changes) for number in range(count)]
    for node in nodes:
        await node.start()
    print(json.dumps({"joined": count}), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        seconds = float(line.split()[1])
        for node in nodes:
            node.failed = 0
            node.beats.took.clear()
            node.db.took.clear()
        began, cpu = time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        print(json.dumps(measured(nodes, time.monotonic() - began, time.process_time() - cpu)), flush=True)
    await asyncio.gather(*(node.stop() for node in nodes))


if __name__ == "__main__":
    _, url_, first_, count_, commits_, changes_ = sys.argv
    asyncio.run(partial(run, url_, int(first_), int(count_), float(commits_), float(changes_))())
