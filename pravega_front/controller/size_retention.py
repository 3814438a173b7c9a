"""Retention by size for streams that were scaled: sealed segments count towards the size, and are emptied first.

Each active segment's log trims itself to the segment's share of the policy's size, which depends on the number of
active segments (:meth:`pravega_front.controller.core.Controller.scale`). This chore empties a sealed segment, the
oldest first, once the rest of the stream has the size to keep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from anabranch_kit.run.rounds import Rounds
from bridges.errors import LogError
from pravega_front.names import segment_of

if TYPE_CHECKING:
    from bridges.catalog.topics.topic import Topic
    from pravega_front.controller.core import Controller

log = structlog.get_logger(__name__)


class SizeRetention:
    """Empties sealed segments of the streams with retention by size; :meth:`check_all` is a chore."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._emptied: set[int] = set()
        self._rounds: Rounds[Topic] = controller.node.rounds("retention by size")

    async def check_all(self, now_ms: int) -> None:
        """Check all streams with retention by size once."""
        emptied: set[int] = set()
        # Streams that were never scaled need no help: their logs trim themselves.
        kept, is_kept = self._controller.streams.kept_by_size(), self._controller.node.is_kept
        is_mine = self._controller.segments.owners.is_mine  # the owner of the first segment checks a stream
        scaled = (one for one in kept if len(one.active) < len(one.partitions) and is_mine(one.name, 0))
        streams = (one for one in scaled if not is_kept(one))
        await self._rounds.each(streams, lambda topic: self._check(topic, emptied))
        self._emptied = emptied

    async def _check(self, topic: Topic, emptied: set[int]) -> None:
        try:
            await self._empty(topic, emptied)
        except LogError as error:
            log.warning("retention by size is not applied", topic=topic.name, reason=str(error))

    async def _empty(self, topic: Topic, emptied: set[int]) -> None:
        controller = self._controller
        limit = controller.streams.config(topic).retentionPolicy.retentionParam
        there = [one for one in topic.partitions if one.stream_id not in self._emptied]
        emptied.update(one.stream_id for one in topic.partitions if one.stream_id in self._emptied)
        names = [str(segment_of(topic, one)) for one in there]
        known = await controller.anywhere.look_up(names)
        total = 0
        sealed: list[tuple[int, int, int, str, int]] = []
        for partition, name in zip(there, names, strict=True):
            one = known[name]
            size = one.length - one.start
            if partition.sealed_epoch is not None and one.ended:
                if not size:
                    emptied.add(partition.stream_id)
                    continue
                sealed.append((partition.sealed_epoch, partition.index, size, name, partition.stream_id))
            total += size
        for _, _, size, name, stream_id in sorted(sealed):
            if total - size < limit:
                return
            await controller.anywhere.truncate(name)
            emptied.add(stream_id)
            total -= size
            log.info("retention by size deleted a sealed segment", segment=name, bytes=size)
