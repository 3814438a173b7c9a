"""What an archive asks of a table, whatever keeps it.

How far each partition of a topic has been archived is part of the table itself and changes in the same commit that adds
the records. A commit names what it found there and fails if anything is different by now (:class:`Overtaken`). So
however often an archiving process is killed, and however many of them run by mistake, each offset is added once.
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
"""The next offset to be archived of each partition; one of which nothing was archived yet is not there."""


class Overtaken(PipelineError):
    """Somebody else has committed to the table since it was looked at: what was prepared for it is void."""


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """Files that belonged to no table, and their bytes; they are gone, unless it was a dry run."""

    files: int
    size: int


class Table(Protocol):
    """A table of records. Every method reads the table anew: what other processes did is seen."""

    store: Store
    """Where the files are, also those of a commit when it is made; their paths are from here."""

    def progress(self, parts: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """How far ``parts`` have been archived."""

    def commit(self, files: Sequence[DataFile], before: Progress, after: Progress) -> None:
        """Add ``files`` and move on from ``before`` to ``after``, or do nothing of it.

        ``after`` names the partitions that move; those that ``before`` does not have must be new. Raises Overtaken.
        """

    def files(self) -> list[DataFile]:
        """The files of the table now, with what is known of each."""

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile], *, same_records: bool) -> None:
        """Take ``old`` out and put ``new`` in at once. Raises Overtaken if one of ``old`` is not there any more."""

    def vacuum(self, before: datetime, *, dry_run: bool) -> Vacuumed:
        """Forget versions of the table from before a time, and delete files of that age that belong to none."""
