"""Kafka's error codes for failures of the shared log.

No code makes clients repeat every request: after an error they look again for the node that the request is for. They
repeat requests for a partition's leader after NOT_LEADER_OR_FOLLOWER, those for a coordinator after
COORDINATOR_NOT_AVAILABLE, and those for the controller after NOT_CONTROLLER alone (Java's KafkaAdminClient, sarama,
franz-go and kafkajs look for the controller again; any other code goes to the user at once).
"""

from __future__ import annotations

from bridges import errors
from bridges.catalog.config_types import InvalidConfig
from bridges.catalog.topics import topic as topics
from bridges.catalog.topics.names import InvalidTopicName
from kafka_front.wire.apis import ApiKey, Server
from kafka_front.wire.errors import ErrorCode, KafkaError


class Refused(errors.LogError):
    """An error of this front: it does not hand a batch to its log, and has a code for the reason."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


_CODES: tuple[tuple[type[errors.LogError], ErrorCode], ...] = (
    # Clients go on in a new epoch, with sequence 0, where OUT_OF_ORDER_SEQUENCE_NUMBER makes librdkafka give up.
    (errors.UnknownProducer, ErrorCode.UNKNOWN_PRODUCER_ID),
    (errors.OutOfOrderSequence, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (errors.ProducerFenced, ErrorCode.INVALID_PRODUCER_EPOCH),
    (errors.OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (errors.LogDeleted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (topics.TopicNotFound, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    # A producer retries, and can go on once older transactions are trimmed.
    (errors.TooManyTransactions, ErrorCode.NOT_ENOUGH_REPLICAS),
    (errors.StorageFull, ErrorCode.KAFKA_STORAGE_ERROR),
    # Every client gives up at once, and the message says where to write instead.
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

_ADMIN_CODES: tuple[tuple[type[errors.LogError], ErrorCode], ...] = (
    (topics.TopicExists, ErrorCode.TOPIC_ALREADY_EXISTS),
    (InvalidTopicName, ErrorCode.INVALID_TOPIC_EXCEPTION),
    (topics.NameCollision, ErrorCode.INVALID_TOPIC_EXCEPTION),
    (topics.InvalidPartitions, ErrorCode.INVALID_PARTITIONS),
    (topics.TopicEnded, ErrorCode.INVALID_PARTITIONS),
    (InvalidConfig, ErrorCode.INVALID_CONFIG),
)


def code_of(error: errors.LogError) -> ErrorCode:
    """Return the code that the answer of a partition's leader has for ``error``."""
    if isinstance(error, Refused):
        return error.code
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if error.retriable else ErrorCode.UNKNOWN_SERVER_ERROR


def code_for(key: int, error: errors.LogError) -> ErrorCode:
    """Return the code that the answer of the API ``key`` has for ``error``."""
    server = ApiKey(key).server
    if server is Server.COORDINATOR and error.retriable:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if server is Server.CONTROLLER:
        for kind, code in _ADMIN_CODES:
            if isinstance(error, kind):
                return code
    code = code_of(error)
    if server is Server.CONTROLLER and code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return ErrorCode.NOT_CONTROLLER
    return code


def failure_of(key: int, error: KafkaError | errors.LogError) -> tuple[int, str | None]:
    """Return the code and the text that the answer of the API ``key``, or one of its items, has for ``error``."""
    if isinstance(error, KafkaError):
        return error.code, error.message
    return code_for(key, error), str(error)
