"""Exactly-once writes of sinks."""
