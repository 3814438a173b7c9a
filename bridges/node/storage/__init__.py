"""The places where a node keeps its state: data directory, database, and backend."""
