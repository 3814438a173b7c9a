"""One connection to the segment store: its commands, its writers, and its reads."""
