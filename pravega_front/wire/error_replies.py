"""Error answers to commands. Pravega sends the server's stack trace with them; here it is always empty."""

from __future__ import annotations

from pravega_front.wire.fields import I32, I64, Str
from pravega_front.wire.layouts import Command, of_code


@of_code(50)
class WrongHost(Command):
    """Another host owns the segment."""

    request_id: I64
    segment: Str
    correct_host: Str = ""
    stack: Str = ""


@of_code(51)
class SegmentIsSealed(Command):
    """The segment takes no more appends."""

    request_id: I64
    segment: Str
    stack: Str = ""
    offset: I64 = -1


@of_code(52)
class SegmentAlreadyExists(Command):
    """The segment exists already."""

    request_id: I64
    segment: Str
    stack: Str = ""


@of_code(53)
class NoSuchSegment(Command):
    """The segment does not exist."""

    request_id: I64
    segment: Str
    stack: Str = ""
    offset: I64 = -1


@of_code(56)
class SegmentIsTruncated(Command):
    """The offset lies before the segment's start."""

    request_id: I64
    segment: Str
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
class ErrorMessage(Command):
    """Any other error; code 0 is an illegal argument."""

    request_id: I64
    segment: Str
    message: Str
    error_code: I32 = -1
