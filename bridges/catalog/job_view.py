"""Jobs as people look at them: what a front tells the console of programs elsewhere that say how far they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

RUNNING = "running"
SILENT = "silent"
"""It said that it was running, and has not been heard of since: it may be, or it was killed."""


class JobView(Struct, frozen=True):
    """A job as it last told of itself; nothing of it is checked. ``done`` of ``total`` (None: nobody knows) ``unit``s,
    ``rate`` of them a second. Times in ms since 1970, ``seconds_left`` None where it cannot be told."""

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
        """By the names of the fields; nothing is copied."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    @property
    def remaining(self) -> float | None:
        """What is left of ``total``."""
        return None if self.total is None else max(0.0, self.total - self.done)


class JobDirectory(Protocol):
    """The jobs that have told a front of themselves."""

    def jobs(self) -> Sequence[JobView]:
        """All that are known; a bounded number. Running ones first, those that began last before others; then those
        that have ended or are silent, the ones heard of last first: none changes places because it has reported."""
