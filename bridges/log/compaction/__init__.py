"""Compaction: one pass over a partition, and the chore that runs passes."""
