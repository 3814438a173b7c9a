"""Memory, counted while it is held."""
