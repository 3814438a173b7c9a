"""Spark's streaming queries as jobs of a node: its console and metrics then show how far each is.

    spark.streams.addListener(NodeListener("anabranch://localhost:8090"))

What Spark tells of a query is kept until a thread has sent it; of each query only the newest. That a node cannot be
told disturbs no query.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_pipeline.core.node_client import NodeClient, NodeError, NodeOptions
from spark_pipeline.core.repeating import Repeating

_PATIENCE_S = 2.0
_EVERY_S = 1.0
_HEARD_EVERY_S = 20.0
"""How often a query that does nothing says that it is there."""
_MOST = 1_000
"""Queries that are remembered."""


class NodeListener(StreamingQueryListener):
    """Reports all queries of a session to one node. :meth:`close` sends what is left."""

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        """``options``: those of :class:`NodeOptions`. Raises OptionError."""
        super().__init__()
        self._client = NodeClient(NodeOptions.of(url, options))
        self._lock = threading.Lock()
        self._latest: dict[str, dict[str, Any]] = {}
        self._due: dict[str, None] = {}
        self._sent = time.monotonic()
        self._sending: Repeating | None = None
        self.failed = 0
        """Reports that did not arrive."""

    # --- Spark's calls, which must not be held up --------------------------------------------------------------------

    def onQueryStarted(self, event: Any) -> None:
        """A query begins, or goes on after a restart."""
        self._tell(str(event.id), {"name": event.name or f"query {event.id}", "state": "running", "done": 0})

    def onQueryProgress(self, event: Any) -> None:
        """A micro-batch is done."""
        progress = event.progress
        known = self._latest.get(str(progress.id), {})
        behind = _behind(progress.sources)
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
        """A query has nothing to do."""
        self._tell(str(event.id), {"state": "running", "rate": 0})

    def onQueryTerminated(self, event: Any) -> None:
        """A query has ended, or failed."""
        told: dict[str, Any] = {"state": "stopped" if event.exception is None else "failed"}
        if event.exception is not None:
            told["details"] = {"reason": str(event.exception).strip()[:200]}
        self._tell(str(event.id), told)

    def close(self) -> None:
        """Send what is left, once, and end."""
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
                self._client.post("/v1/jobs", report, patience=_PATIENCE_S)
            except NodeError:
                self.failed += 1


def _finite(value: Any) -> float | None:
    """A rate that Spark tells: it has no numbers for what took no time."""
    return float(value) if isinstance(value, int | float) and 0 <= value < float("inf") else None


def _behind(sources: Any) -> int | None:
    """Records between where the sources are and where they end, if all of them tell both as offsets of partitions."""
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
