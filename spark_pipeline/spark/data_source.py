"""``format("anabranch")``: the class from which PySpark makes readers and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from spark_pipeline.core.rows import Columns
from spark_pipeline.spark.sink import AnabranchBatchWriter, AnabranchStreamWriter, settings_of
from spark_pipeline.spark.source import BatchReader, StreamReader, columns_of
from spark_pipeline.spark.source_options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class AnabranchDataSource(DataSource):
    """The data source. Options: :class:`spark_pipeline.spark.source_options.SourceOptions`, and for the sink
    :class:`spark_pipeline.spark.sink.SinkSettings`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "anabranch"

    def schema(self) -> StructType:
        """Return all columns; the user may give a schema with some of them instead."""
        from pyspark.sql.pandas.types import from_arrow_schema

        # The reader checks the options: here it is not known whether they are a stream's or a batch's.
        options = {name.lower(): value for name, value in self.options.items()}
        wanted = {name: options.get(name, "").lower() == "true" for name in ("includeheaders", "includemetadata")}
        columns = Columns.select(headers=wanted["includeheaders"], metadata=wanted["includemetadata"])
        return from_arrow_schema(columns.schema)

    # PySpark calls these by keyword: the parameters must have these names.

    def reader(self, schema: StructType) -> Any:
        """Return the reader of a batch query."""
        return BatchReader(SourceOptions.parse(self.options, streaming=False), columns_of(schema))

    def streamReader(self, schema: StructType) -> Any:
        """Return the reader of a streaming query."""
        return StreamReader(SourceOptions.parse(self.options, streaming=True), columns_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Return the writer of a non-streaming write."""
        return AnabranchBatchWriter(settings_of(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """Return the writer of a streaming query."""
        return AnabranchStreamWriter(settings_of(self.options, schema, overwrite))
