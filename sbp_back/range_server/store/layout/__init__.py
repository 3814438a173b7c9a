"""Files of the log on disk: groups, segment indexes, checkpoints, the LOCK file, and scanning."""
