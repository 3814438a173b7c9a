"""The migration job: topics of another system into a node, at their offsets."""
