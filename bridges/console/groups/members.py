"""Members of groups that read over HTTP: a request that stays open is a member, which has all partitions of its topics.

A group has at most one of them, and none while it has members of another protocol; these cannot join meanwhile. Records
are read as by any other client (:mod:`bridges.console.records.requests`), and positions are committed by requests that
name the member.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from anabranch_kit.run.clock import now_ms
from bridges.catalog.progress import Committed
from bridges.catalog.views.groups import CONSUMERS, GroupDirectory, GroupMemberView, GroupSummary, GroupView, occupied
from bridges.cluster.at_owner import at_owner
from bridges.console import FRONT
from bridges.console.groups.states import Refusal
from bridges.errors import GroupHeld, LogUnavailable, NotOwner, PeerUnreachable

if TYPE_CHECKING:
    from bridges.catalog.progress import Progress
    from bridges.cluster.members import Member
    from bridges.cluster.ownership import Membership, Others
    from bridges.cluster.peers.stream import PeerStream

_JOIN, _COMMIT = "group member", "group commit"


class Session(Struct, eq=False):
    """A member; ``ended`` is set when its group goes to another node."""

    group: str
    view: GroupView
    ended: asyncio.Event


class GroupReaders(GroupDirectory):
    """The groups that this node coordinates and a client reads over HTTP."""

    space = CONSUMERS

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}

    def summaries(self) -> Iterable[GroupSummary]:
        return [session.view.summary for session in self.sessions.values()]

    def knows(self, group_id: str) -> bool:
        return True

    def summary(self, group_id: str) -> GroupSummary | None:
        session = self.sessions.get(group_id)
        return None if session is None else session.view.summary

    def view(self, group_id: str) -> GroupView | None:
        session = self.sessions.get(group_id)
        return None if session is None else session.view


class Join(Struct, array_like=True, frozen=True):
    """A member that joins a group for as long as the stream lasts."""

    group: str
    member: GroupMemberView


class NewCommit(Struct, array_like=True, frozen=True):
    """Positions that a member commits: topic, partition, offset. With ``leave`` it leaves the group then."""

    group: str
    member_id: str
    positions: Sequence[tuple[str, int, int]]
    leave: bool


class GroupMembers:
    """Has clients of this node join groups, wherever their coordinators are, and those of other nodes join here."""

    def __init__(self, readers: GroupReaders, progress: Progress, owners: Membership, peers: Others) -> None:
        self._sessions = readers.sessions
        self._progress = progress.front(FRONT)
        self._progress.holding = lambda group: owners.holding(self._slot(group))
        self._owners = owners
        self._peers = peers
        peers.serve_stream(_JOIN, Join, self._serve)
        peers.serve(_COMMIT, NewCommit, self._commit_here)
        owners.on_lost.append(self._lost)

    def _slot(self, group: str) -> int:
        return self._owners.slot_of_key(CONSUMERS, group)

    @asynccontextmanager
    async def joined(self, join: Join) -> AsyncIterator[asyncio.Event]:
        """Join a group while the context lasts; the event is set if the membership ends before. Raises GroupHeld,
        NotOwner, PeerUnreachable."""

        async def here() -> tuple[asyncio.Event, Callable[[], None]]:
            session = self._enter(join)
            return session.ended, partial(self._leave, session)

        ended, leave = await at_owner(
            self._owners, partial(self._slot, join.group), here, partial(self._enter_there, join)
        )
        try:
            yield ended
        finally:
            leave()

    async def commit(self, asked: NewCommit) -> Refusal:
        """Commit a member's positions. Raises NotOwner, PeerUnreachable, LogError."""
        return await at_owner(
            self._owners,
            partial(self._slot, asked.group),
            lambda: self._commit_here(asked),
            lambda owner: self._peers.ask(owner, _COMMIT, asked, Refusal),
        )

    async def _enter_there(self, join: Join, owner: Member) -> tuple[asyncio.Event, Callable[[], None]]:
        stream = await self._peers.stream(owner, _JOIN, join)
        try:
            refusal = await stream.receive(Refusal)
            if refusal is None:
                raise NotOwner(f"group {join.group!r}", -1)  # it has just moved to another coordinator
            if refusal.reason:
                raise GroupHeld(refusal.reason)
        except BaseException:
            self._peers.close_stream(owner, stream)
            raise
        ended = asyncio.Event()
        watching = asyncio.get_running_loop().create_task(_watch(stream, ended))

        def leave() -> None:
            watching.cancel()
            self._peers.close_stream(owner, stream)

        return ended, leave

    # --- at the coordinator -----------------------------------------------------------------------------------------

    def _enter(self, join: Join) -> Session:
        if not self._owners.is_mine(self._slot(join.group)):
            raise NotOwner(f"group {join.group!r}", -1)
        try:
            self._progress.require_free(join.group)
        except LogUnavailable as unread:
            raise NotOwner(str(unread), -1) from unread
        if (other := self._sessions.get(join.group)) is not None:
            raise GroupHeld(f"{occupied(join.group, {FRONT: other.view})}: one client reads a group over HTTP")
        view = GroupView(GroupSummary(join.group, "http", "Stable", "http", 1), 0, "", None, (join.member,))
        session = self._sessions[join.group] = Session(join.group, view, asyncio.Event())
        self._progress.came(join.group)
        return session

    def _leave(self, session: Session) -> None:
        session.ended.set()
        if self._sessions.get(session.group) is session:
            del self._sessions[session.group]
            self._progress.went(session.group)

    async def _serve(self, join: Join, stream: PeerStream) -> None:
        try:
            session = self._enter(join)
        except (GroupHeld, NotOwner) as refused:
            if isinstance(refused, GroupHeld):
                await stream.write(msgspec.msgpack.encode(Refusal(str(refused))))
            await stream.done_writing()
            return
        watching = asyncio.get_running_loop().create_task(_watch(stream, session.ended))
        try:
            await stream.write(msgspec.msgpack.encode(Refusal("")))
            await session.ended.wait()
        finally:
            watching.cancel()
            self._leave(session)

    async def _lost(self, slots: Collection[int], in_order: bool) -> None:
        for session in [one for one in self._sessions.values() if self._slot(one.group) in slots]:
            self._leave(session)

    async def _commit_here(self, asked: NewCommit) -> Refusal:
        session = self._sessions.get(asked.group)
        if session is None or session.view.members[0].member_id != asked.member_id:
            return Refusal(f"the client is no longer a member of group {asked.group!r}")
        now = now_ms()
        positions = [(topic, number, Committed(offset, commit_ms=now)) for topic, number, offset in asked.positions]
        await self._progress.commit(asked.group, positions)
        if asked.leave:
            self._leave(session)
        return Refusal("")


async def _watch(stream: PeerStream, ended: asyncio.Event) -> None:
    """Set ``ended`` when the other side ends the stream."""
    with suppress(PeerUnreachable):
        await stream.read()
    ended.set()
