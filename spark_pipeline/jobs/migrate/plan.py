"""The plan of a migration, written once: it never changes, and every receipt names it by its digest."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from msgspec import ValidationError, convert

from spark_pipeline.core.errors import PipelineError
from spark_pipeline.core.files import json_bytes, written_beside
from spark_pipeline.core.ranges import TopicPartition

_VERSION = 1


class PlanError(PipelineError):
    """A plan cannot be read, or is not the one that a receipt or run belongs to."""


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """A partition as the source had it when planned: offsets ``[start, end)``; committed data ended at ``stable``."""

    partition: int
    start: int
    stable: int
    end: int


@dataclass(frozen=True, slots=True)
class NotCarried:
    """A property of the source that the target does not take over as it is: ``what`` of ``topic`` ("" for all).

    ``why`` is the reason, or with ``changed`` what the target has instead.
    """

    topic: str
    what: str
    why: str
    changed: bool = False


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """A topic: its configuration as the target takes it, and its partitions."""

    name: str
    config: Mapping[str, str]
    partitions: tuple[PlannedPartition, ...]
    identity: str = ""

    @property
    def is_compacted(self) -> bool:
        """Return whether the source may remove records from the middle of the log."""
        return "compact" in self.config.get("cleanup.policy", "")


@dataclass(frozen=True, slots=True)
class Plan:
    """A migration from ``source`` to ``target``, both URLs without secrets. Times are wall clock in ms."""

    migration: str
    source: str
    target: str
    made_ms: int
    topics: tuple[PlannedTopic, ...]
    groups: tuple[str, ...] = ()
    not_carried: tuple[NotCarried, ...] = ()
    version: int = field(default=_VERSION)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the whole plan."""
        return hashlib.sha256(self._text().encode()).hexdigest()

    @property
    def partitions(self) -> list[TopicPartition]:
        """Return all partitions, in order."""
        return [TopicPartition(topic.name, one.partition) for topic in self.topics for one in topic.partitions]

    @property
    def offsets(self) -> int:
        """Return the number of offsets to copy, gaps included."""
        return sum(one.end - one.start for topic in self.topics for one in topic.partitions)

    def topic(self, name: str) -> PlannedTopic:
        """Return the topic of that name. Raises PlanError."""
        for topic in self.topics:
            if topic.name == name:
                return topic
        raise PlanError(f"topic {name!r} is not in the plan")

    def _text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    def save(self, path: Path) -> None:
        """Write the plan to a new file, whole or not at all. Raises PlanError if the file exists."""
        partial = written_beside(path, json_bytes({"plan": json.loads(self._text()), "sha256": self.digest}))
        try:
            os.link(partial, path)  # unlike a rename, a link never replaces an existing file
        except FileExistsError:
            raise PlanError(f"{path} exists: a plan is never changed; give another name") from None
        finally:
            partial.unlink()

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Read a plan. Raises PlanError for a file that is no plan, or was changed."""
        try:
            content = json.loads(path.read_text())
            plan = convert(content["plan"], cls)
            if plan.version != _VERSION:
                raise ValueError(f"it is of version {plan.version}, which this version cannot read")
            digest = content["sha256"]
        except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
            raise PlanError(f"{path} is no plan: {type(error).__name__}: {error}") from error
        if plan.digest != digest:
            raise PlanError(f"{path} was changed after it was made: its digest is not {digest}")
        return plan


def carried(
    topic: str, config: Mapping[str, str], valid: Mapping[str, bool], check: Callable[[str, str], object]
) -> tuple[dict[str, str], list[NotCarried]]:
    """Return the part of a topic's configuration that the target takes, and the settings that it does not carry.

    ``valid`` has the keys that the target knows and whether each has an effect there. ``check(key, value)`` raises
    ValueError for a value that the target refuses.
    """
    taken: dict[str, str] = {}
    left: list[NotCarried] = []
    for key, value in sorted(config.items()):
        if key not in valid:
            left.append(NotCarried(topic, f"{key} = {value}", "the target has no such configuration"))
            continue
        try:
            check(key, value)
        except ValueError as error:
            left.append(NotCarried(topic, f"{key} = {value}", str(error)))
            continue
        taken[key] = value
        if not valid[key]:
            why = "it is kept and shown, but has no effect at the target"
            left.append(NotCarried(topic, f"{key} = {value}", why, changed=True))
    return taken, left
