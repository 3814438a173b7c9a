"""Commands about the connection, and commands of appends."""

from __future__ import annotations

from pravega_front.wire.fields import I32, I64, Blob, Event, Rest, Str, Uuid
from pravega_front.wire.layouts import NO_ID, NO_NUMBER, Command, of_code


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


@of_code(1)
class SetupAppend(Command):
    """Binds a writer to a segment, for this connection."""

    request_id: I64
    writer_id: Uuid
    segment: Str
    token: Str


@of_code(2)
class AppendSetup(Command):
    """Answer to SetupAppend: the number of the writer's last event in the segment."""

    request_id: I64
    segment: Str
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
