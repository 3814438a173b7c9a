"""Reports Spark's streaming queries to a node as jobs: its console and metrics then show the progress of each.

    spark.streams.addListener(NodeListener("anabranch://localhost:8090"))

The listener keeps the newest report of each query until a thread has sent it. A report that fails does not disturb a
query.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_pipeline.core.client.node_client import NodeClient, NodeError, NodeOptions
from spark_pipeline.core.repeating import Repeating

PATIENCE_S = 2.0
_EVERY_S = 1.0
_HEARD_EVERY_S = 20.0
"""Seconds between reports of idle queries."""
_MOST = 1_000
"""Most queries whose reports are kept."""


class NodeListener(StreamingQueryListener):
    """A listener that reports all queries of a session to one node. :meth:`close` sends the remaining reports."""

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        """``options`` are those of :class:`NodeOptions`. Raises OptionError."""
        super().__init__()
        self._client = NodeClient(NodeOptions.parse(url, options))
        self._lock = threading.Lock()
        self._latest: dict[str, dict[str, Any]] = {}
        self._due: dict[str, None] = {}
        self._sent = time.monotonic()
        self._sending: Repeating | None = None
        self.failed = 0
        """Number of reports that did not arrive."""

    # --- Spark's calls, which must not be held up --------------------------------------------------------------------

    def onQueryStarted(self, event: Any) -> None:
        """Report that a query begins, or goes on after a restart."""
        self._tell(str(event.id), {"name": event.name or f"query {event.id}", "state": "running", "done": 0})

    def onQueryProgress(self, event: Any) -> None:
        """Report a completed micro-batch."""
        progress = event.progress
        known = self._latest.get(str(progress.id), {})
        behind = records_behind(progress.sources)
        done = known.get("done", 0) + max(0, progress.numInputRows)
        rate = _finite(progress.processedRowsPerSecond)
        details = {
            "batch": str(progress.batchId),
            "trigger ms": str(progress.durationMs.get("triggerExecution", "")),
            "arriving": "" if (coming := _finite(progress.inputRowsPerSecond)) is None else f"{coming:.0f} rows/s",
            "behind": "" if behind is None else f"{behind} records",
        }
        told = {"state": "running", "done": done, "rate": rate, "details": {k: v for k, v in details.items() if v}}
        if behind is not None:
            told["total"] = done + behind
            told["seconds_left"] = behind / rate if rate else None
        self._tell(str(progress.id), {"name": progress.name or f"query {progress.id}", **told})

    def onQueryIdle(self, event: Any) -> None:
        """Report that a query has nothing to do."""
        self._tell(str(event.id), {"state": "running", "rate": 0})

    def onQueryTerminated(self, event: Any) -> None:
        """Report that a query has ended, or failed."""
        told: dict[str, Any] = {"state": "stopped" if event.exception is None else "failed"}
        if event.exception is not None:
            told["details"] = {"reason": str(event.exception).strip()[:200]}
        self._tell(str(event.id), told)

    def close(self) -> None:
        """Send the remaining reports, once, and end."""
        if self._sending is not None:
            self._sending.stop()
        self._send()
        self._client.close()

    # --- the thread that sends ----------------------------------------------------------------------------------------

    def _tell(self, query: str, told: Mapping[str, Any]) -> None:
        with self._lock:
            known = self._latest.pop(query, {"name": f"query {query}", "done": 0})
            self._latest[query] = {**known, **told, "id": query, "kind": "query", "unit": "rows"}
            while len(self._latest) > _MOST:
                self._latest.pop(next(iter(self._latest)))
            self._due[query] = None
            if self._sending is None:
                self._sending = Repeating(self._send, _EVERY_S, "query-reports")
                self._sending.start()

    def _send(self) -> None:
        with self._lock:
            due, self._due = self._due, {}
            if time.monotonic() > self._sent + _HEARD_EVERY_S:
                due.update((query, None) for query, one in self._latest.items() if one["state"] == "running")
            reports = [self._latest[query] for query in due if query in self._latest]
        for report in reports:
            self._sent = time.monotonic()
            try:
                self._client.post("/v1/jobs", report, patience=PATIENCE_S)
            except NodeError:
                self.failed += 1


def _finite(value: Any) -> float | None:
    """Return a rate of Spark's, or None: Spark gives no number if no time has passed."""
    return float(value) if isinstance(value, int | float) and 0 <= value < float("inf") else None


def records_behind(sources: Any) -> int | None:
    """Return the records between the sources' positions and ends; None unless all give both as offsets."""
    total = 0
    for source in sources or ():
        try:
            at, latest = json.loads(source.endOffset), json.loads(source.latestOffset)
            for topic, ends in latest.items():
                for partition, end in ends.items():
                    total += max(0, int(end) - int(at.get(topic, {}).get(partition, 0)))
        except (TypeError, ValueError, AttributeError):
            return None
    return total if sources else None
