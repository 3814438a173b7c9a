"""Bytes of the segment store's protocol <-> commands; no I/O."""
