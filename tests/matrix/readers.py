"""Readers of the matrix: each tells of the first records of some partitions of a topic, from its beginning."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import ydb
import zstandard
from pravega_client import StreamManager

from tests.bridges.formats.ydb_messages import lzop
from tests.clients.api import Client, Got
from tests.kit.wheel import read_events
from tests.matrix.expected import Protocol
from tests.matrix.kinds import TEXT, UNTOLD, Headers, Kind, Told, Where
from tests.matrix.writers import EPOCH, PATIENCE, command
from tests.node_process import NodeProcess
from tests.pravega_front.java_client import Java, plain
from tests.ydb_topic_front.raw import RawClient as RawYdb
from tests.ydb_topic_front.reading import Session
from tests.ydb_topic_front.sdks import programs as sdks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LZOP = {lzop(TEXT): TEXT}

THERE = "there"
"""YDB's consumer of those who were there before something happened."""
Placed = tuple[int | None, Told]
"""A record and its partition; None where a client tells none."""


class Reader(ABC):
    """One client library. ``topics`` are those that it can read whole, ``consumer`` the name that it needs a place for;
    ``ordered_headers`` whether headers come in their order, ``dictionary`` whether of one name comes the last only;
    ``no_time`` is what it makes of a record without a time; ``whole`` says that it reads all there is, whatever was
    asked for; ``stays`` that it can go on where it was; ``follows`` that what came of a partition is read behind
    all of it."""

    name: str
    protocol: Protocol
    consumer = ""
    topics = frozenset(Where)
    times = True
    no_time: int | None = None
    ordered_headers = True
    dictionary = False
    whole = False
    follows = False
    stays = False

    def passes(self, kind: Kind) -> bool:
        """Whether it reads this, and what comes behind it."""
        return kind.where in self.topics

    @abstractmethod
    def read_each(self, topic: str, counts: Mapping[int, int]) -> list[Placed]:
        """So many records of each partition, in the order in which they came."""

    def go_on(self, topic: str, count: int) -> list[bytes | None]:
        """So many values of any partitions, from where the last call ended; the first one begins at the beginning."""
        raise NotImplementedError

    def read(self, topic: str, count: int) -> list[Told]:
        """So many of partition 0, which is the only one."""
        found = [told for _, told in self.read_each(topic, {0: count})]
        return found if self.whole else found[:count]


def created(ms: int | None) -> int | None:
    """A time that a reader tells; -1 is none."""
    return None if ms == -1 else ms


def milliseconds(moment: datetime) -> int:
    """Since 1970. One without a zone is UTC's."""
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - EPOCH) // timedelta(milliseconds=1)


class KafkaReader(Reader):
    """One of the clients of ``tests/clients``."""

    protocol = Protocol.KAFKA
    stays = True

    def __init__(self, client: Client) -> None:
        self.name = client.name
        self._client = client

    def read_each(self, topic: str, counts: Mapping[int, int]) -> list[Placed]:
        others = {number: count for number, count in counts.items() if number}
        got = self._client.consume(topic, others) if others else []
        if 0 in counts:  # where transactions are
            got = [*self._client.consume_committed(topic, counts[0]), *got]
        return [(one.partition, told(one)) for one in got]

    def go_on(self, topic: str, count: int) -> list[bytes | None]:
        return [one.value for one in self._client.consume_group(f"{topic}-there", topic, count)]


def told(one: Got) -> Told:
    """What a Kafka client got."""
    return Told(one.offset, one.value, one.key, one.headers, created(one.timestamp))


class Wheel(Reader):
    """Pravega's wheel for Python."""

    name = "pravega-wheel"
    protocol = Protocol.PRAVEGA
    follows = stays = True

    def __init__(self, node: NodeProcess) -> None:
        self._streams = StreamManager(f"tcp://{node.addresses['pravega']}")

    def passes(self, kind: Kind) -> bool:
        return bool(kind.value) and not kind.bytes_alone

    def read_each(self, topic: str, counts: Mapping[int, int]) -> list[Placed]:
        found = self._read(topic, f"{topic}-wheel", sum(counts.values()))
        return [(None, Told(UNTOLD, value)) for value in found]

    def go_on(self, topic: str, count: int) -> list[bytes | None]:
        return [*self._read(topic, f"{topic}-there", count)]

    def _read(self, topic: str, group: str, count: int) -> list[bytes]:
        reader = self._streams.create_reader_group(group, "default", topic).create_reader(uuid4().hex)
        found = asyncio.run(asyncio.wait_for(read_events(reader, count), PATIENCE))
        reader.reader_offline()
        return found


class PravegaJava(Reader):
    """Pravega's Java client."""

    name = "pravega-java"
    protocol = Protocol.PRAVEGA
    follows = stays = True

    def __init__(self, java: Java) -> None:
        self._java = java

    def passes(self, kind: Kind) -> bool:
        return kind.decodes or not kind.bytes_alone

    def read_each(self, topic: str, counts: Mapping[int, int]) -> list[Placed]:
        found = self._read(topic, f"{topic}-java", sum(counts.values()))
        self._java("delete_group", name=f"{topic}-java")
        return [(None, Told(UNTOLD, value)) for value in found]

    def go_on(self, topic: str, count: int) -> list[bytes | None]:
        return [*self._read(topic, f"{topic}-java-there", count)]

    def _read(self, topic: str, group: str, count: int) -> list[bytes]:
        reader = uuid4().hex
        self._java("group", stream=topic, name=group)
        self._java("reader", name=group, reader=reader)
        found = plain(self._java("read", reader=reader, count=count))
        self._java("close_reader", reader=reader)
        return found


class YdbRaw(Reader):
    """gRPC without an SDK: all that YDB's readers are sent."""

    name = "ydb-grpc"
    protocol = Protocol.YDB

    def __init__(self, node: NodeProcess) -> None:
        self._address = node.ydb

    def read_each(self, topic: str, counts: Mapping[int, int]) -> list[Placed]:
        found: list[Placed] = []
        with RawYdb(self._address) as raw:
            for number, count in counts.items():
                settings = [{"path": topic, "partition_ids": [number]}]
                session = Session(raw, consumer="", topics_read_settings=settings)
                session.started(read_offset=0)
                some: list[Told] = []
                while len(some) < count:
                    for data in session.receive("read_response").partition_data:
                        for batch in data.batches:
                            some += [self._told(batch, message) for message in batch.message_data]
                session.end()
                found += [(number, one) for one in some]
        return found

    @staticmethod
    def _told(batch: Any, message: Any) -> Told:
        stamp = message.created_at if message.HasField("created_at") else None
        return Told(
            message.offset,
            decoded(batch.codec, message.data),
            headers=tuple((item.key, item.value) for item in message.metadata_items),
            created=None if stamp is None else stamp.seconds * 1000 + stamp.nanos // 1_000_000,
            written=batch.written_at.seconds * 1000 + batch.written_at.nanos // 1_000_000,
        )


def decoded(codec: int, data: bytes) -> bytes:
    """A body that YDB's protocol says is encoded so; itself if it cannot be decoded."""
    if codec == 2:
        try:
            return gzip.decompress(data)
        except (EOFError, OSError, zlib.error):
            return data
    if codec == 4:
        return zstandard.decompress(data)
    return LZOP[data] if codec == 3 else data


class YdbPython(Reader):
    """YDB's SDK for Python, which keeps items in a dictionary and takes no time for 1970."""

    name = "ydb-python"
    protocol = Protocol.YDB
    consumer = name
    topics = frozenset({Where.MAIN, Where.BYTES, Where.STAMPED})
    dictionary = True
    follows = stays = True
    no_time = 0

    def __init__(self, node: NodeProcess) -> None:
        self._address = node.ydb

    def read_each(self, topic: str, counts: Mapping[int, int]) -> list[Placed]:
        return self._read(topic, self.consumer, sum(counts.values()))

    def go_on(self, topic: str, count: int) -> list[bytes | None]:
        return [told.value for _, told in self._read(topic, THERE, count)]

    def _read(self, topic: str, consumer: str, count: int) -> list[Placed]:
        driver: Any = ydb.Driver(endpoint=f"grpc://{self._address}", database="/local")
        with driver:
            driver.wait(timeout=PATIENCE, fail_fast=True)
            client = driver.topic_client
            found: list[Placed] = []
            with client.reader(topic, consumer) as reader:
                while len(found) < count:
                    batch = reader.receive_batch(timeout=PATIENCE)
                    found += [(message.partition_id, self._told(message)) for message in batch.messages]
                    reader.commit_with_ack(batch, timeout=PATIENCE)
            return found

    @staticmethod
    def _told(message: Any) -> Told:
        return Told(
            message.offset,
            message.data,
            headers=tuple(message.metadata_items.items()),
            created=milliseconds(message.created_at),
            written=milliseconds(message.written_at),
        )


class YdbSdk(Reader):
    """An SDK of YDB's behind a driver program, which keeps items in a dictionary, sorted."""

    protocol = Protocol.YDB
    topics = frozenset({Where.MAIN, Where.BYTES, Where.STAMPED})
    times = False
    ordered_headers = False
    dictionary = True
    follows = stays = True

    def __init__(self, sdk: sdks.Sdk, client: sdks.Client) -> None:
        self.name = self.consumer = sdk.name
        self._client = client

    def read_each(self, topic: str, counts: Mapping[int, int]) -> list[Placed]:
        found = self._client.read(topic, self.consumer, sum(counts.values()))
        return [(one.partition, Told(one.offset, one.data, headers=tuple(one.metadata.items()))) for one in found]

    def go_on(self, topic: str, count: int) -> list[bytes | None]:
        return [one.data for one in self._client.read(topic, THERE, count)]


class Tail(Reader):
    """`anabranch tail`, which is the console's interface over HTTP."""

    name = "tail"
    protocol = Protocol.CONSOLE
    whole = True

    def __init__(self, node: NodeProcess) -> None:
        self._node = node

    def read_each(self, topic: str, counts: Mapping[int, int]) -> list[Placed]:
        lines = command(self._node, "tail", topic, "--from", "earliest", "--json").splitlines()
        rows = [json.loads(line) for line in lines]
        return [(row["partition"], self._told(row)) for row in rows]

    @staticmethod
    def _told(line: Mapping[str, Any]) -> Told:
        headers: Headers = tuple((name, _bytes(value)) for name, value in line.get("headers", ()))
        key, value = (_field(line, name) for name in ("key", "value"))
        return Told(line["offset"], value, key, headers, line.get("timestamp"))


def _field(line: Mapping[str, Any], name: str) -> bytes | None:
    encoded = line.get(f"{name}_base64")
    return _bytes(line[name]) if encoded is None else base64.b64decode(encoded)


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else str(value).encode()


@dataclass(slots=True)
class Spark(Reader):
    """Spark's source: one query for all topics of the matrix, in a batch or as a stream."""

    spark: SparkSession
    node: NodeProcess
    prefix: str
    name: str = "spark"
    _rows: dict[str, list[Placed]] = field(default_factory=dict)
    protocol = Protocol.SPARK
    whole = True

    def read_each(self, topic: str, counts: Mapping[int, int]) -> list[Placed]:
        if topic not in self._rows:
            self._rows = told_rows(self.collected())
        return self._rows[topic]

    def collected(self) -> Sequence[Any]:
        """The rows of all topics."""
        return self._load(self.spark.read).collect()

    def _load(self, reader: Any) -> DataFrame:
        named = reader.format("anabranch").option("endpoint", f"anabranch://{self.node.addresses['pipeline']}")
        options = {"subscribePattern": f"{self.prefix}.*", "includeHeaders": "true", "includeMetadata": "true"}
        loaded: DataFrame = named.options(**options, startingOffsets="earliest").load()
        # Times as numbers: Python's own do not reach as far.
        return loaded.withColumns(
            {"timestamp": loaded["timestamp"].cast("double"), "written": loaded["written"].cast("double")}
        )


@dataclass(slots=True)
class SparkStream(Spark):
    """The same as a stream, up to what there is."""

    name: str = "spark-stream"

    @property
    def table(self) -> str:
        """Of the rows, in the session."""
        return "".join(letter if letter.isalnum() else "_" for letter in self.prefix)

    def collected(self) -> Sequence[Any]:
        query = self._load(self.spark.readStream).writeStream.format("memory").queryName(self.table)
        started = query.trigger(availableNow=True).start()
        assert started.awaitTermination(300)
        return self.spark.table(self.table).collect()


def told_rows(rows: Sequence[Any]) -> dict[str, list[Placed]]:
    """What rows tell, by topic, in the order of offsets."""
    found: dict[str, list[Placed]] = {}
    for row in sorted(rows, key=lambda row: int(row["offset"])):
        headers = tuple((one["key"], _plain(one["value"])) for one in row["headers"] or ())
        told = Told(
            row["offset"],
            _plain(row["value"]),
            _plain(row["key"]),
            headers,
            created(round(row["timestamp"] * 1000)),
            round(row["written"] * 1000),
        )
        found.setdefault(row["topic"], []).append((row["partition"], told))
    return found


def _plain(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
