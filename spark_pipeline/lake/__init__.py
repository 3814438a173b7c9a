"""Tables in files: Parquet, Delta and Iceberg, on disk or in S3-compatible storage, and what an archive keeps there."""
