"""Ten events written, or only read, by the PyPI wheel ``pravega`` in a process of its own.

    python -m tests.pravega_front.wheel_events URI GROUP [write] [login] [tls]

The wheel takes a password, and what it trusts, from the environment alone; and its threads trip over the end of the
interpreter.
"""

from __future__ import annotations

import asyncio
import os
import sys

from pravega_client import StreamManager

from tests.kit.wheel import read_events

EVENTS = list(range(10))


def write(streams: StreamManager) -> None:
    streams.create_scope("wheel")
    streams.create_stream("wheel", "events", 1)
    writer = streams.create_writer("wheel", "events")
    for number in EVENTS:
        writer.write_event(str(number))
    writer.flush()


async def read(streams: StreamManager, group: str) -> list[int]:
    reader = streams.create_reader_group(group, "wheel", "events").create_reader("reader")
    return [int(event) for event in await read_events(reader, len(EVENTS))]


if __name__ == "__main__":
    uri, group, *words = sys.argv[1:]
    streams = StreamManager(uri, auth_enabled="login" in words, tls_enabled="tls" in words)
    if "write" in words:
        write(streams)
    assert asyncio.run(read(streams, group)) == EVENTS
    os._exit(0)
