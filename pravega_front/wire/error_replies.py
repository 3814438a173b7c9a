"""Errors that commands are answered with. They have the server's stack trace in Pravega; here it is always empty."""

from __future__ import annotations

from dataclasses import dataclass

from pravega_front.wire.fields import I32, I64, Str
from pravega_front.wire.layouts import Command, of_code


@of_code(50)
@dataclass(slots=True)
class WrongHost(Command):
    """Another host has the segment."""

    request_id: I64
    segment: Str
    correct_host: Str = ""
    stack: Str = ""


@of_code(51)
@dataclass(slots=True)
class SegmentIsSealed(Command):
    """The segment takes no more."""

    request_id: I64
    segment: Str
    stack: Str = ""
    offset: I64 = -1


@of_code(52)
@dataclass(slots=True)
class SegmentAlreadyExists(Command):
    """There is such a segment."""

    request_id: I64
    segment: Str
    stack: Str = ""


@of_code(53)
@dataclass(slots=True)
class NoSuchSegment(Command):
    """There is no such segment."""

    request_id: I64
    segment: Str
    stack: Str = ""
    offset: I64 = -1


@of_code(56)
@dataclass(slots=True)
class SegmentIsTruncated(Command):
    """The offset lies before the segment's start."""

    request_id: I64
    segment: Str
    start_offset: I64
    stack: Str = ""
    offset: I64 = -1


@of_code(57)
@dataclass(slots=True)
class OperationUnsupported(Command):
    """This is not served."""

    request_id: I64
    operation: Str
    stack: Str = ""


@of_code(60)
@dataclass(slots=True)
class AuthTokenCheckFailed(Command):
    """The token does not allow it: code 0, or has expired: code 1."""

    request_id: I64
    stack: Str = ""
    error_code: I32 = -1


@of_code(61)
@dataclass(slots=True)
class ErrorMessage(Command):
    """Anything else; code 0 is an illegal argument."""

    request_id: I64
    segment: Str
    message: Str
    error_code: I32 = -1
