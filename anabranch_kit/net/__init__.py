"""Sockets, TLS and frames, without any protocol."""
