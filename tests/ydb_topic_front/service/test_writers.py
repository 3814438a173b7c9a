"""Sessions of one producer that come one after another: no I/O."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from ydb_topic_front.service.write.writers import Writers
from ydb_topic_front.wire.statuses import Status, YdbError


class _Writer:
    def __init__(self) -> None:
        self.error: YdbError | None = None
        self.fate = asyncio.Event()

    def end(self, error: YdbError) -> None:
        self.error = error

    async def await_decided(self) -> None:
        await self.fate.wait()


async def test_the_latest_waits_for_all_that_came_before_it() -> None:
    """The second had nothing of its own in flight when the third came, but the first still had."""
    catalog: Any = SimpleNamespace(on_change=[])
    topic: Any = SimpleNamespace(topic_id=uuid4())
    writers = Writers(catalog)
    first, second, third = _Writer(), _Writer(), _Writer()
    second.fate.set()
    key = (topic.topic_id, 0, b"p")
    for writer in (first, second, third):
        writers.enter(topic, writer)
    await writers.own(key, first)
    waiting = asyncio.create_task(writers.own(key, second))
    await asyncio.sleep(0)
    last = asyncio.create_task(writers.own(key, third))
    await asyncio.sleep(0)
    assert first.error is not None
    assert second.error is not None
    assert second.error.status == Status.SESSION_EXPIRED
    waiting.cancel()  # its stream has ended by now
    await asyncio.gather(waiting, return_exceptions=True)
    writers.leave(topic, key, second)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not last.done(), "what the first had in flight is not decided"
    first.fate.set()
    await last
    for writer in (first, third):
        writers.leave(topic, key, writer)
    assert not writers.open
    assert third.error is None
