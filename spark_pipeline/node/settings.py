"""Settings of the pipeline front: the section ``pipeline`` of a node's settings."""

from __future__ import annotations

from typing import ClassVar

from bridges.node.setting import Duration, Section, Size, setting


class PipelineSettings(Section):
    """Limits for the requests of the pipeline's jobs and queries."""

    max_connections: int = setting(
        1_000,
        ge=1,
        description="Most connections of the data pipeline at the same time; a further one takes an idle one's place.",
    )
    request_ms: Duration = setting(
        60_000,
        ge=100,
        description="How long a request's body may take to arrive, and its answer to be taken, before it is given up.",
    )
    transactions: int = setting(
        10_000, ge=1, description="Most attempts of sinks' tasks that have a transaction open, of all queries."
    )
    transaction_max_ms: Duration = setting(
        3_600_000,
        ge=1,
        description="Longest silence of a sink that it may ask for; after the one it asked for its transactions are "
        "aborted, since they hold back readers of committed data.",
    )
    query_ms: Duration = setting(
        365 * 86_400_000,
        ge=1,
        description="How long the last batch of a streaming query is remembered, by which a batch that is repeated is "
        "recognised.",
    )

    connections_max_idle_ms: ClassVar[Duration] = 600_000
    """Time after which a connection without a request in progress is closed."""
    request_bytes: ClassVar[Size] = 16 * 1024**2
    """Largest body of a request with records; for other requests the limit is 1 MiB."""
    partitions_per_attempt: ClassVar[int] = 10_000
    """Most partitions that one attempt of a sink's task may write to."""
    attempt_partitions: ClassVar[int] = 1_000_000
    """Most partitions that all open attempts of sinks' tasks may write to together, counted once per attempt. A million
    takes about 100 MB."""
    transaction_life_ms: ClassVar[Duration] = 86_400_000
    """Time after which a sink's transactions are aborted, even if the sink is still active."""
    queries: ClassVar[int] = 100_000
    """Most queries whose last committed batches are remembered."""
    job_ms: ClassVar[Duration] = 86_400_000
    """How long the last committed batch of a non-streaming write is remembered."""
