"""The controller: handlers of its calls, based on topics, partitions and their lineage."""
