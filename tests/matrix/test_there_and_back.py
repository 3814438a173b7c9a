"""Any list of records is, translated into another format and back, what the table of docs/translation.md promises.

In process, since nothing but translation is asked; and through clients and a node, with scales and trims between, for
what users of two systems do: they read through one protocol and write what they got through the same, as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import count
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridges.formats import FORMATS, FormatId, Translator, decode, format_of
from bridges.formats.records import Record, StoredBatch, told_headers
from tests.clients.api import Rec
from tests.clients.client_confluent import ConfluentClient
from tests.depth import examples
from tests.matrix.conftest import CONFIG, make_topics
from tests.matrix.expected import through_ydb
from tests.matrix.kinds import UNTOLD, Told, Where
from tests.matrix.readers import YdbRaw
from tests.matrix.table import as_record
from tests.matrix.world import append_events, read_events
from tests.matrix.writers import partitions_of
from tests.node_process import NodeProcess
from tests.pravega_front.controller_client import ControllerClient, scale
from tests.ydb_topic_front.raw import RawClient as RawYdb
from tests.ydb_topic_front.reading import write

BASE = 40
OURS = "anabranch."
"""Names that begin so are not for users."""

NAMES = st.sampled_from(["__key", "h"]) | st.text(max_size=4).filter(lambda name: not name.startswith(OURS))
LATEST = 1 << 52
TIMES = st.integers(-LATEST, LATEST) | st.integers(-2000, 2000) | st.just(1_700_000_000_000)
RECORDS = st.lists(
    st.builds(
        Record,
        key=st.none() | st.binary(max_size=5),
        value=st.none() | st.binary(max_size=30) | st.integers(0, 70_000).map(bytes),
        headers=st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=5)), max_size=4),
        timestamp=TIMES,
    ),
    min_size=1,
    max_size=8,
)
Fields = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]], int]


def fields(record: Record) -> Fields:
    """What users see of a record."""
    return record.offset, record.key, record.value, told_headers(record), record.timestamp


def whole(record: Record) -> Fields:
    return fields(record)


def value_alone(record: Record) -> Fields:
    """Of an event: when it was appended is the writer's affair no more."""
    return record.offset, None, record.value or b"", [], 0


PROMISED: dict[FormatId, Callable[[Record], Fields]] = {
    FormatId.KAFKA: whole,
    FormatId.YDB: whole,
    FormatId.PRAVEGA: value_alone,
}
"""SBP\'s readers get others\' batches as they are (docs/sbp.md)."""


def laid(form: FormatId, records: Sequence[Record], span: int) -> StoredBatch:
    """The records as a batch of this format."""
    builder = FORMATS[form].builder(BASE, BASE + span)
    for record in records:
        builder.add(record)
    return StoredBatch(BASE, BASE + span, int(form), builder.finish(), 77)


def translated(batch: StoredBatch, form: FormatId) -> StoredBatch:
    payload = Translator(1 << 20).payload(1, batch, form)
    if payload is None:  # it is large
        return laid(form, list(decode(batch)), batch.end_offset - batch.base_offset)
    return StoredBatch(batch.base_offset, batch.end_offset, int(form), payload, 77)


def placed(records: Sequence[Record], gaps: Sequence[int]) -> Iterator[Record]:
    """At offsets with gaps between them, as compaction and transactions leave them."""
    offset = BASE
    for record, gap in zip(records, gaps, strict=True):
        offset += gap
        yield Record(record.key, record.value, record.headers, record.timestamp, offset)
        offset += 1


@settings(max_examples=examples(150))
@given(RECORDS, st.data())
def test_records_come_back_as_promised(records: list[Record], data: st.DataObject) -> None:
    gaps = data.draw(st.lists(st.sampled_from([0, 0, 0, 2]), min_size=len(records), max_size=len(records)))
    given_records = list(placed(records, gaps))
    span = given_records[-1].offset + 1 - BASE + data.draw(st.integers(0, 2))
    first = data.draw(st.sampled_from(list(PROMISED)))
    other = data.draw(st.sampled_from([form for form in PROMISED if form != first]))
    there = laid(first, given_records, span)
    stored = list(decode(there))
    assert [PROMISED[first](one) for one in stored] == [PROMISED[first](one) for one in given_records]
    back = translated(translated(there, other), first)

    def both(record: Record) -> Fields:
        """What both formats have: the one with less says what."""
        offset, key, value, headers, time = PROMISED[other](record)
        return PROMISED[first](Record(key, value, headers, time, offset))

    assert [both(one) for one in decode(back)] == [both(one) for one in stored]
    start = data.draw(st.integers(BASE, BASE + span))
    behind = [one for one in format_of(first).records(back, start=start) if one is not None]
    assert [both(one) for one in behind] == [both(one) for one in stored if one.offset >= start], "from a trim on"


# --- through clients and a node ---------------------------------------------------------------------------------------


class Side(ABC):
    """A protocol as its users have it: what they write, and what they copy as they got it."""

    form: ClassVar[FormatId]

    def __init__(self, node: NodeProcess) -> None:
        self._node = node

    @abstractmethod
    def say(self, record: Record) -> Any:
        """A record in this protocol's words."""

    @abstractmethod
    def write(self, topic: str, partition: int, said: Sequence[Any]) -> None: ...

    @abstractmethod
    def read(self, topic: str, partition: int, count: int) -> list[Any]:
        """So many from where the partition begins, as they can be written again."""

    @abstractmethod
    def understood(self, said: Any) -> Record:
        """What it says."""


class KafkaSide(Side):
    form = FormatId.KAFKA

    def say(self, record: Record) -> Rec:
        return Rec(record.value, record.key, tuple(record.headers), record.timestamp)

    def write(self, topic: str, partition: int, said: Sequence[Rec]) -> None:
        if said:
            ConfluentClient(self._node.kafka).produce(topic, partition, said)

    def read(self, topic: str, partition: int, count: int) -> list[Rec]:
        got = ConfluentClient(self._node.kafka).consume(topic, {partition: count}) if count else []
        return [Rec(one.value, one.key, one.headers, one.timestamp) for one in got]

    def understood(self, said: Rec) -> Record:
        assert said.timestamp is not None
        return Record(said.key, said.value, list(said.headers), said.timestamp)


class YdbSide(Side):
    form = FormatId.YDB

    def say(self, record: Record) -> Told:
        return through_ydb(Told(UNTOLD, record.value, record.key, tuple(record.headers), record.timestamp))

    def write(self, topic: str, partition: int, said: Sequence[Told]) -> None:
        for told in said:
            assert isinstance(told.headers, tuple)
            more: dict[str, Any] = {"metadata_items": [{"key": name, "value": value} for name, value in told.headers]}
            if isinstance(told.created, int):
                seconds, ms = divmod(told.created, 1000)
                more["created_at"] = {"seconds": seconds, "nanos": ms * 1_000_000}
            with RawYdb(self._node.ydb) as raw:
                write(raw, topic, told.value or b"", partition=partition, **more)

    def read(self, topic: str, partition: int, count: int) -> list[Told]:
        return [told for _, told in YdbRaw(self._node).read_each(topic, {partition: count} if count else {})]

    def understood(self, said: Told) -> Record:
        key, headers, value, created, _ = as_record(said)
        assert key is None or isinstance(key, bytes)
        assert isinstance(created, int)
        return Record(key, value, list(headers), created)


class PravegaSide(Side):
    form = FormatId.PRAVEGA

    def say(self, record: Record) -> bytes:
        return record.value or b""

    def write(self, topic: str, partition: int, said: Sequence[bytes]) -> None:
        append_events(self._node, segment_of(self._node, topic, partition), said)

    def read(self, topic: str, partition: int, count: int) -> list[bytes]:
        return read_events(self._node, segment_of(self._node, topic, partition))

    def understood(self, said: bytes) -> Record:
        return Record(None, said, [], 0)


SIDES: tuple[Callable[[NodeProcess], Side], ...] = (KafkaSide, YdbSide, PravegaSide)
_numbers = count()


@pytest.mark.slow
@settings(max_examples=examples(12))
@given(RECORDS, RECORDS, RECORDS, st.data())
def test_what_is_copied_by_hand_through_another_protocol_is_what_was_written(
    node: NodeProcess, one: list[Record], two: list[Record], three: list[Record], data: st.DataObject
) -> None:
    """A writes, the topic is scaled, merged and trimmed meanwhile, B copies what it reads, as it reads it, to a
    topic that is scaled and trimmed too, and A reads that."""
    first, other = (side(node) for side in data.draw(st.permutations(SIDES))[:2])
    source, target = (f"{name}-{next(_numbers)}" for name in ("there", "back"))
    make_topics(node, {name: {**CONFIG[Where.MAIN], **SPLITS} for name in (source, target)})
    left: dict[int, list[Record]] = {}

    def put(topic: str, partition: int, records: Sequence[Any], trim: int) -> None:
        """In two requests, and trimmed, perhaps within the first."""
        middle = data.draw(st.integers(0, len(records)))
        for some in (records[:middle], records[middle:]):
            (first if topic == source else other).write(topic, partition, some)
        if trim:
            ConfluentClient(node.kafka).delete_records(topic, partition, trim)

    def written(partition: int, records: Sequence[Record]) -> None:
        # librdkafka takes 0 for now, and -1 is no time.
        timed = [Record(of.key, of.value, of.headers, 1 if of.timestamp in (-1, 0) else of.timestamp) for of in records]
        trim = data.draw(st.integers(0, len(timed)))
        put(source, partition, [first.say(record) for record in timed], trim)
        left[partition] = timed[trim:]

    written(0, one)
    if data.draw(st.booleans()):
        scaled(node, source, [0], [[0, 0.5], [0.5, 1]])
        written(1, two)
        written(2, three)
        if data.draw(st.booleans()):
            scaled(node, source, [1 << 32 | 1, 1 << 32 | 2], [[0, 1]])
            written(3, one)
    wanted = [record for records in left.values() for record in records]
    copies = [copy for part, records in left.items() for copy in other.read(source, part, len(records))]
    half = data.draw(st.integers(0, len(copies)))
    trim = data.draw(st.integers(0, half))
    put(target, 0, copies[:half], trim)
    scaled(node, target, [0], [[0, 1]])
    put(target, 1, copies[half:], 0)

    def both(record: Record) -> Fields:
        _, key, value, headers, time = PROMISED[other.form](record)
        return PROMISED[first.form](Record(key, value, headers, time, 0))

    back = [
        first.understood(said)
        for part, many in ((0, half - trim), (1, len(copies) - half))
        for said in first.read(target, part, many)
    ]
    assert [both(record) for record in back] == [both(record) for record in wanted[trim:]]


def segment_of(node: NodeProcess, topic: str, partition: int) -> str:
    """What Pravega calls it, of a topic that is the first of its name."""
    (made,) = [one["made_epoch"] for one in partitions_of(node, topic) if one["partition"] == partition]
    return f"default/{topic}/{partition}.#epoch.{made}"


SPLITS = {"anabranch.partitions.split": "true", "retention.ms": "-1"}


def scaled(node: NodeProcess, topic: str, sealed: list[int], ranges: list[list[float]]) -> None:
    """By Pravega's controller."""
    with closing(ControllerClient(node.addresses["pravega"])) as controller:
        scale(controller, "default", topic, sealed, ranges)
