"""Messages of sbp-v0.1 and its record batches, without I/O."""
