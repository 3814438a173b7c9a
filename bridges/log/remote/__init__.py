"""Partitions of other nodes: appends that are forwarded to owners, and logs as readers here see them."""
