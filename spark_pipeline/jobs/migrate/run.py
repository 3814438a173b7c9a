"""The run of a plan: rounds that copy new records, until none is left or, with ``follow``, until it is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_pipeline.core import repeating
from spark_pipeline.core.errors import Conflict, Fenced
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.endpoints.base import Positions
from spark_pipeline.endpoints.importer import Importer, ImportState, origin_of
from spark_pipeline.endpoints.migration import MigrationSource, migration_source
from spark_pipeline.jobs.migrate.copying import CopyTask, Route
from spark_pipeline.jobs.migrate.plan import Plan
from spark_pipeline.jobs.migrate.state import Receipt

if TYPE_CHECKING:
    from spark_pipeline.jobs.migrate.copying import Copying
    from spark_pipeline.jobs.migrate.state import MigrationState
    from spark_pipeline.jobs.progress import Meter

_IDLE_S = 0.5
"""Seconds that a follower waits after a round without new records."""


@dataclass(slots=True)
class Round:
    """The result of one round: ``copied`` offsets, and ``lag``, the offsets that the target still lacks."""

    copied: int = 0
    lag: int = 0
    epochs: dict[str, int] = field(default_factory=dict)


class Runner:
    """The runner of one plan. Call ``take`` first: it creates the topics, or takes them for this run."""

    def __init__(self, state: MigrationState, route: Route, engine: Copying, progress: Meter) -> None:
        self._state = state
        self._plan: Plan = state.plan
        self._route = route
        self._engine = engine
        self._progress = progress
        self._source = migration_source(route.source, route.source_options)
        self._target = Importer(route.target, route.target_options, route.migration)
        self._begun: dict[str, ImportState] = {}
        self._at: dict[TopicPartition, int] = {}
        self._starts: dict[TopicPartition, int] = {}  # log starts at the target

    def close(self) -> None:
        self._engine.close()
        self._source.close()
        self._target.close()

    @property
    def source(self) -> MigrationSource:
        return self._source

    @property
    def target(self) -> Importer:
        return self._target

    @property
    def ends(self) -> Mapping[TopicPartition, int]:
        """Return the offset up to which this run has copied each partition."""
        return self._at

    def take(self) -> None:
        """Begin this run, which fences earlier ones. Raises Conflict for a topic that the migration does not own."""
        for topic in self._plan.topics:
            self._take(topic.name, len(topic.partitions))

    def _take(self, name: str, partitions: int) -> None:
        planned = self._plan.topic(name)
        origin = origin_of(self._plan.source, name, planned.identity)
        begun = self._target.begin(name, partitions, planned.config, origin)
        self._begun[name] = begun
        for number, at in enumerate(begun.partitions):
            part = TopicPartition(name, number)
            self._at.setdefault(part, self._resume_offset(part, at))
            self._starts[part] = at.start

    def _resume_offset(self, part: TopicPartition, there: Positions) -> int:
        """Return the offset at which copying goes on: behind the receipts, so that offsets beyond are compared."""
        planned = {one.partition: one.start for one in self._plan.topic(part.topic).partitions}
        start = max(planned.get(part.partition, 0), 0)
        reached = self._state.receipts.reached(part, start)
        if self._brings_once(part.topic):
            return max(start, there.high_watermark)
        return min(max(reached, start), max(there.high_watermark, start))

    def _brings_once(self, topic: str) -> bool:
        """Return whether copied batches cannot be compared with those of a second read from the source."""
        return not self._source.verbatim or self._plan.topic(topic).is_compacted

    def positions(self) -> dict[TopicPartition, Positions]:
        """Return the positions of all partitions at the source by now; create new partitions at the target."""
        parts: list[TopicPartition] = []
        topics = self._source.some_topics([topic.name for topic in self._plan.topics])
        for topic in self._plan.topics:
            found = topics.get(topic.name)
            if found is None:
                raise Conflict(f"topic {topic.name!r} is gone from the source")
            if topic.identity and found.identity and topic.identity != found.identity:
                raise Conflict(f"topic {topic.name!r} was deleted at the source, and another one made of that name")
            if len(found.partitions) > len(self._begun[topic.name].partitions):
                self._take(topic.name, len(found.partitions))
            parts += [TopicPartition(topic.name, number) for number in found.partitions]
        return self._source.positions(parts)

    def round(self) -> Round:
        """Copy what is new, and trim the target's logs to the log starts of the source."""
        positions = self.positions()
        tasks = [
            CopyTask(
                part,
                self._begun[part.topic].epoch,
                at.start,
                max(self._at.get(part, 0), at.start),  # the source has nothing below its log start
                at.high_watermark,
                self._brings_once(part.topic),
            )
            for part, at in positions.items()
            if self._at.get(part, 0) < at.high_watermark or self._starts.get(part, 0) < at.start
        ]
        for part, at in positions.items():
            self._progress.aim(part, at.start, self._at.get(part, 0), at.high_watermark)
        done = Round(epochs={name: one.epoch for name, one in self._begun.items()})

        def accept(receipt: Receipt) -> None:
            self._state.receipts.add([receipt])
            self._at[receipt.part] = max(self._at.get(receipt.part, 0), receipt.end)
            done.copied += receipt.end - receipt.start

        if tasks:
            self._engine.run(self._route, tasks, accept)
            for task in tasks:
                self._starts[task.part] = max(self._starts.get(task.part, 0), task.log_start)
        done.lag = sum(max(0, at.high_watermark - self._at.get(part, 0)) for part, at in positions.items())
        return done

    def run(self, *, follow: bool, stopped: Callable[[], bool] = lambda: False) -> Round:
        """Run rounds until nothing is left; with ``follow``, until ``stopped`` (:func:`.repeating.follow`)."""
        done = Round()

        def round_() -> bool:
            nonlocal done
            done = self.round()
            return done.copied > 0

        if follow:
            repeating.follow(round_, stopped, lambda: time.sleep(_IDLE_S))
        else:
            while round_() and done.lag and not stopped():
                pass
        return done


def dry_run(plan: Plan, state: MigrationState) -> dict[str, Any]:
    """Report what a run would do, by partition: offsets to copy, gaps included."""
    return {
        "dry_run": True,
        "topics": {
            topic.name: {
                str(one.partition): {
                    "start": one.start,
                    "end": one.end,
                    "left": max(
                        0,
                        one.end - state.receipts.reached(TopicPartition(topic.name, one.partition), one.start),
                    ),
                }
                for one in topic.partitions
            }
            for topic in plan.topics
        },
    }


def is_handed_over(target: Importer, plan: Plan) -> bool:
    """Return whether all topics of the plan were handed over."""
    try:
        return all(target.state(topic.name).handed_over_ms is not None for topic in plan.topics)
    except Fenced:
        return False
