"""One connection to the segment store: its commands, the writers that are set up on it, and its reads."""
