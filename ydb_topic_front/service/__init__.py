"""Handlers of YDB's calls and streams: topics, logs and positions behind the protocol's messages."""
