"""Bytes and messages, without I/O: the frame, its tables, the model, entries, the dialect sbp-0.2, and record batches
of sbp-v0.1, which are data on disk."""
