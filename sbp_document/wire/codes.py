"""Translation between the document's status codes and the codes of sbp-0.2 that we use inside (docs/protocols/sbp.md,
"Status codes").

The document has five codes. A code that it lacks travels as UNKNOWN, with the number and name of the other dialect at
the head of the message: ``1460 RANGE_ALREADY_SEALED: ...``. So nothing is lost between two of ours, and a foreign
client has a text that can be looked up.
"""

from __future__ import annotations

import re
from enum import IntEnum

from sbp_back.errors import ErrorCode
from sbp_back.wire.model import OK, Status


class DocumentCode(IntEnum):
    """The document's error codes; none of them is retriable."""

    NONE = 0
    UNKNOWN = 1
    INVALID_REQUEST = 2
    UNSUPPORTED_VERSION = 3
    PD_NOT_LEADER = 5


_INVALID = frozenset(
    {
        int(ErrorCode.DECODE),
        int(ErrorCode.BAD_REQUEST),
        int(ErrorCode.PAYLOAD_TOO_LARGE),
        int(ErrorCode.HEADER_FIELDS_TOO_LARGE),
    }
)

# Our code for a bare document code, when its message names no other.
_PLAIN: dict[int, int] = {
    DocumentCode.NONE: OK,
    DocumentCode.UNKNOWN: ErrorCode.RS_INTERNAL_SERVER_ERROR,
    DocumentCode.INVALID_REQUEST: ErrorCode.BAD_REQUEST,
    DocumentCode.UNSUPPORTED_VERSION: ErrorCode.UNSUPPORTED_VERSION,
    DocumentCode.PD_NOT_LEADER: ErrorCode.PD_NOT_LEADER,
}

_NAMED = re.compile(r"(-?\d{1,5}) ([A-Z_]+)(?:: |$)")
_NAMELESS = "CODE"


def document_code(code: int) -> int:
    """Return the document's code for one of ours."""
    if code in (OK, ErrorCode.NO_NEW_RECORD):
        return DocumentCode.NONE
    if code in _INVALID:
        return DocumentCode.INVALID_REQUEST
    if code == ErrorCode.PD_NOT_LEADER:
        return DocumentCode.PD_NOT_LEADER
    if code == ErrorCode.UNSUPPORTED_VERSION:
        return DocumentCode.UNSUPPORTED_VERSION
    return DocumentCode.UNKNOWN


def to_wire(status: Status) -> Status:
    """Translate ``status`` to the document's code; an empty fetch (1204) is no error there."""
    code = document_code(status.code)
    if code == DocumentCode.NONE:
        return Status(code, status.message if status.code == OK else "", status.detail)
    if _PLAIN[code] == status.code and code != DocumentCode.UNKNOWN and not _NAMED.match(status.message):
        return Status(code, status.message, status.detail)
    return Status(code, f"{status.code} {_name(status.code)}: {status.message}", status.detail)


def from_wire(status: Status) -> Status:
    """Undo :func:`to_wire`; a code that the document does not have is kept: it comes from a peer of another dialect."""
    plain = _PLAIN.get(status.code)
    if plain is None:
        return status
    if plain != OK:
        named = _NAMED.match(status.message)
        if named is not None:
            code = int(named[1])
            if _name(code) == named[2] and document_code(code) == status.code:
                return Status(code, status.message[named.end() :], status.detail)
    return Status(plain, status.message, status.detail)


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return _NAMELESS
