"""What is read while retention takes it away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bridges.errors import OffsetOutOfRange
from bridges.node.assembly import Node
from sbp_back.errors import Reclaimed
from tests.bridges.log.log_lab import batch
from tests.kafka_front.node_lab import append, log_of, serving


async def test_a_read_where_a_trim_is_under_way_is_told_where_the_log_begins_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside a batch nobody could find it: the backend has the batch, and shows it from the trim on."""
    async with serving(tmp_path) as node:
        await node.catalog.create_topic("t", 1)
        await append(log_of(node, "t"), batch(10))
    async with serving(tmp_path) as node:  # which has nothing at hand
        log, logs = log_of(node, "t"), node.logs
        await log.trim(4)
        trim, trimmed, go_on = logs.trims.trim, asyncio.Event(), asyncio.Event()

        async def held(stream_id: int, offset: int) -> None:
            await trim(stream_id, offset)
            trimmed.set()
            await go_on.wait()

        monkeypatch.setattr(logs.trims, "trim", held)
        trimming = asyncio.ensure_future(log.trim(7))
        await trimmed.wait()
        while not await is_reclaimed(node, log.stream_id, 4):  # the range server hears of it a moment later
            pass
        reading = asyncio.ensure_future(log.read_batches(4, 1))
        done, _ = await asyncio.wait({reading}, timeout=0.2)
        assert not done, "nothing is told before it is known where the log begins"
        go_on.set()
        with pytest.raises(OffsetOutOfRange):
            await reading
        assert log.log_start_offset == 7
        assert await trimming == 7


async def is_reclaimed(node: Node, stream_id: int, offset: int) -> bool:
    try:
        await node.floors.storage.client.fetch_entries(stream_id, offset, 1)
    except Reclaimed:
        return True
    return False
