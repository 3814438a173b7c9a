"""Routes of jobs: jobs report their progress, and clients with access to the node list them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from aiohttp import web

from anabranch_kit.run.clock import now_ms
from bridges.auth import Operation
from bridges.catalog.views.jobs import JobView
from bridges.http import rows
from bridges.http.access import principal_of
from bridges.http.errors import RequestError
from spark_pipeline.node.core import text
from spark_pipeline.node.jobs import STATES

if TYPE_CHECKING:
    from spark_pipeline.node.core import PipelineCore

_DETAILS, _DETAIL = 20, 200
_CHORE_MS = 60_000
_FIELDS = {"id", "kind", "name", "state", "done", "total", "unit", "rate", "seconds_left", "details"}


class JobHandlers:
    """The route ``/v1/jobs``."""

    def __init__(self, core: PipelineCore) -> None:
        self._core = core

    async def running(self, app: web.Application) -> AsyncIterator[None]:
        """Load the jobs before the first request, and start the chore that expires them."""
        await self._core.jobs.load()
        self._core.node.every(_CHORE_MS, self._core.jobs.expire, "expiry of jobs")
        yield

    async def report(self, request: web.Request) -> web.StreamResponse:
        """Take a job's report.

        Body: ``id`` (unique among this owner's jobs), ``kind``, ``name``, ``state``, and the progress: ``done``,
        ``total``, ``unit``, ``rate``, ``seconds_left``; ``details``, a few short texts by name.
        """
        body = await self._core.json(request, _FIELDS)
        state = body.get("state")
        if state not in STATES:
            raise RequestError(f"state is none of {', '.join(STATES)}")
        now = now_ms()
        view = JobView(
            text(body.get("id"), "id", 100),
            text(body.get("kind"), "kind", 30),
            text(body.get("name"), "name", 200),
            state,
            str(principal_of(request)),
            _number(body.get("done", 0), "done"),
            _number_or_none(body.get("total"), "total"),
            text(body.get("unit", "records"), "unit", 30),
            _number_or_none(body.get("rate"), "rate"),
            _number_or_none(body.get("seconds_left"), "seconds_left"),
            now,
            now,
            _details(body.get("details", {})),
        )
        await self._core.jobs.take_report(view)
        return await self._core.answer(request, {})

    async def list(self, request: web.Request) -> web.StreamResponse:
        """Answer with all jobs, in the order of :meth:`Jobs.jobs`."""
        self._core.access.require_node(request, Operation.DESCRIBE)
        return await rows.answer(request, "jobs", (view.as_json() for view in [*self._core.jobs.jobs()]))


def register(app: web.Application, core: PipelineCore) -> None:
    handlers = JobHandlers(core)
    app.cleanup_ctx.append(handlers.running)
    app.router.add_post("/v1/jobs", handlers.report)
    app.router.add_get("/v1/jobs", handlers.list)


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise RequestError(f"{what} is not a number from 0 on")
    return float(value)


def _number_or_none(value: Any, what: str) -> float | None:
    return None if value is None else _number(value, what)


def _details(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > _DETAILS:
        raise RequestError(f"details must be a JSON object of at most {_DETAILS} texts")
    return {
        text(name, "a detail's name", 50): text(one, f"detail {name[:50]!r}", _DETAIL) for name, one in value.items()
    }
