"""The error vocabulary of the backend.

Codes are those of SBP dialect 0.2 (docs/protocols/sbp.md, "Status codes"); other dialects map them onto their own
when they encode a response.
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """Status codes of dialect 0.2 (int16 on the wire)."""

    UNSPECIFIED = 0
    ENCODE = 1
    DECODE = 2
    UNSUPPORTED_VERSION = 3  # of sbp-v0.1 alone: the bytes are of another dialect
    OK = 1200
    NO_NEW_RECORD = 1204
    BAD_REQUEST = 1400
    UNAUTHORIZED = 1401
    PAYMENT_REQUIRED = 1402
    FORBIDDEN = 1403
    NOT_FOUND = 1404
    METHOD_NOT_ALLOWED = 1405
    PRECONDITION_FAILED = 1412
    PAYLOAD_TOO_LARGE = 1413
    TOO_MANY_REQUESTS = 1429
    HEADER_FIELDS_TOO_LARGE = 1431
    UNAVAILABLE_FOR_LEGAL_REASONS = 1451
    RANGE_ALREADY_SEALED = 1460
    OFFSET_OVERFLOW = 1461
    RANGE_NOT_FOUND = 1462
    OFFSET_OUT_OF_RANGE_BOUNDS = 1463
    APPEND_TO_COMMITTED_OFFSET = 1464
    APPEND_TO_PENDING_OFFSET = 1465
    APPEND_TO_OVERTAKEN_OFFSET = 1466
    CREATE_RANGE_BEFORE_SEAL = 1470
    EXPIRED_RANGE_EPOCH = 1471
    UNSUPPORTED_OPERATION = 1498
    UNKNOWN_OPERATION = 1499
    PD_INTERNAL_SERVER_ERROR = 1500
    PD_NOT_IMPLEMENTED = 1501
    PD_NO_AVAILABLE_RS = 1502
    PD_NOT_LEADER = 1503
    RS_INTERNAL_SERVER_ERROR = 2500
    RS_NOT_IMPLEMENTED = 2501
    RS_DATA_CORRUPTED = 2502


class SbpError(Exception):
    """A request failed with a status from the peer, or from our own state machine.

    ``code`` is an :class:`ErrorCode` value, or the bare number when a foreign server sent one we do not know.
    """

    def __init__(self, code: int, message: str = "") -> None:
        try:
            name = ErrorCode(code).name
        except ValueError:
            name = "UNKNOWN_CODE"
        super().__init__(f"{code} {name}: {message}" if message else f"{code} {name}")
        self.code = code
        self.message = message


class FencedError(SbpError):
    """A later writer has overtaken the writer's epoch, or another client sealed its range: it must never write
    again.
    """


NO_SPACE_DETAIL = b"no-space"
"""Status detail that tells a full disk from other internal errors of a range server (both are code 2500)."""


class NoSpace(SbpError):
    """The range server has no room for the append: nothing was written, the writer lives on, reads go on."""

    def __init__(self, message: str = "the range server's disk is full") -> None:
        super().__init__(ErrorCode.RS_INTERNAL_SERVER_ERROR, message)


class Reclaimed(SbpError):
    """``offset`` lies below what is left of the stream: it was trimmed, or its range server reports that it gave it
    up.
    """

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS, message)
        self.offset = offset


class Lost(SbpError):
    """No server has the entries from ``offset`` up to ``end``, which were acknowledged and are part of the stream: the
    placement driver knows that their range goes so far, and its server has less. Behind ``end`` there may be more.
    """

    def __init__(self, offset: int, end: int, message: str) -> None:
        super().__init__(ErrorCode.RS_DATA_CORRUPTED, message)
        self.offset = offset
        self.end = end


class ConnectionLost(SbpError):
    """The peer went away, or did not answer in time; whether the request took effect is unknown."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.RS_INTERNAL_SERVER_ERROR, message)


class DecodeError(Exception):
    """Bytes from the network or the disk do not form what they claim to be. The only exception decoders raise."""
