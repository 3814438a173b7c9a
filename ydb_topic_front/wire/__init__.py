"""Bytes and messages of YDB's topic service; no I/O."""
