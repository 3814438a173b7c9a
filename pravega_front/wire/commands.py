"""Commands of the segment store, wire version 17 (docs/protocols/pravega.md), one class each.

``request_id`` is chosen by the client and returned unchanged in the answer. Peers of older versions may omit fields
with defaults; answers always have all fields. ``token`` is the delegation token, empty if clients need none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

from msgspec import Struct, field

from pravega_front.wire.fields import (
    I8,
    I32,
    I64,
    Blob,
    Bool,
    Entries,
    Event,
    Keys,
    Layout,
    Merges,
    Numbers,
    PackedEntries,
    PackedKeys,
    Rest,
    Str,
    Strings,
    Updates,
    Uuid,
)

WIRE_VERSION = 17
OLDEST_COMPATIBLE = 5
NO_NUMBER = -(1 << 63)
"""Absent number: the last event of a new writer, or an attribute that is not set."""
NO_ID = -1
"""Request id of a command from a peer too old to send one."""
LAYOUTS: dict[int, Layout] = {}
"""Layouts of all commands, by code."""


class Command(Struct):
    """Base of all commands; ``code`` is the frame's type."""

    code: ClassVar[int]


class _OfSegment(Command):
    request_id: I64
    segment: Str


class _Error(_OfSegment):
    """Base of error answers. Pravega sends the server's stack trace with them; here it is always empty."""

    stack: Str = ""


class _TableFrom(_OfSegment):
    """Base of requests for a page of a table."""

    token: Str
    suggested_count: I32
    continuation: Blob = b""
    prefix: Blob = b""
    first: Blob = b""
    last: Blob = b""


C = TypeVar("C", bound=type[Command])


def of_code(code: int) -> Callable[[C], C]:
    """Register a class as the command of a type."""

    def register(command: C) -> C:
        command.code = code
        LAYOUTS[code] = Layout(command)
        return command

    return register


# --- the connection -------------------------------------------------------------------------------------------------


@of_code(-127)
class Hello(Command):
    """Range of versions that a peer speaks; the first command in each direction."""

    high: I32
    low: I32


@of_code(100)
class KeepAlive(Command):
    """Probe that is echoed unchanged."""


@of_code(-1)
class Padding(Command):
    """Rest of a block that no event filled."""

    data: Rest


@of_code(-2)
class PartialEvent(Command):
    """First bytes of an event at the end of a block; the rest is in the block end."""

    data: Rest


# --- appends --------------------------------------------------------------------------------------------------------


@of_code(1)
class SetupAppend(Command):
    """Binds a writer to a segment, for this connection."""

    request_id: I64
    writer_id: Uuid
    segment: Str
    token: Str


@of_code(2)
class AppendSetup(_OfSegment):
    """Answer to SetupAppend: the number of the writer's last event in the segment."""

    writer_id: Uuid
    last_event_number: I64


@of_code(3)
class AppendBlock(Command):
    """Bytes of events; the block end that follows gives the size of the whole events."""

    writer_id: Uuid
    data: Rest


@of_code(4)
class AppendBlockEnd(Command):
    """Ends a block, which makes an append of it: the whole events of the block, then the partial event completed by
    ``data``."""

    writer_id: Uuid
    size_of_whole_events: I32
    data: Blob
    num_events: I32
    last_event_number: I64
    request_id: I64 = NO_ID


@of_code(5)
class ConditionalAppend(Command):
    """Appends an event only if the segment ends at the expected offset."""

    writer_id: Uuid
    event_number: I64
    expected_offset: I64
    event: Event
    request_id: I64 = NO_ID


@of_code(7)
class DataAppended(Command):
    """Answer to appends: everything up to an event number is durable."""

    writer_id: Uuid
    event_number: I64
    previous_event_number: I64 = NO_NUMBER
    request_id: I64 = NO_ID
    current_segment_write_offset: I64 = -1


@of_code(8)
class ConditionalCheckFailed(Command):
    """Answer to a conditional append: the segment ends elsewhere."""

    writer_id: Uuid
    event_number: I64
    request_id: I64 = NO_ID


@of_code(89)
class ConditionalBlockEnd(Command):
    """Conditional append of any bytes."""

    writer_id: Uuid
    event_number: I64
    expected_offset: I64
    data: Blob
    request_id: I64 = NO_ID


@of_code(55)
class InvalidEventNumber(Command):
    """Answer to an append: another client has written with the same writer id."""

    writer_id: Uuid
    request_id: I64
    stack: Str = ""
    event_number: I64 = -1


# --- segments -------------------------------------------------------------------------------------------------------


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
class LocateOffset(_OfSegment):
    """Asks for a known offset near another."""

    target_offset: I64
    token: Str


@of_code(42)
class OffsetLocated(_OfSegment):
    """Answer to LocateOffset: the nearest known offset."""

    offset: I64


@of_code(11)
class GetStreamSegmentInfo(_OfSegment):
    """Asks for the state of a segment."""

    token: Str


@of_code(12)
class StreamSegmentInfo(_OfSegment):
    """State of a segment; ``last_modified`` in ms."""

    exists: Bool
    is_sealed: Bool
    is_deleted: Bool
    last_modified: I64
    write_offset: I64
    start_offset: I64 = 0


@of_code(20)
class CreateSegment(_OfSegment):
    """Creates a segment. Scale types: 0 none, 1 kilobytes per second, 2 events per second."""

    target_rate: I32
    scale_type: I8
    token: Str
    rollover_size_bytes: I64 = 0


@of_code(21)
class SegmentCreated(_OfSegment):
    """Answer to CreateSegment: the segment exists."""


@of_code(28)
class SealSegment(_OfSegment):
    """Seals a segment for ever."""

    token: Str


@of_code(29)
class SegmentSealed(_OfSegment):
    """Answer to SealSegment: the segment takes no more appends."""


@of_code(30)
class DeleteSegment(_OfSegment):
    """Deletes a segment."""

    token: Str


@of_code(31)
class SegmentDeleted(_OfSegment):
    """Answer to DeleteSegment."""


@of_code(32)
class UpdateSegmentPolicy(_OfSegment):
    """Changes a segment's scaling policy."""

    target_rate: I32
    scale_type: I8
    token: Str


@of_code(33)
class SegmentPolicyUpdated(_OfSegment):
    """Answer to UpdateSegmentPolicy."""


@of_code(34)
class GetSegmentAttribute(_OfSegment):
    """Asks for an attribute's value."""

    attribute: Uuid
    token: Str


@of_code(35)
class SegmentAttribute(Command):
    """Answer to GetSegmentAttribute: the value."""

    request_id: I64
    value: I64


@of_code(36)
class UpdateSegmentAttribute(_OfSegment):
    """Sets an attribute if it has the expected value."""

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
class TruncateSegment(_OfSegment):
    """Truncates a segment below an offset."""

    truncation_offset: I64
    token: Str


@of_code(39)
class SegmentTruncated(_OfSegment):
    """Answer to TruncateSegment."""


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


# --- tables ---------------------------------------------------------------------------------------------------------


@of_code(68)
class GetTableSegmentInfo(_OfSegment):
    """Asks for the state of a table."""

    token: Str


@of_code(69)
class TableSegmentInfo(_OfSegment):
    """State of a table."""

    start_offset: I64
    length: I64
    entry_count: I64
    key_length: I32


@of_code(70)
class CreateTableSegment(_OfSegment):
    """Creates a table; with a key length, one with sorted keys."""

    token: Str
    sorted: Bool = False
    key_length: I32 = 0
    rollover_size_bytes: I64 = 0


@of_code(71)
class DeleteTableSegment(_OfSegment):
    """Deletes a table."""

    must_be_empty: Bool
    token: Str


@of_code(74)
class UpdateTableEntries(_OfSegment):
    """Sets entries, all or none, if each key has the version given."""

    token: Str
    entries: PackedEntries
    table_offset: I64 = -1


@of_code(75)
class TableEntriesUpdated(Command):
    """Answer to UpdateTableEntries: the versions of the entries."""

    request_id: I64
    versions: Numbers


@of_code(76)
class RemoveTableKeys(_OfSegment):
    """Removes keys, all or none."""

    token: Str
    keys: PackedKeys
    table_offset: I64 = -1


@of_code(77)
class TableKeysRemoved(_OfSegment):
    """Answer to RemoveTableKeys."""


@of_code(78)
class ReadTable(_OfSegment):
    """Asks for entries by their keys."""

    token: Str
    keys: PackedKeys


@of_code(79)
class TableRead(_OfSegment):
    """Answer to ReadTable: entries in the order of the keys."""

    entries: Entries


@of_code(80)
class TableSegmentNotEmpty(_Error):
    """The table has entries."""


@of_code(81)
class TableKeyDoesNotExist(_Error):
    """A key that must have a version does not exist."""


@of_code(82)
class TableKeyBadVersion(_Error):
    """A key has another version than required."""


@of_code(83)
class ReadTableKeys(_TableFrom):
    """Asks for a page of keys."""


@of_code(84)
class TableKeysRead(_OfSegment):
    """Answer to ReadTableKeys: keys, and the continuation of the next page."""

    keys: Keys
    continuation: Blob


@of_code(85)
class ReadTableEntries(_TableFrom):
    """Asks for a page of entries."""


@of_code(86)
class TableEntriesRead(_OfSegment):
    """Answer to ReadTableEntries: entries, and the continuation of the next page."""

    entries: Entries
    continuation: Blob


@of_code(88)
class ReadTableEntriesDelta(_OfSegment):
    """Asks for the entries set from a position on."""

    token: Str
    from_position: I64
    suggested_count: I32


@of_code(87)
class TableEntriesDeltaRead(_OfSegment):
    """Answer to ReadTableEntriesDelta: entries, and the position after them."""

    entries: Entries
    should_clear: Bool
    reached_end: Bool
    last_position: I64


# --- errors ---------------------------------------------------------------------------------------------------------


@of_code(50)
class WrongHost(_OfSegment):
    """Another host owns the segment."""

    correct_host: Str = ""
    stack: Str = ""


@of_code(51)
class SegmentIsSealed(_Error):
    """The segment takes no more appends."""

    offset: I64 = -1


@of_code(52)
class SegmentAlreadyExists(_Error):
    """The segment exists already."""


@of_code(53)
class NoSuchSegment(_Error):
    """The segment does not exist."""

    offset: I64 = -1


@of_code(56)
class SegmentIsTruncated(_OfSegment):
    """The offset lies before the segment's start."""

    start_offset: I64
    stack: Str = ""
    offset: I64 = -1


@of_code(57)
class OperationUnsupported(Command):
    """The operation is not supported."""

    request_id: I64
    operation: Str
    stack: Str = ""


@of_code(60)
class AuthTokenCheckFailed(Command):
    """The token does not allow the command (code 0), or has expired (code 1)."""

    request_id: I64
    stack: Str = ""
    error_code: I32 = -1


@of_code(61)
class ErrorMessage(_OfSegment):
    """Any other error; code 0 is an illegal argument."""

    message: Str
    error_code: I32 = -1
