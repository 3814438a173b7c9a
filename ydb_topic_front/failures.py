"""Translation of the log's errors to YDB's status codes (docs/protocols/ydb.md, "Statuses").

Clients retry after UNAVAILABLE, OVERLOADED, SESSION_EXPIRED and ABORTED, and give up after BAD_REQUEST, SCHEME_ERROR
and UNAUTHORIZED.
"""

from __future__ import annotations

from bridges.catalog.config_types import InvalidConfig
from bridges.catalog.topics.lineage import InvalidChange
from bridges.catalog.topics.topic import (
    InvalidPartitions,
    NameCollision,
    SplitNotAllowed,
    TopicEnded,
    TopicExists,
    TopicNotFound,
)
from bridges.errors import (
    BatchInvalid,
    BatchTooLarge,
    DataCorrupt,
    GroupHeld,
    LogDeleted,
    LogError,
    LogUnavailable,
    OffsetOutOfRange,
    PartitionSealed,
    StorageFull,
    TooManyTransactions,
    TopicImporting,
    TopicInternal,
)
from ydb_topic_front.wire.statuses import Issue, Status, YdbError

_WORDS: tuple[tuple[type[LogError], Status, Issue], ...] = (
    (PartitionSealed, Status.OVERLOADED, Issue.PARTITION_INACTIVE),
    (StorageFull, Status.OVERLOADED, Issue.NONE),
    (TooManyTransactions, Status.OVERLOADED, Issue.NONE),
    (LogUnavailable, Status.UNAVAILABLE, Issue.NONE),
    (LogDeleted, Status.SCHEME_ERROR, Issue.UNKNOWN_TOPIC),
    (TopicNotFound, Status.SCHEME_ERROR, Issue.UNKNOWN_TOPIC),
    # Another client is creating or deleting the topic right now. To create a topic that exists is no error in YDB.
    (TopicExists, Status.OVERLOADED, Issue.NONE),
    (NameCollision, Status.ALREADY_EXISTS, Issue.NONE),
    (InvalidPartitions, Status.BAD_REQUEST, Issue.BAD_REQUEST),
    (InvalidConfig, Status.BAD_REQUEST, Issue.BAD_REQUEST),
    (InvalidChange, Status.OVERLOADED, Issue.NONE),
    (SplitNotAllowed, Status.PRECONDITION_FAILED, Issue.NONE),
    (TopicEnded, Status.PRECONDITION_FAILED, Issue.NONE),
    (TopicImporting, Status.PRECONDITION_FAILED, Issue.NONE),
    (TopicInternal, Status.PRECONDITION_FAILED, Issue.NONE),
    (GroupHeld, Status.PRECONDITION_FAILED, Issue.NONE),
    (BatchTooLarge, Status.BAD_REQUEST, Issue.BAD_REQUEST),
    (BatchInvalid, Status.BAD_REQUEST, Issue.BAD_REQUEST),
    (OffsetOutOfRange, Status.BAD_REQUEST, Issue.BAD_REQUEST),
    (DataCorrupt, Status.GENERIC_ERROR, Issue.NONE),
)


def translate_error(error: YdbError | LogError) -> YdbError:
    """Return ``error`` as the YdbError that the client gets.

    The result is always a new exception without a traceback: a traceback would keep the request's frames in memory as
    long as the error is kept.
    """
    if isinstance(error, YdbError):
        return YdbError(error.status, str(error), error.issue)
    if isinstance(error, PartitionSealed) and not error.children:
        return YdbError(Status.PRECONDITION_FAILED, str(error))  # no other partition to retry with
    for kind, status, issue in _WORDS:
        if isinstance(error, kind):
            return YdbError(status, str(error), issue)
    return YdbError(Status.UNAVAILABLE if error.retriable else Status.GENERIC_ERROR, str(error))
