"""What one stream of a client has said so far, and what that allows next; no I/O."""
