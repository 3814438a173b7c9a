"""What is known of a group where it is coordinated: its members, and its positions, which only that node knows as they
are. Other nodes ask it, by a stream, for there may be very many of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from anabranch_kit.memory.budget import Kind
from bridges.catalog.group_view import GroupDirectory, GroupName, GroupView, Place
from bridges.catalog.progress import Committed
from bridges.cluster.ownership import owner_of
from bridges.errors import NotOwner

if TYPE_CHECKING:
    from bridges.catalog.progress import Progress
    from bridges.cluster.members import Member
    from bridges.cluster.ownership import Others, Ownership
    from bridges.cluster.peer_stream import PeerStream

_STATE, _SET = "group", "group positions"


class GroupState(Struct, frozen=True):
    """A group: what each front in which it lives says of it, and all its positions."""

    views: Mapping[str, GroupView]
    positions: Mapping[Place, Committed]

    @property
    def is_known(self) -> bool:
        """Whether there is such a group."""
        return bool(self.views or self.positions)

    @property
    def members(self) -> int:
        return sum(len(view.members) for view in self.views.values())


class NewPositions(Struct, array_like=True, frozen=True):
    """Positions in the partitions of a topic to set: (partition, the offset that is to be there before, None where
    there is to be none, the new one)."""

    space: str
    group: str
    topic: str
    rows: Sequence[tuple[int, int | None, int]]
    now_ms: int


class Refusal(Struct, array_like=True):
    """Why nothing was changed; empty where it was."""

    reason: str


class _Asked(Struct, array_like=True):
    space: str
    group: str


class _Told(Struct, array_like=True):
    views: dict[str, GroupView]
    positions: list[tuple[str, int, Committed]]


class Groups(Protocol):
    """What is used of a node."""

    @property
    def node_id(self) -> int: ...
    @property
    def progress(self) -> Progress: ...
    @property
    def group_directories(self) -> Mapping[str, GroupDirectory]: ...


class GroupStates:
    """The groups of all nodes, at one of them: it asks the others, and answers them."""

    def __init__(self, node: Groups, owners: Ownership, peers: Others) -> None:
        self._node = node
        self._owners = owners
        self._peers = peers
        peers.serve_stream(_STATE, _Asked, self._tell)
        peers.serve(_SET, NewPositions, self._set_here)

    def is_here(self, name: GroupName) -> bool:
        """Whether this node coordinates a group: what it knows of the positions of others may be long past."""
        return self._owners.is_mine(self._owners.slot_of_key(*name))

    def told(self) -> dict[str, object]:
        """Return what a list of groups says where it is one node's: ``coordinator``, that node, among several."""
        return {} if len(self._owners.nodes) < 2 else {"coordinator": self._node.node_id}

    async def _owner(self, name: GroupName) -> Member | None:
        return await owner_of(self._owners, self._node.node_id, partial(self._owners.slot_of_key, *name))

    async def find(self, name: GroupName) -> GroupState:
        """Return what the coordinator of a group knows of it. Raises NotOwner, PeerUnreachable."""
        owner = await self._owner(name)
        if owner is None:
            return self._here(name)
        stream = await self._peers.stream(owner, _STATE, _Asked(*name))
        try:
            raw = await stream.read()
            if raw is None:
                raise NotOwner(f"group {name[1]!r}", -1)  # it has moved a moment ago
            told = msgspec.msgpack.decode(raw, type=_Told)
            stream.account.give(Kind.REQUESTS, len(raw))
        finally:
            self._peers.left_stream(owner, stream)
        return GroupState(told.views, {(topic, partition): one for topic, partition, one in told.positions})

    async def set_positions(self, wanted: NewPositions) -> Refusal:
        """Set positions of a group that has no members, all or none. Raises NotOwner, PeerUnreachable, LogError."""
        owner = await self._owner((wanted.space, wanted.group))
        if owner is None:
            return await self._set_here(wanted)
        return await self._peers.ask(owner, _SET, wanted, Refusal)

    # --- at the coordinator -----------------------------------------------------------------------------------------

    def _here(self, name: GroupName) -> GroupState:
        progress = self._node.progress
        return GroupState(progress.views(name), progress.of_group(name))

    async def _tell(self, asked: _Asked, stream: PeerStream) -> None:
        if not self.is_here((asked.space, asked.group)):
            await stream.done_writing()
            return
        state = self._here((asked.space, asked.group))
        told = _Told(dict(state.views), [(*place, one) for place, one in state.positions.items()])
        await stream.write(msgspec.msgpack.encode(told))

    async def _set_here(self, wanted: NewPositions) -> Refusal:
        node, name = self._node, (wanted.space, wanted.group)
        state = self._here(name)
        if state.members:
            return Refusal(occupied(wanted.group, state.members))
        progress = node.progress.front(self._front(wanted.space, state), wanted.space)
        progress.holding = lambda one: self._owners.holding(self._owners.slot_of_key(wanted.space, one))
        expected = {(wanted.topic, partition): before for partition, before, _ in wanted.rows}
        positions = [
            (wanted.topic, partition, Committed(target, commit_ms=wanted.now_ms))
            for partition, _, target in wanted.rows
        ]
        if await progress.commit_if(wanted.group, expected, positions):
            return Refusal(f"group {wanted.group!r} has committed positions meanwhile: nothing was changed")
        return Refusal("")

    def _front(self, space: str, state: GroupState) -> str:
        """Return whose a position is that nobody of the group's own committed: a front's that has the group, or such
        groups."""
        for committed in state.positions.values():
            if committed.front:
                return committed.front
        fronts = [one for one, directory in self._node.group_directories.items() if directory.space == space]
        return next(iter(state.views), fronts[0] if fronts else "")


def occupied(group: str, members: int) -> str:
    """Return why positions of a group that has members are not set."""
    told = "a member" if members == 1 else f"{members} members"
    return f"group {group!r} has {told}: positions are set while nobody reads"
