"""StreamWrite: sessions, producers and appends."""
