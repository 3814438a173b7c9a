"""Anabranch backend: Streaming Batch Protocol codec, client, range server and placement driver."""
