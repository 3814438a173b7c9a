"""Logs of deleted topics go at once, and not when the collector finds them."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

from anabranch_kit.run.awaited import awaited
from bridges.node.assembly import Node
from bridges.node.settings.config import load
from tests.bridges.log.log_lab import batch
from tests.kit.waiting import until
from tests.left_behind import left_behind

NUMBERS = itertools.count(1)


async def test_the_log_of_a_deleted_topic_leaves_nothing_to_the_collector(tmp_path: Path) -> None:
    off = {f"listen.{name}": "off" for name in ("console", "sbp-pd", "sbp-range-server")}
    node = Node(load({"data_dir": str(tmp_path), **off}, environ={}, directory=tmp_path).settings, fronts=[])
    await node.start()

    async def deleted() -> None:
        name = f"topic-{next(NUMBERS)}"
        await node.catalog.create_topic(name, 1)
        log = node.logs.get(name, 0)
        assert log is not None
        await log.ready()
        await awaited(lambda settle: log.append(batch(3, sequence=0), settle))
        assert await log.read_batches(0, 1000)
        await log.byte_end()
        waiting = asyncio.ensure_future(log.until(lambda: log.high_watermark > 3))
        await node.catalog.delete_topic(name)
        await asyncio.wait({waiting})
        assert waiting.exception() is not None

    async def over() -> None:
        await until(lambda: not list(node.logs))

    try:
        assert await left_behind({"deleted": deleted}, over) == {}
    finally:
        await node.stop()
