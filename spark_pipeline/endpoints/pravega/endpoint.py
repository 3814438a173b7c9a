"""The streams of a Pravega scope as an endpoint: segments are partitions, events are rows without keys and times.

An offset is the position of an event's first byte in its segment, as Pravega counts. It does not change when a segment
is truncated, Pravega reports it for the start and end of segments, and reading can begin there at once. So offsets have
gaps as large as the event before. The bytes in the middle of a segment do not show where an event begins: ranges must
begin at events, so they are not cut (:func:`spark_pipeline.endpoints.base.may_cut`).

Partition ``n`` is the segment with the number ``n``. A segment that was truncated away is an empty, sealed partition.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from re import Pattern

from bridges.catalog.topics.names import InvalidTopicName, canonical_name
from bridges.formats import FormatId
from bridges.formats.pravega import Shape, encode
from bridges.formats.records import Buffer, StoredBatch
from pravega_front.wire.controller import InScopeStatus, RetentionType
from spark_pipeline.core.client.node_client import ACCESS_OPTIONS
from spark_pipeline.core.errors import EndpointUnavailable, OffsetsGone, OptionError, UnknownTopic, UnreadableBatch
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.endpoints.base import Positions, TopicInfo
from spark_pipeline.endpoints.migration import READ_BYTES, FramedRecords, GroupPosition
from spark_pipeline.endpoints.pravega.client import Gone, PravegaClient, PravegaOptions

_PLACE = (1 << 32) - 1
_EVENT = struct.Struct(">iI")
"""In front of an event's data: type 0, and its length."""
_SCALING = {0: "fixed", 1: "by rate in kilobytes", 2: "by rate in events"}


OPTIONS = ACCESS_OPTIONS


def open_endpoint(url: str, options: Mapping[str, str]) -> PravegaEndpoint:
    """Open the scope at ``pravega://host:9090/scope``; options: see :class:`PravegaOptions`. Raises OptionError."""
    return PravegaEndpoint(PravegaOptions.parse(url, options))


@dataclass(slots=True)
class _Stream:
    """A stream's segment ids by partition, the partitions that take events, and each partition's parents."""

    segments: dict[int, int] = field(default_factory=dict)
    active: set[int] = field(default_factory=set)
    parents: dict[int, tuple[int, ...]] = field(default_factory=dict)


class PravegaEndpoint(FramedRecords):
    """A Pravega scope."""

    form = int(FormatId.PRAVEGA)

    def __init__(self, options: PravegaOptions) -> None:
        self._client = PravegaClient(options)
        self._scope = options.scope
        self._names: dict[str, str] = {}
        self._segments: dict[TopicPartition, int] = {}

    def close(self) -> None:
        self._client.close()

    # --- what there is ----------------------------------------------------------------------------------------------

    def topics(self) -> dict[str, TopicInfo]:
        """Return the streams of the scope, under their topic names here (docs/translation.md)."""
        self._list()
        return {name: self._info(name) for name in sorted(self._names)}

    def some_topics(self, wanted: Collection[str] | Pattern[str]) -> dict[str, TopicInfo]:
        self._list()
        if isinstance(wanted, Pattern):
            names = [name for name in self._names if wanted.fullmatch(name)]
        else:
            names = [name for name in wanted if name in self._names]
        return {name: self._info(name) for name in sorted(names)}

    def _list(self) -> None:
        names: dict[str, str] = {}
        token = ""
        while True:
            found = self._client.call(
                "listStreamsInScope", scope={"scope": self._scope}, continuationToken={"token": token}
            )
            if found.status == InScopeStatus.SCOPE_NOT_FOUND:
                raise UnknownTopic(f"Pravega has no scope {self._scope!r}")
            for one in found.streams:
                if not one.stream.startswith("_"):
                    try:
                        names[canonical_name("pravega", f"{self._scope}/{one.stream}")] = one.stream
                    except InvalidTopicName:
                        continue  # no topic name here
            token = found.continuationToken.token
            if not found.streams or not token:
                break
        self._names = names

    def _stream(self, name: str) -> str:
        """Return a topic's stream name within the scope. Raises UnknownTopic."""
        if name not in self._names:
            self._list()
        if name not in self._names:
            raise UnknownTopic(f"scope {self._scope!r} has no stream for topic {name!r}")
        return self._names[name]

    def _find_segments(self, name: str) -> _Stream:
        """Return all segments from the head of a stream to its tail."""
        stream = self._stream(name)
        info = self._client.stream(stream)
        found = _Stream()
        current = self._client.call("getCurrentSegments", scope=self._scope, stream=stream)
        found.active = {_number(one.segmentId.segmentId) for one in current.segmentRanges}
        head = self._client.call("getSegments", streamInfo=info, timestamp=0)
        waiting = [one.segmentId.segmentId for one in head.segments]
        while waiting:
            segment = waiting.pop()
            number = _number(segment)
            if number in found.segments:
                continue
            found.segments[number] = segment
            self._segments[TopicPartition(name, number)] = segment
            if number in found.active:
                continue
            following = self._client.call("getSegmentsImmediatelyFollowing", streamInfo=info, segmentId=segment)
            for one in following.segments:
                successor = one.segment.segmentId.segmentId
                found.parents[_number(successor)] = tuple(sorted(map(_number, one.value)))
                waiting.append(successor)
        return found

    def _info(self, name: str) -> TopicInfo:
        found = self._find_segments(name)
        numbers = tuple(range(max(found.segments, default=-1) + 1))
        return TopicInfo(
            name,
            numbers,
            self._config(name),
            {number: "active" if number in found.active else "sealed" for number in numbers},
            found.parents,
        )

    def _config(self, name: str) -> dict[str, str]:
        """Return the configuration in Pravega's words, except retention, which is in ms or bytes."""
        told = self._client.call("getStreamConfiguration", scope=self._scope, stream=self._stream(name))
        scaling, retention = told.scalingPolicy, told.retentionPolicy
        config = {"scaling": _SCALING.get(scaling.scaleType, str(scaling.scaleType))}
        if scaling.scaleType:
            config["scaling"] += f": {scaling.targetRate} a second, factor {scaling.scaleFactor}"
        if retention.retentionType == RetentionType.TIME:
            config["retention.time"] = str(retention.retentionParam)
        elif retention.retentionType == RetentionType.SIZE:
            config["retention.size"] = str(retention.retentionParam)
        if told.tags.tag:
            config["tags"] = ",".join(sorted(told.tags.tag))
        return config

    def positions(self, parts: Sequence[TopicPartition]) -> dict[TopicPartition, Positions]:
        """Return positions in bytes; no segment has bytes of uncommitted transactions."""
        known = {name: self._find_segments(name) for name in sorted({part.topic for part in parts})}
        found: dict[TopicPartition, Positions] = {}
        for part in parts:
            segments = known[part.topic].segments
            if not 0 <= part.partition <= max(segments, default=-1):
                raise UnknownTopic(f"Pravega has no segment for {part}")
            segment = segments.get(part.partition)
            start = end = 0
            if segment is not None:
                at = self._client.info(self._stream(part.topic), segment)
                start, end = at.start_offset, at.write_offset
            found[part] = Positions(start, end, end, end - start)
        return found

    def find_timestamp(self, at_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Raise OptionError: Pravega stores no times with events."""
        raise OptionError("Pravega's events have no times: give offsets, which are positions in bytes, or earliest")

    # --- events -----------------------------------------------------------------------------------------------------

    def batches(self, wanted: OffsetRange, read_bytes: int = READ_BYTES) -> Iterator[StoredBatch]:
        """Yield the events that begin in a range, in pieces as they were read.

        Raises UnreadableBatch if no event begins at an offset, as in streams of bytes.
        """
        if not wanted.count:
            return
        segment = self._segments.get(wanted.part)
        if segment is None:
            self._find_segments(wanted.topic)
            segment = self._segments.get(wanted.part)
            if segment is None:
                raise OffsetsGone(wanted.topic, wanted.partition, wanted.start, 0)
        stream = self._stream(wanted.topic)
        at = self._client.info(stream, segment)
        if wanted.start < at.start_offset:
            raise OffsetsGone(wanted.topic, wanted.partition, wanted.start, at.start_offset)
        if wanted.end > at.write_offset:
            raise EndpointUnavailable(f"{wanted.part} ends at {at.write_offset}, before {wanted.end}")
        position, rest = wanted.start, b""
        while position < wanted.end:
            try:
                more = self._client.read(stream, segment, position + len(rest), read_bytes)
            except Gone as gone:
                raise OffsetsGone(wanted.topic, wanted.partition, position, gone.start) from None
            data = b"".join((rest, more)) if rest else bytes(more)
            places, used = self._events(data, position, wanted, at.write_offset)
            if places:
                yield _stored(position, data, places, used)
                position += used
                rest = data[used:]
            else:
                rest = data  # an event larger than this read

    def _events(self, data: bytes, position: int, wanted: OffsetRange, end: int) -> tuple[list[int], int]:
        """Return the starts in ``data``, at ``position``, of whole events in the range, and the end of the last."""
        places: list[int] = []
        at, size = 0, len(data)
        while at + _EVENT.size <= size and position + at < wanted.end:
            kind, length = _EVENT.unpack_from(data, at)
            after = at + _EVENT.size + length
            if kind or position + after > end:
                raise UnreadableBatch(wanted.topic, wanted.partition, position + at, "there is no event's header")
            if after > size:
                break
            places.append(at)
            at = after
        return places, at

    # --- readers ----------------------------------------------------------------------------------------------------

    def group_positions(self) -> dict[str, dict[TopicPartition, GroupPosition]]:
        """Return nothing: only their clients know the positions of reader groups."""
        return {}

    def group_states(self) -> dict[str, str]:
        """Return nothing, as :meth:`group_positions`."""
        return {}


def _number(segment: int) -> int:
    return segment & _PLACE


def _stored(position: int, data: bytes, places: list[int], used: int) -> StoredBatch:
    """Make a batch of events that spans as many offsets as they have bytes."""
    head = b"".join(place.to_bytes(4, "big") for place in places)
    parts: list[Buffer] = [head, memoryview(data)[:used]]
    payload = encode(parts, used, Shape.SCATTERED, len(places))
    return StoredBatch(position, position + used, int(FormatId.PRAVEGA), payload, -1)
