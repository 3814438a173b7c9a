"""What one client writes, every other reads: each writer with each of its codecs, each reader, record for record."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from tests.clients.api import Abilities, Got, Headers, Rec
from tests.clients.client_kcat import render_headers
from tests.clients.raw import CODECS, stored_batches
from tests.clients.registry import ABILITIES, NAMES, Opener, clients, pairs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # the first use of a driver builds it

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Written:
    """A topic with one partition per codec of the writer; all partitions got the same records."""

    topic: str
    codecs: tuple[str, ...]
    records: tuple[Rec, ...]
    begin_ms: int
    end_ms: int


def records_for(abilities: Abilities) -> tuple[Rec, ...]:
    """Records of every shape that the writer can express."""
    text = "the same words over and over, so that they compress; "
    headers: Headers = (("trace", b"abc"), ("empty", b""), ("trace", b"again"))
    records = [Rec((text * 4 + str(number)).encode(), f"key-{number % 7}".encode()) for number in range(100)]
    if abilities.binary_everywhere:
        noise = random.Random(1).randbytes(70_000)
        records += [
            Rec(b"value alone"),
            Rec(None, b"a tombstone"),
            Rec(b"", b""),
            Rec(bytes(range(256)) * 3, bytes(range(255, -1, -1))),
            Rec(noise, b"noise"),
            Rec(text.encode() * 4000, b"large"),
            Rec(b"h", b"headers", headers),
            Rec(b"h", b"binary header", (("bytes", bytes(range(256))), ("größe", "名".encode()))),
        ]
        if abilities.null_headers:
            records.append(Rec(b"h", b"null header", (("nothing", None), ("something", b"1"))))
    else:
        records += [Rec(b"h", b"headers", (("a", b"1"), ("b", b"2")))]
    if abilities.void_records:
        records.append(Rec(None, None))
    if abilities.own_timestamps:
        start = time.time_ns() // 1_000_000 - HOUR_MS
        # Not monotone, as with producers that stamp by event time.
        records = [replace(record, timestamp=start + 10 * (i ^ 3)) for i, record in enumerate(records)]
    return tuple(records)


@pytest.fixture(scope="session")
def written(open_client: Opener, make_topic: Callable[..., str]) -> Callable[[str], Written]:
    """Lets a writer write, once per session."""
    done: dict[str, Written] = {}

    def write(name: str) -> Written:
        if name not in done:
            client = open_client(name)
            codecs = tuple(codec for codec in CODECS if codec in client.abilities.codecs)
            records = records_for(client.abilities)
            topic = make_topic(f"matrix-{name}", len(codecs))
            begin = time.time_ns() // 1_000_000
            for partition, codec in enumerate(codecs):
                offsets = client.produce(topic, partition, records, codec=codec)
                if client.abilities.acknowledged_offsets:
                    assert offsets == list(range(len(records))), codec
            done[name] = Written(topic, codecs, records, begin, time.time_ns() // 1_000_000)
        return done[name]

    return write


def by_name(headers: Headers) -> Headers:
    """Headers of one name side by side, as libraries order them that keep headers in a dictionary."""
    names = list(dict.fromkeys(name for name, _ in headers))
    return tuple(pair for name in names for pair in headers if pair[0] == name)


def assert_same(expected: Rec, got: Got, writer: str, reader: str, where: str) -> None:
    assert got.key == expected.key, where
    assert got.value == expected.value, where
    if expected.timestamp is not None:
        assert got.timestamp == expected.timestamp, where
    if reader == "kcat":
        text = dict(got.headers).get("kcat") or b""
        headers = expected.headers if ABILITIES[writer].ordered_headers else by_name(expected.headers)
        assert text == render_headers(headers), where
    elif ABILITIES[writer].ordered_headers and ABILITIES[reader].ordered_headers:
        assert got.headers == expected.headers, where
    else:
        assert by_name(got.headers) == by_name(expected.headers), where


@pytest.mark.parametrize(("writer", "reader"), pairs(*NAMES))
def test_written_by_one_read_by_another(
    writer: str, reader: str, written: Callable[[str], Written], open_client: Opener
) -> None:
    source = written(writer)
    count = len(source.records)
    readable = {partition: codec for partition, codec in enumerate(source.codecs) if codec in ABILITIES[reader].codecs}
    got = open_client(reader).consume(source.topic, dict.fromkeys(readable, count))
    for partition, codec in readable.items():
        of_partition = [record for record in got if record.partition == partition]
        assert [record.offset for record in of_partition] == list(range(count)), codec
        for expected, record in zip(source.records, of_partition, strict=True):
            assert_same(expected, record, writer, reader, f"{codec} {record.offset}")
        if not ABILITIES[writer].own_timestamps:
            stamps = [record.timestamp or 0 for record in of_partition]
            assert source.begin_ms <= stamps[0], codec
            assert all(first <= second for first, second in pairwise(stamps)), codec
            assert stamps[-1] <= source.end_ms, codec


@pytest.mark.parametrize("writer", clients())
def test_batches_are_stored_with_the_codec_they_were_sent_with(
    writer: str, written: Callable[[str], Written], bootstrap: str
) -> None:
    source = written(writer)
    for partition, codec in enumerate(source.codecs):
        batches = stored_batches(bootstrap, source.topic, partition, 0, len(source.records))
        assert sum(batch.count for batch in batches) == len(source.records)
        # A library may send a batch plain that would not shrink, so not all of them need the codec.
        assert codec in {batch.codec for batch in batches}
        assert {batch.codec for batch in batches} <= {codec, "none"}


@pytest.mark.parametrize("reader", clients())
def test_reading_from_the_middle_of_batches(
    reader: str, written: Callable[[str], Written], open_client: Opener
) -> None:
    source = written("confluent-kafka")
    codecs = ABILITIES[reader].codecs
    starts = {partition: 3 + 11 * partition for partition, codec in enumerate(source.codecs) if codec in codecs}
    got = open_client(reader).consume(source.topic, dict.fromkeys(starts, 5), starts=starts)
    for partition, start in starts.items():
        of_partition = [record for record in got if record.partition == partition]
        assert [record.offset for record in of_partition] == list(range(start, start + 5))
        assert [record.value for record in of_partition] == [
            record.value for record in source.records[start : start + 5]
        ]


@pytest.mark.parametrize("writer", clients(lambda abilities: abilities.idempotence))
def test_idempotent_producer(writer: str, open_client: Opener, make_topic: Callable[..., str], bootstrap: str) -> None:
    topic = make_topic(f"idempotent-{writer}")
    client = open_client(writer)
    records = [Rec(f"value-{number}".encode(), b"k") for number in range(60)]
    client.produce(topic, 0, records[:40], codec="gzip", idempotent=True)
    client.produce(topic, 0, records[40:], codec="gzip", idempotent=True)
    got = open_client("confluent-kafka").consume(topic, {0: 60})
    assert [record.value for record in got] == [record.value for record in records]
    batches = stored_batches(bootstrap, topic, 0, 0, 60)
    expected: dict[tuple[int, int], int] = {}
    for batch in batches:
        assert batch.producer_id >= 0
        run = (batch.producer_id, batch.producer_epoch)
        assert batch.base_sequence == expected.get(run, 0)
        expected[run] = batch.base_sequence + batch.count
    assert len(expected) == 2, "two producers, two ids"
