"""Jobs tell a node of themselves, and people see it: in the console's interface, in metrics, and after a restart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridges.catalog.views.jobs import JobView
from spark_pipeline.core.client import job_client
from spark_pipeline.core.client.job_client import JobProgress, JobReporter, Rate
from spark_pipeline.core.client.node_client import NodeClient, NodeError, NodeOptions
from spark_pipeline.core.errors import FoundDifferences
from spark_pipeline.node import jobs as node_jobs
from tests.ports import free_port
from tests.spark_pipeline.node.pipeline_lab import Lab, client_of, node_of, open_lab


async def console(lab: Lab, path: str) -> Any:
    url = f"http://{lab.node.addresses['console']}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        text = await answer.text()
        return json.loads(text) if answer.content_type == "application/json" else text


async def shown(lab: Lab) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await console(lab, "/api/jobs"))["jobs"]
    return found


def progress(done: float = 10, **more: Any) -> JobProgress:
    return JobProgress(done, 100, "records", 5.0, 18.0, details={"from": "kafka://old", **more})


async def test_a_job_is_shown_from_its_beginning_to_its_end_and_after_a_restart(tmp_path: Path) -> None:
    lab = await open_lab(tmp_path, listen__console="127.0.0.1:0")

    def run() -> None:
        with JobReporter(client_of(lab.node), "migrate", "the old cluster", progress, job_id="m1", seconds=3600):
            loop.call_soon_threadsafe(begun.set)
            asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result()
            raise ValueError("a partition is gone")

    loop, begun, may_end = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(asyncio.to_thread(run))
    await begun.wait()
    (job,) = await shown(lab)
    told = {name: job[name] for name in ("front", "job_id", "kind", "name", "state", "owner", "done", "total", "rate")}
    assert told == {
        "front": "pipeline",
        "job_id": "m1",
        "kind": "migrate",
        "name": "the old cluster",
        "state": "running",
        "owner": "User:ANONYMOUS",
        "done": 10,
        "total": 100,
        "rate": 5,
    }
    assert job["details"] == {"from": "kafka://old"}
    metrics = await console(lab, "/metrics")
    assert 'anabranch_jobs{kind="migrate",state="running"} 1.0' in metrics
    assert 'anabranch_job_remaining{job="m1",kind="migrate",name="the old cluster",unit="records"} 90.0' in metrics
    may_end.set()
    with pytest.raises(ValueError, match="a partition is gone"):
        await running
    (job,) = await shown(lab)
    assert (job["state"], job["details"]["reason"]) == ("failed", "a partition is gone")
    await lab.close()

    node = node_of(tmp_path, listen__console="127.0.0.1:0")
    await node.start()
    again = Lab(node, client_of(node))
    assert await shown(again) == [job]
    assert "anabranch_job_done{" not in await console(again, "/metrics")
    await again.close()


async def test_a_comparison_that_found_differences_is_not_shown_as_done(tmp_path: Path) -> None:
    lab = await open_lab(tmp_path, listen__console="127.0.0.1:0")

    def run() -> None:
        with JobReporter(client_of(lab.node), "audit", "verify the lake", progress):
            raise FoundDifferences("3 records are missing")

    with pytest.raises(FoundDifferences):
        await asyncio.to_thread(run)
    (job,) = await shown(lab)
    assert (job["state"], job["details"]["reason"]) == ("different", "3 records are missing")
    await lab.close()


async def test_a_job_that_is_not_heard_of_is_silent_and_goes_after_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = await open_lab(tmp_path)
    jobs = node_jobs.Jobs(lab.node.services(type(lab.node.fronts[0])))
    now_ms = 1_000_000

    def view(number: int, state: str = "running") -> JobView:
        name = f"j{number}"
        return JobView(name, "audit", name, state, "me", 0, None, "records", None, None, now_ms, now_ms, {})

    monkeypatch.setattr(node_jobs, "now_ms", lambda: now_ms)
    monkeypatch.setattr(node_jobs, "MOST", 2)
    await jobs.take_report(view(1))
    now_ms += 50_000
    await jobs.take_report(view(2))
    assert [(one.job_id, one.state) for one in jobs.jobs()] == [("j2", "running"), ("j1", "running")]
    with pytest.raises(node_jobs.TooManyJobs):
        await jobs.take_report(view(3))
    now_ms += 20_000
    assert [(one.job_id, one.state) for one in jobs.jobs()] == [("j2", "running"), ("j1", "silent")]
    await jobs.take_report(view(2, "done"))
    await jobs.take_report(view(3))  # the silent one goes: it was heard of first
    assert [(one.job_id, one.state) for one in jobs.jobs()] == [("j3", "running"), ("j2", "done")]
    begun = {one.job_id: one.begun_ms for one in jobs.jobs()}
    assert begun["j2"] == 1_050_000
    await jobs.expire(now_ms + 8 * 86_400_000)
    assert list(jobs.jobs()) == []
    again = node_jobs.Jobs(lab.node.services(type(lab.node.fronts[0])))
    await again.load()
    assert list(again.jobs()) == []
    await lab.close()


async def test_reports_that_are_none(tmp_path: Path) -> None:
    lab = await open_lab(tmp_path)
    good = {"id": "1", "kind": "audit", "name": "n", "state": "running"}
    for change, complaint in (
        ({"state": "flying"}, "state is none of running, done, different, failed, stopped"),
        ({"done": -1}, "done is not a number"),
        ({"done": float("nan")}, "done is not a number"),
        ({"rate": "fast"}, "rate is not a number"),
        ({"name": "x" * 201}, "name is not a text of 1 to 200"),
        ({"details": {"a": 1}}, "a detail is not a text|detail"),
        ({"details": {str(number): "x" for number in range(21)}}, "at most 20"),
        ({"more": 1}, "unknown field 'more'"),
    ):
        with pytest.raises(NodeError, match=complaint):
            await lab.ask(lab.client.post, "/v1/jobs", {**good, **change})
    await lab.ask(lab.client.post, "/v1/jobs", good)
    assert len((await lab.ask(lab.client.get, "/v1/jobs"))["jobs"]) == 1
    await lab.close()


def test_a_node_that_cannot_be_told_does_not_end_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_client, "PATIENCE_S", 0.0)
    nobody = NodeClient(NodeOptions.parse(f"anabranch://127.0.0.1:{free_port()}"))
    with JobReporter(nobody, "archive", "n", progress) as reporter:
        assert reporter.failed == 1
    assert reporter.failed == 2


def test_a_rate_is_that_of_the_last_half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("spark_pipeline.core.client.job_client.time.monotonic", lambda: now)
    rate = Rate()
    assert rate.at(0) is None
    now = 10
    assert rate.at(100) == 10
    now = 100
    assert rate.at(1_000) == 10
    now = 110
    assert rate.at(3_000) == 29  # since the last that is older than half a minute
