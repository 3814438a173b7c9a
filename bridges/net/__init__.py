"""Listeners, connections, quotas and gRPC servers that the fronts of every protocol share."""
