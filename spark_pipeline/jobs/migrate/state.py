"""The state of a migration in a directory beside its plan: receipts, steps, reports.

``plan.json`` -> ``plan.json.state/`` with ``receipts.jsonl``, ``steps.json`` and ``report.json``. Losing it costs only
time: the target knows its offsets, and repeated batches are compared.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_pipeline.core.errors import PipelineError
from spark_pipeline.core.files import json_bytes, replace
from spark_pipeline.jobs.migrate.plan import Plan, PlanError
from spark_pipeline.jobs.migrate.receipts import Receipts


class Busy(PipelineError):
    """Another process works on this migration."""


class MigrationState:
    """The state of one plan, a context manager; ``exclusive`` for a process that changes it."""

    def __init__(self, plan_path: Path, *, exclusive: bool = True) -> None:
        self.plan = Plan.load(plan_path)
        self.path = plan_path
        self.directory = plan_path.with_name(plan_path.name + ".state")
        self.directory.mkdir(exist_ok=True)
        self._lock = (self.directory / "lock").open("a")
        if exclusive:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._lock.close()
                raise Busy(f"another process works on {plan_path}") from None
        self.receipts = Receipts(self.directory / "receipts.jsonl", self.plan.digest, writes=exclusive)
        self._steps_path = self.directory / "steps.json"
        self.steps: dict[str, dict[str, Any]] = self._load_steps()

    def __enter__(self) -> MigrationState:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def _load_steps(self) -> dict[str, dict[str, Any]]:
        try:
            content = json.loads(self._steps_path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise PlanError(f"{self._steps_path} is damaged: {error}") from error
        if content["plan"] != self.plan.digest:
            raise PlanError(f"{self._steps_path} is of another plan, {content['plan'][:12]}")
        steps: dict[str, dict[str, Any]] = content["steps"]
        return steps

    def step_done(self, name: str, **facts: Any) -> None:
        """Record a completed step; durable when this returns."""
        self.steps[name] = {"at_ms": time.time_ns() // 1_000_000, **facts}
        replace(self._steps_path, json_bytes({"plan": self.plan.digest, "steps": self.steps}))

    def report(self, name: str, content: Mapping[str, Any]) -> Path:
        """Store a report and return its path."""
        path = self.directory / f"{name}.json"
        replace(path, json_bytes(content))
        return path
