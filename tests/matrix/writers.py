"""Writers of the matrix: each gives the records of a list, in its order, to one partition of a topic."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import ydb
from pravega_client import StreamManager

from pravega_front.wire import commands as wire
from sbp_document import DocumentClient, DocumentRecord
from tests.clients.api import Client, Rec
from tests.matrix.expected import Protocol, refused
from tests.matrix.kinds import CODEC_NUMBERS, Kind, Where
from tests.node_process import NodeProcess
from tests.pravega_front.java_client import Java, b64
from tests.pravega_front.raw_client import RawClient as Segments
from tests.ydb_topic_front.raw import RawClient as RawYdb
from tests.ydb_topic_front.sdks import programs as sdks
from ydb_topic_front.wire.statuses import Status

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATIENCE = 60
SCHEMA = "value binary, key binary, headers array<struct<key:string,value:binary>>, partition int, ms bigint"
COLUMNS = ("value", "key", "headers", "partition", "timestamp_millis(ms) as timestamp")
"""Of Spark's rows: as they are made, and as its sink takes them."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Writer(ABC):
    """One client library. ``times`` says whether it tells when a record was created, as the test wants it;
    ``ordered_headers`` whether it sends them in their order; ``routes`` that its records have a key that leads them to
    a partition, which stands in place of the partition's number; ``one_segment`` that there must be no other."""

    name: str
    protocol: Protocol
    times = True
    ordered_headers = True
    routes = False
    one_segment = False

    def refuses(self, kind: Kind) -> str:
        """Why it cannot write this; empty if it can."""
        return refused(self.protocol, kind)

    def offsets(self, kinds: Sequence[Kind]) -> Sequence[int]:
        """At which offsets they lie then."""
        return range(len(kinds))

    @abstractmethod
    def write(self, topic: str, kinds: Sequence[Kind], partition: int = 0) -> None:
        """Write them, each acknowledged before this returns."""


class KafkaWriter(Writer):
    """One of the clients of ``tests/clients``."""

    protocol = Protocol.KAFKA

    def __init__(self, client: Client) -> None:
        self.name = client.name
        self._client = client

    def refuses(self, kind: Kind) -> str:
        abilities = self._client.abilities
        if not abilities.null_headers and any(value is None for _, value in kind.headers):
            return "no headers without a value"
        if not abilities.void_records and kind.key is None and kind.value is None:
            return "no records of nothing"
        if self.name.startswith("java") and kind.created < 0:
            return "no times before 1970"
        if self.name == "confluent-kafka" and kind.created == 0:
            return "0 is now"
        return refused(self.protocol, kind)

    def write(self, topic: str, kinds: Sequence[Kind], partition: int = 0) -> None:
        for codec, some in groupby(kinds, lambda kind: kind.codec):
            records = [Rec(kind.value, kind.key, kind.headers, kind.created) for kind in some]
            self._client.produce(topic, partition, records, codec=codec)


class Wheel(Writer):
    """Pravega's wheel for Python. Bytes that are no event come through a client without a library."""

    name = "pravega-wheel"
    protocol = Protocol.PRAVEGA
    routes = True

    def __init__(self, node: NodeProcess) -> None:
        self._streams = StreamManager(f"tcp://{node.addresses['pravega']}")
        self._segments = node.addresses["pravega-segmentstore"]

    def write(self, topic: str, kinds: Sequence[Kind], partition: int = 0) -> None:
        writer = self._streams.create_writer("default", topic)
        for kind in kinds:
            assert kind.value is not None
            if kind.bytes_alone:
                writer.flush()
                append_bytes(self._segments, topic, kind.sent or b"")
            else:
                writer.write_event_bytes(kind.value, routing_key=f"key {partition}")
        writer.flush()


def append_bytes(segments: str, topic: str, data: bytes) -> None:
    """Bytes, as a writer of byte streams appends them."""
    writer = uuid4().bytes
    with Segments(segments) as client:
        client.ask(wire.SetupAppend(1, writer, f"default/{topic}/0.#epoch.0", ""), wire.AppendSetup)
        client.ask(wire.AppendBlockEnd(writer, len(data), data, 1, 1, 1), wire.DataAppended)


class PravegaJava(Writer):
    """Pravega's Java client."""

    name = "pravega-java"
    protocol = Protocol.PRAVEGA
    routes = True

    def __init__(self, java: Java) -> None:
        self._java = java

    def refuses(self, kind: Kind) -> str:
        return refused(self.protocol, kind) or ("its byte streams" if kind.bytes_alone else "")

    def write(self, topic: str, kinds: Sequence[Kind], partition: int = 0) -> None:
        self._java("writer", stream=topic, name=topic)
        self._java("write", name=topic, events=[[f"key {partition}", b64(kind.value or b"")] for kind in kinds])
        self._java("close_writer", name=topic)


class PravegaBytes(Writer):
    """The ByteStreamWriter of Pravega's Java client, which takes a stream for bytes that are not framed as events."""

    name = "pravega-bytes"
    protocol = Protocol.PRAVEGA
    one_segment = True

    def __init__(self, java: Java) -> None:
        self._java = java

    def refuses(self, kind: Kind) -> str:
        return refused(self.protocol, kind) or ("" if kind.bytes_alone else "no events")

    def write(self, topic: str, kinds: Sequence[Kind], partition: int = 0) -> None:
        self._java("write_bytes", stream=topic, pieces=[b64(kind.sent or b"") for kind in kinds])


class YdbRaw(Writer):
    """gRPC without an SDK: everything that YDB's protocol can say."""

    name = "ydb-grpc"
    protocol = Protocol.YDB

    def __init__(self, node: NodeProcess) -> None:
        self._address = node.ydb

    def write(self, topic: str, kinds: Sequence[Kind], partition: int = 0) -> None:
        with RawYdb(self._address) as raw:
            stream = raw.stream("StreamWrite")
            stream.send(init_request={"path": topic, "producer_id": uuid4().hex, "partition_id": partition})
            assert stream.receive().status == Status.SUCCESS
            for number, kind in enumerate(kinds, 1):
                seconds, ms = divmod(kind.created, 1000)
                items = [{"key": name, "value": value} for name, value in items_of(kind)]
                message = {
                    "seq_no": number,
                    "data": kind.sent or kind.value or b"",
                    "metadata_items": items,
                    "created_at": {"seconds": seconds, "nanos": ms * 1_000_000},
                }
                stream.send(write_request={"messages": [message], "codec": CODEC_NUMBERS[kind.codec]})
                answer = stream.receive()
                assert answer.status == Status.SUCCESS, answer
            stream.half_close()
            assert stream.rest() == []


def items_of(kind: Kind) -> Iterator[tuple[str, bytes]]:
    """A record's key, headers and missing value, as the documentation tells YDB's users to send them."""
    if kind.key is not None:
        yield "__key", kind.key
    for name, value in kind.headers:
        assert value is not None
        yield name, value
    if kind.value is None:
        yield "anabranch.tombstone", b""


class YdbPython(Writer):
    """YDB's SDK for Python, which keeps items in a dictionary."""

    name = "ydb-python"
    protocol = Protocol.YDB

    def __init__(self, node: NodeProcess) -> None:
        self._address = node.ydb

    def refuses(self, kind: Kind) -> str:
        return refused(self.protocol, kind) or no_dictionary(kind)

    def write(self, topic: str, kinds: Sequence[Kind], partition: int = 0) -> None:
        driver: Any = ydb.Driver(endpoint=f"grpc://{self._address}", database="/local")
        with driver:
            driver.wait(timeout=PATIENCE, fail_fast=True)
            client = driver.topic_client
            for codec, some in groupby(kinds, lambda kind: kind.codec):
                chosen = ydb.TopicCodec.RAW if codec == "none" else ydb.TopicCodec.GZIP
                with client.writer(
                    topic, producer_id=uuid4().hex, partition_id=partition, auto_created_at=False, codec=chosen
                ) as writer:
                    for kind in some:
                        writer.write(_message(kind))
                    writer.flush(timeout=PATIENCE)


def no_dictionary(kind: Kind) -> str:
    """Why a library that keeps items in a dictionary cannot send these."""
    if kind.where is Where.APART:
        return "through gRPC alone"
    names = [name for name, _ in items_of(kind)]
    return "" if len(set(names)) == len(names) else "items have different names"


def _message(kind: Kind) -> Any:
    moment = (EPOCH + timedelta(milliseconds=kind.created)).replace(tzinfo=None)
    return ydb.TopicWriterMessage(kind.value or b"", metadata_items=dict(items_of(kind)), created_at=moment)


class YdbSdk(Writer):
    """An SDK of YDB's behind a driver program, which stamps messages by itself."""

    protocol = Protocol.YDB
    times = False

    def __init__(self, sdk: sdks.Sdk, client: sdks.Client) -> None:
        self.name = sdk.name
        self.ordered_headers = sdk.name != "ydb-go"  # its dictionary has no order
        self._client = client

    def refuses(self, kind: Kind) -> str:
        return refused(self.protocol, kind) or no_dictionary(kind)

    def write(self, topic: str, kinds: Sequence[Kind], partition: int = 0) -> None:
        for codec, some in groupby(kinds, lambda kind: kind.codec):
            sent = [sdks.Sent(seq, kind.value or b"", dict(items_of(kind))) for seq, kind in enumerate(some, 1)]
            self._client.write(topic, uuid4().hex, sent, codec=CODEC_NUMBERS[codec], partition=partition)


class Document(Writer):
    """The client of SBP's dialect v0.1."""

    name = "sbp-v0.1"
    protocol = Protocol.SBP

    def __init__(self, node: NodeProcess) -> None:
        self._node = node

    def write(self, topic: str, kinds: Sequence[Kind], partition: int = 0) -> None:
        stream = stream_id(self._node, topic, partition)

        async def append() -> None:
            host, _, port = self._node.addresses["sbp-v0.1"].rpartition(":")
            client = DocumentClient.connect(host, int(port))
            try:
                for kind in kinds:
                    record = DocumentRecord(kind.value or b"", timestamp=kind.created)
                    await client.append(stream, [record])
            finally:
                await client.close()

        asyncio.run(append())


def partitions_of(node: NodeProcess, topic: str) -> list[dict[str, Any]]:
    """Of each partition what the console tells."""
    with urllib.request.urlopen(f"{node.console}/api/topics/{topic}", timeout=PATIENCE) as answer:
        return list(json.load(answer)["partitions"])


def stream_id(node: NodeProcess, topic: str, partition: int = 0) -> int:
    """The number of the stream behind a partition."""
    (found,) = [one for one in partitions_of(node, topic) if one["partition"] == partition]
    return int(found["stream_id"])


def command(node: NodeProcess, *words: str, given: bytes = b"") -> bytes:
    """What `anabranch WORDS` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "bridges", *words, "--node", node.console],
        input=given,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


class Produce(Writer):
    """`anabranch produce`, which is the console's interface over HTTP."""

    name = "produce"
    protocol = Protocol.CONSOLE

    def __init__(self, node: NodeProcess) -> None:
        self._node = node

    def write(self, topic: str, kinds: Sequence[Kind], partition: int = 0) -> None:
        lines = b"".join(json.dumps(_line(kind, partition)).encode() + b"\n" for kind in kinds)
        command(self._node, "produce", topic, "--records", given=lines)


def _line(kind: Kind, partition: int) -> Mapping[str, Any]:
    def coded(data: bytes | None) -> str | None:
        return None if data is None else base64.b64encode(data).decode()

    headers = [[name, None if value is None else {"base64": coded(value)}] for name, value in kind.headers]
    fields = {"key_base64": coded(kind.key), "value_base64": coded(kind.value), "headers": headers}
    return {**fields, "timestamp": kind.created, "partition": partition}


@dataclass(slots=True)
class SparkBatch(Writer):
    """Spark's sink, a batch at a time."""

    spark: SparkSession
    node: NodeProcess
    name = "spark"
    protocol = Protocol.SPARK

    def refuses(self, kind: Kind) -> str:
        return refused(self.protocol, kind) or ("a query for each" if kind.codec not in ("none", "zstd") else "")

    def offsets(self, kinds: Sequence[Kind]) -> Sequence[int]:
        """Each query is a transaction, whose marker has one."""
        groups = enumerate(groupby(kinds, lambda kind: kind.codec))
        whose = [number for number, (_, some) in groups for _ in some]
        return [place + number for place, number in enumerate(whose)]

    def write(self, topic: str, kinds: Sequence[Kind], partition: int = 0) -> None:
        for codec, some in groupby(kinds, lambda kind: kind.codec):
            rows = [(kind.value, kind.key, list(kind.headers) or None, partition, kind.created) for kind in some]
            frame = self.spark.createDataFrame(rows, SCHEMA).coalesce(1)
            self._send(frame, topic=topic, compression=codec, endpoint=f"anabranch://{self.node.addresses['pipeline']}")

    def _send(self, rows: DataFrame, **options: str) -> None:
        rows.selectExpr(*COLUMNS).write.format("anabranch").mode("append").options(**options).save()


@dataclass(slots=True)
class SparkStream(SparkBatch):
    """Spark's sink at the end of a structured stream, which reads the rows from files; a micro-batch at a time."""

    directory: Path
    name = "spark-stream"

    def _send(self, rows: DataFrame, **options: str) -> None:
        place = self.directory / uuid4().hex
        rows.write.parquet(str(place / "in"))
        stream = self.spark.readStream.schema(rows.schema).parquet(str(place / "in")).selectExpr(*COLUMNS)
        query = stream.writeStream.format("anabranch").options(**options, checkpointLocation=str(place / "checkpoint"))
        assert query.trigger(availableNow=True).start().awaitTermination(300)
