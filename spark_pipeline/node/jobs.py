"""Jobs that run elsewhere and report their progress, kept for the console and for metrics.

A report is an unchecked claim, and shown as such. The node stores a job's report when the job begins or ends, and now
and then in between; after a restart of the node it shows the stored report until the next one arrives. A job that stops
reporting is shown as silent. Silent and ended jobs are forgotten after a time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict, replace

from anabranch_kit.run.clock import now_ms
from bridges.catalog.database.sql import Connection, upsert
from bridges.catalog.views.jobs import RUNNING, SILENT, JobView
from bridges.errors import LogError

if TYPE_CHECKING:
    from bridges.node.front import NodeServices

STATES = (RUNNING, "done", "different", "failed", "stopped")
"""``different``: a comparison ran to its end and found differences."""
MOST = 1_000
"""Most jobs kept at a time; beyond that, the ended or silent job with the oldest report is forgotten."""
_SILENT_MS = 60_000
_KEPT_MS = 7 * 86_400_000
"""How long a job is kept after its last report."""
_WRITTEN_EVERY_MS = 10_000


def create(connection: Connection) -> None:
    """Create the table, as a migration."""
    connection.execute(
        "CREATE TABLE front_pipeline_jobs (owner TEXT, id TEXT, content TEXT NOT NULL, PRIMARY KEY (owner, id)) STRICT"
    )


class TooManyJobs(LogError):
    """The node's list of jobs is full of running jobs."""


class _Known(Struct):
    view: JobView
    written_ms: int


class Jobs:
    """The node's list of jobs, see :class:`bridges.catalog.views.jobs.JobDirectory`. Call :meth:`load` first."""

    def __init__(self, node: NodeServices) -> None:
        self._db = node.db
        self._known: dict[tuple[str, str], _Known] = {}

    async def load(self) -> None:
        """Load the stored reports."""
        query = "SELECT content FROM front_pipeline_jobs"
        rows = await self._db.run(lambda connection: connection.execute(query).fetchall())
        for (content,) in rows:
            view = JobView(**json.loads(content))
            self._known[view.owner, view.job_id] = _Known(view, view.heard_ms)

    def jobs(self) -> Sequence[JobView]:
        now = now_ms()
        found = [
            replace(one.view, state=SILENT) if _is_silent(one.view, now) else one.view for one in self._known.values()
        ]
        return sorted(
            found,
            key=lambda view: (
                view.state != RUNNING,
                -(view.begun_ms if view.state == RUNNING else view.heard_ms),
                view.job_id,
            ),
        )

    async def take_report(self, view: JobView) -> None:
        """Take a job's report. Raises TooManyJobs, LogError."""
        key = view.owner, view.job_id
        known = self._known.get(key)
        if known is None:
            await self._make_room()
        else:
            view = replace(view, begun_ms=known.view.begun_ms)
        due = known is None or known.view.state != view.state
        written_ms = view.heard_ms if known is None else known.written_ms
        if due or view.heard_ms >= written_ms + _WRITTEN_EVERY_MS:
            written_ms = view.heard_ms
            row = (*key, json.dumps(asdict(view)))
            await self._db.run(
                lambda connection: connection.execute(upsert("front_pipeline_jobs", "owner id", "content"), row),
                then=lambda _: self._remember(key, view, written_ms),
            )
        else:
            self._remember(key, view, written_ms)

    def _remember(self, key: tuple[str, str], view: JobView, written_ms: int) -> None:
        self._known[key] = _Known(view, written_ms)

    async def _make_room(self) -> None:
        if len(self._known) < MOST:
            return
        now = now_ms()
        over = [key for key, one in self._known.items() if one.view.state != RUNNING or _is_silent(one.view, now)]
        if not over:
            raise TooManyJobs(f"{len(self._known)} jobs are running, and no more are shown")
        await self._forget([min(over, key=lambda key: self._known[key].view.heard_ms)])

    async def expire(self, now_ms: int) -> None:
        """Forget jobs without a report for a week; a chore."""
        gone = [key for key, one in self._known.items() if one.view.heard_ms + _KEPT_MS < now_ms]
        if gone:
            await self._forget(gone)

    async def _forget(self, keys: Sequence[tuple[str, str]]) -> None:
        query = "DELETE FROM front_pipeline_jobs WHERE owner = ? AND id = ?"

        def forgotten(_: object) -> None:
            for key in keys:
                self._known.pop(key, None)

        await self._db.run(lambda connection: connection.executemany(query, keys), then=forgotten)


def _is_silent(view: JobView, now_ms: int) -> bool:
    return view.state == RUNNING and view.heard_ms + _SILENT_MS < now_ms
