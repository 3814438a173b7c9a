"""The state of a migration in a directory beside its plan: receipts, steps, reports.

``plan.json`` -> ``plan.json.state/`` with receipts, steps, reports and the sides' options. Losing it costs only
time: the target knows its offsets, and repeated batches are compared.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

from anabranch_kit.run.clock import now_ms
from spark_pipeline.core.client.job_client import JobProgress
from spark_pipeline.core.errors import PipelineError
from spark_pipeline.core.files import json_bytes, replace
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.jobs.migrate.plan import Plan, PlanError


class Busy(PipelineError):
    """Another process works on this migration."""


def state_directory(plan: Path) -> Path:
    """Return the directory beside a plan."""
    return plan.with_name(plan.name + ".state")


class MigrationState:
    """The state of one plan, a context manager; ``exclusive`` for a process that changes it."""

    def __init__(self, plan_path: Path, *, exclusive: bool = True) -> None:
        self.plan = Plan.load(plan_path)
        self.path = plan_path
        self.directory = state_directory(plan_path)
        self.directory.mkdir(exist_ok=True)
        self.exclusive = exclusive
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
        self.steps[name] = {"at_ms": now_ms(), **facts}
        replace(self._steps_path, json_bytes({"plan": self.plan.digest, "steps": self.steps}))

    @property
    def is_busy(self) -> bool:
        """Return whether another process changes this migration now."""
        if self.exclusive:
            return False
        try:
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        return False

    def with_verdict(self, progress: Callable[[], JobProgress]) -> Callable[[], JobProgress]:
        """Return ``progress``, with the verdict of the last verification among its details."""

        def judge() -> JobProgress:
            now = progress()
            return replaced(now, details={**now.details, "verified": self._verdict()})

        return judge

    def _verdict(self) -> str:
        try:
            found = json.loads((self.directory / "verify.json").read_text())
        except (FileNotFoundError, ValueError):
            return ""
        count = len(found["differences"])
        verdict = "equal" if not count else f"{count} difference{'s' if count > 1 else ''}"
        return f"{verdict} at level {found['level']}"

    def report(self, name: str, content: Mapping[str, Any]) -> Path:
        """Store a report and return its path."""
        path = self.directory / f"{name}.json"
        replace(path, json_bytes(content))
        return path


class ReceiptsError(PipelineError):
    """The file of receipts is damaged, or belongs to another plan."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof that the offsets ``[start, end)`` of a partition are at the target, as ``batches`` of ``bytes`` in all.

    ``digest`` is the CRC-32C of all batches in order, without their leader epochs (see
    :func:`spark_pipeline.core.kafka_batches.digest`). ``epoch`` is the migration's run, ``seconds`` the duration of the
    copy, ``at_ms`` the time when it was done.
    """

    plan: str
    epoch: int
    topic: str
    partition: int
    start: int
    end: int
    batches: int
    bytes: int
    digest: int
    seconds: float
    at_ms: int

    @property
    def part(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Receipts:
    """The receipts of one plan; thread-safe within one process. ``writes``: this process may add receipts."""

    def __init__(self, path: Path, plan: str, *, writes: bool = True) -> None:
        self._path = path
        self._plan = plan
        self._lock = threading.Lock()
        self.all: list[Receipt] = []
        self._latest: dict[TopicPartition, dict[int, Receipt]] = {}
        self._load(writes=writes)

    def _load(self, *, writes: bool) -> None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        whole, _, torn = data.rpartition(b"\n")
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                receipt = Receipt(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise ReceiptsError(f"line {number} of {self._path} is no receipt: {error}") from error
            if receipt.plan != self._plan:
                raise ReceiptsError(f"{self._path} has receipts of another plan, {receipt.plan[:12]}")
            self._keep(receipt)
        if torn and writes:
            # The process died while it wrote this line: drop it, and copy its range again.
            with self._path.open("r+b") as file:
                file.truncate(len(data) - len(torn))

    def add(self, receipts: Iterable[Receipt]) -> None:
        """Add receipts; durable when this returns."""
        new = list(receipts)
        if not new:
            return
        text = "".join(json.dumps(asdict(one), separators=(",", ":")) + "\n" for one in new)
        with self._lock:
            with self._path.open("ab") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            for one in new:
                self._keep(one)

    def _keep(self, one: Receipt) -> None:
        self.all.append(one)
        self._latest.setdefault(one.part, {})[one.start] = one

    def of_partition(self, part: TopicPartition) -> list[Receipt]:
        """Return a partition's receipts by offset; of several with the same start, only the latest."""
        return [one for _, one in sorted(self._latest.get(part, {}).items())]

    def reached(self, part: TopicPartition, start: int) -> int:
        """Return the offset up to which a partition's receipts cover everything from ``start`` on."""
        at = start
        for one in self.of_partition(part):
            if one.start > at:
                break
            at = max(at, one.end)
        return at

    @property
    def bytes(self) -> int:
        """Return the bytes of all copied batches."""
        return sum(one.bytes for one in self.all)
