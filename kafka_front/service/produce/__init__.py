"""Produce, and the checks of its batches."""
