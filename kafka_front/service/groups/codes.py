"""Error codes that group requests answer with, as the plain ints that are put on the wire."""

from __future__ import annotations

from typing import Final

from kafka_front.wire.errors import ErrorCode

UNKNOWN_SERVER_ERROR: Final[int] = ErrorCode.UNKNOWN_SERVER_ERROR.value
NONE: Final[int] = ErrorCode.NONE.value
UNKNOWN_TOPIC_OR_PARTITION: Final[int] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.value
OFFSET_METADATA_TOO_LARGE: Final[int] = ErrorCode.OFFSET_METADATA_TOO_LARGE.value
COORDINATOR_NOT_AVAILABLE: Final[int] = ErrorCode.COORDINATOR_NOT_AVAILABLE.value
NOT_COORDINATOR: Final[int] = ErrorCode.NOT_COORDINATOR.value
ILLEGAL_GENERATION: Final[int] = ErrorCode.ILLEGAL_GENERATION.value
INCONSISTENT_GROUP_PROTOCOL: Final[int] = ErrorCode.INCONSISTENT_GROUP_PROTOCOL.value
INVALID_GROUP_ID: Final[int] = ErrorCode.INVALID_GROUP_ID.value
UNKNOWN_MEMBER_ID: Final[int] = ErrorCode.UNKNOWN_MEMBER_ID.value
INVALID_SESSION_TIMEOUT: Final[int] = ErrorCode.INVALID_SESSION_TIMEOUT.value
REBALANCE_IN_PROGRESS: Final[int] = ErrorCode.REBALANCE_IN_PROGRESS.value
INVALID_COMMIT_OFFSET_SIZE: Final[int] = ErrorCode.INVALID_COMMIT_OFFSET_SIZE.value
INVALID_REQUEST: Final[int] = ErrorCode.INVALID_REQUEST.value
NON_EMPTY_GROUP: Final[int] = ErrorCode.NON_EMPTY_GROUP.value
GROUP_AUTHORIZATION_FAILED: Final[int] = ErrorCode.GROUP_AUTHORIZATION_FAILED.value
TOPIC_AUTHORIZATION_FAILED: Final[int] = ErrorCode.TOPIC_AUTHORIZATION_FAILED.value
GROUP_ID_NOT_FOUND: Final[int] = ErrorCode.GROUP_ID_NOT_FOUND.value
MEMBER_ID_REQUIRED: Final[int] = ErrorCode.MEMBER_ID_REQUIRED.value
GROUP_MAX_SIZE_REACHED: Final[int] = ErrorCode.GROUP_MAX_SIZE_REACHED.value
FENCED_INSTANCE_ID: Final[int] = ErrorCode.FENCED_INSTANCE_ID.value
GROUP_SUBSCRIBED_TO_TOPIC: Final[int] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC.value
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final[int] = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED.value
UNSTABLE_OFFSET_COMMIT: Final[int] = ErrorCode.UNSTABLE_OFFSET_COMMIT.value
UNKNOWN_TOPIC_ID: Final[int] = ErrorCode.UNKNOWN_TOPIC_ID.value
