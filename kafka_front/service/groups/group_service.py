"""All requests about groups, on top of the coordinators, the committed positions and the catalog.

What each request means: docs/protocols/kafka.md, rules 49-61.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Protocol

import structlog

from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.sliced import SlicedWorks
from anabranch_kit.run.turns import collected, in_order, portions
from bridges.auth import Everybody
from bridges.catalog.group_view import GroupSummary, GroupView, Place
from bridges.catalog.progress import Committed
from bridges.errors import GroupHeld, LogError
from kafka_front.service.access import Access
from kafka_front.service.groups import codes
from kafka_front.service.groups.classic.embedded import PROTOCOL_TYPE
from kafka_front.service.groups.classic.group import Group, GroupState
from kafka_front.service.groups.consumer.group import ConsumerGroup
from kafka_front.service.groups.journal import GroupStore
from kafka_front.service.groups.owned import OwnedGroups
from kafka_front.service.groups.runtime import GroupRuntime
from kafka_front.service.groups.settings import Configured, GroupSettings, nothing_configured
from kafka_front.service.groups.topic_index import Topics
from kafka_front.service.groups.view import CLASSIC, LiveGroups, is_empty, summary_of

_log = structlog.get_logger("anabranch.kafka.groups")

"""Positions looked at before other work gets its turn."""


class Positions(GroupStore, Protocol):
    """What is used of :class:`bridges.catalog.progress.FrontProgress`."""

    @property
    def name(self) -> str: ...

    @property
    def space(self) -> str: ...

    def committed(self, group: str, topic: str, partition: int) -> Committed | None: ...

    def groups(self) -> Iterable[str]: ...

    def of_group(self, group: str) -> Mapping[Place, Committed]: ...

    async def commit(self, group: str, positions: Sequence[tuple[str, int, Committed]]) -> None: ...

    async def delete(self, group: str, places: Sequence[Place] | None = None) -> None: ...

    async def expire(self, group: str, seen: Mapping[Place, Committed]) -> int: ...

    def held_elsewhere(self, group: str) -> bool: ...

    def read_elsewhere(self) -> Iterable[str]: ...

    def other_summary(self, group: str) -> GroupSummary | None: ...

    def other_view(self, group: str) -> GroupView | None: ...

    def require_free(self, group: str) -> None: ...

    @property
    def group_count(self) -> int: ...


async def _no_share_groups(group_id: str) -> int:
    return codes.GROUP_ID_NOT_FOUND


class GroupService:
    """The groups of one node: state that its request handlers share, and its life.

    ``unstable`` tells whether a position of a (group, topic, partition) is part of an open transaction; the transaction
    coordinator sets it. ``remove_share`` deletes a share group, and is set by who has those. ``live`` shows people the
    groups that clients joined.
    """

    def __init__(
        self,
        progress: Positions,
        catalog: Topics,
        settings: GroupSettings | None = None,
        *,
        node_id: int = 0,
        barrier: Barrier | None = None,
        access: Access | None = None,
        works: SlicedWorks | None = None,
        configured: Configured = nothing_configured,
    ) -> None:
        self.progress = progress
        self.catalog = catalog
        self.settings = settings or GroupSettings()
        self.node_id = node_id
        self.access = access or Access(Everybody())
        self._barrier = barrier or Barrier()
        self.runtime = GroupRuntime(
            progress, self.settings, catalog, self._barrier, works, configured, self.access.shows
        )
        self.directory = self.runtime.directory
        self.coordinator = self.runtime.coordinator
        self.consumers = self.runtime.consumers
        self.unstable: Callable[[str, str, int], bool] = lambda group, topic, partition: False
        self.owned: OwnedGroups | None = None
        """Which groups this node coordinates; None: all of them."""
        self.remove_share: Callable[[str], Awaitable[int]] = _no_share_groups
        self.live = LiveGroups(
            self.directory,
            progress.space,
            self.runtime.topics.name_of,
            lambda group_id: self.owned is None or self.owned.owns(group_id),
        )
        # Commits on their way to the disk, by group: what they replace must not be expired under them.
        self.committing: dict[str, int] = {}

    # --- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the groups of the last run; among several nodes each comes with its slot. Raises DataCorrupt."""
        if self.owned is None:
            await self.runtime.load()

    def resign(self) -> None:
        """Answer what is parked, so that connections can drain. Members keep their place over a restart."""
        self.runtime.resign()

    async def stop(self) -> None:
        """Resign, and return when everything that waits to be stored is."""
        if self.owned is not None:
            await self.owned.close()
        await self.runtime.close()

    # --- groups --------------------------------------------------------------------------------------------------

    def find(self, group_id: str) -> Group | ConsumerGroup | None:
        """A group of consumers by name, which a share group is not. One that only has committed positions (perhaps
        another front's) is an empty group.

        For requests of clients that name it; what looks at all groups must not bring any into being.
        """
        group = self.directory.get(group_id)
        if group_id in self.directory.share:
            return None
        if group is None and self.progress.of_group(group_id):
            group = self.coordinator.adopt(self.runtime.now_ms(), group_id)
        return group

    async def group_ids(self) -> AsyncIterator[str]:
        """Names of all groups, in order."""
        wanted = None if self.owned is None else self.owned.owns
        names = await collected(chain(self.directory, self.progress.groups(), self.progress.read_elsewhere()), wanted)
        last = None
        async for name in in_order(names):
            if name != last:
                yield name
            last = name

    async def forget(self, group_id: str) -> int:
        """Delete an empty group and all it has committed; returns the error code (rule 60).

        A group that another protocol's consumers use is not empty.
        """
        if group_id in self.directory.share:
            return await self.remove_share(group_id)
        self.find(group_id)
        if self.progress.held_elsewhere(group_id):
            return codes.NON_EMPTY_GROUP
        error = self._delete_group(group_id)
        if error:
            return error
        deleted, error = await asyncio.gather(self._delete(group_id), self.runtime.journal.erase(group_id))
        error = deleted or error
        # Somebody may have looked the group up while its positions were still there.
        self._drop_if_bare(group_id)
        return error

    def _delete_group(self, group_id: str) -> int:
        if group_id in self.directory.consumer:
            return self.consumers.delete(group_id)
        return self.coordinator.delete(self.runtime.now_ms(), group_id)

    async def _delete(self, group_id: str) -> int:
        try:
            await self.progress.delete(group_id)
        except GroupHeld:
            return codes.NON_EMPTY_GROUP  # somebody came through another protocol a moment ago
        return codes.NONE

    def _drop_if_bare(self, group_id: str) -> bool:
        """Drop an empty group of which nothing is left that anybody here could miss.

        Other fronts' positions do not keep it: a front that held a group for them would keep them for ever.
        """
        group = self.directory.get(group_id)
        if group is None or not is_empty(group) or self.committing.get(group_id):
            return False
        if any(committed.front == self.progress.name for committed in self.progress.of_group(group_id).values()):
            return False
        return self._delete_group(group_id) == codes.NONE

    def summary(self, group_id: str) -> GroupSummary:
        """A group as ListGroups shows it; it may have committed positions only. Members of another protocol make it a
        classic group, as all tools know these."""
        found = summary_of(group_id, self.directory.share.get(group_id) or self.directory.get(group_id))
        other = None if found.members else self.progress.other_summary(group_id)
        return found if other is None else GroupSummary(group_id, CLASSIC, other.state, PROTOCOL_TYPE, other.members)

    def read_elsewhere(self, group_id: str) -> GroupView | None:
        """A group as another protocol sees it that has members in it, and none of ours."""
        group = self.directory.get(group_id)
        return None if group is not None and group.members else self.progress.other_view(group_id)

    def check_commit(self, group_id: str, generation: int) -> int:
        """Whether a client that is no member may commit as far as other protocols' members go: the error code."""
        if generation < 0 and self.progress.other_summary(group_id) is not None:
            return codes.UNKNOWN_MEMBER_ID
        return codes.NONE

    # --- expiry --------------------------------------------------------------------------------------------------

    async def expire(self, now_ms: int) -> int:
        """Forget positions past their retention at ``now_ms`` (Unix time), and groups with nothing left.

        Returns how many positions went. Raises LogError if that cannot be stored.
        """
        expired = 0
        async for group_id in self.group_ids():
            if self.owned is not None and not self.owned.owns(group_id):
                continue  # what is known of it here may be old
            try:
                expired += await self._expire(group_id, now_ms)
            except LogError:
                raise  # of the database, which all groups have together
            except Exception as error:  # noqa: BLE001 - logged and counted: it costs this group's positions only
                self._barrier.caught("offset expiry", error, group=group_id)
        return expired

    async def _expire(self, group_id: str, now_ms: int) -> int:
        expired = 0
        if not self.committing.get(group_id):
            old = await self._expired(group_id, self.progress.of_group(group_id).items(), now_ms)
            # Somebody may have come back to the group meanwhile; those still too old are few enough to look again.
            gone = dict(self._too_old(group_id, old, now_ms))
            # Of these, only what is still as it was looked at goes, and nothing that another front holds.
            if gone and (expired := await self.progress.expire(group_id, gone)):
                _log.info("committed offsets expired", group=group_id, positions=expired)
        if self._drop_if_bare(group_id):
            await self.runtime.journal.erase(group_id)
        return expired

    async def _expired(
        self, group_id: str, positions: Iterable[tuple[Place, Committed]], now_ms: int
    ) -> list[tuple[Place, Committed]]:
        """The positions past their retention; other work gets its turn, for there may be any number of them."""
        found: list[tuple[Place, Committed]] = []
        async for some in portions(list(positions)):
            found += self._too_old(group_id, some, now_ms)
        return found

    def _too_old(
        self, group_id: str, positions: Iterable[tuple[Place, Committed]], now_ms: int
    ) -> list[tuple[Place, Committed]]:
        # A group that nobody joined or asked for through this front is none of ours, but may have positions of ours.
        group = self.directory.get(group_id)
        own = self.progress.name
        return [
            (place, committed)
            for place, committed in positions
            if committed.front == own and self._is_expired(group, place[0], committed, now_ms)
        ]

    def _is_expired(self, group: Group | ConsumerGroup | None, topic: str, committed: Committed, now_ms: int) -> bool:
        """Rule 60 and KIP-211: by age since the group emptied, or since the commit where nobody reads the topic."""
        since = committed.commit_ms
        if isinstance(group, ConsumerGroup):
            if not group.members:
                since = max(since, self.runtime.journal.to_unix(group.since_ms))
        elif group is None or group.protocol_type is None:
            pass  # a simple group: nothing but its commits shows that it is in use
        elif group.state is GroupState.EMPTY:
            since = max(since, self.runtime.journal.to_unix(group.since_ms))
        elif not (group.state is GroupState.STABLE and group.uses_consumer_protocol and group.subscribed is not None):
            return False
        if group is not None and group.is_subscribed(topic):
            return False
        if committed.expire_ms >= 0:
            return now_ms >= committed.expire_ms
        return now_ms - since >= self.settings.offsets_retention_ms
