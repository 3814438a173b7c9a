"""The interface between an archive and its table, of any format.

The progress of each partition is part of the table, and changes in the same commit that adds the records. A commit
names the progress that it has read, and fails if that has changed (:class:`Overtaken`). So each offset is added once,
however often an archiving process is killed, and however many of them run by mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from spark_pipeline.core.errors import PipelineError
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.lake.layout import DataFile
from spark_pipeline.lake.store import Store

Progress = Mapping[TopicPartition, int]
"""The next offset to be archived of each partition; partitions without archived records are absent."""


class Overtaken(PipelineError):
    """Another process has committed to the table since it was read: the prepared commit is void."""


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """The number and bytes of files that belonged to no table; they are deleted, except in a dry run."""

    files: int
    size: int


class Table(Protocol):
    """A table of records. Every method reads the table anew, so it sees other processes' commits."""

    store: Store
    """The directory of the table's files, also of those that a commit adds; their paths are relative to it."""

    def progress(self, parts: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the progress of ``parts``."""

    def commit(self, files: Sequence[DataFile], before: Progress, after: Progress) -> None:
        """Add ``files`` and move the progress from ``before`` to ``after``, all or nothing.

        ``after`` names the partitions that move; those that ``before`` does not have must be new. Raises Overtaken.
        """

    def files(self) -> list[DataFile]:
        """Return the table's current files, with their statistics."""

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile], *, same_records: bool) -> None:
        """Replace files in one commit. Raises Overtaken if one of ``old`` is no longer in the table."""

    def vacuum(self, before: datetime, *, dry_run: bool) -> Vacuumed:
        """Forget versions of the table from before a time, and delete files of that age that belong to no version."""
