"""Transactions of partitions: open ones, aborted ranges, and the markers that end them."""
