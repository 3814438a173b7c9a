"""The client side of a node's list of jobs: a job reports its progress now and then. Nothing depends on the reports."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from spark_pipeline.core.client.node_client import NodeClient, NodeError
from spark_pipeline.core.errors import FoundDifferences
from spark_pipeline.core.repeating import Repeating

PATIENCE_S = 2.0
_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class JobProgress:
    """A job's progress: ``done`` of ``total`` (None: unknown) ``unit``s, at ``rate`` units per second."""

    done: float = 0
    total: float | None = None
    unit: str = "records"
    rate: float | None = None
    seconds_left: float | None = None
    details: Mapping[str, str] = field(default_factory=dict)


class JobReporter:
    """A context manager that reports a job until the block ends. A report that fails does not fail the job.

    A thread of the reporter calls ``progress`` every few seconds. The reporter needs a client of its own.
    """

    def __init__(
        self,
        client: NodeClient,
        kind: str,
        name: str,
        progress: Callable[[], JobProgress],
        *,
        job_id: str = "",
        seconds: float = _EVERY_S,
    ) -> None:
        self._client = client
        self._kind, self._name = kind, name
        self._progress = progress
        self._repeating = Repeating(lambda: self.tell("running"), seconds, "job-report")
        self.job_id = job_id or uuid.uuid4().hex
        self.failed = 0
        """Number of reports that did not arrive."""

    def __enter__(self) -> Self:
        self.tell("running")
        self._repeating.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._repeating.stop()
        self.tell(_state_at_end(error), "" if error is None else str(error))
        self._client.close()

    def tell(self, state: str, reason: str = "") -> None:
        """Report now."""
        now = self._progress()
        details = {name[:50]: value[:200] for name, value in now.details.items() if value}
        if reason:
            details["reason"] = reason.strip()[:200]
        report = {
            "id": self.job_id,
            "kind": self._kind,
            "name": self._name[:200],
            "state": state,
            "done": now.done,
            "total": now.total,
            "unit": now.unit,
            "rate": now.rate,
            "seconds_left": now.seconds_left,
            "details": details,
        }
        try:
            self._client.post("/v1/jobs", report, patience=PATIENCE_S)
        except NodeError:
            self.failed += 1


def _state_at_end(error: BaseException | None) -> str:
    match error:
        case None:
            return "done"
        case KeyboardInterrupt():
            return "stopped"
        case FoundDifferences():
            return "different"
        case _:
            return "failed"


class Rate:
    """Units per second over about the last half minute."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []

    def at(self, done: float) -> float | None:
        """Return the rate, given that ``done`` is reached now; None for the first call."""
        now = time.monotonic()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] > 30:
            self._seen.pop(0)
        since, before = self._seen[0]
        return (done - before) / (now - since) if now > since else None
