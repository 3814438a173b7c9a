"""Produce requests and the checks of their batches."""
