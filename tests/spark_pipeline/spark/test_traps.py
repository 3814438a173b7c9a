"""Traps of PySpark's interface for data sources, each kept away from by a test: those that need no session.

The others are shown where what they would break is tested: in test_readers.py a start at the latest offset that is
asked for twice, no partitions, schemas that must be equal, a commit that comes late, AvailableNow's end, data that was
lost; in test_source.py and test_sink.py what only Spark does: attempts that are repeated, workers that die, commits
that are repeated, an abort behind a commit, filters, modes and triggers that Spark does not have for such sources.
"""

from __future__ import annotations

import gc
import inspect
import os
import pickle
from collections.abc import Callable
from importlib.metadata import requires
from typing import Any

import pytest
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.streaming.python_streaming_source_runner import READ_LIMIT_REGISTRY
from pyspark.sql.types import BinaryType, StructField, StructType

from spark_pipeline.core.client.sink_client import SinkBatch, Written
from spark_pipeline.core.errors import OptionError, PipelineError
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.rows import Columns
from spark_pipeline.spark import pool, sink
from spark_pipeline.spark.data_source import AnabranchDataSource
from spark_pipeline.spark.pool import Pool
from spark_pipeline.spark.session import DEFAULT_MASTER, SETTINGS
from spark_pipeline.spark.sink import AnabranchBatchWriter, AnabranchStreamWriter, SinkMessage, settings_of
from spark_pipeline.spark.source import BatchReader, Piece, StreamReader
from spark_pipeline.spark.source_options import SourceOptions

VALUE = StructType([StructField("value", BinaryType())])
COLUMNS = Columns(("value",))


# --- how Spark calls ------------------------------------------------------------------------------------------------


def test_parameters_have_the_names_by_which_spark_calls() -> None:
    """Keywords: another name is an unexpected argument."""
    for method, names in (
        (AnabranchDataSource.reader, ["self", "schema"]),
        (AnabranchDataSource.streamReader, ["self", "schema"]),
        (AnabranchDataSource.writer, ["self", "schema", "overwrite"]),
        (AnabranchDataSource.streamWriter, ["self", "schema", "overwrite"]),
    ):
        assert list(inspect.signature(method).parameters) == names


def test_options_come_in_any_case() -> None:
    schema = AnabranchDataSource({"INCLUDEHEADERS": "true", "subscribe": "t"}).schema()
    assert "headers" in schema.names
    assert AnabranchDataSource({}).schema() == AnabranchDataSource({"includeHeaders": "FALSE"}).schema()


def test_the_simple_reader_is_left_alone() -> None:
    """It reads whole batches in the driver, and its cache leaks."""
    assert AnabranchDataSource.simpleStreamReader is DataSource.simpleStreamReader
    assert not issubclass(StreamReader, SimpleDataSourceStreamReader)
    assert issubclass(StreamReader, DataSourceStreamReader)


def test_writers_take_arrow_batches() -> None:
    """What is no subclass of these is given rows one by one."""
    assert issubclass(AnabranchBatchWriter, DataSourceArrowWriter)
    assert issubclass(AnabranchStreamWriter, DataSourceStreamArrowWriter)


def test_filters_are_not_pushed_down() -> None:
    """A reader that overrides this fails wherever the setting for it is off, which it is unless somebody sets it."""
    assert BatchReader.pushFilters is DataSourceReader.pushFilters


def test_latest_offset_has_a_limit() -> None:
    """With the signature of old, which has no parameters, Spark asks for no admission control."""
    assert list(inspect.signature(StreamReader.latestOffset).parameters) == ["self", "start", "limit"]
    assert issubclass(StreamReader, SupportsTriggerAvailableNow)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"maxOffsetsPerTrigger": "5"},
        {"maxBytesPerTrigger": "5m"},
        {"minOffsetsPerTrigger": "5"},
        {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "9", "maxTriggerDelay": "1s"},
    ],
)
def test_limits_are_such_as_spark_knows(options: dict[str, str]) -> None:
    """They travel through Java as JSON, by names from a fixed list; several at once are none."""
    reader = StreamReader(SourceOptions.parse({"subscribe": "t", **options}, streaming=True), COLUMNS)
    limit = reader.getDefaultReadLimit()
    assert READ_LIMIT_REGISTRY.get({"_type": type(limit).__name__, **vars(limit)}) == limit


# --- what goes between processes ------------------------------------------------------------------------------------


def test_what_is_sent_to_workers_and_back_can_be_pickled() -> None:
    options = SourceOptions.parse({"subscribe": "t"}, streaming=True)
    for made in (
        StreamReader(options, COLUMNS),
        BatchReader(SourceOptions.parse({"subscribe": "t"}, streaming=False), COLUMNS),
        AnabranchStreamWriter(settings_of({"topic": "t"}, VALUE, False)),
        AnabranchBatchWriter(settings_of({"topic": "t"}, VALUE, False)),
    ):
        assert type(pickle.loads(pickle.dumps(made))) is type(made)
    piece = Piece(OffsetRange("t", 1, 2, 3))
    assert pickle.loads(pickle.dumps(piece)) == piece


def test_the_message_of_a_task_says_which_query_it_is_of() -> None:
    """The writer that commits is another object in another process, and was never told."""
    message = pickle.loads(pickle.dumps(SinkMessage(SinkBatch("q", 7), Written((1, 2), 3, 4))))
    assert isinstance(message, WriterCommitMessage)
    assert (message.batch.query, message.batch.number, message.written.attempt) == ("q", 7, (1, 2))


def test_a_write_that_is_no_stream_has_one_name_in_all_its_tasks() -> None:
    settings = settings_of({"topic": "t"}, VALUE, False)
    writer = AnabranchBatchWriter(settings)
    copies = [pickle.loads(pickle.dumps(writer)).batch for _ in range(2)]
    assert copies == [writer.batch] * 2
    assert AnabranchBatchWriter(settings).batch != writer.batch


class Task:
    """What a task can ask Spark; ``properties`` are what the driver has set."""

    def __init__(self, properties: dict[str, str]) -> None:
        self._properties = properties

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)

    def partitionId(self) -> int:
        return 0


def in_task(monkeypatch: pytest.MonkeyPatch, **properties: str) -> None:
    task = Task({name.replace("_", "."): value for name, value in properties.items()})
    monkeypatch.setattr(sink.TaskContext, "get", lambda: task)


def test_a_task_that_is_not_told_its_batch_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing sets ``current_batch_id``, whatever the documentation shows: the properties of the task have it."""
    writer = AnabranchStreamWriter(settings_of({"topic": "t"}, VALUE, False))
    in_task(monkeypatch)
    with pytest.raises(OptionError, match="does not tell the task which batch of which query"):
        writer.write(iter(()))


@pytest.mark.parametrize("kind", [AnabranchStreamWriter, AnabranchBatchWriter])
def test_compression_that_breaks_sinks_is_refused_in_the_task(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that somebody else made may have it: rows would be unreadable, with an error that says nothing."""
    in_task(monkeypatch, spark_sql_execution_arrow_compression_codec="LZ4")
    with pytest.raises(PipelineError, match="lz4 breaks sinks"):
        kind(settings_of({"topic": "t"}, VALUE, False)).write(iter(()))


# --- workers --------------------------------------------------------------------------------------------------------


class Endpoint:
    """Stands for one with connections."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_a_forked_worker_leaves_connections_to_the_process_it_was_forked_from(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Endpoint] = []

    def endpoint(*_: object) -> Endpoint:
        made.append(Endpoint())
        return made[-1]

    monkeypatch.setattr(pool, "endpoint", endpoint)
    shared = Pool()
    for _ in range(2):
        with shared.use("anabranch://h", {}):
            pass
    assert len(made) == 1
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with shared.use("anabranch://h", {}):
        pass
    assert len(made) == 2
    assert not made[0].closed, "closing it would end the other process's connection"


def test_modules_are_left_out_of_collections_from_the_third_task_on(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: done.append("frozen"))
    monkeypatch.setattr(pool, "keep_buffers", lambda: done.append("kept"))
    worker, unfrozen = Pool(), Pool()
    for _ in range(6):
        worker.begin_task(freeze=True)
    assert done == ["kept", "frozen"]
    for _ in range(6):
        unfrozen.begin_task(freeze=False)
    assert done == ["kept", "frozen", "kept"]


# --- what it runs on ------------------------------------------------------------------------------------------------


def test_tasks_have_more_than_one_attempt() -> None:
    """Plain ``local[*]`` makes one."""
    assert DEFAULT_MASTER == "local[*,3]"
    assert SETTINGS["spark.python.unix.domain.socket.enabled"] == "true"
    assert "spark.python.worker.reuse" not in SETTINGS, "false takes minutes for what takes a second"


def named(requirement: str) -> Callable[[str], bool]:
    return lambda one: one.replace(" ", "").lower().startswith(requirement)


def test_requirements_that_would_break_one_another_are_kept_apart() -> None:
    """delta-spark pins an older PySpark and needs jars; PySpark warns of pandas 3."""
    told = [one for one in requires("anabranch") or [] if "extra" in one]
    assert any(map(named("pyspark[connect]==4.3.*"), told))
    assert not any(map(named("delta-spark"), told))
    (pandas,) = filter(named("pandas"), told)
    assert "<3" in pandas
