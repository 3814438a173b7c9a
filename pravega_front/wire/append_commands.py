"""Commands about the connection, and those of appends."""

from __future__ import annotations

from pravega_front.wire.fields import I32, I64, Blob, Event, Rest, Str, Uuid
from pravega_front.wire.layouts import NO_ID, NO_NUMBER, Command, of_code


@of_code(-127)
class Hello(Command):
    """Which versions a peer speaks: the first thing each of the two says."""

    high: I32
    low: I32


@of_code(100)
class KeepAlive(Command):
    """Comes back as it is."""


@of_code(-1)
class Padding(Command):
    """What is left of a block that no event filled."""

    data: Rest


@of_code(-2)
class PartialEvent(Command):
    """The first bytes of an event that ends in the block's end."""

    data: Rest


@of_code(1)
class SetupAppend(Command):
    """Binds a writer to a segment, for this connection."""

    request_id: I64
    writer_id: Uuid
    segment: Str
    token: Str


@of_code(2)
class AppendSetup(Command):
    """What the segment knows of the writer: the number of its last event."""

    request_id: I64
    segment: Str
    writer_id: Uuid
    last_event_number: I64


@of_code(3)
class AppendBlock(Command):
    """Bytes of events; how many of them are whole is told by the end that follows."""

    writer_id: Uuid
    data: Rest


@of_code(4)
class AppendBlockEnd(Command):
    """Ends a block, and is an append: the whole events of the block, then the partial one with this data behind it."""

    writer_id: Uuid
    size_of_whole_events: I32
    data: Blob
    num_events: I32
    last_event_number: I64
    request_id: I64 = NO_ID


@of_code(5)
class ConditionalAppend(Command):
    """An event that is appended only where the segment ends at the expected offset."""

    writer_id: Uuid
    event_number: I64
    expected_offset: I64
    event: Event
    request_id: I64 = NO_ID


@of_code(7)
class DataAppended(Command):
    """Everything up to an event is durable."""

    writer_id: Uuid
    event_number: I64
    previous_event_number: I64 = NO_NUMBER
    request_id: I64 = NO_ID
    current_segment_write_offset: I64 = -1


@of_code(8)
class ConditionalCheckFailed(Command):
    """The segment ends elsewhere."""

    writer_id: Uuid
    event_number: I64
    request_id: I64 = NO_ID


@of_code(89)
class ConditionalBlockEnd(Command):
    """Like a conditional append, of any bytes."""

    writer_id: Uuid
    event_number: I64
    expected_offset: I64
    data: Blob
    request_id: I64 = NO_ID


@of_code(55)
class InvalidEventNumber(Command):
    """Somebody else has written by the same id."""

    writer_id: Uuid
    request_id: I64
    stack: Str = ""
    event_number: I64 = -1
