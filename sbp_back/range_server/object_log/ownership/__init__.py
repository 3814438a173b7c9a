"""The right to write a log of objects: claims, takeover, the chain of indexes, and the logs of one bucket."""
