"""StreamRead and CommitOffset: sessions, balancing of partitions, commits."""
