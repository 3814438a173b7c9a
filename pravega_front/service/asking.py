"""Operations of the controller on segments of any owner: query their positions, and truncate them.

Segments of this node are handled here; for others the owner is asked, with many segments in one message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from anabranch_kit.run.turns import in_turns
from bridges.cluster.at_owner import at_owner, patiently, share_out
from pravega_front.service.owners import PATIENCE_S
from pravega_front.service.segment import Truncated
from pravega_front.service.segments import SegmentMissing

if TYPE_CHECKING:
    from bridges.node.front import NodeServices
    from pravega_front.service.segment import Segment
    from pravega_front.service.segments import Segments

_LOOK, _TRUNCATE = "pravega look at segments", "pravega truncate a segment"
_SEGMENTS_PER_MESSAGE = 500
"""Most segments in one message."""
_ANSWER_S = 30.0
"""Timeout of an answer: the owner may have to open segments, and count the bytes of other protocols' records."""


class Known(Struct, frozen=True):
    """Positions of a segment: its start, the first event of the requested time, and its end; ``ended`` if the end is
    final. ``missing``: the segment does not exist."""

    start: int = 0
    at: int = 0
    length: int = 0
    ended: bool = False
    missing: bool = False


class _Look(Struct):
    names: list[str]
    timestamp: int


class Found(Struct):
    found: list[Known]


class _Cut(Struct):
    """Request to truncate a segment at ``position``; None for its end."""

    name: str
    position: int | None


class Done(Struct):
    """Answer to a :class:`_Cut`. ``start``: the segment's start, if the position was refused."""

    start: int | None = None
    missing: bool = False


class SegmentsAnywhere:
    """Segments of all nodes. All methods raise SegmentMissing and LogError."""

    def __init__(self, node: NodeServices, segments: Segments) -> None:
        self._segments = segments
        self._slot = segments.slot_of_name
        self._owners = node.owners
        self._peers = node.peers
        node.peers.serve(_LOOK, _Look, self._answer_look)
        node.peers.serve(_TRUNCATE, _Cut, self._answer_truncate)

    async def look_up(self, names: Sequence[str], timestamp: int = 0) -> Mapping[str, Known]:
        """Return the positions of segments by name. ``timestamp``: in ms, 0 for the start."""
        found: dict[str, Known] = {}

        async def look_at_rest() -> None:
            left = [name for name in names if name not in found]
            # Of segments without a slot this node knows that they do not exist.
            gone = [name for name in left if self._slot(name) < 0]
            here, elsewhere = share_out(self._owners, [name for name in left if self._slot(name) >= 0], self._slot)
            found.update(zip([*gone, *here], await self._own([*gone, *here], timestamp), strict=True))
            for owner, some in elsewhere:
                for first in range(0, len(some), _SEGMENTS_PER_MESSAGE):
                    part = some[first : first + _SEGMENTS_PER_MESSAGE]
                    answer = await self._peers.ask(owner, _LOOK, _Look(part, timestamp), Found, _ANSWER_S)
                    found.update(zip(part, answer.found, strict=True))

        await patiently(look_at_rest, PATIENCE_S)
        for name, one in found.items():
            if one.missing:
                raise SegmentMissing(f"there is no segment {name!r}")
        return found

    async def truncate(self, name: str, position: int | None = None) -> None:
        """Truncate a segment at ``position``, or at its end; does nothing if it starts later already. Raises Truncated
        for a position beyond the end."""
        if self._slot(name) < 0:
            raise SegmentMissing(f"there is no segment {name!r}")
        cut = _Cut(name, position)
        done = await at_owner(
            self._owners,
            lambda: self._slot(name),
            lambda: self._answer_truncate(cut),
            lambda owner: self._peers.ask(owner, _TRUNCATE, cut, Done, _ANSWER_S),
            PATIENCE_S,
        )
        if done.missing:
            raise SegmentMissing(f"there is no segment {name!r}")
        if done.start is not None:
            raise Truncated(done.start)

    async def _own(self, names: Sequence[str], timestamp: int) -> list[Known]:
        found: list[Known] = []
        async for name in in_turns(names):
            segment = await self._segments.here(name)
            found.append(Known(missing=True) if segment is None else await _describe(segment, timestamp))
        return found

    async def _answer_look(self, request: _Look) -> Found:
        return Found(await self._own(request.names, request.timestamp))

    async def _answer_truncate(self, request: _Cut) -> Done:
        segment = await self._segments.here(request.name)
        if segment is None:
            return Done(missing=True)
        try:
            position = await segment.length() if request.position is None else request.position
            if position > await segment.start():
                await segment.truncate(position)
        except Truncated as error:
            return Done(error.start)
        return Done()


async def _describe(segment: Segment, timestamp: int) -> Known:
    at = await segment.start_at(timestamp)
    start = at if timestamp <= 0 else await segment.start()
    ended = segment.ended  # read before the length: if it is set, the length is final
    return Known(start, at, await segment.length(), ended)
