"""When a read session's pump looks at a partition again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.kit.waiting import until
from ydb_topic_front.service.read.pump import Credit, ReadPump
from ydb_topic_front.session.partition_reading import PartitionReading, ReadingState


async def test_a_log_that_is_given_up_just_when_it_is_ready_is_not_waited_at() -> None:
    """Its partition is another node's now: only that node's log moves."""
    waiters: list[object] = []

    async def ready() -> None:
        given_up.is_open = False

    given_up: Any = SimpleNamespace(is_open=True, ready=ready, add_waiter=waiters.append)
    account = SimpleNamespace(close=lambda: None)
    node: Any = SimpleNamespace(budget=SimpleNamespace(account=lambda room: account))
    nothing: Any = lambda *_: None  # noqa: E731
    credit = Credit(nothing)
    pump = ReadPump(node, credit, lambda reading: given_up, nothing, nothing, nothing)
    credit.add(1)
    pump.add(PartitionReading(1, "t", "/local/t", 0, ReadingState.ACTIVE))
    assert await pump.response() is None
    assert not waiters
    await until(lambda: pump.ready)
    pump.close()
