"""The pipeline's front is made for its first client, or at a start that finds something to be carried on."""

from __future__ import annotations

from pathlib import Path

from bridges.catalog.views.jobs import RUNNING, JobView
from spark_pipeline.node.front import PipelineFront
from tests.spark_pipeline.node.pipeline_lab import node_of


async def test_it_is_made_for_the_first_client_and_at_once_where_it_was_used(tmp_path: Path) -> None:
    node = node_of(tmp_path)
    await node.start()
    (front,) = node.fronts
    assert isinstance(front, PipelineFront)
    assert (front.server, front.jobs) == (None, None)
    server = await front.open()
    assert await front.open() is server
    await server.core.jobs.take_report(JobView("1", "copy", "a", RUNNING, "me", 0, None, "rows", None, None, 5, 5, {}))
    await node.stop()
    node = node_of(tmp_path)
    await node.start()
    (front,) = node.fronts
    assert isinstance(front, PipelineFront)
    assert front.server is not None
    assert front.jobs is not None
    assert [view.name for view in front.jobs.jobs()] == ["a"]
    await node.stop()
