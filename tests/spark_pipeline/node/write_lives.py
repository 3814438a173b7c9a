"""Lives of a node that sinks write to and that may be killed at any step of that, each in its own process.

A step is an instant just before or just after something becomes durable: a commit of the node's database, a batch, a
marker. What sinks do meanwhile is for the parent to say: it knows nothing of the kill but that answers are missing.
"""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from spark_pipeline.node.front import PipelineFront
from spark_pipeline.node.sinks.attempts import Attempt
from spark_pipeline.node.sinks.writes import Writes
from tests.kill_steps import Steps
from tests.spark_pipeline.node.pipeline_lab import node_of


def live(path: str, address: str, kill_at: int | None, pipe: Connection) -> None:
    """One life of the node on the directory ``path``. Tells its address, lives until it is told to end, and tells how
    many steps there were."""
    asyncio.run(_live(Path(path), address, kill_at, pipe))


async def _live(path: Path, address: str, kill_at: int | None, pipe: Connection) -> None:
    node = node_of(path, listen__pipeline=address, listen__sbp_pd="off", listen__sbp_range_server="off")
    await node.start()
    if "t" not in node.catalog.topics:
        await node.catalog.create_topic("t", 2)
    (front,) = node.fronts
    assert isinstance(front, PipelineFront)
    writes: Writes = (await front.open()).core.writes
    steps = Steps(kill_at)
    steps.around_commits(node.db)
    steps.around_markers()
    attempts: Any = Attempt
    attempts.appended = steps.around_future(attempts.appended)
    pipe.send(str(node.addresses["pipeline"]))
    await asyncio.to_thread(pipe.recv)
    while len(writes.attempts):
        await node.db.run(lambda connection: None)  # what is still to be carried out is
    pipe.send(steps.seen)
    await node.stop()
