"""Handlers of requests, in terms of the shared log: one module per group of APIs, each with ``register``."""
