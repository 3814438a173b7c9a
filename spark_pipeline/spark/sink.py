"""The sink: the writers of ``write`` and ``writeStream`` in the format ``anabranch``.

A task writes its rows to the node as a transaction of its own, and the driver commits all tasks of a batch at once. So
every batch of a query is in the log exactly once, whatever is retried, killed or restarted
(``spark_pipeline.node.sinks.writes`` says how). Tasks of a stream find the batch's identity, its query and number, in
Spark's task properties; a non-streaming write makes a name of its own.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema

from spark_pipeline.core.client.node_answers import NodeTopics
from spark_pipeline.core.client.node_client import ACCESS_OPTIONS, NodeError, NodeOptions
from spark_pipeline.core.client.sink_client import SinkBatch, SinkDriver, SinkTask, Written
from spark_pipeline.core.digest import content_sum
from spark_pipeline.core.encoding.sink_rows import SinkOptions, SinkRows, check_schema
from spark_pipeline.core.errors import OptionError, PipelineError
from spark_pipeline.core.options import Options, refuse_unknown
from spark_pipeline.spark.pool import POOL
from spark_pipeline.spark.source_options import DEFAULT_ENDPOINT

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_log = logging.getLogger("anabranch.spark")

COMPRESSION = "spark.sql.execution.arrow.compression.codec"
"""Setting of the compression of rows on their way to Python."""
_TIMEOUT_MS = 15 * 60 * 1000
_REQUEST_BYTES = 4 * 1024 * 1024
_ABORT_PATIENCE_S = 2.0
_OPTIONS = (
    *ACCESS_OPTIONS,
    *("endpoint", "topic", "compression", "transaction.timeout.ms", "request.bytes"),
    *("queryId", "batchId", "lowerBatches", "worker.freeze"),
    *("checkpointLocation", "queryName", "path"),  # Spark's own
)
_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"


def refuse(settings: Mapping[str, str]) -> None:
    """Raise PipelineError for a setting that breaks sinks in Python."""
    if settings.get(COMPRESSION, "").lower() == "lz4":
        raise PipelineError(f"{COMPRESSION} = lz4 breaks sinks in Python: leave it out, or take zstd")


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The sink's checked options.

    ``query`` and ``batch`` are names that a caller may give to a non-streaming write, for example in ``foreachBatch``,
    so that repetitions write it once.
    """

    node: NodeOptions
    sink: SinkOptions
    timeout_ms: int = _TIMEOUT_MS
    request_bytes: int = _REQUEST_BYTES
    query: str = ""
    batch: int = 0
    freeze: bool = True
    skip_lower: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parse options with case-insensitive names: ``endpoint``, those of :class:`NodeOptions` and
        :class:`SinkOptions`, ``transaction.timeout.ms``, ``request.bytes``, ``queryId`` with ``batchId``,
        ``lowerBatches``, ``worker.freeze``.

        Raises OptionError.
        """
        refuse_unknown(options, _OPTIONS, "the sink")
        given = Options(options)
        if ("queryId" in given) != ("batchId" in given):
            raise OptionError("queryId and batchId are given together: they name what is written once")
        return cls(
            NodeOptions.parse(given.get("endpoint") or DEFAULT_ENDPOINT, options),
            SinkOptions.parse(options),
            given.number("transaction.timeout.ms") or _TIMEOUT_MS,
            given.number("request.bytes", 128 * 1024) or _REQUEST_BYTES,
            given.get("queryId") or "",
            given.number("batchId", 0) or 0,
            given.truth("worker.freeze", True),
            given.choice("lowerBatches", ("refuse", "skip")) == "skip",
        )


@dataclass(slots=True)
class SinkMessage(WriterCommitMessage):
    """A task's message to the driver. It names the batch because the driver does not know a stream's query."""

    batch: SinkBatch
    written: Written


def write_rows(settings: SinkSettings, batch: SinkBatch, task: int, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
    """Write all rows of ``iterator`` as one attempt of one task. An error aborts the attempt at once."""
    POOL.begin_task(freeze=settings.freeze)
    client = POOL.client(settings.node)
    attempt = SinkTask(
        client,
        batch,
        task,
        timeout_ms=settings.timeout_ms,
        request_bytes=settings.request_bytes,
        skip_lower=settings.skip_lower,
    )
    rows = SinkRows(settings.sink, NodeTopics(POOL.client(settings.node, "topics")), task)
    begun = committed = False
    left_out = digest = 0
    try:
        for some in iterator:
            if not some.num_rows:
                continue
            if not begun and not committed:
                begun = attempt.begin([settings.sink.topic] if settings.sink.topic else [])
                committed = not begun
                rows.know(attempt.told)
            digest += content_sum(some)
            if committed:
                left_out += some.num_rows  # go on reading: Spark waits until all rows are taken
                continue
            for place in rows.add(some):
                attempt.add(*place)
        if committed:
            return SinkMessage(batch, Written(None, left_out, committed=True, digest=digest))
        for place in rows.finish():
            attempt.add(*place)
        return SinkMessage(batch, attempt.finish(digest))
    except BaseException:
        # An open attempt holds back readers until its timeout, at which the node aborts it if this request fails.
        with suppress(NodeError):
            attempt.abort(_ABORT_PATIENCE_S)
        raise


def _task() -> TaskContext:
    """Return Spark's context of this task. Raises PipelineError for a setting with which its rows cannot be read."""
    context = TaskContext.get()
    assert context is not None, "called by Spark in a task"
    told = context.getLocalProperty(COMPRESSION)
    refuse({} if told is None else {COMPRESSION: told})
    return context


class _Writer:
    """The base of both writers; ``batch`` is the batch if the driver knows it by itself."""

    batch: SinkBatch | None = None

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings

    def commit(self, messages: Sequence[Any], batchId: int = 0) -> None:
        """Commit a batch; Spark calls this in the driver after all tasks, possibly again for the same batch."""
        batch, written = self._name_batch(messages)
        if batch is None:
            return  # a batch without tasks has nothing that could be seen twice
        left_out = sum(one.records for one in written if one.committed)
        compare = not self._settings.skip_lower
        SinkDriver(POOL.client(self._settings.node)).commit(batch, written, compare=compare)
        if left_out:
            _log.warning(
                "batch %d of query %s for topic %s was committed before: its %d rows are not written again",
                batch.number,
                batch.query,
                repr(batch.target) if batch.target else "of each row",
                left_out,
            )

    def abort(self, messages: Sequence[Any], batchId: int = 0) -> None:
        """Abort a batch, unless it is committed; Spark calls this in the driver if a task or ``commit`` has failed."""
        batch, _ = self._name_batch(messages)
        if batch is not None:
            SinkDriver(POOL.client(self._settings.node)).abort(batch)

    def _name_batch(self, messages: Sequence[Any]) -> tuple[SinkBatch | None, list[Written]]:
        told = [message for message in messages if isinstance(message, SinkMessage)]
        return self.batch or (told[0].batch if told else None), [one.written for one in told]


class AnabranchStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The writer of a stream: each micro-batch is one batch of its query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        """Write the rows of a task; runs in the worker."""
        context = _task()
        query, number = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if not query or number is None:
            raise OptionError("Spark does not tell the task which batch of which query it writes")
        batch = SinkBatch(query, int(number), target=self._settings.sink.topic)
        return write_rows(self._settings, batch, context.partitionId(), iterator)


class AnabranchBatchWriter(_Writer, DataSourceArrowWriter):
    """The writer of a non-streaming write: the only batch of its query, unless the caller names query and batch."""

    batch: SinkBatch

    def __init__(self, settings: SinkSettings) -> None:
        super().__init__(settings)
        if settings.query:
            self.batch = SinkBatch(settings.query, settings.batch, target=settings.sink.topic)
        else:
            self.batch = SinkBatch(f"write-{uuid.uuid4()}", 0, once=True, target=settings.sink.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        """Write the rows of a task; runs in the worker."""
        return write_rows(self._settings, self.batch, _task().partitionId(), iterator)


def settings_of(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkSettings:
    """Return the settings of a sink for rows of a schema. Raises OptionError."""
    if overwrite:
        raise OptionError("a topic is appended to: use mode append (for streams, output mode append or update)")
    settings = SinkSettings.parse(options)
    check_schema(to_arrow_schema(schema, timezone="UTC"), settings.sink)
    return settings
