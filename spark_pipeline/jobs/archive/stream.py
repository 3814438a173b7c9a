"""An archive as the sink of a streaming query: ``stream.writeStream.foreachBatch(ArchiveSink(place, description))``.

It is for queries that change the records before they are archived. Plain copies are faster with ``anabranch archive
run``, which moves nothing through the JVM. A micro-batch is one commit. Spark repeats a micro-batch, with the same
offsets, unless it knows that it is done; the archive's progress shows whether it is in the table already. Files of
failed task attempts stay unknown to the table, and ``archive expire --vacuum`` deletes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_pipeline.core.errors import PipelineError
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.core.rows import TYPES
from spark_pipeline.lake.archive import Archive, Description
from spark_pipeline.lake.layout import FILE_BYTES, RAW, Crash, DataFile, FileWriter, no_crash, schema_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RECEIPT = pa.schema([pa.field("file", pa.string())])


@dataclass(frozen=True, slots=True)
class ArchiveSink:
    """The function that ``foreachBatch`` calls with each micro-batch.

    The rows have the source's columns: topic, partition, offset, timestamp, value; key, headers and timestampType are
    optional. Rows of one partition must be in the order of their offsets within a task, so nothing that shuffles may
    come before. A batch is skipped if the archive has all of it. Raises PipelineError if the archive has a part of it:
    then another query or job archives the same topic.
    """

    place: str
    description: Description = field(default_factory=Description)
    file_bytes: int = FILE_BYTES
    crash: Crash = no_crash

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Archive one micro-batch."""
        archive = Archive.make(self.place, self.description, self.crash)
        columns = [name for name in RAW if name in frame.columns]
        writing = _Writing(self.place, self.file_bytes)
        rows = frame.select(*columns).mapInArrow(writing.run, "file string").collect()
        files = [DataFile(**json.loads(row["file"])) for row in rows]
        first: dict[TopicPartition, int] = {}
        after: dict[TopicPartition, int] = {}
        for one in files:
            part = TopicPartition(one.topic, one.partition)
            first[part] = min(first.get(part, one.first), one.first)
            after[part] = max(after.get(part, 0), one.last + 1)
        before = archive.records.progress(after)
        done = [part for part in after if before.get(part, 0) >= after[part]]
        if len(done) == len(after):
            return  # all of it is archived, or the batch is empty
        for part in after:
            if part in done or first[part] < before.get(part, 0):
                raise PipelineError(
                    f"batch {batch} begins at offset {first[part]} of {part}, and the archive has all below"
                    f" {before[part]}: another query or job writes to it"
                )
        topics: dict[str, tuple[int, ...]] = {}
        for part in sorted(after):
            topics[part.topic] = (*topics.get(part.topic, ()), part.partition)
        archive.learn(topics)
        new = {part: offset for part, offset in first.items() if part not in before}
        if new:
            archive.begin(new)
        archive.records.commit(files, before, after)


@dataclass(frozen=True, slots=True)
class _Writing:
    """The task's function and arguments, which Spark sends to its workers."""

    place: str
    file_bytes: int

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        archive = Archive.open(self.place)
        schema = schema_of()
        writers: dict[TopicPartition, FileWriter] = {}
        for batch in batches:
            for part, rows in _by_partition(batch):
                writer = writers.get(part)
                if writer is None:
                    writer = writers[part] = archive.writer(part, self.file_bytes)
                writer.write(_completed(rows, schema))
        told = [json.dumps(asdict(file)) for writer in writers.values() for file in writer.finish()]
        yield pa.RecordBatch.from_pydict({"file": told}, schema=_RECEIPT)


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Yield runs of consecutive rows of the same partition."""
    if not batch.num_rows:
        return
    topics = batch.column("topic").dictionary_encode()
    names = topics.dictionary.to_pylist()
    keys = np.asarray(topics.indices).astype(np.int64) << 32 | np.asarray(batch.column("partition")).astype(np.int64)
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    for start, end in zip(starts, [*starts[1:], len(keys)], strict=True):
        key = int(keys[start])
        yield TopicPartition(names[key >> 32], key & 0xFFFFFFFF), batch.slice(start, end - start)


def _completed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with all of an archive's columns, in their types."""
    arrays = []
    for one in schema:
        if one.name in rows.schema.names:
            column = rows.column(one.name)
            arrays.append(column if column.type == one.type else column.cast(one.type))
        elif one.name == "timestampType":
            arrays.append(pa.repeat(pa.scalar(0, TYPES["timestampType"]), rows.num_rows))
        else:
            arrays.append(pa.nulls(rows.num_rows, one.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
