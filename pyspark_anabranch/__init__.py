"""The package that PySpark finds by its name, so that an installed ``format("anabranch")`` needs no registration."""

from __future__ import annotations

from spark_pipeline.spark.data_source import AnabranchDataSource as DefaultSource

__all__ = ["DefaultSource"]
