"""Decoders of stored batches, of every protocol's format, into columns of records."""
