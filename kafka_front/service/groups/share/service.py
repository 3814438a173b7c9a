"""The service of share groups: it gives them time, the database and the logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct

from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.task_set import TaskSet
from anabranch_kit.run.turns import in_turns
from bridges.catalog.topics.topic import ChangeKind
from bridges.catalog.views.groups import SharedPlace
from bridges.cluster.at_owner import find_owner
from bridges.errors import LogError, NotOwner, PeerUnreachable
from kafka_front.group_config import looks_back_ms
from kafka_front.service.groups.share import group as rules
from kafka_front.service.groups.share import tables
from kafka_front.service.groups.share.dead_letters import DeadLetters
from kafka_front.service.groups.share.group import ShareGroup, ShareHeartbeat, ShareReply
from kafka_front.service.groups.share.partition import SharePartition
from kafka_front.service.groups.share.sessions import Place, ShareSession, ShareSessions
from kafka_front.service.log_errors import code_of
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from bridges.catalog.topics.topic import Change
    from bridges.cluster.members import Member
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.node.front import NodeServices
    from kafka_front.service.admin.own_configs import OwnConfigs
    from kafka_front.service.groups import GroupService
    from kafka_front.settings import KafkaSettings

_log = structlog.get_logger("anabranch.kafka.share")

_LIVE = "kafka share partitions"
_ASKED = 1_000
"""Partitions in one message to another node."""

Key = tuple[str, bytes, int]
"""Group, topic id, partition."""


class Asked(Struct, array_like=True, frozen=True):
    """Question to the owner of partitions: which of a group's it serves, and what their records' states are."""

    group: str
    places: Sequence[Place]


class Served(Struct, array_like=True, frozen=True):
    """Answer to :class:`Asked`."""

    places: Sequence[SharedPlace]


class LivePartition:
    """A share partition that this node serves. ``waiters`` are called when records may have become available."""

    __slots__ = ("_burying", "_service", "_writing", "epoch", "error", "key", "log", "saved", "state", "waiters")

    def __init__(self, service: ShareService, key: Key, log: PartitionLog, epoch: int, state: SharePartition) -> None:
        self._service = service
        self._writing: asyncio.Task[None] | None = None
        self._burying = False
        self.key = key
        self.log = log
        self.epoch = epoch
        self.state = state
        self.saved = state.version
        self.error: KafkaError | None = None
        self.waiters: set[Callable[[], None]] = set()

    def now(self) -> int:
        """Return the time, after releasing expired locks and dropping trimmed offsets."""
        now_ms = self._service.now_ms()
        self.state.most_deliveries = self._service.most_deliveries(self.key[0])
        self.state.has_letters = bool(self._service.dead_letters.topic_of(self.key[0]))
        self.state.expire(now_ms)
        self.state.trimmed(self.log.log_start_offset)
        self.bury()
        return now_ms

    def check(self) -> None:
        """Raise KafkaError if this object is no longer served: a retry reads the durable state."""
        if self.error is not None:
            raise self.error.with_traceback(None)  # raised many times: it must not keep callers' frames

    async def save(self) -> None:
        """Wait until all changes up to now are durable. Raises KafkaError if they will not be."""
        wanted = self.state.version
        while self.saved < wanted:
            self.check()
            if self._writing is None:
                self._writing = asyncio.get_running_loop().create_task(self._write())
            await asyncio.shield(self._writing)

    async def _write(self) -> None:
        version = self.state.version
        try:
            await self._service.write(self)
        except tables.Fenced as fenced:
            self.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(fenced)))
        except LogError as error:
            _log.warning("the state of a share partition is not durable", group=self.key[0], reason=str(error))
            self.fail(KafkaError(code_of(error), str(error)))
        else:
            self.saved = version
        finally:
            self._writing = None

    def fail(self, error: KafkaError) -> None:
        """Stop serving from memory, which may differ from the durable state."""
        self.error = self.error or error
        self._service.drop(self)
        self.wake()

    def wake(self) -> None:
        """Call the waiters: records may have become available."""
        self.bury()
        for waiter in list(self.waiters):
            waiter()

    def bury(self) -> None:
        """Write the dead letters that are due, in the background."""
        if self.state.letters and not self._burying:
            self._burying = True
            self._service.spawn(self._bury())

    async def _bury(self) -> None:
        state, letters = self.state, self._service.dead_letters
        try:
            while state.letters:
                due, state.letters = state.letters, []
                await self.save()  # if this node ends now, another one writes them
                for letter in due:
                    await letters.write(self.key[0], self.log, letter)
                    self.check()
                    state.archive(letter)
                self.wake()
                await self.save()
        except KafkaError:
            return  # dropped: the stored state has what is not written
        finally:
            self._burying = False
        self._service.rest(self)


class ShareService:
    """The share groups of a node's clients, made before ``groups`` starts. Call :meth:`close` at the end."""

    def __init__(
        self,
        node: NodeServices,
        settings: KafkaSettings,
        groups: GroupService,
        configs: OwnConfigs,
        broker_config: Callable[[str], str],
    ) -> None:
        """Serve from now on. ``broker_config`` returns a node-level value by its key."""
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._groups = groups.directory.share
        self._directory = groups.directory
        self._taken = groups.find
        self.topics = groups.runtime.topics
        self.settings = settings.group
        self._configs = configs
        self.dead_letters = DeadLetters(node, settings.num_partitions, configs, broker_config)
        self._live: dict[Key, LivePartition] = {}
        self._opening: dict[Key, asyncio.Future[LivePartition]] = {}
        self.sessions = ShareSessions(settings.group.share_sessions, settings.fetch_session_partitions, self._release)
        groups.remove_share = self.delete
        groups.shared_places = self.places
        groups.dead_letter_topic = self.dead_letters.topic_of
        node.peers.serve(_LIVE, Asked, self._served)
        groups.owned.loads.append(self._load_groups)
        node.owners.on_lost.append(self._lost)
        node.catalog.on_change.append(self._changed)
        self._tasks = TaskSet()
        self.changed: Callable[[str, bytes, int], None] = lambda group, topic_id, number: None
        """Called after each durable change of a share partition."""
        self.spawn = self._tasks.spawn

    # --- life -------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Store all changes."""
        self._node.catalog.on_change.remove(self._changed)
        await self._tasks.close()
        for live in list(self._live.values()):
            try:
                await live.save()
            except KafkaError as error:
                _log.warning("share partition not stored", group=live.key[0], reason=str(error))

    async def _load_groups(self, wanted: Callable[[str], bool]) -> None:
        for name in await self._node.db.run(tables.read_groups):
            if wanted(name):
                self._groups.setdefault(name, ShareGroup(name))

    async def _lost(self, slots: Collection[int], in_order: bool) -> None:
        """Stop serving the share partitions of slots that another node owns now."""
        for live in list(self._live.values()):
            if self._node.owners.slot_of(live.log.topic, live.log.partition) in slots:
                live.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another node has the partition"))

    def now_ms(self) -> int:
        """Return a clock that never goes back, in ms."""
        return int(self._loop.time() * 1000)

    def _changed(self, change: Change) -> None:
        if change.kind is ChangeKind.DELETED and change.topic is not None:
            for live in [one for one in self._live.values() if one.key[1] == change.topic.topic_id.bytes]:
                live.fail(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic is deleted"))

    # --- groups -----------------------------------------------------------------------------------------------------

    def find(self, group_id: str) -> ShareGroup:
        """Return a group, after removing its expired members. Raises KafkaError."""
        group = self._groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no share group {group_id!r}")
        rules.expire(group, self.now_ms())
        return group

    def find_empty(self, group_id: str) -> ShareGroup:
        """Return a group without members. Raises KafkaError."""
        group = self.find(group_id)
        if group.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"share group {group_id!r} has members")
        return group

    async def find_or_make_empty(self, group_id: str) -> None:
        """Check that a group has no members; create an unknown one, durably. Raises KafkaError, LogError."""
        if group_id in self._groups:
            self.find_empty(group_id)
            return
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "a group needs a name")
        self._make(group_id)
        await self._keep(group_id)

    async def heartbeat(self, request: ShareHeartbeat) -> ShareReply:
        """Handle ShareGroupHeartbeat. Raises KafkaError, LogError."""
        rules.check_form(request)
        group = self._groups.get(request.group_id)
        if group is None:
            if request.epoch != 0:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no share group {request.group_id!r}")
            self._make(request.group_id)
        if request.epoch == 0:
            await self._keep(request.group_id)
            group = self._groups.get(request.group_id)
        if group is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group was deleted meanwhile")
        now_ms = self.now_ms()
        rules.expire(group, now_ms)
        member = rules.heartbeat(
            group,
            now_ms,
            request,
            session_ms=int(self._configs.value(group.group_id, "share.session.timeout.ms")),
            max_size=self.settings.share_max_size,
            max_bytes=self.settings.max_bytes,
        )
        if member is None:
            return ShareReply(request.member_id, rules.LEAVING)
        rules.follow_topics(group, self.topics.version, self.topics.find)
        told = member.epoch
        changed = rules.assign(group, member)
        return ShareReply(
            member.member_id, member.epoch, member.assigned if changed or request.epoch != told or not told else None
        )

    def _make(self, group_id: str) -> None:
        if self._taken(group_id) is not None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id!r} is of another kind")
        if len(self._directory) >= self.settings.max_groups:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this node has all the groups it may")
        self._groups[group_id] = ShareGroup(group_id)

    async def _keep(self, group_id: str) -> None:
        """Store a group; members get no answer before that. Raises LogError."""
        group = self._groups[group_id]
        try:
            await self._node.db.run(partial(tables.add_group, group=group_id))
        except LogError:
            if self._groups.get(group_id) is group and not group.members:
                del self._groups[group_id]
            raise

    async def delete(self, group_id: str) -> None:
        """Delete an empty group and its share partitions. Raises KafkaError, LogError."""
        self.find_empty(group_id)
        del self._groups[group_id]
        self.fence(one for one in self._live if one[0] == group_id)
        try:
            gone = await self._node.db.run(partial(tables.remove_group, group=group_id))
        except LogError:
            self._groups.setdefault(group_id, ShareGroup(group_id))  # it still exists
            raise
        for place in gone:
            self.changed(group_id, *place)

    async def expire(self, now_ms: int) -> None:
        """Remove expired members (a chore)."""
        async for group in in_turns(list(self._groups.values())):
            rules.expire(group, self.now_ms())

    def lock_ms(self, group_id: str) -> int:
        """Return the duration of a record's lock, in ms."""
        return int(self._configs.value(group_id, "share.record.lock.duration.ms"))

    def most_deliveries(self, group_id: str) -> int:
        """Return how often a record is delivered at most."""
        return int(self._configs.value(group_id, "share.delivery.count.limit"))

    def most_in_flight(self, group_id: str) -> int:
        """Return how many records of a partition the group has in flight at most."""
        return int(self._configs.value(group_id, "share.partition.max.record.locks"))

    def may_renew(self, group_id: str) -> bool:
        """Return whether members may renew the locks of records."""
        return self._configs.value(group_id, "share.renew.acknowledge.enable") == "true"

    def reads_committed(self, group_id: str) -> bool:
        """Return whether a group reads committed records alone."""
        return self._configs.value(group_id, "share.isolation.level") == "read_committed"

    def heartbeat_ms(self, group_id: str) -> int:
        """Return the interval of members' heartbeats, in ms."""
        return int(self._configs.value(group_id, "share.heartbeat.interval.ms"))

    # --- what people see --------------------------------------------------------------------------------------------

    async def places(self, group_id: str) -> list[SharedPlace]:
        """Return the share partitions of a group: as they are at their owners, else as they are stored. Raises
        LogError."""
        known: dict[tuple[str, int], SharedPlace] = {}
        owned: dict[int, tuple[Member | None, list[Place]]] = {}
        owners = self._node.owners
        rows = await self._node.db.run(partial(tables.of_group, group=group_id))
        async for topic_id, number, start, spans in in_turns(rows):
            if (topic := self._node.catalog.by_id.get(topic_id)) is None:
                continue
            state = SharePartition(start, self.most_deliveries(group_id), spans)
            known[topic.name, number] = state.place(topic.name, number)
            with suppress(NotOwner):
                owner = find_owner(owners, owners.slot_of(topic.name, number))
                owned.setdefault(-1 if owner is None else owner.start, (owner, []))[1].append((topic_id, number))
        for owner, places in owned.values():
            for first in range(0, len(places), _ASKED):
                asked = Asked(group_id, places[first : first + _ASKED])
                with suppress(NotOwner, PeerUnreachable):
                    ask = self._served(asked) if owner is None else self._node.peers.ask(owner, _LIVE, asked, Served)
                    known.update(((one.topic, one.partition), one) for one in (await ask).places)
        return [known[place] for place in sorted(known)]

    async def _served(self, asked: Asked) -> Served:
        lives = [self._live.get((asked.group, *place)) for place in asked.places]
        found = []
        async for live in in_turns(lives):
            if live is not None:
                live.now()
                found.append(live.state.place(live.log.topic, live.log.partition))
        return Served(found)

    # --- partitions -------------------------------------------------------------------------------------------------

    async def partition(self, group_id: str, topic_id: bytes, number: int) -> LivePartition:
        """Return a share partition; take it over if this node does not serve it yet. Raises KafkaError, LogError."""
        key = (group_id, topic_id, number)
        live = self._live.get(key)
        if live is not None:
            return live
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = self._loop.create_task(self._open(key))
            opening.add_done_callback(lambda _: self._opening.pop(key, None))
        return await asyncio.shield(opening)

    async def _open(self, key: Key) -> LivePartition:
        group_id, topic_id, number = key
        topic = self._node.catalog.by_id.get(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic of that id")
        log = self._node.logs.get(topic.name, number)
        if log is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has no partition {number}")
        await log.ready()
        start = await self._first(log, self._configs.value(group_id, "share.auto.offset.reset"))
        begin = partial(tables.begin, group=group_id, place=(topic_id, number), topic=topic.name, start=start)
        try:
            epoch, start, spans = await self._node.db.run(begin)
        except tables.Fenced as none:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, str(none)) from none
        self.changed(*key)
        if self._node.catalog.by_id.get(topic_id) is not topic:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted meanwhile")
        state = SharePartition(start, self.most_deliveries(group_id), spans)
        live = self._live[key] = LivePartition(self, key, log, epoch, state)
        live.bury()
        return live

    async def _first(self, log: PartitionLog, reset: str) -> int:
        """Return the start offset of a group that has no offset yet."""
        back_ms = looks_back_ms(reset)
        if back_ms is None:
            return log.log_start_offset if reset == "earliest" else log.high_watermark
        found = await log.find_timestamp(max(0, now_ms() - back_ms))
        return log.high_watermark if found is None else found[0]

    async def write(self, live: LivePartition) -> None:
        """Store a share partition. Raises LogError, Fenced."""
        group_id, topic_id, number = live.key
        await self._node.db.run(
            partial(
                tables.save,
                group=group_id,
                place=(topic_id, number),
                epoch=live.epoch,
                start=live.state.start,
                spans=live.state.stored(),
            )
        )
        self.changed(*live.key)

    def drop(self, live: LivePartition) -> None:
        """Stop serving a share partition."""
        if self._live.get(live.key) is live:
            del self._live[live.key]

    def fence(self, keys: Iterable[Key]) -> None:
        """Stop serving share partitions whose stored offsets have changed: their users must read them again."""
        for key in list(keys):
            live = self._live.get(key)
            if live is not None:
                live.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the offsets of the group were changed"))

    def live(self, key: Key) -> LivePartition | None:
        """Return a share partition if this node serves it, else None."""
        return self._live.get(key)

    def live_of(self, group_id: str) -> list[LivePartition]:
        """Return the share partitions of a group that this node serves."""
        return [live for key, live in self._live.items() if key[0] == group_id]

    def _release(self, session: ShareSession, place: Place) -> None:
        """Release a member's records in a partition that it no longer reads. Drop the share partition from memory when
        no member reads it."""
        live = self._live.get((session.group_id, *place))
        if live is None:
            return
        if live.state.release(session.member_id):
            live.wake()
        if not self.sessions.reads(live.key) and not live.state.is_busy:
            if live.saved == live.state.version:
                self.rest(live)
            else:
                self._tasks.spawn(self._save_and_rest(live))

    async def _save_and_rest(self, live: LivePartition) -> None:
        try:
            await live.save()
        except KafkaError:
            return  # dropped already
        self.rest(live)

    def rest(self, live: LivePartition) -> None:
        """Drop a share partition from memory if it has no readers, waiters or acquired records."""
        if not self.sessions.reads(live.key) and not live.state.is_busy and not live.waiters:
            self.drop(live)
