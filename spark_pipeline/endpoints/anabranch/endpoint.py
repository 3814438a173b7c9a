"""Anabranch itself as an endpoint: a node describes its topics, and its range servers send the batches.

The endpoint asks a node through its pipeline listener (docs/spark.md), also for the tickets that range servers may
demand. Batches pass through the node only if it does not expose its range servers. A node that authenticates its
clients does not expose them if they demand no tickets, because such range servers let every client that reaches them do
everything. Then the node sends the batches of topics that the client may read, and the process logs that.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

from bridges.catalog.config_types import to_text
from sbp_back.errors import ConnectionLost, ErrorCode, SbpError
from spark_pipeline.core.client.node_answers import (
    AbortedTransaction,
    NodeTopics,
    PartitionPositions,
    Ticket,
    TopicFacts,
)
from spark_pipeline.core.client.node_client import (
    ACCESS_OPTIONS,
    NodeClient,
    NodeError,
    NodeOptions,
    as_pipeline_errors,
    pipeline_error,
)
from spark_pipeline.core.decoding.batches import Aborted, decode
from spark_pipeline.core.errors import (
    EndpointUnavailable,
    OffsetsGone,
    PipelineError,
    UnknownTopic,
    UnreadableBatch,
)
from spark_pipeline.core.options import Options
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.endpoints.anabranch.node_reader import OUT_OF_RANGE, NodeReader
from spark_pipeline.endpoints.anabranch.sbp_reader import FETCH_BYTES, DamagedThere, NothingThere, SbpReader
from spark_pipeline.endpoints.base import BATCH_BYTES, Endpoint, Positions, TopicInfo

if TYPE_CHECKING:
    import pyarrow as pa

    from bridges.formats.records import StoredBatch
    from spark_pipeline.core.rows import Columns

_log = logging.getLogger("anabranch.spark")

_REMEMBERED_S = 5.0
"""How long the stream and the skipped spans of a partition are cached."""


OPTIONS = (*ACCESS_OPTIONS, "fetch.bytes")


def open_endpoint(url: str, options: Mapping[str, str]) -> AnabranchEndpoint:
    """Open the endpoint, see :func:`spark_pipeline.endpoints.base.endpoint`.

    Options: those of :class:`NodeOptions`, and ``fetch.bytes``, the size of one fetch from a range server. Raises
    OptionError.
    """
    fetch_bytes = Options(options).number("fetch.bytes") or FETCH_BYTES
    return AnabranchEndpoint(NodeOptions.parse(url, options), fetch_bytes)


class AnabranchEndpoint(Endpoint):
    """A node of Anabranch."""

    def __init__(self, options: NodeOptions, fetch_bytes: int = FETCH_BYTES) -> None:
        self._options = options
        self._fetch_bytes = fetch_bytes
        self._node = NodeTopics(NodeClient(options))
        self.reader: SbpReader | NodeReader | None = None
        self._known: dict[TopicPartition, tuple[PartitionPositions, float]] = {}

    # --- what there is ----------------------------------------------------------------------------------------------

    def topics(self) -> dict[str, TopicInfo]:
        """Return all topics, including those that protocols keep for themselves."""
        with as_pipeline_errors():
            found = self._node.topics(self._node.names(internal=True))
        return {name: _info(topic) for name, topic in found.items()}

    def some_topics(self, wanted: Collection[str] | re.Pattern[str]) -> dict[str, TopicInfo]:
        with as_pipeline_errors():
            names = self._node.names(wanted.pattern) if isinstance(wanted, re.Pattern) else list(wanted)
        try:
            with as_pipeline_errors():
                found = self._node.topics(names)
        except UnknownTopic:
            with as_pipeline_errors():
                there = set(self._node.names(internal=True))
                found = self._node.topics([name for name in names if name in there])
        return {name: _info(topic) for name, topic in found.items()}

    def positions(self, parts: Sequence[TopicPartition]) -> dict[TopicPartition, Positions]:
        """Return the positions of partitions; up to a thousand are read at the same moment."""
        return _to_positions(self._positions(parts))

    def topic_positions(self, wanted: Collection[str] | re.Pattern[str]) -> dict[TopicPartition, Positions]:
        # One request per thousand partitions.
        with as_pipeline_errors():
            names = self._node.names(wanted.pattern) if isinstance(wanted, re.Pattern) else wanted
            found = self._node.topic_positions(names)
        return _to_positions(self._remember({TopicPartition(*place): one for place, one in found.items()}))

    def _positions(self, parts: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionPositions]:
        with as_pipeline_errors():
            found = self._node.positions([(part.topic, part.partition) for part in parts])
        return self._remember({part: found[part.topic, part.partition] for part in parts})

    def _remember(self, told: dict[TopicPartition, PartitionPositions]) -> dict[TopicPartition, PartitionPositions]:
        now = time.monotonic()
        self._known.update({part: (one, now) for part, one in told.items()})
        return told

    def find_timestamp(self, at_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the offsets from the node's index of times."""
        with as_pipeline_errors():
            found = self._node.find_timestamp({(part.topic, part.partition): ms for part, ms in at_ms.items()})
        return {part: found[part.topic, part.partition] for part in at_ms}

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, range: OffsetRange, columns: Columns, batch_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
        """Yield records, from range servers if the node exposes them. Offsets declared lost are a gap."""

        def find_aborted() -> list[AbortedTransaction]:
            with as_pipeline_errors():
                return self._node.aborted(range.topic, range.partition, range.start, range.end)

        try:
            yield from decode(self._batches(range), range, columns, batch_bytes, Aborted(find_aborted))
        except UnreadableBatch:
            self._known.pop(range.part, None)  # a retry then sees offsets that were declared lost meanwhile
            raise

    def read_raw(self, range: OffsetRange) -> Iterator[StoredBatch]:
        """Yield the batches as stored, as views on the received bytes."""
        return self._batches(range)

    def _batches(self, range: OffsetRange) -> Iterator[StoredBatch]:
        if not range.count:
            return
        known = self._partition(range)
        for start, end in _between(known.skipped, range.start, range.end):
            try:
                streams = self._streams()
                if isinstance(streams, NodeReader):
                    yield from streams.batches(range.part, start, end, self._fetch_bytes)
                else:
                    ask = partial(self._ticket, range) if streams.wants_tickets else None
                    yield from streams.batches(known.stream_id, start, end, self._fetch_bytes, ask)
            except DamagedThere as damage:
                self._known.pop(range.part, None)  # a retry then sees offsets that were declared lost meanwhile
                raise UnreadableBatch(
                    range.topic, range.partition, damage.offset, damage.reason, damage.end
                ) from damage
            except NothingThere as error:
                raise EndpointUnavailable(f"there is nothing of {range}: {error}") from error
            except NodeError as error:
                raise self._refused(error, range) from error
            except ConnectionLost as error:
                self._forget_streams()
                raise EndpointUnavailable(f"range servers of {range.part} do not answer: {error.message}") from error
            except SbpError as error:
                raise self._failure(error, range) from error

    def _partition(self, range: OffsetRange) -> PartitionPositions:
        """Return the positions of the partition of ``range``, from the cache if they are recent. Raises OffsetsGone."""
        known, at = self._known.get(range.part, (None, 0.0))
        if known is None or time.monotonic() > at + _REMEMBERED_S:
            known = self._positions([range.part])[range.part]
        if range.start < known.start:
            raise OffsetsGone(range.topic, range.partition, range.start, known.start)
        return known

    def _ticket(self, range: OffsetRange) -> Ticket | None:
        with as_pipeline_errors():
            return self._node.ticket((range.topic, range.partition))

    def _failure(self, error: SbpError, range: OffsetRange) -> PipelineError:
        """Return the error for a reader of ``range`` after a range server's refusal."""
        self._known.pop(range.part, None)
        now = self._positions([range.part])[range.part]  # raises if the topic is gone
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS and range.start < now.start:
            return OffsetsGone(range.topic, range.partition, range.start, now.start)
        return EndpointUnavailable(f"a range server refuses to give {range}: {error}")

    def _refused(self, error: NodeError, range: OffsetRange) -> PipelineError:
        """Return the error for a reader of ``range`` through the node after the node's refusal."""
        self._known.pop(range.part, None)
        self._forget_streams()
        if error.status == OUT_OF_RANGE:
            now = self._positions([range.part])[range.part]
            if range.start < now.start:
                return OffsetsGone(range.topic, range.partition, range.start, now.start)
        return pipeline_error(error)

    def _streams(self) -> SbpReader | NodeReader:
        if self.reader is None:
            with as_pipeline_errors():
                place = self._node.node().sbp
            if not place.pd:
                self.reader = NodeReader(self._options)
                _tell_once(self._options)
                return self.reader
            self.reader = SbpReader(place, self._options.patience, self._options.tls_context() if place.tls else None)
        return self.reader

    def _forget_streams(self) -> None:
        """Close the reader: the range servers may have moved, so the next read asks the node for them again."""
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.close()

    # --- the rest ---------------------------------------------------------------------------------------------------

    def groups(self) -> dict[str, dict[TopicPartition, int]]:
        """Return the positions of groups, which the node's fronts share."""
        with as_pipeline_errors():
            told = self._node.groups()
        return {
            group: {TopicPartition(topic, partition): offset for (topic, partition), offset in positions.items()}
            for group, positions in told.items()
        }

    def close(self) -> None:
        self._node.client.close()
        self._forget_streams()


def _to_positions(told: Mapping[TopicPartition, PartitionPositions]) -> dict[TopicPartition, Positions]:
    return {
        part: Positions(one.start, one.stable, one.high_watermark, one.bytes, one.topic_id)
        for part, one in told.items()
    }


def _info(topic: TopicFacts) -> TopicInfo:
    return TopicInfo(
        topic.name,
        tuple(one.partition for one in topic.partitions),
        topic.overrides,
        {one.partition: one.state for one in topic.partitions},
        {one.partition: one.parents for one in topic.partitions if one.parents},
        topic.id,
        topic.kind != "user",
        {key: to_text(value) for key, value in topic.config.items() if value is not None},
    )


def _between(skipped: Sequence[tuple[int, int]], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of ``[start, end)`` outside of the spans ``skipped``, which are in order."""
    for first, behind in skipped:
        if behind <= start or first >= end:
            continue
        if start < first:
            yield start, first
        start = behind
    if start < end:
        yield start, end


@cache
def _tell_once(options: NodeOptions) -> None:
    """Warn once per process that records are read through the node, which is slower and loads the node more."""
    _log.warning("%r publishes no range servers: records are read through the node, which is slower", options)
