"""Reads of the PyPI wheel ``pravega`` 0.3.8 that cannot stand still."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pravega_client import StreamReader


async def next_slice(reader: StreamReader) -> list[bytes]:
    """Return the next events of one segment, which the reader then has back."""
    part = await reader.get_segment_slice_async()
    # A thread of the wheel that has woken this loop by writing to its socket still has to get the interpreter's lock
    # back. release_segment and reader_offline wait without releasing that lock, maybe for an answer that this very
    # thread would process: both stand still until the wheel gives the request up after 30 s. So let the thread go on.
    time.sleep(0.001)
    found = [bytes(event.data()) for event in part]
    reader.release_segment(part)
    return found


async def read_events(reader: StreamReader, count: int) -> list[bytes]:
    """Return the next events, ``count`` of them at least."""
    found: list[bytes] = []
    while len(found) < count:
        found += await next_slice(reader)
    return found
