"""Archives: tables in files (Parquet, Delta and Iceberg), on disk or in S3-compatible storage."""
