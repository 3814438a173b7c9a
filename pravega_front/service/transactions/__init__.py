"""Transactions, and merges of segments: the pieces of both are appended to a segment as one."""
