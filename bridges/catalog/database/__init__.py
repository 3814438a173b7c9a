"""The database of a node, or of a cluster: its tables, counters, and memory that follows its changes."""
