"""The service behind all requests about groups, on top of the coordinators, the committed positions and the catalog.

The requests' meaning: docs/protocols/kafka.md, rules 49-61.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence, Set
from typing import TYPE_CHECKING

import structlog

from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.sliced import SlicedWorks
from anabranch_kit.run.turns import in_turns, portions
from bridges.auth import Everybody
from bridges.catalog.progress import Committed
from bridges.catalog.views.groups import GroupSummary, GroupView, Place, SharedPlace
from bridges.errors import GroupHeld, LogError
from kafka_front.group_config import Configured, nothing_configured
from kafka_front.service.access import Access
from kafka_front.service.groups.classic.embedded import PROTOCOL_TYPE
from kafka_front.service.groups.classic.group import Group, GroupState
from kafka_front.service.groups.consumer.group import ConsumerGroup
from kafka_front.service.groups.owned import OwnedGroups
from kafka_front.service.groups.refusals import Refusals
from kafka_front.service.groups.runtime import GroupRuntime
from kafka_front.service.groups.view import CLASSIC, is_empty, summary_of
from kafka_front.settings import KafkaGroupSettings
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from bridges.catalog.progress import FrontProgress
    from bridges.catalog.topics.catalog import Catalog
    from bridges.cluster.ownership import Others, Ownership
    from kafka_front.wire.messages import OffsetCommitRequest, TxnOffsetCommitRequest

_log = structlog.get_logger("anabranch.kafka.groups")


async def _no_share_groups(group_id: str) -> None:
    raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no share group {group_id!r}")


async def _no_places(group_id: str) -> Sequence[SharedPlace]:
    return ()


class GroupService:
    """The groups of one node: the state that its request handlers share, and its life.

    ``unstable`` returns whether a position of a (group, topic, partition) is part of an open transaction; the
    transaction coordinator sets it. ``remove_share`` deletes a share group, ``shared_places`` returns its
    partitions, and ``dead_letter_topic`` its dead letter topic; the share service sets them.
    """

    def __init__(
        self,
        progress: FrontProgress,
        catalog: Catalog,
        owners: Ownership,
        peers: Others,
        settings: KafkaGroupSettings | None = None,
        *,
        barrier: Barrier | None = None,
        access: Access | None = None,
        works: SlicedWorks | None = None,
        configured: Configured = nothing_configured,
    ) -> None:
        self.progress = progress
        self.catalog = catalog
        self.settings = settings or KafkaGroupSettings()
        self.access = access or Access(Everybody())
        self._barrier = barrier or Barrier()
        self.runtime = GroupRuntime(
            progress, self.settings, catalog, self._barrier, works, configured, self.access.shows
        )
        self.directory = self.runtime.directory
        self.coordinator = self.runtime.coordinator
        self.consumers = self.runtime.consumers
        self.unstable: Callable[[str, str, int], bool] = lambda group, topic, partition: False
        self.owners, self.peers = owners, peers
        self.owned = OwnedGroups(owners, progress, self.runtime)
        self.refusals = Refusals()
        self.remove_share: Callable[[str], Awaitable[None]] = _no_share_groups
        self.shared_places: Callable[[str], Awaitable[Sequence[SharedPlace]]] = _no_places
        self.dead_letter_topic: Callable[[str], str] = lambda group_id: ""
        # Number of commits in flight by group: the positions that they replace must not expire meanwhile.
        self.committing: dict[str, int] = {}

    # --- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the groups of this node's slots. Raises DataCorrupt, LogError."""
        await self.owned.begin()

    def resign(self) -> None:
        """Answer parked requests, so that connections can drain. Members keep their place over a restart."""
        self.runtime.resign()

    async def stop(self) -> None:
        """Resign, and return when all waiting groups are stored."""
        await self.owned.close()
        await self.runtime.close()

    # --- groups --------------------------------------------------------------------------------------------------

    def find(self, group_id: str) -> Group | ConsumerGroup | None:
        """Return a consumer group by name; None for a share group. A group that only has committed positions, perhaps
        another front's, is created as an empty group.

        For client requests that name the group. Loops over all groups must not create any.
        """
        group = self.directory.get(group_id)
        if group_id in self.directory.share:
            return None
        if group is None and self.progress.of_group(group_id):
            group = self.coordinator.adopt(self.runtime.now_ms(), group_id)
        return group

    async def group_ids(self) -> AsyncIterator[str]:
        """Return the names of all groups, in order."""
        async for name in in_turns(self.progress.names()):
            if self.owned.owns(name):
                yield name

    async def forget(self, group_id: str) -> None:
        """Delete an empty group and all its committed positions (rule 60). Raises KafkaError, LogError.

        A group that consumers of another protocol use is not empty.
        """
        if group_id in self.directory.share:
            await self.remove_share(group_id)
            return
        self.find(group_id)
        if self.progress.held_elsewhere(group_id):
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"another protocol uses group {group_id!r}")
        self._delete_group(group_id)
        deleted, erased = await asyncio.gather(
            self.progress.delete(group_id), self.runtime.journal.erase(group_id), return_exceptions=True
        )
        # Another request may have created the group anew while its positions were still there.
        self._drop_if_bare(group_id)
        if isinstance(deleted, GroupHeld):
            text = f"a member joined group {group_id!r} through another protocol a moment ago"
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, text)
        for error in (deleted, erased):
            if error is not None:
                raise error

    def _delete_group(self, group_id: str) -> None:
        if group_id in self.directory.consumer:
            self.consumers.delete(group_id)
        elif group_id in self.directory.streams:
            self.runtime.streams.delete(group_id)
        else:
            self.coordinator.delete(self.runtime.now_ms(), group_id)

    def _drop_if_bare(self, group_id: str) -> bool:
        """Drop an empty group without positions of this front; return whether it was dropped.

        Other fronts' positions do not keep it: a front that held a group for them would keep them for ever.
        """
        group = self.directory.get(group_id)
        if group is None or not is_empty(group) or self.committing.get(group_id):
            return False
        if any(committed.front == self.progress.name for committed in self.progress.of_group(group_id).values()):
            return False
        self._delete_group(group_id)
        return True

    def summary(self, group_id: str) -> GroupSummary:
        """Return a group as ListGroups shows it; it may have committed positions only. One with members of another
        protocol is shown as a classic group, which all tools know."""
        found = summary_of(group_id, self.directory.share.get(group_id) or self.directory.get(group_id))
        other = None if found.members else self.progress.other_summary(group_id)
        return found if other is None else GroupSummary(group_id, CLASSIC, other.state, PROTOCOL_TYPE, other.members)

    def read_elsewhere(self, group_id: str) -> GroupView | None:
        """Return a group that has members of another protocol and none of ours, as that protocol sees it; else None."""
        group = self.directory.get(group_id)
        return None if group is not None and group.members else self.progress.other_view(group_id)

    def check_commit(
        self,
        request: OffsetCommitRequest | TxnOffsetCommitRequest,
        places: Set[Place],
        *,
        unknown_group_error: int,
        transactional: bool = False,
    ) -> None:
        """Raise KafkaError unless the client that sent a commit may commit ``places`` in its generation or epoch of the
        group. Members of another protocol exclude clients that are no members."""
        group_id, member_id, instance_id = request.group_id, request.member_id, request.group_instance_id
        generation = request.generation_id_or_member_epoch
        if generation < 0 and self.progress.other_summary(group_id) is not None:
            text = f"members of another protocol read group {group_id!r}: only they commit"
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, text)
        group = self.directory.heartbeating(group_id)
        if group is not None:
            self.consumers.check_commit(group, member_id, instance_id, generation, places, transactional=transactional)
            return
        self.coordinator.check_commit(
            self.runtime.now_ms(),
            group_id,
            member_id,
            instance_id,
            generation,
            unknown_group_error=unknown_group_error,
            transactional=transactional,
        )
        self.runtime.touched()

    # --- expiry --------------------------------------------------------------------------------------------------

    async def expire(self, now_ms: int) -> int:
        """Forget positions past their retention at ``now_ms`` (Unix time), and groups with nothing left.

        Return the number of expired positions. Raises LogError if that cannot be stored.
        """
        expired = 0
        async for group_id in self.group_ids():
            if not self.owned.owns(group_id):
                continue  # its positions here may be outdated
            try:
                expired += await self._expire(group_id, now_ms)
            except LogError:
                raise  # from the database, so it concerns all groups
            except Exception as error:  # noqa: BLE001 - logged and counted: it costs this group's positions only
                self._barrier.caught("offset expiry", error, group=group_id)
        return expired

    async def _expire(self, group_id: str, now_ms: int) -> int:
        expired = 0
        if not self.committing.get(group_id):
            old = await self._expired(group_id, self.progress.of_group(group_id).items(), now_ms)
            # A member may have joined meanwhile: check the old positions, which are few, once more.
            gone = dict(self._too_old(group_id, old, now_ms))
            # expire() removes only positions that have not changed, and none that another front holds.
            if gone and (expired := await self.progress.expire(group_id, gone)):
                _log.info("committed offsets expired", group=group_id, positions=expired)
        if self._drop_if_bare(group_id):
            # The journal has logged a failure: at worst, the next start reads an empty group.
            with contextlib.suppress(KafkaError):
                await self.runtime.journal.erase(group_id)
        return expired

    async def _expired(
        self, group_id: str, positions: Iterable[tuple[Place, Committed]], now_ms: int
    ) -> list[tuple[Place, Committed]]:
        """Return the positions past their retention, in turns with other work, since there may be any number of
        them."""
        found: list[tuple[Place, Committed]] = []
        async for some in portions(list(positions)):
            found += self._too_old(group_id, some, now_ms)
        return found

    def _too_old(
        self, group_id: str, positions: Iterable[tuple[Place, Committed]], now_ms: int
    ) -> list[tuple[Place, Committed]]:
        # A group that no client of this front has used since the start is not in the directory, but may have positions
        # of ours.
        group = self.directory.get(group_id)
        own = self.progress.name
        return [
            (place, committed)
            for place, committed in positions
            if committed.front == own and self._is_expired(group, place[0], committed, now_ms)
        ]

    def _is_expired(self, group: Group | ConsumerGroup | None, topic: str, committed: Committed, now_ms: int) -> bool:
        """Return whether a position is expired (rule 60, KIP-211): by age since the group emptied, or, if no member
        reads the topic, since the commit."""
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
