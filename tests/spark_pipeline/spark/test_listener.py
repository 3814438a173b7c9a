"""What Spark tells of its queries reaches a node, without Spark: the listener is given events as Spark makes them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_pipeline.core.errors import OptionError
from spark_pipeline.spark import listener
from spark_pipeline.spark.listener import NodeListener
from tests.ports import free_port
from tests.spark_pipeline.node.pipeline_lab import open_lab


def source(at: int | None, latest: int | None) -> SimpleNamespace:
    def told(offset: int | None) -> str | None:
        return None if offset is None else json.dumps({"t": {"0": offset, "1": 5}})

    return SimpleNamespace(endOffset=told(at), latestOffset=told(latest))


def progress(batch: int, rows: int, *sources: SimpleNamespace, rate: float = 50.0) -> Any:
    return SimpleNamespace(
        progress=SimpleNamespace(
            id="q1",
            name="copy",
            batchId=batch,
            numInputRows=rows,
            processedRowsPerSecond=rate,
            inputRowsPerSecond=float("inf"),
            durationMs={"triggerExecution": 120},
            sources=list(sources),
        )
    )


async def test_a_query_from_its_start_to_its_failure(tmp_path: Path) -> None:
    lab = await open_lab(tmp_path)
    told = NodeListener(f"anabranch://{lab.node.addresses['pipeline']}")
    told.onQueryStarted(SimpleNamespace(id="q1", name="copy"))
    told.onQueryProgress(progress(0, 100, source(100, 300)))
    told.onQueryProgress(progress(1, 150, source(250, 300)))
    told.onQueryStarted(SimpleNamespace(id="q2", name=None))
    told.onQueryIdle(SimpleNamespace(id="q2"))
    told.onQueryTerminated(SimpleNamespace(id="q2", exception="a stack\nof lines"))
    await lab.ask(told.close)
    assert told.failed == 0
    found = {job["job_id"]: job for job in (await lab.ask(lab.client.get, "/v1/jobs"))["jobs"]}
    first = found["q1"]
    assert (first["name"], first["kind"], first["state"], first["unit"]) == ("copy", "query", "running", "rows")
    assert (first["done"], first["total"], first["rate"], first["seconds_left"]) == (250, 300, 50, 1)
    assert first["details"] == {"batch": "1", "trigger ms": "120", "behind": "50 records"}
    assert (found["q2"]["name"], found["q2"]["state"]) == ("query q2", "failed")
    assert found["q2"]["details"] == {"reason": "a stack\nof lines"}
    await lab.close()


def test_sources_that_do_not_say_where_they_are() -> None:
    for sources in ([], [source(None, 3)], [source(1, None)], [SimpleNamespace(endOffset="1", latestOffset="2")]):
        assert listener.records_behind(sources) is None
    assert listener.records_behind([source(1, 3), source(2, 10)]) == 10


def test_a_node_that_is_not_there_disturbs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "PATIENCE_S", 0.0)
    told = NodeListener(f"anabranch://127.0.0.1:{free_port()}")
    told.onQueryStarted(SimpleNamespace(id="q1", name="copy"))
    told.close()
    assert told.failed >= 1
    with pytest.raises(OptionError, match="no address of a node"):
        NodeListener("http://h")
