"""Transactions of topics: sessions of the query service, staged writes, and commits of writes and positions."""
