"""The state of a group at its coordinator: its members and its positions.

Only the coordinator knows the present positions. Other nodes ask it over a stream, because a group may have very many
members and positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from bridges.catalog.progress import Committed
from bridges.catalog.views.groups import GroupDirectory, GroupName, GroupView, Place, SharedPlace, occupied
from bridges.cluster.at_owner import at_owner
from bridges.errors import GroupHeld, NotOwner

if TYPE_CHECKING:
    from bridges.catalog.progress import FrontProgress, Progress
    from bridges.cluster.members import Member
    from bridges.cluster.ownership import Membership, Others
    from bridges.cluster.peers.stream import PeerStream

_STATE, _SET, _DELETE = "group", "group positions", "group delete"


class GroupState(Struct, frozen=True):
    """The state of a group: its view in each front that has it, all its positions, and the partitions whose records
    its members share."""

    views: Mapping[str, GroupView]
    positions: Mapping[Place, Committed]
    shared: Sequence[SharedPlace] = ()

    @property
    def is_known(self) -> bool:
        return bool(self.views or self.positions)

    @property
    def members(self) -> int:
        return sum(len(view.members) for view in self.views.values())


class NewPositions(Struct, array_like=True, frozen=True):
    """Positions to set in the partitions of a topic.

    A row is (partition, expected offset before, new offset); None expects that there is no position.
    """

    space: str
    group: str
    topic: str
    rows: Sequence[tuple[int, int | None, int]]
    now_ms: int


class Refusal(Struct, array_like=True):
    """The reason why nothing was changed; empty if it was."""

    reason: str


class _Asked(Struct, array_like=True):
    space: str
    group: str


class _Told(Struct, array_like=True):
    views: dict[str, GroupView]
    positions: list[tuple[str, int, Committed]]
    shared: Sequence[SharedPlace] = ()


class GroupStates:
    """Access to the groups of all nodes: asks their coordinators, and answers for the groups of this node."""

    def __init__(
        self,
        progress: Progress,
        directories: Callable[[], Mapping[str, GroupDirectory]],
        owners: Membership,
        peers: Others,
    ) -> None:
        """``directories`` returns the groups of each front that has groups."""
        self._progress = progress
        self._directories = directories
        self._owners = owners
        self._peers = peers
        peers.serve_stream(_STATE, _Asked, self._tell)
        peers.serve(_SET, NewPositions, self._set_here)
        peers.serve(_DELETE, _Asked, self._delete_here)

    def is_here(self, name: GroupName) -> bool:
        """Return whether this node coordinates a group. Positions of other groups may be long out of date here."""
        return self._owners.is_mine(self._owners.slot_of_key(*name))

    @property
    def all_are_here(self) -> bool:
        """Return whether this node coordinates all groups."""
        return len(self._owners.nodes) < 2

    async def find(self, name: GroupName) -> GroupState:
        """Return the state of a group from its coordinator. Raises NotOwner, PeerUnreachable."""

        async def here() -> GroupState:
            return await self._whole(name)

        return await at_owner(self._owners, partial(self._owners.slot_of_key, *name), here, partial(self._ask, name))

    async def _ask(self, name: GroupName, owner: Member) -> GroupState:
        stream = await self._peers.stream(owner, _STATE, _Asked(*name))
        try:
            told = await stream.receive(_Told)
            if told is None:
                raise NotOwner(f"group {name[1]!r}", -1)  # the group has just moved to another coordinator
        finally:
            self._peers.close_stream(owner, stream)
        positions = {(topic, partition): one for topic, partition, one in told.positions}
        return GroupState(told.views, positions, told.shared)

    def sharing(self) -> Iterator[GroupName]:
        """Return the groups of this node whose members share the records of partitions."""
        return ((directory.space, group) for directory in self._directories().values() for group in directory.sharing())

    def is_sharing(self, name: GroupName) -> bool:
        space, group = name
        return any(one.space == space and group in one.sharing() for one in self._directories().values())

    async def shared(self, name: GroupName) -> list[SharedPlace]:
        """Return the partitions of a group of this node whose members share records. Raises LogError."""
        of_space = [one for one in self._directories().values() if one.space == name[0]]
        return [place for one in of_space if name[1] in one.sharing() for place in await one.shared(name[1])]

    async def set_positions(self, wanted: NewPositions) -> Refusal:
        """Set positions of a group without members, all or none. Raises NotOwner, PeerUnreachable, LogError."""
        return await at_owner(
            self._owners,
            partial(self._owners.slot_of_key, wanted.space, wanted.group),
            lambda: self._set_here(wanted),
            lambda owner: self._peers.ask(owner, _SET, wanted, Refusal),
        )

    async def delete(self, name: GroupName) -> Refusal:
        """Delete a group without members: its positions, and what each front keeps of it. Raises NotOwner,
        PeerUnreachable, LogError."""
        return await at_owner(
            self._owners,
            partial(self._owners.slot_of_key, *name),
            lambda: self._delete_here(_Asked(*name)),
            lambda owner: self._peers.ask(owner, _DELETE, _Asked(*name), Refusal),
        )

    # --- at the coordinator -----------------------------------------------------------------------------------------

    def _here(self, name: GroupName) -> GroupState:
        return GroupState(self._progress.views(name), self._progress.of_group(name))

    async def _whole(self, name: GroupName) -> GroupState:
        shared = await self.shared(name)
        state = self._here(name)
        return GroupState(state.views, state.positions, shared)

    async def _tell(self, asked: _Asked, stream: PeerStream) -> None:
        if not self.is_here((asked.space, asked.group)):
            await stream.done_writing()
            return
        state = await self._whole((asked.space, asked.group))
        told = _Told(dict(state.views), [(*place, one) for place, one in state.positions.items()], state.shared)
        await stream.write(msgspec.msgpack.encode(told))

    async def _set_here(self, wanted: NewPositions) -> Refusal:
        name = (wanted.space, wanted.group)
        state = self._here(name)
        if state.members:
            return Refusal(f"{occupied(wanted.group, state.views)}: positions are set while nobody reads")
        if self.is_sharing(name):
            return Refusal(
                f"group {wanted.group!r} is a share group, which has no positions: kafka-share-groups sets its start "
                "offsets"
            )
        progress = self._of_space(wanted.space, state)
        expected = {(wanted.topic, partition): before for partition, before, _ in wanted.rows}
        positions = [
            (wanted.topic, partition, Committed(target, commit_ms=wanted.now_ms))
            for partition, _, target in wanted.rows
        ]
        before = (state.positions.get((topic, partition)) for topic, partition, _ in positions)
        if all(one is not None and one.commit_ms == wanted.now_ms for one in before):
            return Refusal("")  # the answer to the first of these requests was lost
        if await progress.commit_if(wanted.group, expected, positions):
            return Refusal(f"group {wanted.group!r} has committed positions meanwhile: nothing was changed")
        return Refusal("")

    async def _delete_here(self, asked: _Asked) -> Refusal:
        name = (asked.space, asked.group)
        state = self._here(name)
        if state.members:
            return Refusal(f"{occupied(asked.group, state.views)}: stop them first")
        of_space = [one for one in self._directories().values() if one.space == asked.space]
        if not all(one.knows(asked.group) for one in of_space):
            raise NotOwner(f"group {asked.group!r}", -1)  # it has just come to this node
        try:
            for directory in of_space:
                await directory.forget(asked.group)
            if (now := self._here(name)).members:  # who joined since may have committed
                return Refusal(f"{occupied(asked.group, now.views)}: stop them first")
            await self._of_space(asked.space, state).delete(asked.group)
        except GroupHeld as held:
            return Refusal(str(held))
        return Refusal("")

    def _of_space(self, space: str, state: GroupState) -> FrontProgress:
        progress = self._progress.front(self._front(space, state), space)
        progress.holding = lambda one: self._owners.holding(self._owners.slot_of_key(space, one))
        return progress

    def _front(self, space: str, state: GroupState) -> str:
        """Return the front to which a new position belongs: one that has committed for the group, or has groups of its
        space.
        """
        for committed in state.positions.values():
            if committed.front:
                return committed.front
        fronts = [one for one, directory in self._directories().items() if directory.space == space]
        return next(iter(state.views), fronts[0] if fronts else "")
