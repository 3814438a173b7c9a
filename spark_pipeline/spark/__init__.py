"""The part that imports PySpark: the source, the sink, the session."""
