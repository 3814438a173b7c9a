"""OffsetCommit, OffsetFetch, OffsetDelete: committed positions of groups (docs/protocols/kafka.md, rules 57-60)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Set
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog

from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.turns import in_turns, portions
from bridges.auth import Operation
from bridges.catalog.progress import Committed
from bridges.catalog.views.groups import Place
from bridges.errors import GroupHeld, LogError, NotOwner
from kafka_front.dispatch import Registry
from kafka_front.service.groups.consumer.group import ConsumerGroup
from kafka_front.service.groups.group_service import GroupService
from kafka_front.service.groups.requests.positions_elsewhere import MOST, PositionsElsewhere, Question, Rows
from kafka_front.service.once import Once
from kafka_front.settings import KafkaSettings
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.context import Context

_log = structlog.get_logger("anabranch.kafka.groups")

_UNKNOWN_GROUP_SINCE = 9
_BATCHED_FETCH_SINCE = 8
_IDS_SINCE = 10
_NO_ID = bytes(16)
_LATEST_MS = 2**63 - 1
_SORTED_ON_THE_LOOP = 5_000

_CommitTopic = m.OffsetCommitResponse.OffsetCommitResponseTopic
_CommitPartition = m.OffsetCommitResponse.OffsetCommitResponsePartition
_FetchedGroup = m.OffsetFetchResponse.OffsetFetchResponseGroup
_GroupTopic = m.OffsetFetchResponse.OffsetFetchResponseTopics
_GroupPartition = m.OffsetFetchResponse.OffsetFetchResponsePartitions
_OldTopic = m.OffsetFetchResponse.OffsetFetchResponseTopic
_OldPartition = m.OffsetFetchResponse.OffsetFetchResponsePartition
_DeleteTopic = m.OffsetDeleteResponse.OffsetDeleteResponseTopic
_DeletePartition = m.OffsetDeleteResponse.OffsetDeleteResponsePartition


class _Position(Protocol):
    """A partition's position in a request."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None


class _Topic(Protocol):
    """A topic in a request."""

    name: str
    topic_id: bytes


class _Answered(Protocol):
    """A partition's part of the answer."""

    error_code: int


A = TypeVar("A", bound=_Answered)
R = TypeVar("R")


class Asked:
    """The positions that a request asks to commit, topic by topic, and the answers for them."""

    def __init__(self, service: GroupService, now_ms: int, expire_ms: int = -1) -> None:
        self._service = service
        self._now_ms, self._expire_ms = now_ms, expire_ms
        self._accepted: dict[Place, Committed] = {}  # the last one of a partition that is named twice
        self._answers: list[_Answered] = []

    @property
    def is_known(self) -> bool:
        """Return whether any of the partitions exists and the client may read it."""
        return bool(self._answers)

    @property
    def places(self) -> Set[Place]:
        """Return the partitions with valid positions."""
        return self._accepted.keys()

    @property
    def positions(self) -> list[tuple[str, int, Committed]]:
        """Return the valid positions."""
        return [(*place, committed) for place, committed in self._accepted.items()]

    async def take(
        self, ctx: Context, name: str | None, partitions: Iterable[_Position], made: Callable[[int], A]
    ) -> list[A]:
        """Return the answers for a topic's partitions, with errors for invalid positions; the name is None if there is
        no such topic."""
        answers: list[A] = []
        refused = ErrorCode.UNKNOWN_TOPIC_ID
        if name is not None:
            allowed = self._service.access.topic(ctx, Operation.READ, name)
            refused = ErrorCode.NONE if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        async for partition in in_turns(partitions):
            answer = made(partition.partition_index)
            answers.append(answer)
            if refused or name is None:
                answer.error_code = refused
                continue
            metadata = partition.committed_metadata or ""
            if not _exists(self._service, name, partition.partition_index):
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            self._answers.append(answer)
            if len(metadata) > KafkaSettings.offset_metadata_max_bytes:
                answer.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            self._accepted[name, partition.partition_index] = Committed(
                partition.committed_offset, partition.committed_leader_epoch, metadata, self._now_ms, self._expire_ms
            )
        return answers

    def refuse(self, error: int) -> None:
        """Set the error of all partitions that exist and that the client may read: nothing is committed."""
        for answer in self._answers:
            answer.error_code = error


def topic_name(service: GroupService, topic: _Topic, *, by_id: bool) -> str | None:
    """Return the name of a topic that a request names or gives the id of; None: no topic has this id."""
    if not by_id:
        return topic.name
    found = service.catalog.by_id.get(topic.topic_id)
    return None if found is None else found.name


def _exists(service: GroupService, topic: str, partition: int) -> bool:
    found = service.catalog.topics.get(topic)
    return found is not None and 0 <= partition < len(found.partitions)


class Offsets:
    """Handlers of the three requests about committed positions."""

    def __init__(self, service: GroupService) -> None:
        self._service = service
        self._progress = service.progress
        self._elsewhere = PositionsElsewhere(service.owned, service.owners, service.peers, self._list_positions)

    # --- OffsetCommit --------------------------------------------------------------------------------------------

    async def commit(self, ctx: Context, request: m.OffsetCommitRequest) -> m.OffsetCommitResponse:
        """Answer OffsetCommit once the positions are durable."""
        now = now_ms()
        # The retention asked for, limited to what 64 bits can store.
        expire_ms = min(now + request.retention_time_ms, _LATEST_MS) if request.retention_time_ms >= 0 else -1
        response = m.OffsetCommitResponse()
        asked = Asked(self._service, now, expire_ms)
        async for topic in in_turns(request.topics):
            name = self._name(ctx, topic)
            partitions = await asked.take(ctx, name, topic.partitions, _CommitPartition)
            response.topics.append(_CommitTopic(topic.topic_id, partitions, topic.name))
        if request.topics and not asked.is_known:
            return response  # no position is valid: a broker does not check the group then
        try:
            self._check_member(ctx.version, request, asked.places)
            await self._store(request.group_id, asked.positions)
        except KafkaError as refused:
            asked.refuse(refused.code)
        return response

    def _check_member(self, version: int, request: m.OffsetCommitRequest, places: Set[Place]) -> None:
        service = self._service
        if service.find(request.group_id) is None and self._progress.group_count >= service.settings.max_groups:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this node has all the groups it may")
        group = service.directory.heartbeating(request.group_id)
        member = None if group is None else group.members.get(request.member_id)
        if version < _UNKNOWN_GROUP_SINCE and member is not None and member.classic is None:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "this version has no field for the member's epoch")
        unknown = ErrorCode.GROUP_ID_NOT_FOUND if version >= _UNKNOWN_GROUP_SINCE else ErrorCode.ILLEGAL_GENERATION
        service.check_commit(request, places, unknown_group_error=unknown)

    async def _store(self, group_id: str, positions: list[tuple[str, int, Committed]]) -> None:
        committing = self._service.committing
        committing[group_id] = committing.get(group_id, 0) + 1
        try:
            await self._progress.commit(group_id, positions)
        except NotOwner as error:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, str(error)) from error
        except LogError as error:
            _log.warning("offsets not committed", group=group_id, positions=len(positions), error=str(error))
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        finally:
            committing[group_id] -= 1
            if not committing[group_id]:
                del committing[group_id]

    def _name(self, ctx: Context, topic: _Topic) -> str | None:
        return topic_name(self._service, topic, by_id=ctx.version >= _IDS_SINCE)

    def _id(self, topic: str) -> bytes | None:
        found = self._service.catalog.topics.get(topic)
        return None if found is None else found.topic_id.bytes

    # --- OffsetFetch ---------------------------------------------------------------------------------------------

    async def fetch(self, ctx: Context, request: m.OffsetFetchRequest) -> m.OffsetFetchResponse:
        """Answer OffsetFetch; an unknown group or partition is no error, it has "nothing committed" (rule 58)."""
        if ctx.version >= _BATCHED_FETCH_SINCE:
            groups: list[_FetchedGroup] = []
            once = Once()
            async for group in in_turns(request.groups):
                answer = _FetchedGroup(group.group_id, [])
                groups.append(answer)
                try:
                    once.name(group.group_id)
                    self._service.access.require_group(ctx, Operation.DESCRIBE, group.group_id)
                    topics, ids, unknown = await self._resolve_topics(ctx, group)
                    asked = Question(
                        group.group_id, topics, request.require_stable, group.member_id, group.member_epoch
                    )
                    known = await self._elsewhere.find(asked)
                    if known is None:
                        self._require_member(asked)
                except KafkaError as error:
                    answer.error_code = error.code
                    continue
                async for name, rows in self._positions(ctx, asked, known, _GroupPartition):
                    topic_id = ids.get(name) or self._id(name)
                    if topic_id is None and ctx.version >= _IDS_SINCE:
                        continue  # the topic is being deleted, with its positions
                    answer.topics.append(_GroupTopic(topic_id or _NO_ID, rows, name))
                    once.rows(len(rows))
                answer.topics += unknown  # in Kafka's order
            return m.OffsetFetchResponse(groups=groups)
        self._service.access.require_group(ctx, Operation.DESCRIBE, request.group_id)
        wanted = None if request.topics is None else [(t.name, t.partition_indexes) for t in request.topics]
        asked = Question(request.group_id, wanted, request.require_stable)
        known = await self._elsewhere.find(asked)
        response = m.OffsetFetchResponse()
        async for name, old in self._positions(ctx, asked, known, _OldPartition):
            response.topics.append(_OldTopic(name=name, partitions=old))
        return response

    def _require_member(self, asked: Question) -> None:
        """Raise KafkaError if the client claims to be a member and is not, or is in another epoch."""
        group = self._service.directory.heartbeating(asked.group)
        if group is not None:
            self._service.consumers.check_fetch(group, asked.member_id, asked.epoch)

    def _list_positions(self, asked: Question) -> Rows:
        """Return positions of a group of this node for a client of another. Raises KafkaError."""
        self._require_member(asked)
        if asked.topics is None:
            places = list(self._progress.of_group(asked.group))
        else:
            places = [(topic, partition) for topic, partitions in asked.topics for partition in partitions]
        if len(places) > MOST:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, "so many positions are told to who asks the coordinator itself")
        return [(*place, *self._committed(asked, *place)) for place in places]

    def _committed(self, asked: Question, topic: str, partition: int) -> tuple[Committed, int]:
        """Return the position in a partition for a group of this node, and the partition's error."""
        if asked.require_stable and self._service.unstable(asked.group, topic, partition):
            return _NOTHING, ErrorCode.UNSTABLE_OFFSET_COMMIT
        return self._progress.committed(asked.group, topic, partition) or _NOTHING, 0

    async def _resolve_topics(
        self, ctx: Context, group: m.OffsetFetchRequest.OffsetFetchRequestGroup
    ) -> tuple[list[tuple[str, list[int]]] | None, dict[str, bytes], list[_GroupTopic]]:
        """Return the partitions asked for by topic name (None: all), their topics' ids, and the answers for unknown
        ids."""
        if group.topics is None:
            return None, {}, []
        asked = []
        ids = {}
        answers: list[_GroupTopic] = []
        async for topic in in_turns(group.topics):
            name, indexes = self._name(ctx, topic), topic.partition_indexes
            if name is None:
                unknown: list[_GroupPartition] = []
                async for some in portions(indexes):
                    unknown += [_GroupPartition(i, -1, error_code=ErrorCode.UNKNOWN_TOPIC_ID) for i in some]
                answers.append(_GroupTopic(topic.topic_id, unknown))
                continue
            ids[name] = topic.topic_id
            asked.append((name, indexes))
        return asked, ids, answers

    async def _positions(
        self,
        ctx: Context,
        asked: Question,
        known: Mapping[Place, tuple[Committed, int]] | None,
        row: Callable[[int, int, int, str, int], R],
    ) -> AsyncIterator[tuple[str, list[R]]]:
        """Iterate over topics with a ``row`` (partition, offset, leader epoch, metadata, error) for each partition
        asked for, or for every committed one. ``known``: what the group's coordinator has said."""
        topics = asked.topics
        everything = topics is None
        if topics is None:
            places = list(self._progress.of_group(asked.group) if known is None else known)
            if len(places) > _SORTED_ON_THE_LOOP:
                await asyncio.to_thread(places.sort)
            else:
                places.sort()
            all_of_group: dict[str, list[int]] = {}
            async for topic, partition in in_turns(places):
                all_of_group.setdefault(topic, []).append(partition)
            topics = list(all_of_group.items())
        async for topic, partitions in in_turns(topics):
            rows = []
            allowed = self._service.access.topic(ctx, Operation.DESCRIBE, topic)
            if everything and not allowed:
                continue
            async for partition in in_turns(partitions):
                found, error = _NOTHING, 0
                if not allowed:
                    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                elif known is not None:
                    found, error = known.get((topic, partition), (_NOTHING, 0))
                else:
                    found, error = self._committed(asked, topic, partition)
                rows.append(row(partition, found.offset, found.leader_epoch, found.metadata, error))
            yield topic, rows

    # --- OffsetDelete --------------------------------------------------------------------------------------------

    async def delete(self, ctx: Context, request: m.OffsetDeleteRequest) -> m.OffsetDeleteResponse:
        """Answer OffsetDelete, which deletes positions of topics that no member reads."""
        service = self._service
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "a group needs a name")
        group = service.find(request.group_id)
        if not isinstance(group, ConsumerGroup):
            service.coordinator.check_offset_delete(request.group_id)
        assert group is not None
        response = m.OffsetDeleteResponse()
        gone: list[Place] = []
        async for topic in in_turns(request.topics):
            partitions = []
            allowed = service.access.topic(ctx, Operation.READ, topic.name)
            async for partition in in_turns(topic.partitions):
                answer = _DeletePartition(partition.partition_index)
                partitions.append(answer)
                if not allowed:
                    answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                elif not _exists(service, topic.name, partition.partition_index):
                    answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif group.is_subscribed(topic.name):
                    answer.error_code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                else:
                    gone.append((topic.name, partition.partition_index))
            response.topics.append(_DeleteTopic(name=topic.name, partitions=partitions))
        if gone:
            try:
                await self._progress.delete(request.group_id, gone)
            except GroupHeld as held:
                raise KafkaError(ErrorCode.NON_EMPTY_GROUP, str(held)) from held
            except NotOwner as error:
                raise KafkaError(ErrorCode.NOT_COORDINATOR, str(error)) from error
            except LogError as error:
                _log.warning("offsets not deleted", group=request.group_id, error=str(error))
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        return response


_NOTHING = Committed(-1)


def register(registry: Registry, service: GroupService) -> None:
    """Serve keys 8, 9 and 47."""
    offsets, of_group = Offsets(service), service.access.of_group
    registry.register(ApiKey.OFFSET_COMMIT, of_group(Operation.READ, offsets.commit))
    registry.register(ApiKey.OFFSET_FETCH, offsets.fetch)
    registry.register(ApiKey.OFFSET_DELETE, of_group(Operation.DELETE, offsets.delete))
