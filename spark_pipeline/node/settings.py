"""Settings of the pipeline front: the section ``pipeline`` of a node's."""

from __future__ import annotations

from pydantic import Field

from bridges.node.sections import Duration, Section, Size


class PipelineSettings(Section):
    """Of what the jobs and queries of the data pipeline ask a node for."""

    max_connections: int = Field(
        default=1_000,
        ge=1,
        description="Most connections of the data pipeline at the same time; a further one takes an idle one's place.",
    )
    connections_max_idle_ms: Duration = Field(
        default=600_000, ge=100, description="Time after which a connection without a request in progress is closed."
    )
    request_ms: Duration = Field(
        default=60_000,
        ge=100,
        description="How long a request's body may take to arrive, and its answer to be taken, before it is given up.",
    )
    request_bytes: Size = Field(
        default=16 * 1024**2,
        ge=1024**2,
        description="Largest body of a request that brings records; of any other it is 1 MiB.",
    )
