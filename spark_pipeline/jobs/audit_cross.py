"""Level 4: the same topic read through every protocol that a node serves, and what consumers have committed.

Kafka's and YDB's readers see offsets, keys, headers and times: digests of all of it are compared with those of what the
range servers give. Pravega's events have values alone, in no order over segments: of these the number, the sum and the
xor of hashes are compared. Nothing is committed, but a reader group of Pravega's is made and left behind.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_pipeline.core.digest import BlockDigest, hashes
from spark_pipeline.core.errors import EndpointUnavailable, OptionError, PipelineError
from spark_pipeline.core.node_answers import NodeTopics
from spark_pipeline.core.node_client import NodeClient, NodeOptions
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import Positions
from spark_pipeline.endpoints.node_errors import as_pipeline_errors
from spark_pipeline.jobs.audit import Audit, PartitionSeen, Side, damaged_in, differing, positions_of
from spark_pipeline.jobs.audit_pieces import beyond

SILENCE_S = 30.0
"""How long Pravega's client may read nothing before it is taken to have nothing."""
_EMPTY_S = 0.01


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
        there = Side(f"kafka://{listeners.kafka}", side.options)
        told["kafka"] = _compared(audit, side, there, ranges, positions, seen)
        told["positions"] = _positions(side, there, topic)
    if listeners.ydb:
        told["ydb"] = _compared(audit, side, Side(f"ydb://{listeners.ydb}/local", side.options), ranges, positions)
    if listeners.pravega:
        told["pravega"] = _values(side, ranges.values(), listeners.pravega, _names(side, topic))
    return {
        "url": side.url,
        "topic": topic,
        "level": 4,
        "records": sum(one.records for one in seen.values()),
        "protocols": told,
        "damaged": (damaged := damaged_in(seen)),
        "equal": not damaged and all(one.get("equal", True) for one in told.values()),
        "seconds": round(time.monotonic() - began, 3),
    }


def _names(side: Side, topic: str) -> Mapping[str, str]:
    """What other protocols call the topic."""
    with closing(NodeClient(NodeOptions.of(side.url, side.options))) as client, as_pipeline_errors():
        return NodeTopics(client).topics([topic])[topic].names


def _name(names: Mapping[str, str], protocol: str) -> str:
    """Raises OptionError for a topic that cannot be reached by the protocol."""
    if protocol not in names:
        raise OptionError(f"the topic has no name in the protocol {protocol}")
    return names[protocol]


def _compared(
    audit: Audit,
    side: Side,
    there: Side,
    ranges: Mapping[TopicPartition, OffsetRange],
    positions: Mapping[TopicPartition, Positions],
    seen: Mapping[TopicPartition, PartitionSeen] | None = None,
) -> dict[str, Any]:
    """Digests against digests. ``seen``: what the range servers gave; with the first bad offset then. Without it, it is
    read again with headers as an item of a YDB message is: with a value, an empty one where a header has none."""
    opened = there.open()
    try:
        opened.positions(list(ranges))  # whom nobody can ask, nothing is found out about
    finally:
        opened.close()
    told = {"compared": ["offset", *audit.fields]}
    plain = seen is None
    here = seen or audit.look(side, ranges, positions, 2, plain_headers=True)
    try:
        got = audit.look(there, ranges, positions, 2, plain_headers=plain)
    except EndpointUnavailable as error:  # it gives less than it says it has
        return told | {"equal": False, "records": 0, "differences": [{"what": "read", "reason": str(error)}]}
    right = None if plain else there
    found = [said for part in here for said in differing(audit, side, right, part, here[part], got[part])]
    records = sum(one.records for one in got.values())
    return told | {"equal": not found, "records": records, "differences": found}


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


def _values(side: Side, ranges: Iterable[OffsetRange], address: str, names: Mapping[str, str]) -> dict[str, Any]:
    """Values alone, in any order. A record without a value, or with an empty one, is an event without bytes, which
    Pravega's client passes over: it cannot be compared, and is counted."""
    kept = BlockDigest()
    empty = 0
    with closing(side.open()) as source:
        for one in ranges:
            for batch in beyond(one, lambda rest: source.read(rest, Columns(("value",))), lambda damaged: None):
                values = batch.column("value")
                some = values.filter(pc.greater(pc.fill_null(pc.binary_length(values), 0), 0))
                empty += len(values) - len(some)
                kept = _summed(kept, some)
    got = _summed(BlockDigest(), pa.array(_read_pravega(address, names, kept.count), pa.binary()))
    return {
        "equal": kept == got,
        "compared": ["value"],
        "records": got.count,
        "not_comparable": empty,
        "differences": []
        if kept == got
        else [{"what": "values", "reason": f"{kept.count} records, {got.count} events; sums or xors of hashes differ"}],
    }


def _read_pravega(address: str, names: Mapping[str, str], count: int) -> list[bytes]:
    """Events of all segments through Pravega's client, those without bytes left out, until there are ``count``, or none
    has come for ``SILENCE_S``."""
    try:
        from pravega_client import StreamManager
    except ModuleNotFoundError as error:
        raise OptionError("to read through Pravega's protocol needs the Python package pravega") from error
    streams = StreamManager(f"tcp://{address}")
    scope, _, stream = _name(names, "pravega").partition("/")
    reader = streams.create_reader_group(f"audit-{uuid.uuid4().hex[:12]}", scope, stream).create_reader("audit")

    async def events() -> list[bytes]:
        found: list[bytes] = []
        heard = time.monotonic()
        while len(found) < count and (left := heard + SILENCE_S - time.monotonic()) > 0:
            try:
                part = await asyncio.wait_for(reader.get_segment_slice_async(), left)
            except TimeoutError:
                break
            more = [data for event in part if (data := bytes(event.data()))]
            reader.release_segment(part)
            if more:
                found += more
                heard = time.monotonic()
            else:
                await asyncio.sleep(_EMPTY_S)  # the client hands out slices without events one after the other
        return found

    try:
        return asyncio.run(events())
    except RuntimeError as error:
        raise EndpointUnavailable(f"Pravega's client: {error}") from error
    finally:
        reader.reader_offline()


def _summed(before: BlockDigest, values: pa.Array) -> BlockDigest:
    if not len(values):
        return before
    of = hashes(pa.RecordBatch.from_arrays([values], names=["value"]), ("value",))
    return BlockDigest(
        before.count + len(values),
        total=(before.total + int(np.add.reduce(of))) & ((1 << 64) - 1),
        xor=before.xor ^ int(np.bitwise_xor.reduce(of)),
    )
