"""First message of a StreamRead: topics, consumer, and where to begin (docs/protocols/ydb.md, "StreamRead")."""

from __future__ import annotations

from typing import Any, NamedTuple

from ydb_topic_front.wire.statuses import Issue, Status, YdbError, bad_request

_MOST_TOPICS = 1000
"""Most topics of one session."""
_LONGEST_NAME = 1024
_MOST_PARTITIONS = 20_000
"""Most partitions that a session names; a session that names none reads any number."""


class TopicWanted(NamedTuple):
    """Request to read one topic. ``partitions`` is empty for any; times are in ms, -1 for no limit."""

    path: str
    partitions: frozenset[int]
    max_lag_ms: int
    read_from_ms: int


class ReadInit(NamedTuple):
    """Parsed ``InitRequest`` of a StreamRead."""

    topics: tuple[TopicWanted, ...]
    consumer: str
    reader_name: str
    knows_ends: bool
    """Whether the client supports messages about partitions that have ended."""
    is_direct: bool = False
    """Whether the client takes the data in StreamDirectRead, of each partition from the node that owns it."""


def parse_init(init: Any) -> ReadInit:
    """Parse an ``InitRequest``. Raises YdbError."""
    if not init.topics_read_settings:
        raise bad_request("init_request has no topics_read_settings")
    if len(init.topics_read_settings) > _MOST_TOPICS:
        raise bad_request(f"a session reads at most {_MOST_TOPICS} topics")
    if len(init.consumer) > _LONGEST_NAME or len(init.reader_name) > _LONGEST_NAME:
        raise bad_request(f"names of consumers and readers have at most {_LONGEST_NAME} characters")
    if sum(len(settings.partition_ids) for settings in init.topics_read_settings) > _MOST_PARTITIONS:
        raise bad_request(f"a session names at most {_MOST_PARTITIONS} partitions")
    topics = []
    for settings in init.topics_read_settings:
        partitions = frozenset(settings.partition_ids)
        if not init.consumer and not partitions:
            raise bad_request(f"without a consumer, the partitions of '{settings.path}' have to be named")
        lag = read_from = -1
        if settings.HasField("max_lag"):
            lag = settings.max_lag.seconds * 1000 + settings.max_lag.nanos // 1_000_000
            if lag < 0:
                raise bad_request(f"max_lag of '{settings.path}' is less than nothing")
            lag = lag or -1
        if settings.HasField("read_from"):
            read_from = settings.read_from.seconds * 1000 + settings.read_from.nanos // 1_000_000
        topics.append(TopicWanted(settings.path, partitions, lag, max(-1, read_from)))
    return ReadInit(tuple(topics), init.consumer, init.reader_name, init.auto_partitioning_support, init.direct_read)


def no_such_consumer(consumer: str, path: str) -> YdbError:
    """Return the error for a consumer that the topic does not have."""
    return YdbError(
        Status.BAD_REQUEST, f"no read rule provided for consumer '{consumer}' of topic '{path}'", Issue.BAD_REQUEST
    )
