"""The specification document's own dialect, sbp-v0.1: its messages, record batches, server and client."""
