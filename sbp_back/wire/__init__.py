"""Bytes and messages, without I/O: the frame, its tables, the model, entries, and the dialect sbp-0.2."""
