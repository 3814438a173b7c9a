"""The recent traffic of a node: kept, sampled, and shown."""
