"""State machines of a client's stream: what it has sent so far, and what that allows next; no I/O."""
