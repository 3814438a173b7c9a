"""The runtime of the coordinators: an event loop's clock, one timer for all their deadlines, and their stored
groups."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.deadlines import Alarm
from anabranch_kit.run.sliced import Sliced, SlicedWorks, advance
from anabranch_kit.run.task_set import TaskSet
from anabranch_kit.run.turns import worked_off
from bridges.auth import Principal
from bridges.errors import DataCorrupt
from kafka_front.group_config import Configured, nothing_configured
from kafka_front.service.groups.classic.coordinator import Coordinator
from kafka_front.service.groups.classic.snapshot import SnapshotError, decode_snapshot
from kafka_front.service.groups.consumer.assignors import Targets
from kafka_front.service.groups.consumer.classic_members import ClassicMembers
from kafka_front.service.groups.consumer.coordinator import ConsumerCoordinator
from kafka_front.service.groups.consumer.group import View
from kafka_front.service.groups.consumer.snapshot import decode_group
from kafka_front.service.groups.directory import Directory
from kafka_front.service.groups.journal import GroupJournal
from kafka_front.service.groups.streams.coordinator import StreamsCoordinator
from kafka_front.service.groups.streams.snapshot import decode_streams
from kafka_front.service.groups.topic_index import TopicIndex
from kafka_front.settings import KafkaGroupSettings
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from bridges.catalog.progress import FrontProgress
    from bridges.catalog.topics.catalog import Catalog
    from bridges.cluster.owned import Wanted

_log = structlog.get_logger("anabranch.kafka.groups")


def new_member_id(prefix: str) -> str:
    """Return a unique member id."""
    return f"{prefix}-{uuid.uuid4()}"


class GroupRuntime:
    """The owner of the coordinators. Call :meth:`touched` after every use of one."""

    def __init__(
        self,
        store: FrontProgress,
        settings: KafkaGroupSettings,
        catalog: Catalog,
        barrier: Barrier | None = None,
        works: SlicedWorks | None = None,
        configured: Configured = nothing_configured,
        shows: Callable[[Principal, str], bool] = lambda viewer, topic: True,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._store = store
        self._alarm = Alarm(self._loop, self._advance)
        self._closed = False
        self._barrier = barrier = barrier or Barrier()
        self._works = works
        self._computing = TaskSet()
        self.directory = Directory(store.came, store.went)
        self.journal = GroupJournal(store, self.now_ms, now_ms, barrier)
        self.coordinator = Coordinator(settings, self.journal, new_member_id, barrier, self.directory)
        self.topics = TopicIndex(catalog, self._views, works, barrier, shows)
        shared = (settings, self.directory, self.journal, self.topics, self._compute, self.coordinator)
        self.consumers = ConsumerCoordinator(*shared, barrier, configured)
        self.streams = StreamsCoordinator(*shared, barrier, configured)
        self.classic_members = ClassicMembers(self.consumers, settings, new_member_id)

    def now_ms(self) -> int:
        """Return the coordinators' clock: milliseconds of the event loop's clock, which never goes back."""
        return int(self._loop.time() * 1000)

    async def load(self, wanted: Wanted) -> None:
        """Restore stored groups, those of the last run or of another node. Raises DataCorrupt if one is unreadable, and
        errors of the database."""
        for group_id, blob in (await self._store.load_groups(wanted.slots)).items():
            if not wanted(group_id):
                continue
            try:
                snapshot = decode_snapshot(blob)
                group = decode_group(group_id, blob, self.journal.from_unix)
                streams = decode_streams(group_id, blob, self.journal.from_unix)
            except SnapshotError as error:
                raise DataCorrupt(f"consumer group {group_id!r}: {error}") from error
            if group is not None:
                await self._learn(group.views)
                self.consumers.restore(self.now_ms(), group)
            if streams is not None:
                self.streams.restore(self.now_ms(), streams)
            if snapshot is not None:
                restored = replace(snapshot, since_ms=self.journal.from_unix(snapshot.since_ms))
                self.coordinator.restore(self.now_ms(), group_id, restored)
        self.touched()

    def let_go(self, group_id: str) -> None:
        """Forget a group that another node coordinates from now on; its waiting members get NOT_COORDINATOR."""
        classic, consumer = self.directory.classic.get(group_id), self.directory.consumer.get(group_id)
        streams = self.directory.streams.get(group_id)
        if classic is not None:
            self.coordinator.surrender(classic, ErrorCode.NOT_COORDINATOR)
            del self.directory.classic[group_id]
        if consumer is not None:
            self.consumers.surrender(consumer)
        if streams is not None:
            self.streams.surrender(streams)
        self.directory.share.pop(group_id, None)

    def touched(self) -> None:
        """Set the timer to the coordinators' next deadline, if that is earlier."""
        deadlines = [
            deadline
            for coordinator in (self.coordinator, self.consumers, self.streams)
            if (deadline := coordinator.next_deadline_ms) is not None
        ]
        if not deadlines or self._closed:
            return
        # Half a millisecond later: the clock counts whole milliseconds, and must have reached the deadline.
        self._alarm.set((min(deadlines) + 0.5) / 1000)

    def resign(self) -> None:
        """Answer all parked requests and stop the timer."""
        self._closed = True
        self._alarm.cancel()
        self.coordinator.resign()
        self.consumers.resign()
        self.streams.resign()

    async def close(self) -> None:
        """Resign, and return when all waiting groups are stored."""
        self.resign()
        await self._computing.close()
        await self.topics.close()
        await self.journal.close()

    def _advance(self, now: float) -> None:
        try:
            self.coordinator.advance(int(now * 1000))
            self.consumers.advance(int(now * 1000))
            self.streams.advance(int(now * 1000))
        finally:
            self.touched()

    # --- work whose size clients choose --------------------------------------------------------------------------

    def _views(self) -> set[View]:
        return {view for group in self.directory.consumer.values() for view in group.views}

    async def _learn(self, views: Iterable[View]) -> None:
        for view in views:
            try:
                await self.topics.learn(view, lambda: None)
            except KafkaError as refused:  # stored under other limits: it matches nothing
                _log.warning("pattern of a group not taken", pattern=view.pattern, error=str(refused))

    def _compute(self, begin: Callable[[], Sliced[Targets]], done: Callable[[int, Targets | None], None]) -> None:
        """Run the first step of a computation at once, which is all that most need, and the other steps off the
        loop."""
        work = begin()
        try:
            ended, targets = advance(work)
        except Exception as error:  # noqa: BLE001 - counted: it costs this group's members their answers
            self._barrier.caught("assignment of a group", error)
            ended, targets = True, None
        if ended:
            done(self.now_ms(), targets)
            return
        self._computing.spawn(self._finish(work, done))

    async def _finish(self, work: Sliced[Targets], done: Callable[[int, Targets | None], None]) -> None:
        targets = None
        try:
            targets = await (worked_off(work) if self._works is None else self._works.finish(work))
        except Exception as error:  # noqa: BLE001 - as above
            self._barrier.caught("assignment of a group", error)
        self._barrier.call("assignment of a group", done, self.now_ms(), targets)
        self.touched()
