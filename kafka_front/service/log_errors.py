"""Failures of the shared log in Kafka's error codes (design, section 7)."""

from __future__ import annotations

from bridges import errors
from kafka_front.wire.errors import ErrorCode


class Refused(errors.LogError):
    """This front itself does not hand a batch to its log, and has a code for the reason."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


_CODES: tuple[tuple[type[errors.LogError], ErrorCode], ...] = (
    (errors.OutOfOrderSequence, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (errors.ProducerFenced, ErrorCode.INVALID_PRODUCER_EPOCH),
    (errors.OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (errors.LogDeleted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    # Every client, however old, answers this one by asking for metadata again and retrying.
    (errors.LogUnavailable, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    # A producer repeats it, and can go on once older ones are trimmed.
    (errors.TooManyTransactions, ErrorCode.NOT_ENOUGH_REPLICAS),
    (errors.StorageFull, ErrorCode.KAFKA_STORAGE_ERROR),
    # Every client gives up at once, and the message tells where to write instead.
    (errors.PartitionSealed, ErrorCode.POLICY_VIOLATION),
    (errors.TopicImporting, ErrorCode.POLICY_VIOLATION),
    (errors.TopicInternal, ErrorCode.INVALID_TOPIC_EXCEPTION),
    (errors.TimeOutOfBounds, ErrorCode.INVALID_TIMESTAMP),
    # Producers that can split the batch do so.
    (errors.BatchTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (errors.DataCorrupt, ErrorCode.CORRUPT_MESSAGE),
    (errors.BatchCorrupt, ErrorCode.CORRUPT_MESSAGE),
    (errors.DecompressedTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (errors.CompressionUnsupported, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    (errors.BatchInvalid, ErrorCode.INVALID_RECORD),
)


def code_of(error: errors.LogError) -> ErrorCode:
    """The code a client is told for ``error``."""
    if isinstance(error, Refused):
        return error.code
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR
