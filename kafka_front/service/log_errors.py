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
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode


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

_OF_LEADERS = frozenset(
    (
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,  # any error of a partition's leader makes clients ask again
        ApiKey.DELETE_RECORDS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
    )
)
_OF_COORDINATORS = frozenset(
    (
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_DELETE,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.WRITE_SHARE_GROUP_STATE,
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        ApiKey.STREAMS_GROUP_DESCRIBE,
        ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    )
)


def code_of(error: errors.LogError) -> ErrorCode:
    """Return the code that the answer of a partition's leader has for ``error``."""
    if isinstance(error, Refused):
        return error.code
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if error.retriable else ErrorCode.UNKNOWN_SERVER_ERROR


def admin_code(error: errors.LogError) -> ErrorCode:
    """Return the code that the controller's answer has for ``error``."""
    for kind, code in _ADMIN_CODES:
        if isinstance(error, kind):
            return code
    code = code_of(error)
    return ErrorCode.NOT_CONTROLLER if code is ErrorCode.NOT_LEADER_OR_FOLLOWER else code


def coordinator_code(error: errors.LogError) -> ErrorCode:
    """Return the code that a coordinator's answer has for ``error``."""
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if error.retriable else code_of(error)


def code_for(key: int, error: errors.LogError) -> ErrorCode:
    """Return the code that the answer of the API ``key`` has for ``error``."""
    if key in _OF_LEADERS:
        return code_of(error)
    return coordinator_code(error) if key in _OF_COORDINATORS else admin_code(error)
