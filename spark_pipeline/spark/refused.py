"""Spark settings that do not work with sources and sinks in Python."""

from __future__ import annotations

from collections.abc import Mapping

from spark_pipeline.core.errors import PipelineError

COMPRESSION = "spark.sql.execution.arrow.compression.codec"
"""Setting of the compression of rows on their way to Python."""


def refuse(settings: Mapping[str, str]) -> None:
    """Raise PipelineError for a setting that breaks sinks in Python."""
    if settings.get(COMPRESSION, "").lower() == "lz4":
        raise PipelineError(f"{COMPRESSION} = lz4 breaks sinks in Python: leave it out, or take zstd")
