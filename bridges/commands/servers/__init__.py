"""Commands that run a server, or prepare its data."""
