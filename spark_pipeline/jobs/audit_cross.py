"""Level 4: the same topic read through every protocol that a node serves, and what consumers have committed.

Kafka's and YDB's readers see offsets, keys, headers and times: digests of all of it are compared with those of what the
range servers give. Pravega's events have values alone, in no order over segments: of these the number, the sum and the
xor of hashes are compared. Nothing is committed, but a reader group of Pravega's is made and left behind.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from spark_pipeline.core.digest import BlockDigest, Digester, hashes
from spark_pipeline.core.errors import EndpointUnavailable, OptionError, PipelineError
from spark_pipeline.core.node_answers import NodeTopics
from spark_pipeline.core.node_client import NodeClient, NodeError, NodeOptions
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.core.rows import Columns
from spark_pipeline.jobs.audit import Audit, PartitionSeen, Side, differing, positions_of

KEY_ITEM = "__key"
"""The item of a YDB message that is the record's key (docs/translation.md)."""
TOMBSTONE_ITEM = "anabranch.tombstone"
SILENCE_S = 30.0
"""How long a client may read nothing before it is taken to have nothing."""
_COLUMNS = Columns(("key", "value", "offset", "timestamp", "headers"))
_UNKNOWN = datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)


@dataclass(frozen=True, slots=True)
class Listeners:
    """Where the node listens, ``host:port``; protocols without an address are left out."""

    kafka: str = ""
    ydb: str = ""
    pravega: str = ""


def cross(audit: Audit, side: Side, topic: str, listeners: Listeners) -> dict[str, Any]:
    """Compare, as a report. ``side`` is the node's pipeline listener. Raises PipelineError."""
    began = time.monotonic()
    positions = positions_of(side, [topic])
    ranges = {part: OffsetRange(topic, part.partition, one.start, one.stable) for part, one in positions.items()}
    seen = audit.look(side, ranges, positions, 3)
    told: dict[str, dict[str, Any]] = {}
    if listeners.kafka:
        there = Side(f"kafka://{listeners.kafka}")
        told["kafka"] = _compared(seen, audit.look(there, ranges, positions, 2), audit, side, there)
        told["positions"] = _positions(side, there, topic)
    names = _names(side, topic) if listeners.ydb or listeners.pravega else {}
    if listeners.ydb:
        # An item of a YDB message has a value, an empty one where a header has none.
        plain = audit.look(side, ranges, positions, 2, plain_headers=True)
        told["ydb"] = _compared(plain, _read_ydb(listeners.ydb, names, plain, audit), audit, side, None)
    if listeners.pravega:
        told["pravega"] = _values(side, seen, _read_pravega(listeners.pravega, names, seen))
    return {
        "url": side.url,
        "topic": topic,
        "level": 4,
        "records": sum(one.records for one in seen.values()),
        "protocols": told,
        "equal": all(one.get("equal", True) for one in told.values()),
        "seconds": round(time.monotonic() - began, 3),
    }


def _names(side: Side, topic: str) -> Mapping[str, str]:
    """What other protocols call the topic."""
    try:
        client = NodeClient(NodeOptions.of(side.url, side.options))
    except ValueError as error:
        raise OptionError(str(error)) from error
    with closing(client):
        try:
            return NodeTopics(client).topics([topic])[topic].names
        except NodeError as error:
            raise EndpointUnavailable(str(error)) from error


def _name(names: Mapping[str, str], protocol: str) -> str:
    """Raises OptionError for a topic that cannot be reached by the protocol."""
    if protocol not in names:
        raise OptionError(f"the topic has no name in the protocol {protocol}")
    return names[protocol]


def _compared(
    here: Mapping[TopicPartition, PartitionSeen],
    there: Mapping[TopicPartition, PartitionSeen],
    audit: Audit,
    left: Side,
    right: Side | None,
) -> dict[str, Any]:
    """Digests against digests; the first bad offset where both sides can be read again."""
    found = [said for part in here for said in differing(audit, left, right, part, here[part], there[part])]
    return {
        "equal": not found,
        "compared": ["offset", *audit.fields],
        "records": sum(one.records for one in there.values()),
        "differences": found,
    }


def _positions(side: Side, kafka: Side, topic: str) -> dict[str, Any]:
    """What groups have committed in the topic, as the node tells it and as Kafka's protocol does."""
    told: list[dict[str, dict[str, int]]] = []
    for one in (side, kafka):
        source = one.open()
        try:
            groups = source.groups()
        except PipelineError as error:  # a node of an earlier version, or a listener that may not tell
            return {"compared": False, "reason": f"{one.url} does not tell: {error}"}
        finally:
            source.close()
        mine = {
            group: {str(part): offset for part, offset in sorted(positions.items()) if part.topic == topic}
            for group, positions in groups.items()
        }
        told.append({group: positions for group, positions in mine.items() if positions})
    return {"compared": True, "equal": told[0] == told[1], "groups": told[0], "through_kafka": told[1]}


def _read_ydb(
    address: str, names: Mapping[str, str], wanted: Mapping[TopicPartition, PartitionSeen], audit: Audit
) -> dict[TopicPartition, Any]:
    """All partitions through YDB's SDK, as a reader without a consumer."""
    try:
        import ydb
    except ModuleNotFoundError as error:
        raise OptionError("to read through YDB's protocol needs the Python package ydb") from error

    starts = {part.partition: one.range.start for part, one in wanted.items()}

    class Begin(ydb.TopicReaderEvents.EventHandler):
        def on_partition_get_start_offset(self, event: Any) -> Any:
            return ydb.TopicReaderEvents.OnPartitionGetStartOffsetResponse(starts[event.partition_id])

    seen = {part: PartitionSeen(one.range, positions=one.positions) for part, one in wanted.items()}
    digesters = {part: Digester(audit.fields) for part in wanted}
    left = {part.partition: part for part, one in wanted.items() if one.records}
    if not left:
        return seen
    topic = _name(names, "ydb")
    try:
        driver: Any = ydb.Driver(endpoint=f"grpc://{address}", database="/local")
        with driver:
            driver.wait(timeout=SILENCE_S, fail_fast=True)
            client = driver.topic_client
            selector = ydb.TopicReaderSelector(path=topic, partitions=sorted(left))
            with client.reader(selector, consumer=None, event_handler=Begin()) as reader:
                while left:
                    try:
                        batch = reader.receive_batch(timeout=SILENCE_S)
                    except TimeoutError:
                        break  # what is missing is a difference, and is told as one
                    part = left.get(batch.messages[0].partition_id)
                    if part is None:
                        continue
                    end = seen[part].range.end
                    rows = [row for row in map(_row, batch.messages) if row["offset"] < end]
                    if rows:
                        digesters[part].add(pa.RecordBatch.from_pylist(rows, schema=_COLUMNS.schema))
                        seen[part].records += len(rows)
                    if batch.messages[-1].offset + 1 >= end or seen[part].records >= wanted[part].records:
                        del left[part.partition]
    except ydb.issues.Error as error:
        raise EndpointUnavailable(f"YDB's client: {error}") from error
    for part, digester in digesters.items():
        seen[part].blocks = digester.blocks
    return seen


def _row(message: Any) -> dict[str, Any]:
    items = message.metadata_items or {}
    created: datetime = message.created_at
    stamp = created.replace(tzinfo=created.tzinfo or UTC) if created is not None else _UNKNOWN
    headers = [
        {"key": name, "value": value.encode() if isinstance(value, str) else bytes(value)}
        for name, value in items.items()
        if name not in {KEY_ITEM, TOMBSTONE_ITEM}
    ]
    key = items.get(KEY_ITEM)
    return {
        "offset": message.offset,
        "key": key.encode() if isinstance(key, str) else key,
        "value": None if TOMBSTONE_ITEM in items else bytes(message.data),
        "timestamp": stamp.replace(microsecond=stamp.microsecond // 1000 * 1000),
        "headers": headers,
    }


def _read_pravega(
    address: str, names: Mapping[str, str], wanted: Mapping[TopicPartition, PartitionSeen]
) -> list[bytes]:
    """Events of all segments through Pravega's client, until as many have come as there are records, or no more do."""
    try:
        from pravega_client import StreamManager
    except ModuleNotFoundError as error:
        raise OptionError("to read through Pravega's protocol needs the Python package pravega") from error
    count = sum(one.records for one in wanted.values())
    streams = StreamManager(f"tcp://{address}")
    scope, _, stream = _name(names, "pravega").partition("/")
    reader = streams.create_reader_group(f"audit-{uuid.uuid4().hex[:12]}", scope, stream).create_reader("audit")

    async def events() -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            try:
                part = await asyncio.wait_for(reader.get_segment_slice_async(), SILENCE_S)
            except TimeoutError:
                break
            found += [bytes(event.data()) for event in part]
            reader.release_segment(part)
        return found

    try:
        return asyncio.run(events())
    except RuntimeError as error:
        raise EndpointUnavailable(f"Pravega's client: {error}") from error
    finally:
        reader.reader_offline()


def _values(side: Side, here: Mapping[TopicPartition, PartitionSeen], events: list[bytes]) -> dict[str, Any]:
    """Values alone, in any order. A record without a value is an event without bytes."""
    kept = BlockDigest()
    source = side.open()
    try:
        for one in here.values():
            for batch in source.read(one.range, Columns(("value",))):
                kept = _summed(kept, batch.column("value").fill_null(b""))
    finally:
        source.close()
    got = _summed(BlockDigest(), pa.array(events, pa.binary()))
    return {
        "equal": kept == got,
        "compared": ["value"],
        "records": got.count,
        "differences": []
        if kept == got
        else [{"what": "values", "reason": f"{kept.count} records, {got.count} events; sums or xors of hashes differ"}],
    }


def _summed(before: BlockDigest, values: pa.Array) -> BlockDigest:
    if not len(values):
        return before
    of = hashes(pa.RecordBatch.from_arrays([values], names=["value"]), ("value",))
    return BlockDigest(
        before.count + len(values),
        total=(before.total + int(np.add.reduce(of))) & ((1 << 64) - 1),
        xor=before.xor ^ int(np.bitwise_xor.reduce(of)),
    )
