"""Settings of the YDB front: the section ``ydb`` of the node's settings."""

from __future__ import annotations

from typing import ClassVar

from bridges.node.settings.setting import Duration, Section, Size, setting

MESSAGE_BYTES = 64_000_000
"""Largest message that a YDB server accepts; SDKs split their requests to fit."""


def _database(value: object) -> object:
    if isinstance(value, str) and not (value.startswith("/") and all(value[1:].split("/"))):
        raise ValueError("must be a path such as /local or /local/team")
    return value


class YdbSettings(Section):
    """Settings that YDB's clients can notice. Where YDB has the same setting, the default is YDB's."""

    database: str = setting(
        "/local",
        read=_database,
        description="Database of YDB clients that name none. Every database shows the same topics.",
    )
    max_connections: int = setting(
        4_000,
        ge=1,
        description="Maximum number of YDB connections. Above it, new connections are closed.",
    )
    max_streams: int = setting(
        10_000, ge=1, description="Maximum number of streams and calls in progress, over all YDB connections."
    )
    init_timeout_ms: Duration = setting(
        60_000, ge=1, description="How long a YDB client may take to send the first message of a stream."
    )
    auto_partitioning_interval_ms: Duration = setting(
        5_000,
        ge=10,
        description="Interval at which topics with auto-partitioning are checked for partitions to split.",
    )
    reader_patience_ms: Duration = setting(
        10_000,
        ge=100,
        description="While memory is short, a YDB read session is closed if its client reads nothing of the data sent "
        "for this time.",
    )
    reader_answer_ms: Duration = setting(
        300_000,
        ge=100,
        description="How long a YDB reader may take to confirm that it starts or stops reading a partition. After it, "
        "the partition is taken from the reader.",
    )

    max_request_bytes: ClassVar[Size] = MESSAGE_BYTES
    """Largest message of a stream that is accepted; a larger one ends its stream."""
    max_call_bytes: ClassVar[Size] = 512 * 1024
    """Largest request accepted that is not part of a stream."""
    max_streams_per_connection: ClassVar[int] = 1_000
    """Most streams and calls at the same time on one connection."""
    connections_max_idle_ms: ClassVar[Duration] = 600_000
    """Time after which a connection without a stream or call is closed."""
    unacknowledged_bytes_per_stream: ClassVar[Size] = 8 * 1024**2
    """Unacknowledged bytes of a stream at which the node stops reading from it."""
    max_producers: ClassVar[int] = 2_000_000
    """Most producers whose partition is remembered; the least recently used are deleted first."""
    writer_patience_ms: ClassVar[Duration] = 10_000
    """While memory is short, a writer that has waited this long for a partition's write speed is ended."""
