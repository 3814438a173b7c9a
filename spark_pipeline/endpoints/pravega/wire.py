"""The messages to Pravega's controller and segment store for reading streams, as tables and structs.

Rules: docs/protocols/pravega.md, "Reads" and "Controller". The PyPI client has only readers in groups, which do not
report an event's segment and begin at the group's position; here segments are read one by one.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from bridges.net.grpc_schema import Messages

PACKAGE = "io.pravega.controller.stream.api.grpc.v1"
SERVICE = f"{PACKAGE}.ControllerService"

_TABLE = """
message ScopeInfo
  1 scope string
message StreamInfo
  1 scope string
  2 stream string
  3 accessOperation int32
message ScalingPolicy
  1 scaleType int32
  2 targetRate int32
  3 scaleFactor int32
  4 minNumSegments int32
message RetentionPolicy
  1 retentionType int32
  2 retentionParam int64
  3 retentionMax int64
message Tags
  1 tag repeated string
message StreamConfig
  1 streamInfo StreamInfo
  2 scalingPolicy ScalingPolicy
  3 retentionPolicy RetentionPolicy
  4 tags Tags
message ContinuationToken
  1 token string
message StreamsInScopeRequest
  1 scope ScopeInfo
  2 continuationToken ContinuationToken
message StreamsInScopeResponse
  1 streams repeated StreamInfo
  2 continuationToken ContinuationToken
  3 status int32
message SegmentId
  1 streamInfo StreamInfo
  2 segmentId int64
message SegmentRange
  1 segmentId SegmentId
  2 minKey double
  3 maxKey double
message SegmentRanges
  1 segmentRanges repeated SegmentRange
message GetSegmentsRequest
  1 streamInfo StreamInfo
  2 timestamp int64
message SegmentLocation
  1 segmentId SegmentId
  2 offset int64
message SegmentsAtTime
  1 segments repeated SegmentLocation
message SegmentEntry
  1 segment SegmentRange
  2 value repeated int64
message SuccessorResponse
  1 segments repeated SegmentEntry
message NodeUri
  1 endpoint string
  2 port int32
message DelegationToken
  1 delegationToken string
"""

_MESSAGES = Messages({PACKAGE: _TABLE})

METHODS: dict[str, tuple[str, str]] = {
    "listStreamsInScope": ("StreamsInScopeRequest", "StreamsInScopeResponse"),
    "getStreamConfiguration": ("StreamInfo", "StreamConfig"),
    "getCurrentSegments": ("StreamInfo", "SegmentRanges"),
    "getSegments": ("GetSegmentsRequest", "SegmentsAtTime"),
    "getSegmentsImmediatelyFollowing": ("SegmentId", "SuccessorResponse"),
    "getURI": ("SegmentId", "NodeUri"),
    "getDelegationToken": ("StreamInfo", "DelegationToken"),
}
"""The request and the answer of each method."""

READ_ACCESS = 3
"""``accessOperation`` of readers."""
SCOPE_NOT_FOUND = 2
"""``status`` of a list of streams."""
BY_TIME, BY_SIZE = 1, 2
"""Kinds of retention policies."""


def message(name: str) -> Any:
    """Return the class of a message."""
    return _MESSAGES[f"{PACKAGE}.{name}"]


# --- the segment store ------------------------------------------------------------------------------------------------

HEAD = struct.Struct(">ii")
"""Type and length of a frame."""
EVENT = struct.Struct(">iI")
"""In front of an event's data: type 0, and its length."""
_I64 = struct.Struct(">q")
HELLO, READ, READ_ANSWER, INFO, INFO_ANSWER = -127, 9, 10, 11, 12
SEALED, NO_SEGMENT, TRUNCATED, REFUSED = 51, 53, 56, 60
_VERSIONS = struct.pack(">ii", 17, 5)
_ID = 1


class Info(NamedTuple):
    """The bounds of a segment, in bytes, and whether it is sealed."""

    start: int
    end: int
    sealed: bool


def hello() -> bytes:
    """Encode the first frame of a connection."""
    return HEAD.pack(HELLO, len(_VERSIONS)) + _VERSIONS


def ask_info(segment: str, token: str) -> bytes:
    """Encode GetStreamSegmentInfo."""
    return _frame(INFO, _I64.pack(_ID) + _text(segment) + _text(token))


def ask_bytes(segment: str, offset: int, size: int, token: str) -> bytes:
    """Encode ReadSegment: at most ``size`` bytes from ``offset`` on."""
    return _frame(READ, _text(segment) + struct.pack(">qi", offset, size) + _text(token) + _I64.pack(_ID))


def parse_info(body: memoryview) -> Info:
    """Parse StreamSegmentInfo."""
    at = _after_text(body, 8)
    sealed = bool(body[at + 1])
    end: int
    _, end = struct.unpack_from(">qq", body, at + 3)
    start = _I64.unpack_from(body, at + 19)[0] if len(body) >= at + 27 else 0
    return Info(start, end, sealed)


def parse_bytes(body: memoryview) -> memoryview:
    """Return the data of a SegmentRead."""
    at = _after_text(body, 0) + 10
    (size,) = struct.unpack_from(">i", body, at)
    return body[at + 4 : at + 4 + size]


def parse_truncated(body: memoryview) -> int:
    """Return the segment's start from SegmentIsTruncated."""
    start: int = _I64.unpack_from(body, _after_text(body, 8))[0]
    return start


def _frame(kind: int, body: bytes) -> bytes:
    return HEAD.pack(kind, len(body)) + body


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def _after_text(body: memoryview, at: int) -> int:
    (size,) = struct.unpack_from(">H", body, at)
    return at + 2 + int(size)
