"""A process that writes at full speed and reports what was acknowledged, until it is killed."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from anabranch_kit.errors import StoreError
from sbp_back.range_server.store import StoreOptions
from tests.sbp_back.range_server.store.store_harness import Driver, make_entry, small_options

STREAMS = 5


def kill_options(path: Path, durability: str) -> StoreOptions:
    """With objects, what lies among others' is written again all the time."""
    return small_options(
        segment_bytes=1 << 18,
        maintenance_seconds=0.01,
        durability=durability,
        objects=f"file://{path.parent}/bucket",
        object_linger_seconds=0.001,
        object_range_bytes=1 << 16,
        object_mixed_bytes=1 << 19,
        object_index_seconds=0.05,
        object_grace_seconds=0.0,
    )


async def write_until_killed(path: Path, durability: str) -> None:
    options = kill_options(path, durability)
    driver = Driver(path, options)
    store = driver.store
    for stream in range(STREAMS):
        if (stream, 0) not in store.ranges:
            await driver.create(stream)

    def write(stream: int, base: int) -> None:
        entry = make_entry(stream, base, 1 + base % 3, 50 + base % 1500)

        def done(error: StoreError | None) -> None:
            if error is not None:
                os._exit(1)
            os.write(1, f"{stream} {entry.end_offset}\n".encode())
            # A slow stream among fast ones, and trims, so that evacuation and deletion are killed as well.
            if stream and entry.end_offset % 64 < 2:
                store.trim_stream(stream, max(entry.end_offset - 200, 0), lambda _error: None)

        store.append([entry], done)

    while True:
        for stream in range(STREAMS):
            if stream == 0 and os.urandom(1)[0] > 8:
                continue
            for _ in range(8):
                base = nexts.get(stream, store.ranges[stream, 0].next_offset)
                write(stream, base)
                nexts[stream] = base + 1 + base % 3
        while store.stats.pending_bytes > 100_000:
            await asyncio.sleep(0)
        await asyncio.sleep(0)


nexts: dict[int, int] = {}

if __name__ == "__main__":
    asyncio.run(write_until_killed(Path(sys.argv[1]), sys.argv[2]))
