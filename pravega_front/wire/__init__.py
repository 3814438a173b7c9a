"""Encoding of the segment store's protocol: bytes <-> commands; no I/O."""
