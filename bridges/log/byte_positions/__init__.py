"""Positions in bytes, as Pravega counts them: how they are counted, kept and searched."""
