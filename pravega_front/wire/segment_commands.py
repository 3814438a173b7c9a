"""Commands about segments: reads, life cycle, attributes, merges."""

from __future__ import annotations

from msgspec import field

from pravega_front.wire.fields import I8, I32, I64, Blob, Bool, Merges, Str, Strings, Updates, Uuid
from pravega_front.wire.layouts import NO_ID, Command, of_code


@of_code(9)
class ReadSegment(Command):
    """Reads bytes; at the end of the segment, waits for the next ones."""

    segment: Str
    offset: I64
    suggested_length: I32
    token: Str
    request_id: I64 = NO_ID


@of_code(10)
class SegmentRead(Command):
    """Bytes of a segment."""

    segment: Str
    offset: I64
    at_tail: Bool
    end_of_segment: Bool
    data: Blob
    request_id: I64 = NO_ID


@of_code(41)
class LocateOffset(Command):
    """Asks for a known offset near another."""

    request_id: I64
    segment: Str
    target_offset: I64
    token: Str


@of_code(42)
class OffsetLocated(Command):
    """Answer to LocateOffset: the nearest known offset."""

    request_id: I64
    segment: Str
    offset: I64


@of_code(11)
class GetStreamSegmentInfo(Command):
    """Asks for the state of a segment."""

    request_id: I64
    segment: Str
    token: Str


@of_code(12)
class StreamSegmentInfo(Command):
    """State of a segment; ``last_modified`` in ms."""

    request_id: I64
    segment: Str
    exists: Bool
    is_sealed: Bool
    is_deleted: Bool
    last_modified: I64
    write_offset: I64
    start_offset: I64 = 0


@of_code(20)
class CreateSegment(Command):
    """Creates a segment. Scale types: 0 none, 1 kilobytes per second, 2 events per second."""

    request_id: I64
    segment: Str
    target_rate: I32
    scale_type: I8
    token: Str
    rollover_size_bytes: I64 = 0


@of_code(21)
class SegmentCreated(Command):
    """Answer to CreateSegment: the segment exists."""

    request_id: I64
    segment: Str


@of_code(28)
class SealSegment(Command):
    """Seals a segment for ever."""

    request_id: I64
    segment: Str
    token: Str


@of_code(29)
class SegmentSealed(Command):
    """Answer to SealSegment: the segment takes no more appends."""

    request_id: I64
    segment: Str


@of_code(30)
class DeleteSegment(Command):
    """Deletes a segment."""

    request_id: I64
    segment: Str
    token: Str


@of_code(31)
class SegmentDeleted(Command):
    """Answer to DeleteSegment."""

    request_id: I64
    segment: Str


@of_code(32)
class UpdateSegmentPolicy(Command):
    """Changes a segment's scaling policy."""

    request_id: I64
    segment: Str
    target_rate: I32
    scale_type: I8
    token: Str


@of_code(33)
class SegmentPolicyUpdated(Command):
    """Answer to UpdateSegmentPolicy."""

    request_id: I64
    segment: Str


@of_code(34)
class GetSegmentAttribute(Command):
    """Asks for an attribute's value."""

    request_id: I64
    segment: Str
    attribute: Uuid
    token: Str


@of_code(35)
class SegmentAttribute(Command):
    """Answer to GetSegmentAttribute: the value."""

    request_id: I64
    value: I64


@of_code(36)
class UpdateSegmentAttribute(Command):
    """Sets an attribute if it has the expected value."""

    request_id: I64
    segment: Str
    attribute: Uuid
    new_value: I64
    expected_value: I64
    token: Str


@of_code(37)
class SegmentAttributeUpdated(Command):
    """Answer to UpdateSegmentAttribute: ``success`` if the attribute was set."""

    request_id: I64
    success: Bool


@of_code(38)
class TruncateSegment(Command):
    """Truncates a segment below an offset."""

    request_id: I64
    segment: Str
    truncation_offset: I64
    token: Str


@of_code(39)
class SegmentTruncated(Command):
    """Answer to TruncateSegment."""

    request_id: I64
    segment: Str


@of_code(40)
class CreateTransientSegment(Command):
    """Creates a segment for a large event, which is then merged into the parent."""

    request_id: I64
    writer_id: Uuid
    parent: Str
    token: Str


@of_code(58)
class MergeSegments(Command):
    """Appends all of a segment to another, and deletes it."""

    request_id: I64
    target: Str
    source: Str
    token: Str
    updates: Updates = field(default_factory=list)


@of_code(59)
class SegmentsMerged(Command):
    """Answer to MergeSegments, with the target's new end."""

    request_id: I64
    target: Str
    source: Str
    new_target_write_offset: I64 = -1


@of_code(90)
class MergeSegmentsBatch(Command):
    """Merges several segments into a target, in this order."""

    request_id: I64
    target: Str
    sources: Strings
    token: Str


@of_code(91)
class SegmentsBatchMerged(Command):
    """Answer to MergeSegmentsBatch, with the target's end after each source."""

    request_id: I64
    target: Str
    merged: Merges
