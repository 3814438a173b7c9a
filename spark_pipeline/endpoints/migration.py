"""What a migration asks of the system that it copies from, besides what every endpoint has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from spark_pipeline.core.errors import OptionError
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.endpoints.base import Endpoint, endpoint


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """What a group has committed in a partition: the next offset it reads, and what it said of it."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class RecordSet:
    """Whole batches in a row that hold the offsets from ``start`` to ``end``; there may be gaps. ``payload`` has them
    as the target takes them (Kafka's as they are, others as :mod:`spark_pipeline.core.import_frames`)."""

    start: int
    end: int
    batches: int
    payload: memoryview


@runtime_checkable
class MigrationSource(Endpoint, Protocol):
    """An endpoint whose topics can be moved. Raises as endpoints do."""

    form: int
    """The stored format of its record sets."""
    verbatim: bool
    """Whether these have the source's own batches: then they are the same bytes whenever they are read."""

    def read_sets(self, range: OffsetRange, fetch_bytes: int) -> Iterator[RecordSet]:
        """The batches that hold offsets of a range, about ``fetch_bytes`` together."""

    def group_positions(self) -> dict[str, dict[TopicPartition, GroupPosition]]:
        """Every group that has committed something, and what."""

    def group_states(self) -> dict[str, str]:
        """The groups of consumers, and their states in Kafka's words where the system tells them."""


def migration_source(url: str, options: Mapping[str, str]) -> MigrationSource:
    """The system to copy from at ``url``. Raises OptionError for one that cannot be copied from."""
    source = endpoint(url, options)
    if not isinstance(source, MigrationSource):
        source.close()
        raise OptionError(f"{url} cannot be migrated from: `anabranch replay` brings records of any system")
    return source
