"""The data pipeline: Spark source and sink, migration, archive, replay, audit (docs/spark.md)."""
