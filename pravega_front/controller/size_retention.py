"""Retention by size of streams that were scaled: what their sealed segments hold counts, and goes first.

Each active segment is trimmed by its log to its share of the policy's size, which follows the number of active segments
(:meth:`pravega_front.controller.core.Controller.scale`). Here a sealed segment is emptied, the oldest first, once
everything else that the stream holds is as much as is to be kept.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from bridges.errors import LogError
from bridges.rounds import Rounds
from pravega_front.names import segment_of

if TYPE_CHECKING:
    from bridges.catalog.topic import Topic
    from bridges.log.partition_log import PartitionLog
    from pravega_front.controller.core import Controller
    from pravega_front.service.segment import Segment

log = structlog.get_logger(__name__)

_SLICE = 100
"""Segments of a stream that are looked at in one turn of the event loop."""


class SizeRetention:
    """Empties sealed segments of the streams of a node that are kept by size; :meth:`look` is a chore."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._emptied: set[PartitionLog] = set()
        self._rounds: Rounds[Topic] = controller.node.rounds("retention by size")

    async def look(self, now_ms: int) -> None:
        """Look at all streams that are kept by size once."""
        emptied: set[PartitionLog] = set()
        # Of streams that were never scaled their logs see to it themselves.
        kept, is_kept = self._controller.streams.kept_by_size(), self._controller.node.is_kept
        streams = (one for one in kept if len(one.active) < len(one.partitions) and not is_kept(one))
        await self._rounds.each(streams, lambda topic: self._look_at(topic, emptied))
        self._emptied = emptied

    async def _look_at(self, topic: Topic, emptied: set[PartitionLog]) -> None:
        try:
            await self._empty(topic, emptied)
        except LogError as error:
            log.warning("retention by size is not applied", topic=topic.name, reason=str(error))

    async def _empty(self, topic: Topic, emptied: set[PartitionLog]) -> None:
        controller = self._controller
        limit = controller.streams.config(topic).retentionPolicy.retentionParam
        total = 0
        sealed: list[tuple[int, int, int, Segment]] = []
        for number, partition in enumerate(list(topic.partitions)):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            segment = controller.segments.find(str(segment_of(topic, partition)))
            if segment is None:
                return  # the stream is gone
            if segment.log in self._emptied:
                emptied.add(segment.log)
                continue
            size = await segment.length() - await segment.start()
            if partition.sealed_epoch is not None and segment.ended:
                if not size:
                    emptied.add(segment.log)
                    continue
                sealed.append((partition.sealed_epoch, partition.index, size, segment))
            total += size
        for _, _, size, segment in sorted(sealed, key=lambda one: one[:2]):
            if total - size < limit:
                return
            await segment.truncate(await segment.length())
            emptied.add(segment.log)
            total -= size
            log.info("a sealed segment is not kept any more", segment=segment.name, bytes=size)
