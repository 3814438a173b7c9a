"""Settings of Spark that do not work with sources and sinks in Python."""

from __future__ import annotations

from collections.abc import Mapping

from spark_pipeline.core.errors import PipelineError

COMPRESSION = "spark.sql.execution.arrow.compression.codec"
"""What rows are compressed with on their way to Python."""


def refuse(settings: Mapping[str, str]) -> None:
    """Raises PipelineError for a setting with which sinks in Python fail."""
    if settings.get(COMPRESSION, "").lower() == "lz4":
        raise PipelineError(f"{COMPRESSION} = lz4 breaks sinks in Python: leave it out, or take zstd")
