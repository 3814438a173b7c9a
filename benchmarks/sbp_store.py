"""A store of the SBP backend filled with entries, for the parts of the benchmark that look at the store alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial

from anabranch_kit.errors import StoreError
from sbp_back.range_server.store import Store
from sbp_back.wire.entry import pack_entry
from sbp_back.wire.model import Entry

STREAMS = 8
STEP = 64
"""Entries of one append."""
IN_FLIGHT = 64
"""Appends on their way at any time."""


async def fill(store: Store, batches: int | None, size: int, stored: Callable[[int], None] | None = None) -> None:
    """``batches`` entries (None: until the process ends) with a payload of ``size`` bytes, in eight streams that are
    made first. ``stored`` gets the number of entries of each append once they are acknowledged. Raises ``StoreError``.
    """
    for stream in range(STREAMS):
        await _stored(partial(store.create_range, stream, 0, 0, 0))
    payload = os.urandom(size)
    room = asyncio.Semaphore(IN_FLIGHT)
    failures: list[StoreError] = []

    def done(count: int, error: StoreError | None) -> None:
        room.release()
        if error is not None:
            failures.append(error)
        elif stored is not None:
            stored(count)

    each = None if batches is None else batches // STREAMS
    first = 0
    while not failures and (each is None or first < each):
        last = first + STEP if each is None else min(first + STEP, each)
        for stream in range(STREAMS):
            await room.acquire()
            entries: list[Entry] = [pack_entry(stream, 0, 0, base, 1, 1, payload) for base in range(first, last)]
            store.append(entries, partial(done, len(entries)))
        first = last
    for _ in range(IN_FLIGHT):
        await room.acquire()
    if failures:
        raise failures[0]


async def _stored(work: Callable[[Callable[[StoreError | None], None]], None]) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: StoreError | None) -> None:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    work(done)
    await future
