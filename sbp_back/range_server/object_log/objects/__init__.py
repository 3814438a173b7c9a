"""The objects of a log: the bucket, the cache on the local disk, and what the objects hold."""
