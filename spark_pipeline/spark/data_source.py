"""``format("anabranch")``: the class that PySpark makes readers and writers of."""

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
    """Options: :class:`spark_pipeline.spark.source_options.SourceOptions`, and of the sink
    :class:`spark_pipeline.spark.sink.SinkSettings`."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` is given."""
        return "anabranch"

    def schema(self) -> StructType:
        """All columns, unless the user gives a schema with some of them."""
        from pyspark.sql.pandas.types import from_arrow_schema

        # A stream's options are a batch's and more; what is wrong with them is told by the reader.
        options = {name.lower(): value for name, value in self.options.items()}
        wanted = {name: options.get(name, "").lower() == "true" for name in ("includeheaders", "includemetadata")}
        columns = Columns.of(headers=wanted["includeheaders"], metadata=wanted["includemetadata"])
        return from_arrow_schema(columns.schema)

    # PySpark calls these by keyword: the parameters must have these names.

    def reader(self, schema: StructType) -> Any:
        """Of a batch query."""
        return BatchReader(SourceOptions.of(self.options, streaming=False), columns_of(schema))

    def streamReader(self, schema: StructType) -> Any:
        """Of a streaming query."""
        return StreamReader(SourceOptions.of(self.options, streaming=True), columns_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Of a write that is no stream."""
        return AnabranchBatchWriter(settings_of(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """Of a streaming query."""
        return AnabranchStreamWriter(settings_of(self.options, schema, overwrite))
