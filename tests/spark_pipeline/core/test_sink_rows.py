"""Rows of a sink: which are refused, where they go, and how large batches get."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pyarrow as pa
import pytest

from bridges.catalog.topics.lineage import WHOLE, choose_partition
from bridges.formats.kafka import check_batch, iterate
from spark_pipeline.core.client.node_answers import NodeTopics, PartitionFacts, TopicFacts
from spark_pipeline.core.client.node_client import NodeError
from spark_pipeline.core.client.sink_client import TakesRecords
from spark_pipeline.core.encoding.sink_rows import Codec, SinkOptions, SinkRefused, SinkRows, check_schema
from spark_pipeline.core.errors import OptionError
from spark_pipeline.core.rows import TYPES


class Topics:
    """What a node would tell: topics by the states of their partitions."""

    def __init__(self, most_bytes: int = 1_048_588, **states: Sequence[str]) -> None:
        self.config = {"max.message.bytes": most_bytes}
        self.states = states

    def topics(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        return {name: self._facts(name) for name in names}

    def _facts(self, name: str) -> TopicFacts:
        if name not in self.states:
            raise NodeError(f"there is no topic {name!r}", "TopicNotFound", 404)
        keys = WHOLE.low, WHOLE.high
        partitions = [
            PartitionFacts(number, number, state, keys, None, (), ()) for number, state in enumerate(self.states[name])
        ]
        return TopicFacts(name, "", "user", {}, tuple(partitions), self.config)


def written(
    columns: dict[str, Any], topics: Topics, options: SinkOptions | None = None, task: int = 0
) -> dict[tuple[str, int], list[Any]]:
    """What the rows become, by topic and partition: (key, value, ms, headers)."""
    rows = pa.RecordBatch.from_pydict({name: pa.array(values, TYPES.get(name)) for name, values in columns.items()})
    options = options or SinkOptions("t")
    check_schema(rows.schema, options)
    sink = SinkRows(options, cast(NodeTopics, topics), task)
    found: dict[tuple[str, int], list[Any]] = {}
    for topic, partition, batch in [*sink.add(rows), *sink.finish()]:
        payload = batch.header() + bytes(batch.body)
        assert check_batch(memoryview(payload)).codec == options.codec
        told = [(one.key, one.value, one.timestamp, one.headers) for one in iterate(payload)]
        found.setdefault((topic, partition), []).extend(told)
    return found


T3 = Topics(t=["active"] * 3)


def test_keys_go_where_kafkas_clients_send_them_and_keep_their_order() -> None:
    keys = [b"%d" % (number % 10) for number in range(100)]
    found = written({"key": keys, "value": [b"%d" % number for number in range(100)]}, T3)
    assert sum(map(len, found.values())) == 100
    for (_, partition), records in found.items():
        assert {choose_partition(key, 3) for key, *_ in records} == {partition}
        values = [int(value) for _, value, *_ in records]
        assert values == sorted(values)


def test_rows_say_their_partition_topic_time_and_headers() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)
    columns = {
        "value": [b"a", None, b"c", b"d"],
        "key": [None, b"k", None, b"k"],
        "topic": ["t", "u", "t", "t"],
        "partition": [2, 0, None, None],
        "timestamp": [at, at, at, at],
        "headers": [[{"key": "h", "value": b"1"}, {"key": "", "value": None}], None, [], None],
        "offset": [1, 2, 3, 4],
    }
    found = written(columns, Topics(t=["active"] * 3, u=["active"]), SinkOptions())
    ms = 1_767_323_045_678
    assert found["u", 0] == [(b"k", None, ms, [])]
    assert (None, b"a", ms, [("h", b"1"), ("", None)]) in found["t", 2]
    assert (b"k", b"d", ms, []) in found["t", choose_partition(b"k", 3)]
    assert sum(map(len, found.values())) == 4
    # The option says where, whatever the rows do.
    assert sum(len(rows) for (topic, _), rows in written(columns, T3).items() if topic == "t") == 4


def test_rows_without_a_key_go_to_another_partition_in_each_task_and_are_stamped_now() -> None:
    found = [written({"value": ["text"] * 4}, T3, task=task) for task in range(3)]
    assert sorted(partition for one in found for _, partition in one) == [0, 1, 2]
    for one in found:
        ((key, value, timestamp, headers), *_) = next(iter(one.values()))
        assert (key, value, headers) == (None, b"text", [])
        assert timestamp > 1_750_000_000_000


def test_only_partitions_that_are_active_take_rows() -> None:
    topics = Topics(t=["sealed", "active", "sealed", "active"], ended=["sealed"])
    found = written({"key": [b"%d" % number for number in range(50)], "value": [b"v"] * 50}, topics)
    assert set(found) == {("t", 1), ("t", 3)}
    with pytest.raises(SinkRefused, match="a row's partition is 2; topic 't' takes records in partitions 1, 3"):
        written({"value": [b"v"], "partition": [2]}, topics)
    with pytest.raises(SinkRefused, match="was ended"):
        written({"value": [b"v"]}, topics, SinkOptions("ended"))


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_are_no_larger_than_the_topic_takes(codec: Codec) -> None:
    rows = {"key": [b"k"] * 300, "value": [bytes(100)] * 300, "partition": [0] * 300}
    batch = pa.RecordBatch.from_pydict({name: pa.array(values, TYPES[name]) for name, values in rows.items()})
    sink = SinkRows(SinkOptions("t", codec), cast(NodeTopics, Topics(2_000, t=["active"])), 0)
    made = [*sink.add(batch), *sink.finish()]
    assert sum(one.count for *_, one in made) == 300
    assert max(one.size for *_, one in made) <= 2_000
    assert 20 <= len(made) <= 30


def test_a_topic_that_is_known_is_not_asked_for() -> None:
    sink = SinkRows(SinkOptions("t"), cast(NodeTopics, Topics()), 1)
    sink.know({"t": TakesRecords((3, 5), 400)})
    rows = pa.RecordBatch.from_pydict({"value": pa.array([bytes(100)] * 10)})
    made = [*sink.add(rows), *sink.finish()]
    assert {partition for _, partition, _ in made} == {3}
    assert max(one.size for *_, one in made) <= 400
    with pytest.raises(SinkRefused, match="was ended"):
        sink.know({"ended": TakesRecords((), 400)})


def test_rows_are_gathered_until_batches_are_worth_it() -> None:
    sink = SinkRows(SinkOptions("t"), cast(NodeTopics, T3), 0)
    small = pa.RecordBatch.from_pydict({"value": pa.array([bytes(100_000)])})
    assert [list(sink.add(small)) for _ in range(10)] == [[]] * 10
    assert [one.count for *_, one in sink.add(small)] == [10, 1]
    assert list(sink.finish()) == []


def test_a_time_that_nobody_told_is_now() -> None:
    at, untold = datetime(2026, 1, 2, tzinfo=UTC), datetime.fromtimestamp(-0.001, UTC)
    before = time.time_ns() // 1_000_000
    found = written({"value": [b"a", b"b", b"c"], "timestamp": [at, untold, None]}, Topics(t=["active"]))
    told, *now = [ms for _, _, ms, _ in found["t", 0]]
    assert told == at.timestamp() * 1000
    assert all(before <= ms <= time.time_ns() // 1_000_000 for ms in now)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"value": [b"v"], "partition": [3]}, "a row's partition is 3; topic 't' takes records in partitions 0 to 2"),
        ({"value": [b"v"], "partition": [-1]}, "a row's partition is -1"),
        ({"value": [b"v"], "timestamp": [datetime(1969, 1, 1, tzinfo=UTC)]}, "before 1970"),
    ],
)
def test_rows_that_cannot_be_written(columns: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SinkRefused, match=complaint):
        written(columns, T3)


def test_topics_that_rows_do_not_say_or_that_are_not_there() -> None:
    with pytest.raises(SinkRefused, match="a row has no topic"):
        written({"value": [b"a", b"b"], "topic": ["t", None]}, T3, SinkOptions())
    with pytest.raises(SinkRefused, match="no topic 'nowhere' to write to"):
        written({"value": [b"a"], "topic": ["nowhere"]}, T3, SinkOptions())


@pytest.mark.parametrize(
    ("columns", "topic", "complaint"),
    [
        ({"key": pa.binary()}, "t", "no column 'value': they have key"),
        ({"value": pa.binary()}, "", "give the option 'topic', or the rows a column 'topic'"),
        ({"value": pa.int32()}, "t", "column 'value' is of type int32; it has to be binary or string"),
        ({"value": pa.binary(), "partition": pa.string()}, "t", "column 'partition' is of type string"),
        ({"value": pa.binary(), "topic": pa.binary()}, "", "column 'topic' is of type binary"),
        ({"value": pa.binary(), "timestamp": pa.int64()}, "t", "column 'timestamp'"),
        ({"value": pa.binary(), "headers": pa.list_(pa.string())}, "t", "column 'headers' is of type list"),
    ],
)
def test_schemas_that_cannot_be_written(columns: dict[str, pa.DataType], topic: str, complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        check_schema(pa.schema(list(columns.items())), SinkOptions(topic))


def test_options_of_the_sink_are_read_in_any_case_or_refused() -> None:
    assert SinkOptions.parse({"Topic": "t", "COMPRESSION": "Zstd"}) == SinkOptions("t", Codec.zstd)
    assert SinkOptions.parse({}) == SinkOptions()
    with pytest.raises(OptionError, match="none, gzip, snappy, lz4, zstd"):
        SinkOptions.parse({"compression": "brotli"})
