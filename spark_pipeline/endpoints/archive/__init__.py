"""Archives as sources of records."""
