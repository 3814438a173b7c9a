"""Requests between the nodes of a cluster, and the streams that carry them."""
