"""Failures of the catalog and the logs in the codes that admin requests are answered with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from bridges.catalog.config_types import InvalidConfig
from bridges.catalog.names import InvalidTopicName
from bridges.catalog.topic import InvalidPartitions, NameCollision, TopicEnded, TopicExists, TopicNotFound
from bridges.errors import LogError, LogUnavailable
from kafka_front.service.log_errors import code_of
from kafka_front.wire.errors import ErrorCode

_CODES: tuple[tuple[type[LogError], ErrorCode], ...] = (
    (TopicExists, ErrorCode.TOPIC_ALREADY_EXISTS),
    (TopicNotFound, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (InvalidTopicName, ErrorCode.INVALID_TOPIC_EXCEPTION),
    (NameCollision, ErrorCode.INVALID_TOPIC_EXCEPTION),
    (InvalidPartitions, ErrorCode.INVALID_PARTITIONS),
    (TopicEnded, ErrorCode.INVALID_PARTITIONS),
    (InvalidConfig, ErrorCode.INVALID_CONFIG),
    # Retriable for admin clients, which know nothing of leaders.
    (LogUnavailable, ErrorCode.REQUEST_TIMED_OUT),
)


def admin_code(error: LogError) -> ErrorCode:
    """The code an admin client is told for ``error``."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return code_of(error)


def repeated(names: Iterable[object]) -> set[object]:
    """What occurs more than once: requests that name a thing twice are refused for it, as Kafka does."""
    return {name for name, times in Counter(names).items() if times > 1}
