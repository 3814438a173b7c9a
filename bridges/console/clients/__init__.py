"""Clients over HTTP: connections, and who writes to and reads from a topic."""
