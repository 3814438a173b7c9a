"""Audit level 4: a topic read through every protocol of a node, and the committed positions of its groups.

Kafka's and YDB's readers see offsets, keys, headers and times: digests of all of these are compared with digests of the
range servers' records. Pravega's events have only values, which are compared segment by segment. The audit commits
nothing and makes no reader group.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_pipeline.core.client.node_answers import NodeTopics
from spark_pipeline.core.client.node_client import NodeClient, NodeOptions, as_pipeline_errors
from spark_pipeline.core.digest import BlockDigest, Digester, hashes
from spark_pipeline.core.errors import EndpointUnavailable, OptionError, PipelineError
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import Endpoint, Positions
from spark_pipeline.jobs.audit.audit import Audit, PartitionSeen, Side, damaged_in, differing, positions_of
from spark_pipeline.jobs.audit.pieces import beyond


@dataclass(frozen=True, slots=True)
class Listeners:
    """The addresses of the node's listeners, ``host:port``; a protocol without an address is skipped."""

    kafka: str = ""
    ydb: str = ""
    pravega: str = ""


def cross(audit: Audit, side: Side, topic: str, listeners: Listeners) -> dict[str, Any]:
    """Compare the protocols and return a report. ``side`` is the node's pipeline listener. Raises PipelineError."""
    began = time.monotonic()
    positions = positions_of(side, [topic])
    ranges = {part: OffsetRange(topic, part.partition, one.start, one.stable) for part, one in positions.items()}
    seen = audit.examine_ranges(side, ranges, positions, 3)
    told: dict[str, dict[str, Any]] = {}
    if listeners.kafka:
        there = Side(f"kafka://{listeners.kafka}", side.options)
        told["kafka"] = _compared(audit, side, there, ranges, positions, seen)
        told["positions"] = _positions(side, there, topic)
    if listeners.ydb:
        told["ydb"] = _compared(audit, side, Side(f"ydb://{listeners.ydb}/local", side.options), ranges, positions)
    if listeners.pravega:
        scope = _pravega_scope(side, topic)
        there = Side(f"pravega://{listeners.pravega}/{scope}", side.options)
        told["pravega"] = values(side, there, ranges.values())
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


def _pravega_scope(side: Side, topic: str) -> str:
    """Return the topic's Pravega scope. Raises OptionError if the topic has no name in Pravega's protocol."""
    with closing(NodeClient(NodeOptions.parse(side.url, side.options))) as client, as_pipeline_errors():
        names = NodeTopics(client).topics([topic])[topic].names
    if "pravega" not in names:
        raise OptionError("the topic has no name in the protocol pravega")
    return names["pravega"].partition("/")[0]


def _compared(
    audit: Audit,
    side: Side,
    there: Side,
    ranges: Mapping[TopicPartition, OffsetRange],
    positions: Mapping[TopicPartition, Positions],
    seen: Mapping[TopicPartition, PartitionSeen] | None = None,
) -> dict[str, Any]:
    """Compare digests through another protocol with the range servers' digests.

    ``seen`` is the findings at the range servers; with it, the first bad offset is reported. Without it the range
    servers are read again, with headers as YDB's metadata items have them: a header without a value gets an empty one.
    """
    opened = there.open()
    try:
        opened.positions(list(ranges))  # raises if the listener cannot be reached: that is no difference
    finally:
        opened.close()
    told = {"compared": ["offset", *audit.fields]}
    plain = seen is None
    here = seen or audit.examine_ranges(side, ranges, positions, 2, plain_headers=True)
    try:
        got = audit.examine_ranges(there, ranges, positions, 2, plain_headers=plain)
    except EndpointUnavailable as error:  # the listener returns fewer records than it reports
        return told | {"equal": False, "records": 0, "differences": [{"what": "read", "reason": str(error)}]}
    right = None if plain else there
    found = [said for part in here for said in differing(audit, side, right, part, here[part], got[part])]
    records = sum(one.records for one in got.values())
    return told | {"equal": not found, "records": records, "differences": found}


def _positions(side: Side, kafka: Side, topic: str) -> dict[str, Any]:
    """Compare the groups' positions in the topic between the node's answer and Kafka's protocol."""
    told: list[dict[str, dict[str, int]]] = []
    for one in (side, kafka):
        source = one.open()
        try:
            groups = source.groups()
        except PipelineError as error:  # a node of an earlier version, or a listener without the permission
            return {"compared": False, "reason": f"{one.url} does not tell: {error}"}
        finally:
            source.close()
        mine = {
            group: {str(part): offset for part, offset in sorted(positions.items()) if part.topic == topic}
            for group, positions in groups.items()
        }
        told.append({group: positions for group, positions in mine.items() if positions})
    return {"compared": True, "equal": told[0] == told[1], "groups": told[0], "through_kafka": told[1]}


def values(side: Side, there: Side, ranges: Iterable[OffsetRange]) -> dict[str, Any]:
    """Compare the values of each partition, in their order.

    A record without a value, or with an empty one, is an event without bytes, which Pravega's clients skip: such
    records cannot be compared, and are counted.
    """
    records = empty = 0
    found: list[dict[str, Any]] = []
    with closing(side.open()) as ours, closing(there.open()) as theirs:
        wanted = list(ranges)
        positions = theirs.positions([one.part for one in wanted])
        for one in wanted:
            kept, without = _digest(ours, one)
            empty += without
            at = positions[one.part]
            said = {"what": "values", "topic": one.topic, "partition": one.partition}
            try:
                got, _ = _digest(theirs, one.within(at.start, at.stable), kept.count)
            except PipelineError as error:  # the listener returns fewer events than it reports
                found.append(said | {"reason": str(error)})
                continue
            records += got.count
            if got != kept:
                found.append(said | {"reason": f"{kept.count} records, {got.count} events; they are not the same"})
    told = {"equal": not found, "compared": ["value"], "records": records, "not_comparable": empty}
    return told | {"differences": found}


def _digest(source: Endpoint, wanted: OffsetRange, most: int = 1 << 62) -> tuple[BlockDigest, int]:
    """Return the digest of the first ``most`` non-empty values of a range, and the number of empty ones among them."""
    digester = Digester(("value",))
    count = empty = 0
    for batch in beyond(wanted, lambda rest: source.read(rest, Columns(("value",))), lambda damaged: None):
        every = batch.column("value")
        some = every.filter(pc.greater(pc.fill_null(pc.binary_length(every), 0), 0))
        empty += len(every) - len(some)
        some = some[: most - count]  # ignore values written since
        count += len(some)
        if len(some):
            rows = pa.RecordBatch.from_arrays([some], names=["value"])
            # All in one block: offsets are not the same on both sides.
            digester.add_hashes(np.zeros(len(some), np.int64), hashes(rows, ("value",)))
        if count == most:
            break
    return digester.blocks.get(0, BlockDigest()), empty
