"""StreamWrite: sessions, producers, appends."""
