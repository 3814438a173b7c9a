"""Jobs as operators see them: progress that programs elsewhere report to a front, for the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

RUNNING = "running"
SILENT = "silent"
"""The job reported that it was running and then nothing more: it may still run, or it was killed."""


class JobView(Struct, frozen=True):
    """A job's last report, unchecked. ``done`` of ``total`` (None: unknown) ``unit``s, ``rate`` of them a second. Times
    in ms since 1970; ``seconds_left`` is None where it cannot be computed."""

    job_id: str
    kind: str
    name: str
    state: str
    owner: str
    done: float
    total: float | None
    unit: str
    rate: float | None
    seconds_left: float | None
    begun_ms: int
    heard_ms: int
    details: Mapping[str, str]

    def as_json(self) -> dict[str, object]:
        """Return the fields by name; nothing is copied."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    @property
    def remaining(self) -> float | None:
        """Return how much of ``total`` is left; None without a total."""
        return None if self.total is None else max(0.0, self.total - self.done)


class JobDirectory(Protocol):
    """The jobs that report to a front."""

    def jobs(self) -> Sequence[JobView]:
        """Return all known jobs, a bounded number.

        Running jobs come first, the latest start first; then ended and silent jobs, the latest report first. A report
        alone moves no job.
        """
