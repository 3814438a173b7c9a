"""What each request means, in terms of the shared log. One module per group of APIs, each with ``register``."""
