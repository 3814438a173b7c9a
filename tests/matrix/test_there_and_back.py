"""Any list of records is, translated into another format and back, what the table of docs/translation.md promises.

In process, since nothing but translation is asked; and once through clients and a node, with a trim between, for what
users of two systems do: they read through one protocol and write what they got through the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridges.formats import FORMATS, FormatId, Translator, decode, format_of
from bridges.formats.records import Record, StoredBatch, told_headers
from tests.clients.api import Rec
from tests.clients.client_confluent import ConfluentClient
from tests.depth import examples
from tests.matrix.conftest import CONFIG, make_topics
from tests.matrix.kinds import Where
from tests.matrix.readers import YdbRaw
from tests.node_process import NodeProcess
from tests.pravega_front.controller_client import ControllerClient, scale
from tests.ydb_topic_front.raw import RawClient as RawYdb
from ydb_topic_front.wire.statuses import Status

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


_numbers = count()


@pytest.mark.slow
@settings(max_examples=examples(5))
@given(records=RECORDS, data=st.data())
def test_what_is_copied_by_hand_through_ydb_is_what_kafka_wrote(
    node: NodeProcess, records: list[Record], data: st.DataObject
) -> None:
    """Kafka writes, the topic is trimmed and split, YDB's client copies what it reads to another topic, item by item,
    and Kafka reads that."""
    number = next(_numbers)
    names = [f"there-{number}", f"back-{number}"]
    make_topics(node, {name: {**CONFIG[Where.MAIN], "anabranch.partitions.split": "true"} for name in names})
    client = ConfluentClient(node.kafka)
    # librdkafka takes 0 for now, and -1 is no time.
    given_records = [
        Rec(one.value, one.key, tuple(one.headers), one.timestamp if one.timestamp not in (-1, 0) else 1)
        for one in records
    ]
    client.produce(names[0], 0, given_records, codec=data.draw(st.sampled_from(["none", "lz4"])))
    trim = data.draw(st.integers(0, len(records) - 1))
    if trim:
        client.delete_records(names[0], 0, trim)
    if data.draw(st.booleans()):
        with closing(ControllerClient(node.addresses["pravega"])) as controller:
            scale(controller, "default", names[0], [0], [[0, 0.5], [0.5, 1]])
    left = given_records[trim:]
    with RawYdb(node.ydb) as raw:
        stream = raw.stream("StreamWrite")
        stream.send(init_request={"path": names[1], "producer_id": "copy", "partition_id": 0})
        assert stream.receive().status == Status.SUCCESS
        for place, told in enumerate(YdbRaw(node).read(names[0], len(left)), 1):
            assert told.offset == trim + place - 1
            assert isinstance(told.headers, tuple)
            message: dict[str, Any] = {
                "seq_no": place,
                "data": told.value,
                "metadata_items": [{"key": name, "value": value} for name, value in told.headers],
            }
            if isinstance(told.created, int):
                seconds, ms = divmod(told.created, 1000)
                message["created_at"] = {"seconds": seconds, "nanos": ms * 1_000_000}
            stream.send(write_request={"messages": [message], "codec": 1})
            answer = stream.receive()
            assert answer.status == Status.SUCCESS, answer
        stream.half_close()
        assert stream.rest() == []
    got = client.consume(names[1], {0: len(left)})
    assert [(one.key, one.value, one.headers, one.timestamp) for one in got] == [
        (one.key, one.value, one.headers, one.timestamp) for one in left
    ]
