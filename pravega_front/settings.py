"""Settings of the Pravega front: the section ``pravega`` of the node's settings."""

from __future__ import annotations

from typing import ClassVar

from bridges.node.setting import Duration, Section, Size, setting


class PravegaSettings(Section):
    """Settings that Pravega's clients can notice. Where Pravega has the same bound, the default is Pravega's."""

    max_connections: int = setting(
        10_000,
        ge=1,
        description="Most connections to the segment store at the same time; a further one takes an idle one's place.",
    )
    max_controller_connections: int = setting(
        1_000,
        ge=1,
        description="Most connections to the controller at the same time; a further one is closed until others are.",
    )
    receive_ms: Duration = setting(
        120_000,
        ge=100,
        description="Time in which a frame has to be complete, and a block of appends to be ended, once it has begun.",
    )
    reader_patience_ms: Duration = setting(
        10_000,
        ge=100,
        description="While memory is short, a client that takes nothing of what it was sent for this time is cut.",
    )
    table_bytes: Size = setting(1024**3, ge=1024, description="Most bytes of keys and values that one table holds.")
    scopes: int = setting(100_000, ge=1, description="Most scopes that clients make, with or without streams.")
    attributes_per_segment: int = setting(
        1_000,
        ge=0,
        description="Most attributes that clients set of one segment; numbers of writers are not among them.",
    )
    segments: int = setting(
        100_000,
        ge=1,
        description="Most segments that belong to no stream: tables, large events under way, those that tools make.",
    )
    transactions: int = setting(10_000, ge=1, description="Most open transactions of all streams together.")
    transaction_min_lease_ms: Duration = setting(
        10_000, ge=1, description="Shortest lease of a transaction: without a ping it is aborted after that."
    )
    transaction_max_lease_ms: Duration = setting(600_000, ge=1, description="Longest lease of a transaction.")
    scale_wait_ms: Duration = setting(
        60_000,
        description="How long a change of a stream's segments waits for open transactions before it aborts them.",
    )
    scale_interval_ms: Duration = setting(
        60_000, ge=10, description="How often the rates of streams are looked at whose policy scales them."
    )
    scale_up_intervals: int = setting(
        2, ge=1, description="Intervals in a row after which a segment above its target rate is split."
    )
    scale_down_intervals: int = setting(
        20,
        ge=1,
        description="Intervals in a row after which two neighbours below half of their target rate are merged.",
    )
    retention_interval_ms: Duration = setting(
        300_000,
        ge=10,
        description="How often streams that are kept by size, and were scaled, are looked at for what may go.",
    )
    watermark_interval_ms: Duration = setting(
        10_000,
        ge=10,
        description="How often watermarks are written of streams whose writers note times.",
    )
    token_ms: Duration = setting(
        3_600_000,
        ge=1000,
        description="How long a delegation token is valid, where clients must say who they are; they get new ones.",
    )

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
