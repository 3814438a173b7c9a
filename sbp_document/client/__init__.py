"""Clients of servers that speak sbp-v0.1."""
