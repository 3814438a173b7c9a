"""Encoding of a sink's Arrow rows as record batches for the partitions they go to.

Columns are those of Spark's sink for Kafka, ``value``, ``key``, ``headers``, ``topic``, ``partition``, and a timestamp;
others are ignored. A row without a partition goes where Kafka's clients would send it: by its key, and without a key to
a partition that changes now and then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anabranch_kit.run.clock import now_ms
from spark_pipeline.core.client.node_answers import NodeTopics
from spark_pipeline.core.client.node_client import NodeError
from spark_pipeline.core.client.sink_client import TakesRecords
from spark_pipeline.core.encoding.kafka import EncodedBatch, Records, encode, partitions_of, sizes, starts_of
from spark_pipeline.core.errors import OptionError, PipelineError
from spark_pipeline.core.options import Options

Int64s = npt.NDArray[np.int64]

_BATCH_BYTES = 1024 * 1024
"""Most bytes of a batch, unless its topic takes less."""
_BATCH_RECORDS = 50_000
_LEAST_GATHERED = 1024 * 1024
_MOST_GATHERED = 32 * 1024 * 1024
_NOBODY_TOLD = -1
"""The time, in ms, that the source gives a row whose writer set none, as with Pravega's events."""
_OF_EACH_PARTITION = 128 * 1024
"""Bytes gathered per partition before batches are made: small batches cost readers more."""


class Codec(IntEnum):
    """Compression of batches, by Kafka's numbers."""

    none = 0
    gzip = 1
    snappy = 2
    lz4 = 3
    zstd = 4


class SinkRefused(PipelineError):
    """A row cannot be written, and a retry will not change that."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The sink's options. ``topic`` is the topic of all rows; empty: each row names its own."""

    topic: str = ""
    codec: Codec = Codec.none

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Parse the options ``topic`` and ``compression``. Raises OptionError."""
        given = Options(options)
        return cls(given.get("topic") or "", Codec[given.choice("compression", tuple(Codec.__members__))])


_KINDS: Mapping[str, tuple[tuple[pa.DataType, ...], str]] = {
    "value": ((pa.binary(), pa.string()), "binary or string"),
    "key": ((pa.binary(), pa.string()), "binary or string"),
    "topic": ((pa.string(),), "string"),
    "partition": ((pa.int32(), pa.int64(), pa.int16(), pa.int8()), "int"),
    "timestamp": ((pa.timestamp("us", tz="UTC"), pa.timestamp("ms", tz="UTC")), "timestamp"),
}
_HEADERS = "array<struct<key:string,value:binary>>"


def check_schema(schema: pa.Schema, options: SinkOptions) -> None:
    """Raise OptionError, with a sentence for the user, if rows of this schema cannot be written."""
    names = set(schema.names)
    if "value" not in names:
        raise OptionError(f"rows to be written have no column 'value': they have {', '.join(sorted(names)) or 'none'}")
    if not options.topic and "topic" not in names:
        raise OptionError("rows have no topic: give the option 'topic', or the rows a column 'topic'")
    for name, (kinds, words) in _KINDS.items():
        if name in names and schema.field(name).type not in kinds:
            raise OptionError(f"column {name!r} is of type {schema.field(name).type}; it has to be {words}")
    if "headers" in names and not _are_headers(schema.field("headers").type):
        raise OptionError(f"column 'headers' is of type {schema.field('headers').type}; it has to be {_HEADERS}")


def _are_headers(kind: pa.DataType) -> bool:
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    return fields == {"key": pa.string(), "value": pa.binary()}


@dataclass(slots=True)
class _Target:
    """A topic that rows go to: its partitions that take records, and the most bytes of a batch."""

    name: str
    active: Int64s
    batch_bytes: int
    turn: int

    @classmethod
    def make(cls, name: str, facts: TakesRecords, turn: int) -> _Target:
        if not facts.partitions:
            raise SinkRefused(f"topic {name!r} was ended: all its partitions are sealed")
        return cls(name, np.array(facts.partitions, np.int64), min(_BATCH_BYTES, facts.batch_bytes), turn)


class SinkRows:
    """A builder of batches from rows. By ``task``, tasks begin with different partitions for rows without a key."""

    def __init__(self, options: SinkOptions, topics: NodeTopics, task: int) -> None:
        self._options = options
        self._topics = topics
        self._task = task
        self._targets: dict[str, _Target] = {}
        self._gathered: list[pa.RecordBatch] = []
        self._bytes = 0

    def know(self, told: Mapping[str, TakesRecords]) -> None:
        """Remember the facts of topics, by name, which then need no request."""
        for name, facts in told.items():
            self._targets[name] = _Target.make(name, facts, self._task)

    def add(self, rows: pa.RecordBatch) -> Iterator[tuple[str, int, EncodedBatch]]:
        """Take in rows and yield the full batches (topic, partition, batch). Raises SinkRefused, NodeError."""
        if not rows.num_rows:
            return
        self._gathered.append(rows)
        self._bytes += rows.nbytes
        partitions = sum(len(one.active) for one in self._targets.values())
        if self._bytes >= min(_MOST_GATHERED, max(_LEAST_GATHERED, partitions * _OF_EACH_PARTITION)):
            yield from self.finish()

    def finish(self) -> Iterator[tuple[str, int, EncodedBatch]]:
        """Yield the batches of the remaining rows."""
        gathered, self._gathered, self._bytes = self._gathered, [], 0
        if not gathered:
            return
        rows = gathered[0] if len(gathered) == 1 else pa.concat_batches(gathered)
        names = rows.schema.names
        if self._options.topic:
            yield from self._of_topic(self._options.topic, rows)
            return
        topic = rows.column(names.index("topic"))
        if topic.null_count:
            raise SinkRefused("a row has no topic: its column 'topic' is null, and the option 'topic' is not given")
        for name in pc.unique(topic).to_pylist():
            yield from self._of_topic(name, rows.filter(pc.equal(topic, name)))

    def _of_topic(self, name: str, rows: pa.RecordBatch) -> Iterator[tuple[str, int, EncodedBatch]]:
        target = self._target(name)
        keys = _bytes_of(rows, "key")
        values = _bytes_of(rows, "value")
        assert values is not None, "checked before"
        headers = rows.column("headers") if "headers" in rows.schema.names else None
        records = Records(keys, values, _times_of(rows), headers)
        places = self._places(target, rows, keys)
        # Numbers of 16 bits are sorted by their digits, which takes no comparisons.
        order = np.argsort(places.astype(np.uint16) if int(places.max()) < 1 << 16 else places, kind="stable")
        sorted_places = places[order]
        groups = np.flatnonzero(np.r_[True, sorted_places[1:] != sorted_places[:-1]])
        if len(groups) > 1:
            records = records.take(order)
        starts = starts_of(sizes(records), groups, target.batch_bytes, _BATCH_RECORDS)
        for start, batch in zip(starts.tolist(), encode(records, starts, self._options.codec), strict=True):
            yield name, int(sorted_places[start]), batch

    def _target(self, name: str) -> _Target:
        target = self._targets.get(name)
        if target is None:
            try:
                facts = self._topics.topics([name])[name]
            except NodeError as error:
                if error.kind == "TopicNotFound":
                    raise SinkRefused(f"there is no topic {name!r} to write to") from error
                raise
            active = tuple(one.partition for one in facts.active)
            most = int(facts.config.get("max.message.bytes", _BATCH_BYTES))
            target = self._targets[name] = _Target.make(name, TakesRecords(active, most), self._task)
        return target

    def _places(self, target: _Target, rows: pa.RecordBatch, keys: pa.Array | None) -> Int64s:
        """Return the partition of each row."""
        count, active = rows.num_rows, target.active
        told = rows.column("partition") if "partition" in rows.schema.names else None
        if told is not None and not told.null_count:
            return self._checked(target, told.to_numpy().astype(np.int64))
        # Rows without a key stay together, so that batches are large, and go on to the next partition each time.
        target.turn += 1
        unkeyed = int(active[target.turn % len(active)])
        if keys is None:
            places = np.full(count, unkeyed, np.int64)
        else:
            places = active[partitions_of(keys, len(active))]
            if keys.null_count:
                places[keys.is_null().to_numpy(zero_copy_only=False)] = unkeyed
        if told is not None and told.null_count < count:
            given = ~told.is_null().to_numpy(zero_copy_only=False)
            places[given] = told.drop_null().to_numpy().astype(np.int64)
            return self._checked(target, places)
        return places

    @staticmethod
    def _checked(target: _Target, places: Int64s) -> Int64s:
        wrong = np.flatnonzero(~np.isin(places, target.active))
        if len(wrong):
            raise SinkRefused(
                f"a row's partition is {int(places[wrong[0]])}; topic {target.name!r} takes records in "
                f"{_words(target.active.tolist())}"
            )
        return places


def _words(numbers: Sequence[int]) -> str:
    if list(numbers) == list(range(len(numbers))):
        return f"partitions 0 to {numbers[-1]}" if len(numbers) > 1 else "partition 0 only"
    some = ", ".join(map(str, numbers[:20]))
    return f"partitions {some}{' and others' if len(numbers) > 20 else ''}"


def _bytes_of(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    if name not in rows.schema.names:
        return None
    column = rows.column(name)
    if pa.types.is_string(column.type):
        return column.cast(pa.binary())
    return None if name == "key" and column.null_count == len(column) else column


def _times_of(rows: pa.RecordBatch) -> Int64s:
    """Return times in ms. A row without a time, or with the source's time for "unset", gets the current time."""
    now = now_ms()
    if "timestamp" not in rows.schema.names:
        return np.full(rows.num_rows, now, np.int64)
    column = pc.cast(rows.column("timestamp"), pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    found: Int64s = (column.fill_null(now) if column.null_count else column).to_numpy()
    if len(found) and int(found.min()) < 0:
        found = np.where(found == _NOBODY_TOLD, now, found)
    if len(found) and int(found.min()) < 0:
        raise SinkRefused("a row's timestamp is before 1970, which records cannot have")
    return found
