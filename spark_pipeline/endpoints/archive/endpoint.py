"""An archive as an endpoint, read like the log that it copies: ``archive:///path``, ``archive+s3://bucket/prefix``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from bridges.formats.records import StoredBatch
from spark_pipeline.core.errors import OptionError, UnknownTopic
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.core.rows import TYPES, Columns, constant
from spark_pipeline.endpoints.base import BATCH_BYTES, Endpoint, Positions, TopicInfo
from spark_pipeline.lake.archive import Archive
from spark_pipeline.lake.layout import RAW, DataFile
from spark_pipeline.lake.reading import read_files
from spark_pipeline.lake.store import Store


def place_of(url: str) -> str:
    """Return the archive's path or URL from an endpoint's URL."""
    return url.removeprefix("archive+") if url.startswith("archive+") else url.replace("archive://", "file://", 1)


@dataclass(slots=True)
class ArchiveEndpoint(Endpoint):
    """An archive as an Endpoint, with the files that it had when it was opened.

    An archive has no batches, no groups, and nothing uncommitted. Its partitions begin where archiving began, and end
    at its progress. With ``dead_letters`` the dead letters are among the records.
    """

    place: str
    dead_letters: bool = False
    _archive: Archive = field(init=False)
    _files: dict[TopicPartition, list[DataFile]] = field(init=False)
    _letters: dict[str, Store] = field(init=False)

    def __post_init__(self) -> None:
        self._archive = Archive.open(self.place)
        self._files = {}
        self._letters = {}
        found = self._archive.records.files()
        if self.dead_letters and self._archive.dead_letters is not None:
            letters = self._archive.dead_letters.files()
            self._letters = {one.path: self._archive.dead_letters.store for one in letters}
            found = [*found, *letters]
        for one in found:
            self._files.setdefault(TopicPartition(one.topic, one.partition), []).append(one)

    @property
    def decoded(self) -> bool:
        """Return whether the values were decoded, so that they differ from the writer's bytes."""
        return self._archive.description.decoding is not None

    def topics(self) -> dict[str, TopicInfo]:
        return {name: TopicInfo(name, numbers) for name, numbers in self._archive.description.topics.items()}

    def positions(self, parts: Sequence[TopicPartition]) -> dict[TopicPartition, Positions]:
        known = set(self._archive.description.parts)
        for part in parts:
            if part not in known:
                raise UnknownTopic(f"{part} is not in the archive {self.place}")
        ends = self._archive.records.progress(parts)
        found = {}
        for part in parts:
            start = self._archive.description.begun.get(str(part))
            end = ends.get(part, start or 0)
            if start is None:
                start = min((one.first for one in self._files.get(part, ())), default=end)
            found[part] = Positions(start, end, end)
        return found

    def find_timestamp(self, at_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        for part, moment in at_ms.items():
            later = [one for one in self._files.get(part, ()) if one.latest >= moment * 1000]
            found[part] = next(
                (
                    int(np.asarray(batch.column("offset"))[at[0]])
                    for batch in self._read(later, ("offset", "timestamp"), 0, 1 << 62)
                    if len(
                        at := np.flatnonzero(np.asarray(batch.column("timestamp").cast(pa.int64())) >= moment * 1000)
                    )
                ),
                None,
            )
        return found

    def _read(
        self, files: Sequence[DataFile], columns: Sequence[str], start: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        return read_files(self._archive.records, files, columns, start, end, self._letters)

    def read(self, range: OffsetRange, columns: Columns, batch_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
        """Yield records. Columns that an archive does not store are null. Raises OptionError for decoded values."""
        if self.decoded and "value" in columns:
            raise OptionError("the archive's values are decoded: they cannot be read as bytes")
        kept = [name for name in columns if name in RAW]
        for batch in self._read(self._files.get(range.part, []), kept, range.start, range.end):
            arrays = [
                batch.column(name) if name in RAW else constant(None, TYPES[name], batch.num_rows) for name in columns
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=columns.schema)

    def read_raw(self, range: OffsetRange) -> Iterator[StoredBatch]:
        """Raise OptionError: an archive has no batches."""
        raise OptionError("an archive has records, and none of the batches that they came in")

    def groups(self) -> dict[str, dict[TopicPartition, int]]:
        """Return nothing: an archive has no groups."""
        return {}

    def close(self) -> None:
        """Do nothing: files are opened for each read."""


OPTIONS = ("dead_letters",)


def open_endpoint(url: str, options: Mapping[str, str]) -> ArchiveEndpoint:
    """See :func:`spark_pipeline.endpoints.base.endpoint`."""
    return ArchiveEndpoint(place_of(url), options.get("dead_letters") == "true")
