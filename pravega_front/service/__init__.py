"""Handlers of the segment store's commands, and the services behind both protocols: topics, partitions and their
logs."""
