"""Retention by size of streams, without a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

from bridges.cluster.alone import Alone, NoPeers
from pravega_front.controller.size_retention import SizeRetention
from pravega_front.service.owners import Owners


async def test_a_stream_that_was_only_just_brought_is_left_alone() -> None:
    young, old, never_scaled = (
        SimpleNamespace(name=name, active=[1], partitions=[0] * partitions)
        for name, partitions in (("young", 2), ("old", 2), ("never scaled", 1))
    )
    looked_at: list[Any] = []

    class Rounds:
        async def each(self, items: Iterable[Any], work: Callable[[Any], object]) -> None:
            looked_at.extend(items)

    node = SimpleNamespace(rounds=lambda what: Rounds(), is_kept=lambda topic: topic is young)
    streams = SimpleNamespace(kept_by_size=lambda: [young, old, never_scaled])
    segments = SimpleNamespace(owners=Owners(Alone(1, AsyncMock()), 1, NoPeers()))
    controller: Any = SimpleNamespace(node=node, streams=streams, segments=segments)
    await SizeRetention(controller).check_all(0)
    assert looked_at == [old]
