"""The segment store's commands, wire version 17 (reference/pravega.md, section 1.3), one class each.

``request_id`` is the client's: it comes back unchanged with the answer. Fields with defaults may be missing in what a
peer of an older version sends; answers always have all of them. ``token`` is the delegation token, empty where clients
need none. Errors have the server's stack trace in Pravega; here it is always empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

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
    Rest,
    Str,
    Strings,
    Updates,
    Uuid,
)

WIRE_VERSION = 17
OLDEST_COMPATIBLE = 5
NO_NUMBER = -(1 << 63)
"""Pravega's word for a number there is not: of a new writer's last event, of an attribute that is not set."""
NO_ID = -1
"""Request id of a command of a peer that is too old to send one."""

LAYOUTS: dict[int, Layout] = {}
"""How each command lies in its frame, by its code."""


class Command:
    """Any command; ``code`` is its type."""

    __slots__ = ()
    code: ClassVar[int]


C = TypeVar("C", bound=type[Command])


def _command(code: int) -> Callable[[C], C]:
    def register(command: C) -> C:
        command.code = code
        LAYOUTS[code] = Layout(command)
        return command

    return register


# --- connection --------------------------------------------------------------------------------------------------


@_command(-127)
@dataclass(slots=True)
class Hello(Command):
    """Which versions a peer speaks: the first thing each of the two says."""

    high: I32
    low: I32


@_command(100)
@dataclass(slots=True)
class KeepAlive(Command):
    """Comes back as it is."""


# --- append ------------------------------------------------------------------------------------------------------


@_command(-1)
@dataclass(slots=True)
class Padding(Command):
    """What is left of a block that no event filled."""

    data: Rest


@_command(-2)
@dataclass(slots=True)
class PartialEvent(Command):
    """The first bytes of an event that ends in the block's end."""

    data: Rest


@_command(1)
@dataclass(slots=True)
class SetupAppend(Command):
    """Binds a writer to a segment, for this connection."""

    request_id: I64
    writer_id: Uuid
    segment: Str
    token: Str


@_command(2)
@dataclass(slots=True)
class AppendSetup(Command):
    """What the segment knows of the writer: the number of its last event."""

    request_id: I64
    segment: Str
    writer_id: Uuid
    last_event_number: I64


@_command(3)
@dataclass(slots=True)
class AppendBlock(Command):
    """Bytes of events; how many of them are whole is told by the end that follows."""

    writer_id: Uuid
    data: Rest


@_command(4)
@dataclass(slots=True)
class AppendBlockEnd(Command):
    """Ends a block, and is an append: the whole events of the block, then the partial one with this data behind it."""

    writer_id: Uuid
    size_of_whole_events: I32
    data: Blob
    num_events: I32
    last_event_number: I64
    request_id: I64 = NO_ID


@_command(5)
@dataclass(slots=True)
class ConditionalAppend(Command):
    """An event that is appended only where the segment ends at the expected offset."""

    writer_id: Uuid
    event_number: I64
    expected_offset: I64
    event: Event
    request_id: I64 = NO_ID


@_command(7)
@dataclass(slots=True)
class DataAppended(Command):
    """Everything up to an event is durable."""

    writer_id: Uuid
    event_number: I64
    previous_event_number: I64 = NO_NUMBER
    request_id: I64 = NO_ID
    current_segment_write_offset: I64 = -1


@_command(8)
@dataclass(slots=True)
class ConditionalCheckFailed(Command):
    """The segment ends elsewhere."""

    writer_id: Uuid
    event_number: I64
    request_id: I64 = NO_ID


@_command(89)
@dataclass(slots=True)
class ConditionalBlockEnd(Command):
    """Like a conditional append, of any bytes."""

    writer_id: Uuid
    event_number: I64
    expected_offset: I64
    data: Blob
    request_id: I64 = NO_ID


@_command(55)
@dataclass(slots=True)
class InvalidEventNumber(Command):
    """Somebody else has written by the same id."""

    writer_id: Uuid
    request_id: I64
    stack: Str = ""
    event_number: I64 = -1


# --- read --------------------------------------------------------------------------------------------------------


@_command(9)
@dataclass(slots=True)
class ReadSegment(Command):
    """Asks for bytes; at the end of the segment, for the next ones that come."""

    segment: Str
    offset: I64
    suggested_length: I32
    token: Str
    request_id: I64 = NO_ID


@_command(10)
@dataclass(slots=True)
class SegmentRead(Command):
    """Bytes of a segment."""

    segment: Str
    offset: I64
    at_tail: Bool
    end_of_segment: Bool
    data: Blob
    request_id: I64 = NO_ID


@_command(41)
@dataclass(slots=True)
class LocateOffset(Command):
    """Asks for an offset near another."""

    request_id: I64
    segment: Str
    target_offset: I64
    token: Str


@_command(42)
@dataclass(slots=True)
class OffsetLocated(Command):
    """The nearest offset that is known."""

    request_id: I64
    segment: Str
    offset: I64


# --- segments ----------------------------------------------------------------------------------------------------


@_command(11)
@dataclass(slots=True)
class GetStreamSegmentInfo(Command):
    """Asks what is known of a segment."""

    request_id: I64
    segment: Str
    token: Str


@_command(12)
@dataclass(slots=True)
class StreamSegmentInfo(Command):
    """What is known of a segment; the time in ms."""

    request_id: I64
    segment: Str
    exists: Bool
    is_sealed: Bool
    is_deleted: Bool
    last_modified: I64
    write_offset: I64
    start_offset: I64 = 0


@_command(20)
@dataclass(slots=True)
class CreateSegment(Command):
    """Makes a segment; the scale type is 0 none, 1 kilobytes, 2 events each second."""

    request_id: I64
    segment: Str
    target_rate: I32
    scale_type: I8
    token: Str
    rollover_size_bytes: I64 = 0


@_command(21)
@dataclass(slots=True)
class SegmentCreated(Command):
    """There is the segment."""

    request_id: I64
    segment: Str


@_command(28)
@dataclass(slots=True)
class SealSegment(Command):
    """Ends a segment for good."""

    request_id: I64
    segment: Str
    token: Str


@_command(29)
@dataclass(slots=True)
class SegmentSealed(Command):
    """It takes no more."""

    request_id: I64
    segment: Str


@_command(30)
@dataclass(slots=True)
class DeleteSegment(Command):
    """Deletes a segment."""

    request_id: I64
    segment: Str
    token: Str


@_command(31)
@dataclass(slots=True)
class SegmentDeleted(Command):
    """It is gone."""

    request_id: I64
    segment: Str


@_command(32)
@dataclass(slots=True)
class UpdateSegmentPolicy(Command):
    """Changes a segment's scaling policy."""

    request_id: I64
    segment: Str
    target_rate: I32
    scale_type: I8
    token: Str


@_command(33)
@dataclass(slots=True)
class SegmentPolicyUpdated(Command):
    """It is changed."""

    request_id: I64
    segment: Str


@_command(34)
@dataclass(slots=True)
class GetSegmentAttribute(Command):
    """Asks for an attribute."""

    request_id: I64
    segment: Str
    attribute: Uuid
    token: Str


@_command(35)
@dataclass(slots=True)
class SegmentAttribute(Command):
    """Its value."""

    request_id: I64
    value: I64


@_command(36)
@dataclass(slots=True)
class UpdateSegmentAttribute(Command):
    """Sets an attribute if it has the expected value."""

    request_id: I64
    segment: Str
    attribute: Uuid
    new_value: I64
    expected_value: I64
    token: Str


@_command(37)
@dataclass(slots=True)
class SegmentAttributeUpdated(Command):
    """Whether it was set."""

    request_id: I64
    success: Bool


@_command(38)
@dataclass(slots=True)
class TruncateSegment(Command):
    """Gives up what lies before an offset."""

    request_id: I64
    segment: Str
    truncation_offset: I64
    token: Str


@_command(39)
@dataclass(slots=True)
class SegmentTruncated(Command):
    """It is given up."""

    request_id: I64
    segment: Str


@_command(40)
@dataclass(slots=True)
class CreateTransientSegment(Command):
    """Makes a segment for a large event, which is then merged into the parent."""

    request_id: I64
    writer_id: Uuid
    parent: Str
    token: Str


@_command(58)
@dataclass(slots=True)
class MergeSegments(Command):
    """Appends all of a segment to another, and deletes it."""

    request_id: I64
    target: Str
    source: Str
    token: Str
    updates: Updates = field(default_factory=list)


@_command(59)
@dataclass(slots=True)
class SegmentsMerged(Command):
    """Where the target ends now."""

    request_id: I64
    target: Str
    source: Str
    new_target_write_offset: I64 = -1


@_command(90)
@dataclass(slots=True)
class MergeSegmentsBatch(Command):
    """Merges several segments, in this order."""

    request_id: I64
    target: Str
    sources: Strings
    token: Str


@_command(91)
@dataclass(slots=True)
class SegmentsBatchMerged(Command):
    """Where the target ended after each."""

    request_id: I64
    target: Str
    merged: Merges


# --- errors ------------------------------------------------------------------------------------------------------


@_command(50)
@dataclass(slots=True)
class WrongHost(Command):
    """Another host has the segment."""

    request_id: I64
    segment: Str
    correct_host: Str = ""
    stack: Str = ""


@_command(51)
@dataclass(slots=True)
class SegmentIsSealed(Command):
    """The segment takes no more."""

    request_id: I64
    segment: Str
    stack: Str = ""
    offset: I64 = -1


@_command(52)
@dataclass(slots=True)
class SegmentAlreadyExists(Command):
    """There is such a segment."""

    request_id: I64
    segment: Str
    stack: Str = ""


@_command(53)
@dataclass(slots=True)
class NoSuchSegment(Command):
    """There is no such segment."""

    request_id: I64
    segment: Str
    stack: Str = ""
    offset: I64 = -1


@_command(56)
@dataclass(slots=True)
class SegmentIsTruncated(Command):
    """The offset lies before the segment's start."""

    request_id: I64
    segment: Str
    start_offset: I64
    stack: Str = ""
    offset: I64 = -1


@_command(57)
@dataclass(slots=True)
class OperationUnsupported(Command):
    """This is not served."""

    request_id: I64
    operation: Str
    stack: Str = ""


@_command(60)
@dataclass(slots=True)
class AuthTokenCheckFailed(Command):
    """The token does not allow it: code 0, or has expired: code 1."""

    request_id: I64
    stack: Str = ""
    error_code: I32 = -1


@_command(61)
@dataclass(slots=True)
class ErrorMessage(Command):
    """Anything else; code 0 is an illegal argument."""

    request_id: I64
    segment: Str
    message: Str
    error_code: I32 = -1


# --- tables ------------------------------------------------------------------------------------------------------


@_command(68)
@dataclass(slots=True)
class GetTableSegmentInfo(Command):
    """Asks what is known of a table."""

    request_id: I64
    segment: Str
    token: Str


@_command(69)
@dataclass(slots=True)
class TableSegmentInfo(Command):
    """What is known of a table."""

    request_id: I64
    segment: Str
    start_offset: I64
    length: I64
    entry_count: I64
    key_length: I32


@_command(70)
@dataclass(slots=True)
class CreateTableSegment(Command):
    """Makes a table; with a key length, one whose keys are sorted."""

    request_id: I64
    segment: Str
    token: Str
    sorted: Bool = False
    key_length: I32 = 0
    rollover_size_bytes: I64 = 0


@_command(71)
@dataclass(slots=True)
class DeleteTableSegment(Command):
    """Deletes a table."""

    request_id: I64
    segment: Str
    must_be_empty: Bool
    token: Str


@_command(74)
@dataclass(slots=True)
class UpdateTableEntries(Command):
    """Sets entries, all or none, each if its key has the version said."""

    request_id: I64
    segment: Str
    token: Str
    entries: Entries
    table_offset: I64 = -1


@_command(75)
@dataclass(slots=True)
class TableEntriesUpdated(Command):
    """The versions of the entries."""

    request_id: I64
    versions: Numbers


@_command(76)
@dataclass(slots=True)
class RemoveTableKeys(Command):
    """Removes keys, all or none."""

    request_id: I64
    segment: Str
    token: Str
    keys: Keys
    table_offset: I64 = -1


@_command(77)
@dataclass(slots=True)
class TableKeysRemoved(Command):
    """They are removed."""

    request_id: I64
    segment: Str


@_command(78)
@dataclass(slots=True)
class ReadTable(Command):
    """Asks for entries by their keys."""

    request_id: I64
    segment: Str
    token: Str
    keys: Keys


@_command(79)
@dataclass(slots=True)
class TableRead(Command):
    """Entries in the order asked for."""

    request_id: I64
    segment: Str
    entries: Entries


@_command(80)
@dataclass(slots=True)
class TableSegmentNotEmpty(Command):
    """The table has entries."""

    request_id: I64
    segment: Str
    stack: Str = ""


@_command(81)
@dataclass(slots=True)
class TableKeyDoesNotExist(Command):
    """A key that must have a version does not exist."""

    request_id: I64
    segment: Str
    stack: Str = ""


@_command(82)
@dataclass(slots=True)
class TableKeyBadVersion(Command):
    """A key has another version."""

    request_id: I64
    segment: Str
    stack: Str = ""


@_command(83)
@dataclass(slots=True)
class ReadTableKeys(Command):
    """Asks for keys, some at a time."""

    request_id: I64
    segment: Str
    token: Str
    suggested_count: I32
    continuation: Blob = b""
    prefix: Blob = b""
    first: Blob = b""
    last: Blob = b""


@_command(84)
@dataclass(slots=True)
class TableKeysRead(Command):
    """Keys, and where to go on."""

    request_id: I64
    segment: Str
    keys: Keys
    continuation: Blob


@_command(85)
@dataclass(slots=True)
class ReadTableEntries(Command):
    """Asks for entries, some at a time."""

    request_id: I64
    segment: Str
    token: Str
    suggested_count: I32
    continuation: Blob = b""
    prefix: Blob = b""
    first: Blob = b""
    last: Blob = b""


@_command(86)
@dataclass(slots=True)
class TableEntriesRead(Command):
    """Entries, and where to go on."""

    request_id: I64
    segment: Str
    entries: Entries
    continuation: Blob


@_command(88)
@dataclass(slots=True)
class ReadTableEntriesDelta(Command):
    """Asks what was set from a position on."""

    request_id: I64
    segment: Str
    token: Str
    from_position: I64
    suggested_count: I32


@_command(87)
@dataclass(slots=True)
class TableEntriesDeltaRead(Command):
    """Entries, and the position behind them."""

    request_id: I64
    segment: Str
    entries: Entries
    should_clear: Bool
    reached_end: Bool
    last_position: I64
