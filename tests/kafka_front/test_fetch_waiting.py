"""A Fetch that waits lets go of its partitions however the wait ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from bridges.metrics import FrontMetrics
from kafka_front.dispatch import DEFERRED
from kafka_front.service.fetch import Fetch
from kafka_front.service.fetch_sessions import FetchSessions
from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.messages import FetchRequest, FetchResponse
from tests.bridges.test_partition_log import World, batch, settle


async def test_a_partition_trimmed_past_the_position_keeps_no_waiter() -> None:
    world = World()
    log = await world.boot()
    service: Any = SimpleNamespace(
        logs=world.logs,
        catalog=None,
        fetch_sessions=FetchSessions(10),
        translator=None,
        loop=asyncio.get_running_loop(),
        fetch_max_bytes=1 << 20,
        metrics=FrontMetrics("kafka"),
    )
    answers: list[FetchResponse] = []
    connection = SimpleNamespace(on_close=lambda _: None, forget_on_close=lambda _: None)
    ctx: Any = SimpleNamespace(version=11, connection=connection, respond=answers.append)
    for _ in range(2):
        log.append(batch(), world.done)
    world.writer.acknowledge(2)
    request = FetchRequest(
        max_wait_ms=60_000,
        min_bytes=1 << 20,
        topics=[
            FetchRequest.FetchTopic(
                topic="t", partitions=[FetchRequest.FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)]
            )
        ],
    )
    assert Fetch(service).handle(ctx, request) is DEFERRED
    assert len(log._waiters) == 1
    await log.trim(1)
    await settle()
    (answer,) = answers
    assert answer.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert not log._waiters
