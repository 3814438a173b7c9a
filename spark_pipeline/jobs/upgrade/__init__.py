"""The upgrade of a single node to a node of a cluster."""
