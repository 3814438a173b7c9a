"""Metadata in an SQL database: one thread, closures, shared commits."""
