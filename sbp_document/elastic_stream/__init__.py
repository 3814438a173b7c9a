"""Client of servers of elastic-stream, and the repair of what they forget."""
