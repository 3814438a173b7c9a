"""Partition logs: append, read, wait and trim; what they derive from what is stored; who opens and keeps them."""
