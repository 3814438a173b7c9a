"""Operations of the controller on segments of any owner: query their positions, and truncate them.

Segments of this node are handled here; for others the owner is asked, with many segments in one message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from anabranch_kit.run.turns import in_turns
from bridges.errors import NotOwner, PeerUnreachable
from pravega_front.service.owners import PATIENCE_S
from pravega_front.service.segment import Truncated
from pravega_front.service.segments import SegmentMissing

if TYPE_CHECKING:
    from bridges.cluster.members import Member
    from bridges.node.front import NodeServices
    from pravega_front.service.segment import Segment
    from pravega_front.service.segments import Segments

_LOOK, _TRUNCATE = "pravega look at segments", "pravega truncate a segment"
_AT_ONCE = 500
"""Most segments in one message."""
_AGAIN_S = 0.1
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


class _Found(Struct):
    found: list[Known]


class _Cut(Struct):
    """Request to truncate a segment at ``position``; None for its end."""

    name: str
    position: int | None


class _Done(Struct):
    """Answer to a :class:`_Cut`. ``start``: the segment's start, if the position was refused."""

    start: int | None = None
    missing: bool = False


class SegmentsAnywhere:
    """Segments of all nodes. All methods raise SegmentMissing and LogError."""

    def __init__(self, node: NodeServices, segments: Segments) -> None:
        self._segments = segments
        self._owners = segments.owners
        self._peers = node.peers
        node.peers.serve(_LOOK, _Look, self._answer_look)
        node.peers.serve(_TRUNCATE, _Cut, self._answer_truncate)

    async def look_up(self, names: Sequence[str], timestamp: int = 0) -> Mapping[str, Known]:
        """Return the positions of segments by name. ``timestamp``: in ms, 0 for the start."""
        found: dict[str, Known] = {}
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE_S
        while left := [name for name in names if name not in found]:
            try:
                for owner, some in await self._by_owner(left):
                    for first in range(0, len(some), _AT_ONCE):
                        part = some[first : first + _AT_ONCE]
                        found.update(zip(part, await self._look_at(owner, part, timestamp), strict=True))
            except (NotOwner, PeerUnreachable):
                if loop.time() > end:
                    raise
                await asyncio.sleep(_AGAIN_S)  # a segment has another owner by now, or soon will
        for name, one in found.items():
            if one.missing:
                raise SegmentMissing(f"there is no segment {name!r}")
        return found

    async def truncate(self, name: str, position: int | None = None) -> None:
        """Truncate a segment at ``position``, or at its end; does nothing if it starts later already. Raises Truncated
        for a position beyond the end."""
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE_S
        while True:
            try:
                done = await self._truncate_at(name, position)
                break
            except (NotOwner, PeerUnreachable):
                if loop.time() > end:
                    raise
                await asyncio.sleep(_AGAIN_S)  # truncation is idempotent
        if done.missing:
            raise SegmentMissing(f"there is no segment {name!r}")
        if done.start is not None:
            raise Truncated(done.start)

    async def _by_owner(self, names: Sequence[str]) -> list[tuple[Member | None, list[str]]]:
        """Group segments by owner; None for this node."""
        found: dict[int, tuple[Member | None, list[str]]] = {}
        for name in names:
            owner = await self._owner(name)
            found.setdefault(0 if owner is None else owner.start, (owner, []))[1].append(name)
        return list(found.values())

    async def _owner(self, name: str) -> Member | None:
        slot = self._segments.slot_of_name(name)
        if slot < 0:
            return None  # the segment does not exist, which this node can answer
        owner = await self._owners.settled(slot)
        if owner is None:
            raise NotOwner(name, -1)
        return None if self._owners.is_this(owner) else owner

    async def _look_at(self, owner: Member | None, names: list[str], timestamp: int) -> list[Known]:
        if owner is None:
            return await self._own(names, timestamp)
        return (await self._peers.ask(owner, _LOOK, _Look(names, timestamp), _Found, _ANSWER_S)).found

    async def _own(self, names: Sequence[str], timestamp: int) -> list[Known]:
        found: list[Known] = []
        async for name in in_turns(names):
            segment = await self._segments.here(name)
            found.append(Known(missing=True) if segment is None else await _describe(segment, timestamp))
        return found

    async def _answer_look(self, request: _Look) -> _Found:
        return _Found(await self._own(request.names, request.timestamp))

    async def _truncate_at(self, name: str, position: int | None) -> _Done:
        owner = await self._owner(name)
        if owner is None:
            return await self._answer_truncate(_Cut(name, position))
        return await self._peers.ask(owner, _TRUNCATE, _Cut(name, position), _Done, _ANSWER_S)

    async def _answer_truncate(self, request: _Cut) -> _Done:
        segment = await self._segments.here(request.name)
        if segment is None:
            return _Done(missing=True)
        try:
            position = await segment.length() if request.position is None else request.position
            if position > await segment.start():
                await segment.truncate(position)
        except Truncated as error:
            return _Done(error.start)
        return _Done()


async def _describe(segment: Segment, timestamp: int) -> Known:
    at = await segment.start_at(timestamp)
    start = at if timestamp <= 0 else await segment.start()
    ended = segment.ended  # read before the length: if it is set, the length is final
    return Known(start, at, await segment.length(), ended)
