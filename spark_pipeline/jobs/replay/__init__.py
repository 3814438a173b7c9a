"""The replay job: records of an archive back into topics."""
