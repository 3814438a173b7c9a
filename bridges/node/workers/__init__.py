"""Nodes that are several processes: the settings and resources of each worker, and the metrics of all."""
