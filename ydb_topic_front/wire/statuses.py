"""Status codes of answers, and the issues that explain them."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

ERROR_SEVERITY = 1


class Status(IntEnum):
    """``Ydb.StatusIds.StatusCode``, by which clients decide whether to retry (docs/protocols/ydb.md, "Statuses")."""

    SUCCESS = 400000
    BAD_REQUEST = 400010
    UNAUTHORIZED = 400020
    INTERNAL_ERROR = 400030
    ABORTED = 400040
    UNAVAILABLE = 400050
    OVERLOADED = 400060
    SCHEME_ERROR = 400070
    GENERIC_ERROR = 400080
    TIMEOUT = 400090
    BAD_SESSION = 400100
    PRECONDITION_FAILED = 400120
    ALREADY_EXISTS = 400130
    NOT_FOUND = 400140
    SESSION_EXPIRED = 400150
    CANCELLED = 400160
    UNDETERMINED = 400170
    UNSUPPORTED = 400180
    SESSION_BUSY = 400190
    EXTERNAL_ERROR = 400200


class Issue(IntEnum):
    """Issue codes. Clients react to PARTITION_INACTIVE only."""

    NONE = 0
    TRANSACTION_NOT_FOUND = 2015
    BAD_REQUEST = 500003
    WRONG_COOKIE = 500004
    UNKNOWN_TOPIC = 500017
    ACCESS_DENIED = 500018
    PARTITION_INACTIVE = 500029


class YdbError(Exception):
    """Refusal of a request: its answer, or the last message of its stream, has this status and an issue."""

    def __init__(self, status: Status, message: str, issue: Issue = Issue.NONE) -> None:
        super().__init__(message)
        self.status = status
        self.issue = issue

    def tell(self, target: Any) -> None:
        """Write status and issue into an ``Operation`` or a stream's ``FromServer``."""
        target.status = self.status
        issue = target.issues.add()
        issue.message = str(self)
        issue.issue_code = self.issue
        issue.severity = ERROR_SEVERITY


def bad_request(message: str) -> YdbError:
    """Return the error for a request that violates the protocol."""
    return YdbError(Status.BAD_REQUEST, message, Issue.BAD_REQUEST)


def unknown_topic(path: str) -> YdbError:
    """Return the error for a path without a topic."""
    return YdbError(Status.SCHEME_ERROR, f"no path '{path}'", Issue.UNKNOWN_TOPIC)
