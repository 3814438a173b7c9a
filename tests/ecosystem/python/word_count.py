"""A Faust application: counts words in a table whose changelog is a topic, and tells each new count, exactly once."""

from __future__ import annotations

import sys
from typing import Any

import faust  # type: ignore[import-not-found]

bootstrap, directory = sys.argv.pop(1), sys.argv.pop(1)
app = faust.App(
    "faust-count",
    broker=f"kafka://{bootstrap}",
    datadir=directory,
    store="memory://",
    topic_partitions=2,
    topic_replication_factor=1,
    topic_disable_leader=True,
    processing_guarantee="exactly_once",
    broker_session_timeout=6,
    broker_heartbeat_interval=2,
    broker_commit_interval=0.5,
    web_enabled=False,
    key_serializer="raw",
    value_serializer="raw",
)
lines = app.topic("lines", value_type=bytes, value_serializer="raw", key_serializer="raw")
counted = app.topic("counts", value_type=bytes, value_serializer="raw", key_serializer="raw")
counts = app.Table("words", default=int, key_type=str, value_type=int)


async def count(stream: Any) -> None:
    """One word a line, with the word as key: what a partition counts is its own."""
    async for word in stream:
        text = word.decode()
        counts[text] += 1
        await counted.send(key=word, value=str(counts[text]).encode())


app.agent(lines)(count)

if __name__ == "__main__":
    app.main()
