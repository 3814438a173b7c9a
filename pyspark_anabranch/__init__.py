"""Found by PySpark through its name: `format("anabranch")` needs no registration where this is installed."""

from __future__ import annotations

from spark_pipeline.spark.data_source import AnabranchDataSource as DefaultSource

__all__ = ["DefaultSource"]
