"""Metadata in an SQL database, for whoever keeps some: one thread, closures, commits that many share."""
