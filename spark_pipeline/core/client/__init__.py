"""Clients of a node's pipeline listener: topics and positions, sinks, reports of jobs."""
