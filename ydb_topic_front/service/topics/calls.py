"""CreateTopic, AlterTopic and DropTopic."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bridges.auth import Operation, Resource, ResourceKind
from bridges.catalog.topics.lineage import KEY_SPACE, KeyRange, PartitionInfo
from bridges.catalog.topics.topic import InvalidPartitions
from ydb_topic_front.service import paths
from ydb_topic_front.service.read.coordination import Forget
from ydb_topic_front.service.topics import settings as topic_settings
from ydb_topic_front.wire.statuses import bad_request

if TYPE_CHECKING:
    from bridges.catalog.topics.topic import Topic
    from bridges.net.grpc_server import GrpcCall
    from ydb_topic_front.dispatch import Registry
    from ydb_topic_front.service.core import YdbService
    from ydb_topic_front.service.topics.settings import TopicSettings


class Topics:
    """Creates, alters and deletes topics. Handlers raise YdbError or LogError."""

    def __init__(self, service: YdbService) -> None:
        self._service = service
        self._catalog = service.catalog

    async def create(self, request: Any, call: GrpcCall) -> None:
        """Create a topic. A topic that exists stays as it is, without an error: SDKs repeat the call."""
        service = self._service
        path = service.name_of(call, request.path)
        name = paths.new_name(path)
        service.require(call, Operation.CREATE, Resource(ResourceKind.TOPIC, name))
        settings = topic_settings.created(request)
        partitions = max(1, request.partitioning_settings.min_active_partitions)
        self._check_many(partitions)
        keys = evenly(partitions) if settings.splits else ()
        config = topic_settings.configuration(request) | topic_settings.split_configuration(settings)
        config |= {key: value for key, value in topic_settings.retention_configuration(settings).items() if value}
        await service.topics.create(name, path, partitions, config, settings, keys)

    async def alter(self, request: Any, call: GrpcCall) -> None:
        """Alter a topic. Partitions are changed first, then all settings in one transaction, so a request that a crash
        has cut off may be repeated."""
        service = self._service
        topic = service.topic_at(call, request.path, Operation.ALTER)
        changes = topic_settings.configuration_changes(request)
        if len(request.drop_consumers) > topic_settings.MAX_CONSUMERS:
            raise bad_request(f"a topic has at most {topic_settings.MAX_CONSUMERS} consumers to drop")
        dropped = dict.fromkeys(request.drop_consumers)
        principal = service.principal(call)
        for consumer in dropped:
            service.require(call, Operation.DELETE, Resource(ResourceKind.GROUP, consumer), principal)

        def change(settings: TopicSettings) -> TopicSettings:
            changed = topic_settings.altered(settings, request)
            if settings.splits and not changed.splits:
                raise bad_request("auto-partitioning cannot be disabled again: it can be paused")
            return changed

        async def prepare(before: TopicSettings, after: TopicSettings) -> None:
            if after.splits and not before.splits:
                await self._catalog.set_config(topic.name, topic_settings.split_configuration(after))
            await self._grow(topic, request, after)
            await self._forget(topic, dropped)

        await service.topics.change(topic, changes, change, prepare)

    async def drop(self, request: Any, call: GrpcCall) -> None:
        """Delete a topic; open streams to it end."""
        topic = self._service.topic_at(call, request.path, Operation.DELETE)
        await self._catalog.delete_topic(topic.name)

    def _check_many(self, partitions: int) -> None:
        # Checked before anything is allocated per partition: the client chooses the number.
        most = self._catalog.options.max_partitions_per_topic
        if partitions > most:
            raise bad_request(f"a topic has at most {most} partitions, not {partitions}")

    async def _grow(self, topic: Topic, request: Any, settings: TopicSettings) -> None:
        """Give a topic as many active partitions as an AlterTopicRequest asks for.

        If partitions have key ranges, the widest are split, and producers follow to the children of theirs. Otherwise
        new partitions are added, and producers stay where they are.
        """
        change = request.alter_partitioning_settings
        if not change.HasField("set_min_active_partitions"):
            return
        wanted, active = max(1, change.set_min_active_partitions), topic.active
        self._check_many(wanted)
        if settings.splits:
            await self._split(topic, wanted)
            return
        if wanted < len(active):
            raise InvalidPartitions(f"there are {len(active)} active partitions, and they cannot be taken away")
        if wanted > len(active):
            await self._catalog.add_partitions(topic.name, len(topic.partitions) + wanted - len(active))

    async def _split(self, topic: Topic, wanted: int) -> None:
        # One change per partition: partitions from before auto-partitioning have overlapping key ranges, which a single
        # change must not seal together. After a crash, a repeated request continues where it stopped.
        for number, ranges in halved(topic.active, wanted).items():
            await self._catalog.change_partitions(topic.name, [number], ranges)

    async def _forget(self, topic: Topic, consumers: Iterable[str]) -> None:
        """Delete the positions of dropped consumers before the consumers themselves: a consumer added again begins at
        zero."""
        numbers = [one.index for one in topic.partitions]
        for consumer in consumers:
            await self._service.readers.coordination.forget(Forget(consumer, topic.name, numbers))


def evenly(partitions: int) -> tuple[KeyRange, ...]:
    """Divide the key space into ``partitions`` ranges of the same width."""
    bounds = [KEY_SPACE * number // partitions for number in range(partitions + 1)]
    return tuple(KeyRange(low, high) for low, high in pairwise(bounds))


def halved(active: Iterable[PartitionInfo], wanted: int) -> dict[int, list[KeyRange]]:
    """Choose the ``active`` partitions to seal so that ``wanted`` are active, and return the new ranges that replace
    each. The widest ranges are halved as often as needed. Raises InvalidPartitions."""
    pieces = [(one.keys.low - one.keys.high, one.index, one.keys.low) for one in active]
    heapify(pieces)
    halves: dict[int, set[KeyRange]] = {}
    for _ in range(wanted - len(pieces)):
        negative, index, low = heappop(pieces)
        keys = KeyRange(low, low - negative)
        middle = (keys.low + keys.high) // 2
        if middle == keys.low:
            raise InvalidPartitions("the ranges of keys cannot be halved any more")
        ranges = halves.setdefault(index, {keys})
        ranges.remove(keys)
        for half in (KeyRange(keys.low, middle), KeyRange(middle, keys.high)):
            ranges.add(half)
            heappush(pieces, (half.low - half.high, index, half.low))
    return {index: sorted(ranges, key=lambda keys: keys.low) for index, ranges in sorted(halves.items())}


def register(registry: Registry, service: YdbService) -> None:
    """Add this module's methods."""
    topics = Topics(service)
    registry.call("CreateTopic", topics.create)
    registry.call("AlterTopic", topics.alter)
    registry.call("DropTopic", topics.drop)
