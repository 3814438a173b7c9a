"""Opening a log: recovery of its state from checkpoint, index files and groups."""
