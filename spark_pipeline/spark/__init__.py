"""What imports PySpark: the source, the sink, the session."""
