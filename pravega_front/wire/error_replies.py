"""Errors that commands are answered with. They have the server's stack trace in Pravega; here it is always empty."""

from __future__ import annotations

from pravega_front.wire.fields import I32, I64, Str
from pravega_front.wire.layouts import Command, of_code


@of_code(50)
class WrongHost(Command):
    """Another host has the segment."""

    request_id: I64
    segment: Str
    correct_host: Str = ""
    stack: Str = ""


@of_code(51)
class SegmentIsSealed(Command):
    """The segment takes no more."""

    request_id: I64
    segment: Str
    stack: Str = ""
    offset: I64 = -1


@of_code(52)
class SegmentAlreadyExists(Command):
    """There is such a segment."""

    request_id: I64
    segment: Str
    stack: Str = ""


@of_code(53)
class NoSuchSegment(Command):
    """There is no such segment."""

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
    """This is not served."""

    request_id: I64
    operation: Str
    stack: Str = ""


@of_code(60)
class AuthTokenCheckFailed(Command):
    """The token does not allow it: code 0, or has expired: code 1."""

    request_id: I64
    stack: Str = ""
    error_code: I32 = -1


@of_code(61)
class ErrorMessage(Command):
    """Anything else; code 0 is an illegal argument."""

    request_id: I64
    segment: Str
    message: Str
    error_code: I32 = -1
