"""Settings of the Pravega front: the section ``pravega`` of the node's settings."""

from __future__ import annotations

from typing import ClassVar

from bridges.node.settings.setting import Duration, Section, Size, setting


class PravegaSettings(Section):
    """Settings that Pravega's clients can notice. Where Pravega has the same bound, the default is Pravega's."""

    max_connections: int = setting(
        10_000,
        ge=1,
        description="Maximum number of connections to the segment store. Above it, a new connection replaces an idle "
        "one.",
    )
    max_controller_connections: int = setting(
        1_000,
        ge=1,
        description="Maximum number of connections to the controller. Above it, new connections are closed.",
    )
    receive_ms: Duration = setting(
        120_000,
        ge=100,
        description="How long a client may take to send a whole frame, or to end a block of appends, once it has "
        "begun.",
    )
    reader_patience_ms: Duration = setting(
        10_000,
        ge=100,
        description="While memory is short, a Pravega connection is closed if its client reads nothing of the data "
        "sent for this time.",
    )
    table_bytes: Size = setting(1024**3, ge=1024, description="Maximum size of all keys and values of one table.")
    scopes: int = setting(
        100_000, ge=1, description="Maximum number of scopes that clients may create, with or without streams."
    )
    attributes_per_segment: int = setting(
        1_000,
        ge=0,
        description="Maximum number of attributes that clients may set on one segment. Attributes with the event "
        "numbers of writers do not count. 0: clients may set none.",
    )
    segments: int = setting(
        100_000,
        ge=1,
        description="Maximum number of segments that belong to no stream: tables, large events in flight and segments "
        "created by tools.",
    )
    transactions: int = setting(10_000, ge=1, description="Maximum number of open transactions, over all streams.")
    transaction_min_lease_ms: Duration = setting(
        10_000,
        ge=1,
        description="Shortest lease that a transaction may request. A transaction without a ping for the time of its "
        "lease is aborted.",
    )
    transaction_max_lease_ms: Duration = setting(
        600_000, ge=1, description="Longest lease that a transaction may request."
    )
    scale_interval_ms: Duration = setting(
        60_000,
        ge=10,
        description="Interval at which the rates of streams with an automatic scaling policy are checked.",
    )
    scale_up_intervals: int = setting(
        2,
        ge=1,
        description="Number of consecutive scale intervals above the target rate after which a segment is split.",
    )
    scale_down_intervals: int = setting(
        20,
        ge=1,
        description="Number of consecutive scale intervals below half of the target rate after which two neighbouring "
        "segments are merged.",
    )
    retention_interval_ms: Duration = setting(
        300_000,
        ge=10,
        description="Interval at which scaled streams with retention by size are checked for sealed segments to "
        "truncate.",
    )
    watermark_interval_ms: Duration = setting(
        10_000,
        ge=10,
        description="Interval at which watermarks are written for streams whose writers note times.",
    )
    token_ms: Duration = setting(
        3_600_000,
        ge=1000,
        description="How long a delegation token is valid, on listeners that require a login. Clients renew their "
        "tokens.",
    )

    scale_wait_ms: ClassVar[Duration] = 0
    """Former setting: a scale does not wait for open transactions."""
    connections_max_idle_ms: ClassVar[Duration] = 600_000
    """Time after which an idle connection is closed."""
    unacknowledged_bytes_per_connection: ClassVar[Size] = 32 * 1024**2
    """Bytes of a connection in flight at which the node stops reading from it."""
    read_max_bytes: ClassVar[Size] = 2 * 1024**2
    """Most bytes in the answer to one read of a segment."""
    append_events: ClassVar[int] = 250_000
    """Most events of one append that get offsets of their own; an append with more is a single record."""
    writers_per_connection: ClassVar[int] = 10_000
    """Most writers set up on one connection."""
    parked_reads_per_connection: ClassVar[int] = 1_000
    """Most reads of one connection that wait at the ends of segments."""
    table_page: ClassVar[int] = 1_000
    """Most entries or keys of a table in one answer."""
    transaction_max_execution_ms: ClassVar[Duration] = 86_400_000
    """Time after which a transaction is aborted, however often it is pinged."""
    max_calls: ClassVar[int] = 1_000
    """Most calls to the controller at the same time."""
    max_calls_per_connection: ClassVar[int] = 100
    """Most calls to the controller of one connection at the same time."""
