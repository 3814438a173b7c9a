"""The source's readers called as PySpark calls them, without Spark: what each micro-batch takes, and what is lost."""

from __future__ import annotations

import json
import pickle
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from spark_pipeline.core.client.node_client import NodeClient
from spark_pipeline.core.errors import OptionError, UnknownTopic
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.rows import TYPES, Columns
from spark_pipeline.spark.data_source import AnabranchDataSource
from spark_pipeline.spark.pool import POOL
from spark_pipeline.spark.source import BatchReader, DataLost, Piece, StreamReader, columns_of
from spark_pipeline.spark.source_options import SourceOptions
from tests.spark_pipeline.node.pipeline_lab import Lab, open_lab

T = TypeVar("T")
ALL = ReadAllAvailable()


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    made = await open_lab(tmp_path)
    await made.node.catalog.create_topic("t", 2)
    yield made
    await made.ask(POOL.close)
    await made.close()


class Driver:
    """Calls a reader in the order in which Spark does."""

    def __init__(self, lab: Lab, columns: Columns | None = None, **options: str) -> None:
        self.lab = lab
        self.options = {
            "endpoint": f"anabranch://{lab.node.addresses['pipeline']}",
            "subscribe": "t",
            "patienceMs": "2000",
            "worker.freeze": "false",
            **options,
        }
        self.columns = columns or Columns(("partition", "offset", "value"))

    def stream(self) -> StreamReader:
        return StreamReader(SourceOptions.parse(self.options, streaming=True), self.columns)

    async def ask(self, what: Callable[..., T], *arguments: Any) -> T:
        return await self.lab.ask(what, *arguments)

    def rows(self, reader: BatchReader | StreamReader, pieces: Any) -> list[tuple[int, int]]:
        """(partition, offset) of what the tasks of ``pieces`` read: on copies, as workers do."""
        copy = pickle.loads(pickle.dumps(reader))
        found = []
        for piece in pickle.loads(pickle.dumps(list(pieces))):
            for batch in copy.read(piece):
                found += [(row["partition"], row["offset"]) for row in batch.to_pylist()]
        return found

    async def batch(self) -> list[tuple[int, int]]:
        def read() -> list[tuple[int, int]]:
            reader = BatchReader(SourceOptions.parse(self.options, streaming=False), self.columns)
            pieces = reader.partitions()
            assert isinstance(pieces, list)
            return self.rows(reader, pieces)

        return await self.ask(read)

    async def next(
        self, reader: StreamReader, start: dict[str, Any], limit: Any = None
    ) -> tuple[dict[str, Any], list[tuple[int, int]]]:
        """The end of the next micro-batch, without the identities of topics, and what it holds. Offsets go through
        JSON, as in checkpoints."""

        def read() -> tuple[dict[str, Any], list[tuple[int, int]]]:
            end = reader.latestOffset(start, reader.getDefaultReadLimit() if limit is None else limit)
            stored = json.loads(json.dumps(end))
            rows = self.rows(reader, reader.partitions(start, stored))
            return {topic: offsets for topic, offsets in stored.items() if topic}, rows

        return await self.ask(read)


async def fill(lab: Lab, partition: int, count: int, timestamp: int = 1_000, size: int = 1) -> None:
    for _ in range(count):
        await lab.append("t", [bytes(size)], timestamp, partition)


# --- batches --------------------------------------------------------------------------------------------------------


async def test_a_batch_is_all_there_is_or_what_is_asked_for(lab: Lab) -> None:
    await fill(lab, 0, 3)
    await fill(lab, 1, 2, 5_000)
    everything = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert await Driver(lab).batch() == everything
    some = '{"t":{"0":1,"1":-2}}'
    assert await Driver(lab, startingOffsets=some).batch() == everything[1:]
    assert await Driver(lab, endingOffsets='{"t":{"0":1,"1":-1}}').batch() == [(0, 0), (1, 0), (1, 1)]
    driver = Driver(lab, assign='{"t":[1]}')
    del driver.options["subscribe"]
    assert await driver.batch() == everything[3:]
    assert await Driver(lab, minPartitions="5", maxRecordsPerPartition="2").batch() == everything
    assert await Driver(lab, startingTimestamp="5000", startingOffsetsByTimestampStrategy="latest").batch() == [
        (1, 0),
        (1, 1),
    ]
    assert await Driver(lab, endingTimestamp="5000").batch() == everything[:3]


async def test_times_that_no_record_has_end_a_query_or_begin_it_at_the_end(lab: Lab) -> None:
    await fill(lab, 0, 1, 5_000)
    with pytest.raises(OptionError, match=r"t-1 has no record of the time 4000 ms or later"):
        await Driver(lab, startingTimestamp="4000").batch()
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert await Driver(lab, startingTimestamp="4000", **latest).batch() == [(0, 0)]


async def test_partitions_that_are_forgotten_are_not_read_from_anywhere(lab: Lab) -> None:
    with pytest.raises(OptionError, match=r"missing are t-1, not read are u-0"):
        await Driver(lab, startingOffsets='{"t":{"0":0},"u":{"0":0}}').batch()


async def test_nothing_to_read(lab: Lab) -> None:
    driver = Driver(lab)
    assert await driver.batch() == []
    reader = BatchReader(SourceOptions.parse(driver.options, streaming=False), driver.columns)
    assert list(reader.read(None)) == [], "what Spark reads when there are no partitions"
    assert list(reader.read(InputPartition(None))) == []
    with pytest.raises(UnknownTopic, match="no topic 'nowhere'"):
        await Driver(lab, subscribe="nowhere").batch()


async def test_offsets_that_are_gone(lab: Lab) -> None:
    await fill(lab, 0, 5)
    await lab.log("t").trim(3)
    start = '{"t":{"0":1,"1":0}}'
    with pytest.raises(DataLost, match=r"t-0 was to be read from offset 1, but has \[3, 5\)"):
        await Driver(lab, startingOffsets=start).batch()
    assert await Driver(lab, startingOffsets=start, failOnDataLoss="false").batch() == [(0, 3), (0, 4)]
    end = {"endingOffsets": '{"t":{"0":9,"1":0}}'}
    with pytest.raises(DataLost, match="up to offset 9, but ends at 5"):
        await Driver(lab, **end).batch()
    assert await Driver(lab, failOnDataLoss="false", **end).batch() == [(0, 3), (0, 4)]


async def test_what_is_trimmed_while_it_is_read(lab: Lab) -> None:
    """Between planning and reading: never from the beginning again, never twice."""
    await fill(lab, 0, 6)
    for fails in ("true", "false"):
        driver = Driver(lab, Columns(("partition", "value")), failOnDataLoss=fails)
        reader = BatchReader(SourceOptions.parse(driver.options, streaming=False), driver.columns)
        piece = Piece(OffsetRange("t", 0, 0, 6))
        await lab.log("t").trim(4)

        def rows(reader: BatchReader = reader, piece: Piece = piece) -> int:
            return sum(batch.num_rows for batch in reader.read(piece))

        if fails == "true":
            with pytest.raises(Exception, match="offset 0 of t-0 is gone: the partition begins at 4"):
                await lab.ask(rows)
        else:
            assert await lab.ask(rows) == 2


async def test_compaction_and_markers_are_no_loss(lab: Lab) -> None:
    await lab.append_in_transaction("t", 7, 0, [b"a", b"b"])
    await lab.end_transaction("t", 7, commit=True)
    await lab.append_in_transaction("t", 7, 2, [b"c"])
    await lab.end_transaction("t", 7, commit=False)
    await fill(lab, 0, 1)
    await lab.append_in_transaction("t", 8, 0, [b"open"])
    assert await Driver(lab).batch() == [(0, 0), (0, 1), (0, 5)]


# --- streams --------------------------------------------------------------------------------------------------------


async def test_latest_is_found_once_although_spark_asks_twice(lab: Lab) -> None:
    await fill(lab, 0, 2)
    driver = Driver(lab)
    reader = driver.stream()
    first = await driver.ask(reader.initialOffset)
    assert first["t"] == {"0": 2, "1": 0}
    await fill(lab, 0, 1)
    assert await driver.ask(reader.initialOffset) == first, "what came between would never be read"
    end, rows = await driver.next(reader, first)
    assert (end, rows) == ({"t": {"0": 3, "1": 0}}, [(0, 2)])


async def test_micro_batches_follow_one_another_and_can_be_repeated(lab: Lab) -> None:
    driver = Driver(lab, startingOffsets="earliest")
    reader = driver.stream()
    at = await driver.ask(reader.initialOffset)
    seen = []
    for count in (2, 0, 3):
        await fill(lab, 0, count)
        before, (at, rows) = at, await driver.next(reader, at)
        again = driver.stream()  # another process, after a crash: the same offsets are read again
        assert await driver.ask(lambda a=again, b=before, e=at: driver.rows(a, a.partitions(b, e))) == rows
        seen += rows
        reader.commit(before)  # comes late, and changes nothing
    assert seen == [(0, n) for n in range(5)]


async def test_a_micro_batch_is_planned_by_one_request(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(lab, startingOffsets="earliest")
    reader = driver.stream()
    at = await driver.ask(reader.initialOffset)
    await fill(lab, 0, 2)
    asked: list[str] = []
    request = NodeClient.request

    def counted(client: NodeClient, method: str, path: str, *rest: Any) -> bytes:
        asked.append(path)
        return request(client, method, path, *rest)

    def plan() -> tuple[dict[str, Any], Any]:
        end = reader.latestOffset(at, ALL)
        return end, reader.partitions(at, end)

    monkeypatch.setattr(NodeClient, "request", counted)
    end, pieces = await driver.ask(plan)
    assert (end["t"], pieces) == ({"0": 2, "1": 0}, [Piece(OffsetRange("t", 0, 0, 2))])
    assert asked == ["/v1/positions"]
    # What was not planned just now, as after a restart, is looked at.
    await lab.log("t").trim(1)
    with pytest.raises(DataLost, match="offsets from 0 to 0 of t-0 are gone"):
        await driver.ask(reader.partitions, at, {"t": {"0": 1, "1": 0}})


async def test_an_open_transaction_is_waited_for(lab: Lab) -> None:
    driver = Driver(lab, startingOffsets="earliest")
    reader = driver.stream()
    at = await driver.ask(reader.initialOffset)
    await lab.append_in_transaction("t", 7, 0, [b"a"])
    await fill(lab, 0, 1)
    at, rows = await driver.next(reader, at)
    assert (at, rows) == ({"t": {"0": 0, "1": 0}}, [])
    await lab.end_transaction("t", 7, commit=True)
    at, rows = await driver.next(reader, at)
    assert rows == [(0, 0), (0, 1)]


async def test_offsets_are_admitted_in_proportion(lab: Lab) -> None:
    await fill(lab, 0, 9)
    await fill(lab, 1, 3)
    driver = Driver(lab, startingOffsets="earliest", maxOffsetsPerTrigger="4")
    reader = driver.stream()
    assert reader.getDefaultReadLimit() == ReadMaxRows(4)
    at = await driver.ask(reader.initialOffset)
    sizes = []
    while True:
        end, rows = await driver.next(reader, at)
        if end == at:
            break
        at = end
        sizes.append(len(rows))
    assert sizes == [4, 4, 4]
    reader = driver.stream()
    _, rows = await driver.next(reader, await driver.ask(reader.initialOffset), ALL)
    assert len(rows) == 12, "Trigger.Once takes everything at once"
    _, rows = await driver.next(reader, await driver.ask(reader.initialOffset), ReadMaxRows(2))
    assert len(rows) == 2


async def test_bytes_are_admitted_by_what_offsets_take_on_average(lab: Lab) -> None:
    await fill(lab, 0, 40, size=1000)
    driver = Driver(lab, startingOffsets="earliest", maxBytesPerTrigger="10k")
    reader = driver.stream()
    assert reader.getDefaultReadLimit() == ReadMaxBytes(10_240)
    _, rows = await driver.next(reader, await driver.ask(reader.initialOffset))
    assert 5 <= len(rows) <= 10
    tiny = Driver(lab, startingOffsets="earliest", maxBytesPerTrigger="1")
    reader = tiny.stream()
    _, rows = await tiny.next(reader, await tiny.ask(reader.initialOffset))
    assert len(rows) == 1, "it gets on in any case"


async def test_a_micro_batch_waits_for_enough(lab: Lab) -> None:
    driver = Driver(lab, startingOffsets="earliest", minOffsetsPerTrigger="3", maxTriggerDelay="1h")
    reader = driver.stream()
    assert reader.getDefaultReadLimit() == ReadMinRows(3)
    at = await driver.ask(reader.initialOffset)
    await fill(lab, 0, 1)
    at, rows = await driver.next(reader, at)
    assert rows == [(0, 0)], "the first does not wait"
    await fill(lab, 0, 2)
    end, rows = await driver.next(reader, at)
    assert (end, rows) == (at, [])
    await fill(lab, 1, 1)
    end, rows = await driver.next(reader, at)
    assert rows == [(0, 1), (0, 2), (1, 0)]


async def test_available_now_ends_where_it_was_when_it_began(lab: Lab) -> None:
    await fill(lab, 0, 5)
    driver = Driver(lab, startingOffsets="earliest", maxOffsetsPerTrigger="2", minOffsetsPerTrigger="100")
    reader = driver.stream()
    await driver.ask(reader.prepareForTriggerAvailableNow)
    at = await driver.ask(reader.initialOffset)
    seen: list[tuple[int, int]] = []
    while True:
        end, rows = await driver.next(reader, at)
        if end == at:
            break
        at = end
        seen += rows
        await fill(lab, 0, 3)  # what comes meanwhile is for the next query
    assert seen == [(0, n) for n in range(5)]


async def test_a_partition_that_is_made_during_a_query_is_read_from_its_beginning(lab: Lab) -> None:
    driver = Driver(lab, maxOffsetsPerTrigger="2")
    reader = driver.stream()
    at = await driver.ask(reader.initialOffset)
    await lab.node.catalog.add_partitions("t", 3)
    await fill(lab, 2, 3)
    at, rows = await driver.next(reader, at)
    assert rows == [(2, 0), (2, 1)]
    assert at == {"t": {"0": 0, "1": 0, "2": 2}}
    at, rows = await driver.next(reader, at)
    assert rows == [(2, 2)]


async def test_a_new_topic_of_a_pattern(lab: Lab) -> None:
    options = {"subscribePattern": "t.*"}
    driver = Driver(lab, **options)
    del driver.options["subscribe"]
    reader = driver.stream()
    at = await driver.ask(reader.initialOffset)
    await lab.node.catalog.create_topic("t2", 1)
    await lab.node.catalog.create_topic("other", 1)
    await lab.append("t2", [b"a"])
    await lab.append("other", [b"a"])
    at, rows = await driver.next(reader, at)
    assert at == {"t": {"0": 0, "1": 0}, "t2": {"0": 1}}
    assert rows == [(0, 0)]


async def test_a_topic_that_is_made_anew_under_a_query(lab: Lab) -> None:
    await fill(lab, 0, 5)
    for fails in ("true", "false"):
        driver = Driver(lab, failOnDataLoss=fails)
        reader = driver.stream()
        at = {"t": {"0": 5, "1": 0}}
        if fails == "true":
            await lab.node.catalog.delete_topic("t")
            await lab.node.catalog.create_topic("t", 2)
            await fill(lab, 0, 2)
            with pytest.raises(DataLost, match="t-0 was read up to offset 5, but ends at 2"):
                await driver.next(reader, at)
        else:
            assert await driver.next(reader, at) == (at, []), "nothing is read a second time"


async def recreated(lab: Lab, count: int) -> None:
    await lab.node.catalog.delete_topic("t")
    await lab.node.catalog.create_topic("t", 2)
    await fill(lab, 0, count)


async def test_a_topic_that_was_made_anew_while_no_query_ran_loses_nothing_silently(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(lab, 0, 5)
    driver = Driver(lab, startingOffsets="earliest", failOnDataLoss="false")
    reader = driver.stream()
    first = await driver.ask(reader.initialOffset)
    at = await driver.ask(reader.latestOffset, first, ALL)
    topic_id = str(lab.node.catalog.topic("t").topic_id)
    assert at == {"t": {"0": 5, "1": 0}, "": {"t": topic_id}}
    await recreated(lab, 7)  # more than there was: no offset tells
    failing = Driver(lab)
    with pytest.raises(DataLost, match="topic t was deleted and made anew"):
        await failing.ask(failing.stream().latestOffset, at, ALL)
    with pytest.raises(DataLost, match="topic t was deleted and made anew"):
        await failing.ask(failing.stream().partitions, first, at)
    reader = driver.stream()
    assert await driver.ask(reader.partitions, first, at) == [], "what was planned of the former one is not read"
    for _ in range(2):
        end = await driver.ask(reader.latestOffset, at, ALL)
    assert await driver.ask(lambda: driver.rows(reader, reader.partitions(at, end))) == [(0, n) for n in range(7)]
    assert await driver.ask(reader.latestOffset, end, ALL) == end
    assert len([one for one in caplog.records if "made anew" in one.message]) == 1
    available = driver.stream()
    await driver.ask(available.prepareForTriggerAvailableNow)
    assert await driver.ask(available.latestOffset, at, ALL) == end
    del at[""]  # of a checkpoint of Spark's own connector
    assert await driver.ask(driver.stream().latestOffset, at, ALL) == end


async def test_a_partition_that_is_gone(lab: Lab) -> None:
    await lab.node.catalog.create_topic("t2", 1)
    await lab.append("t2", [b"a"])
    for fails in ("true", "false"):
        driver = Driver(lab, subscribePattern="t.*", failOnDataLoss=fails)
        del driver.options["subscribe"]
        reader = driver.stream()
        at = {"t": {"0": 0, "1": 0}, "t2": {"0": 1}}
        if fails == "true":
            await lab.node.catalog.delete_topic("t2")
            with pytest.raises(DataLost, match="partitions t2-0 are no longer there"):
                await driver.next(reader, at)
        else:
            await fill(lab, 0, 1)
            end, rows = await driver.next(reader, at)
            assert rows == [(0, 0)]
            assert end == {"t": {"0": 1, "1": 0}, "t2": {"0": 1}}


@pytest.mark.parametrize("how", ["subscribe", "assign"])
async def test_a_named_topic_that_is_deleted_ends_a_query_only_if_loss_does(lab: Lab, how: str) -> None:
    await lab.node.catalog.create_topic("t2", 1)
    wanted = {"subscribe": "t,t2", "assign": '{"t":[0,1],"t2":[0]}'}[how]
    at = {"t": {"0": 0, "1": 0}, "t2": {"0": 0}}

    def driver(fails: str) -> Driver:
        made = Driver(lab, failOnDataLoss=fails, startingOffsets="earliest")
        del made.options["subscribe"]
        made.options[how] = wanted
        return made

    await lab.append("t2", [b"a"])
    going = driver("false")
    reader = going.stream()
    pieces = await going.ask(lambda: reader.partitions(at, {**at, "t2": {"0": 1}}))
    await lab.node.catalog.delete_topic("t2")
    planned_before = await going.ask(lambda: going.rows(reader, pieces))
    # The catalog forgets the topic at once, the range server frees its data a moment later.
    assert planned_before in ([], [(0, 0)]), "a task that was planned before ends, with what is still there"
    await fill(lab, 0, 1)
    end = {"t": {"0": 1, "1": 0}, "t2": {"0": 0}}
    assert await going.next(reader, at) == (end, [(0, 0)])
    available = going.stream()
    await going.ask(available.prepareForTriggerAvailableNow)
    assert await going.next(available, at) == (end, [(0, 0)])
    with pytest.raises((UnknownTopic, DataLost)):
        await driver("true").next(driver("true").stream(), at)
    with pytest.raises(UnknownTopic):  # a name that is wrong from the beginning
        await driver("false").ask(driver("false").stream().initialOffset)


async def test_what_was_trimmed_before_a_micro_batch(lab: Lab) -> None:
    await fill(lab, 0, 6)
    await lab.log("t").trim(4)
    start, end = {"t": {"0": 1, "1": 0}}, {"t": {"0": 6, "1": 0}}
    driver = Driver(lab)
    with pytest.raises(DataLost, match="offsets from 1 to 3 of t-0 are gone"):
        await driver.ask(driver.stream().partitions, start, end)
    driver = Driver(lab, failOnDataLoss="false")
    reader = driver.stream()
    assert await driver.ask(lambda: driver.rows(reader, reader.partitions(start, end))) == [(0, 4), (0, 5)]


async def test_progress_tells_what_there_is(lab: Lab) -> None:
    await fill(lab, 0, 3)
    driver = Driver(lab, startingOffsets="earliest", maxOffsetsPerTrigger="1")
    reader = driver.stream()
    assert reader.reportLatestOffset() is None
    await driver.next(reader, await driver.ask(reader.initialOffset))
    assert reader.reportLatestOffset() == {"t": {"0": 3, "1": 0}}


# --- schemas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [tuple(TYPES), ("value",), ("offset", "key"), ("headers", "topic"), ("partition",)])
async def test_every_batch_has_exactly_the_schema_that_spark_expects(lab: Lab, names: tuple[str, ...]) -> None:
    """Spark looks at the first batch only; a later one that differs fails in Java without a word."""
    await fill(lab, 0, 3)
    await lab.append_in_transaction("t", 7, 0, [b"a", b"b"])
    await lab.end_transaction("t", 7, commit=True)
    columns = Columns(names)
    for fails in ("true", "false"):
        driver = Driver(lab, columns, failOnDataLoss=fails, **{"arrow.batch.bytes": "1"})
        reader = BatchReader(SourceOptions.parse(driver.options, streaming=False), columns)
        pieces = await lab.ask(reader.partitions)
        found = await lab.ask(lambda reader=reader, pieces=pieces: [one for p in pieces for one in reader.read(p)])
        assert len(found) > 1
        expected = to_arrow_schema(from_arrow_schema(columns.schema), timezone="UTC")
        assert all(one.schema.equals(expected) for one in found)


def test_the_row_is_what_spark_makes_of_its_schema_and_takes_back() -> None:
    """Arrow types that differ in any way are refused when the first batch comes."""
    source = AnabranchDataSource({"includeHeaders": "true", "INCLUDEMETADATA": "true"})
    schema = source.schema()
    assert set(schema.names) == set(TYPES)
    columns = Columns.select(headers=True, metadata=True)
    assert to_arrow_schema(schema, timezone="UTC") == columns.schema
    assert columns_of(schema) == columns
    assert AnabranchDataSource({}).schema().names == list(Columns().names)
    assert AnabranchDataSource.name() == "anabranch"


def test_a_schema_of_some_columns_is_a_projection() -> None:
    some = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])
    assert columns_of(some).names == ("offset", "value")
    for field, sentence in (
        (StructField("crc", LongType()), "no column 'crc'"),
        (StructField("value", StringType()), "column value is of type binary, not string"),
        (StructField("offset", LongType(), nullable=False), "may be null"),
    ):
        with pytest.raises(OptionError, match=sentence):
            columns_of(StructType([field]))


async def test_workers_keep_their_endpoint_and_drop_one_that_failed(lab: Lab) -> None:
    url = f"anabranch://{lab.node.addresses['pipeline']}"

    def use() -> list[object]:
        found: list[object] = []
        for fails in (False, True, False):
            try:
                with POOL.use(url, {"patienceMs": "100"}) as source:
                    found.append(source)
                    if fails:
                        raise UnknownTopic("t")
            except UnknownTopic:
                pass
        return found

    first, second, third = await lab.ask(use)
    assert first is second
    assert third is not first
