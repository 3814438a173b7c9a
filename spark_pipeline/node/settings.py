"""Settings of the pipeline front: the section ``pipeline`` of a node's settings."""

from __future__ import annotations

from typing import ClassVar

from bridges.node.settings.setting import Duration, Section, Size, setting


class PipelineSettings(Section):
    """Limits for the requests of the pipeline's jobs and queries."""

    max_connections: int = setting(
        1_000,
        ge=1,
        description="Maximum number of connections of the data pipeline. Above it, a new connection replaces an idle "
        "one.",
    )
    request_ms: Duration = setting(
        60_000,
        ge=100,
        description="How long a pipeline client may take to send a request's body or to read the response. After it, "
        "the request is aborted.",
    )
    transactions: int = setting(
        10_000, ge=1, description="Maximum number of sink task attempts with an open transaction, over all queries."
    )
    transaction_max_ms: ClassVar[Duration] = 3_600_000
    """Longest idle timeout that a sink may request for its transactions. An open transaction holds back readers of
    committed data, so it is aborted when its sink is silent for the requested time.
    """
    query_ms: ClassVar[Duration] = 365 * 86_400_000
    """How long the last committed batch of a streaming query is remembered. A repeated batch is recognised by it."""
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
