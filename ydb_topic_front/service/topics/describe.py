"""DescribeTopic, DescribePartition and DescribeConsumer.

Clients read sub-messages without checking that they are present (docs/protocols/ydb.md, "Present fields"), so those are
always filled in. Statistics come from the partitions' logs, which are opened for them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from anabranch_kit.run import clock
from anabranch_kit.run.turns import gathered, in_turns
from bridges.auth import Operation, Resource, ResourceKind
from bridges.catalog.topics.lineage import WHOLE, PartitionInfo
from ydb_topic_front.service import paths
from ydb_topic_front.service.read.calls import by_consumer
from ydb_topic_front.service.read.start import written_at
from ydb_topic_front.service.topics import settings as topic_settings
from ydb_topic_front.session.measured import WINDOWS
from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.statuses import Issue, Status, YdbError, bad_request

if TYPE_CHECKING:
    from bridges.catalog.topics.topic import Topic
    from bridges.log.remote.readable import ReadableLog
    from bridges.net.grpc_server import GrpcCall
    from ydb_topic_front.dispatch import Registry
    from ydb_topic_front.service.core import YdbService
    from ydb_topic_front.session.measured import ReadMeasure

_TopicResult = messages["Ydb.Topic.DescribeTopicResult"]
_PartitionResult = messages["Ydb.Topic.DescribePartitionResult"]
_ConsumerResult = messages["Ydb.Topic.DescribeConsumerResult"]
_Entry = messages["Ydb.Scheme.Entry"]
TOPIC_ENTRY = _Entry.TOPIC

_PARTITION_BYTES = 500
"""Approximate memory for a partition in an answer."""
_CONSUMER_BYTES = 200
"""Approximate memory for a consumer's statistics in an answer."""
_SETTINGS = (
    "supported_codecs",
    "partition_write_speed_bytes_per_second",
    "partition_write_burst_bytes",
    "attributes",
    "metering_mode",
    "metrics_level",
)
"""Fields that are returned as the client set them."""
_LAGS_LOOKED_AT = 1000
"""Most pairs of consumer and partition for which DescribeTopic looks up the committed lag: each look-up reads."""
_MIB = 1024 * 1024


class Descriptions:
    """Describes topics, partitions and consumers. Handlers raise YdbError or LogError."""

    def __init__(self, service: YdbService) -> None:
        self._service = service
        self._catalog = service.catalog

    async def topic(self, request: Any, call: GrpcCall) -> Any:
        """Describe a topic, its partitions and its consumers."""
        service = self._service
        topic = service.topic_at(call, request.path, Operation.DESCRIBE)
        settings = service.topics.get_settings(topic.name)
        size = 2 * settings.size + _PARTITION_BYTES * len(topic.partitions)
        service.admit(call, size + (_CONSUMER_BYTES * len(settings.consumers) if request.include_stats else 0))
        result = _TopicResult()
        fill_entry(result.self, paths.last(service.path_of(call, topic)), TOPIC_ENTRY, topic.created_ms)
        topic_settings.describe_partitioning(settings, len(topic.active), result.partitioning_settings)
        self._fill_retention(topic, result)
        for name in _SETTINGS:
            value = getattr(settings.wanted, name)
            if name == "attributes":
                result.attributes.update(value)
            elif name == "supported_codecs":
                result.supported_codecs.CopyFrom(value)
            elif name != "metrics_level" or settings.wanted.HasField(name):
                setattr(result, name, value)
        for consumer in settings.consumers.values():
            described = result.consumers.add()
            described.CopyFrom(consumer)
            described.read_from.SetInParent()
            described.supported_codecs.SetInParent()
        stats = Sums()
        async for info, log in self._partitions(topic, request.include_stats):
            target = result.partitions.add()
            self._fill_partition(topic, info, target, request.include_location)
            _fill_keys(info, settings.splits, target)
            if log is not None:
                stats.add(self._fill_stats(topic, log, target.partition_stats))
                result.topic_stats.store_size_bytes += log.size_bytes
        if request.include_stats:
            stats.fill(result.topic_stats)
            await self._fill_consumers(topic, result, call)
        return result

    async def partition(self, request: Any, call: GrpcCall) -> Any:
        """Describe one partition. Writers that connect to the partition's node ask here where that is."""
        service = self._service
        topic = service.topic_at(call, request.path, Operation.DESCRIBE)
        info = self._catalog.partition(topic.name, request.partition_id)
        if info is None:
            raise bad_request(f"there is no partition {request.partition_id}")
        result = _PartitionResult()
        self._fill_partition(topic, info, result.partition, request.include_location)
        _fill_keys(info, service.topics.get_settings(topic.name).splits, result.partition)
        if request.include_stats:
            self._fill_stats(topic, await self._opened(topic, info), result.partition.partition_stats)
        return result

    async def consumer(self, request: Any, call: GrpcCall) -> Any:
        """Describe a consumer and its progress in each partition."""
        service = self._service
        topic = service.topic_at(call, request.path, Operation.DESCRIBE)
        service.require(call, Operation.DESCRIBE, Resource(ResourceKind.GROUP, request.consumer))
        consumer = service.topics.get_settings(topic.name).consumers.get(request.consumer)
        if consumer is None:
            raise YdbError(
                Status.SCHEME_ERROR,
                f"there is no consumer '{request.consumer}' of '{request.path}'",
                Issue.UNKNOWN_TOPIC,
            )
        service.admit(call, 2 * consumer.ByteSize() + _PARTITION_BYTES * len(topic.partitions))
        result = _ConsumerResult()
        name = f"{paths.last(service.path_of(call, topic))}/{request.consumer}"
        fill_entry(result.self, name, TOPIC_ENTRY, topic.created_ms)
        result.consumer.CopyFrom(consumer)
        result.consumer.read_from.SetInParent()
        result.consumer.supported_codecs.SetInParent()
        stats = ConsumerSums()
        async for info, log in self._partitions(topic, request.include_stats):
            target = result.partitions.add()
            self._fill_partition(topic, info, target, request.include_location)
            self._fill_consumer(topic, info, request.consumer, target.partition_consumer_stats)
            if log is not None:
                self._fill_stats(topic, log, target.partition_stats)
                lag = await self._committed_lag(log, target.partition_consumer_stats.committed_offset, call)
                fill_duration(target.partition_consumer_stats.max_committed_time_lag, lag)
            stats.add(target.partition_consumer_stats)
        stats.fill(result.consumer.consumer_stats)
        return result

    # --- parts ------------------------------------------------------------------------------------------------------

    async def _partitions(self, topic: Topic, opened: bool) -> AsyncIterator[tuple[PartitionInfo, ReadableLog | None]]:
        """Yield all partitions as of the call, each with its open log if ``opened``."""
        infos = tuple(topic.partitions)
        logs: Sequence[ReadableLog | None] = [None] * len(infos)
        if opened:
            logs = await gathered(self._opened(topic, info) for info in infos)
        async for pair in in_turns(zip(infos, logs, strict=True)):
            yield pair

    async def _opened(self, topic: Topic, info: PartitionInfo) -> ReadableLog:
        log = self._service.log_to_read(topic, info.index)
        await log.refresh()
        return log

    def _fill_partition(self, topic: Topic, info: PartitionInfo, target: Any, location: bool) -> None:
        target.partition_id = info.index
        target.active = info.is_active
        target.child_partition_ids.extend(info.children)
        target.parent_partition_ids.extend(info.parents)
        if location:
            target.partition_location.node_id = self._service.owner_id(topic.name, info.index)
            target.partition_location.generation = self._service.generation(topic.name, info.index)

    def _fill_retention(self, topic: Topic, result: Any) -> None:
        milliseconds = self._catalog.effective(topic.name, "retention.ms")
        if milliseconds >= 0:  # else unlimited, which the message cannot express
            result.retention_period.seconds, rest = divmod(milliseconds, 1000)
            result.retention_period.nanos = rest * 1_000_000
        result.retention_period.SetInParent()
        result.retention_storage_mb = max(0, self._catalog.effective(topic.name, "retention.bytes")) // _MIB

    def _fill_stats(self, topic: Topic, log: ReadableLog, target: Any) -> Any:
        target.partition_offsets.start = log.log_start_offset
        target.partition_offsets.end = log.last_stable_offset
        target.store_size_bytes = log.size_bytes
        if (written_ms := log.last_append_ms) > 0:
            fill_time(target.last_write_time, written_ms)
        fill_duration(target.max_write_time_lag, self._service.measures.write_lag(topic, log.partition))
        now = clock.now_ms()
        for name, window in WINDOWS:
            setattr(target.bytes_written, name, log.bytes_since(now - window))
        target.bytes_written.SetInParent()
        target.partition_node_id = self._service.owner_id(topic.name, log.partition)
        return target

    def _fill_consumer(self, topic: Topic, info: PartitionInfo, consumer: str, target: Any) -> None:
        target.SetInParent()
        target.committed_offset = self._committed(topic, info.index, consumer)
        target.last_read_offset = target.committed_offset
        now = clock.now_ms()
        measure = self._service.measures.of_consumer(topic, consumer, info.index)
        for field in LAGS:
            getattr(target, field).SetInParent()
        target.bytes_read.SetInParent()
        if measure is not None:
            target.last_read_offset = measure.last_offset
            fill_time(target.last_read_time, measure.last_ms)
            fill_duration(target.max_read_time_lag, measure.read_lag.most(now))
            fill_duration(target.max_write_time_lag, measure.write_lag.most(now))
            for name, size in measure.size.sums(now).items():
                setattr(target.bytes_read, name, size)
        reader = self._service.readers.find(consumer, topic.name, info.index)
        if reader is None:
            return
        target.read_session_id = reader.session_id
        target.reader_name = reader.reader_name
        target.connection_node_id = self._service.node_id
        fill_time(target.partition_read_session_create_time, reader.began_ms)
        if reader.last_read_offset >= 0:
            target.last_read_offset = reader.last_read_offset
            fill_time(target.last_read_time, reader.last_read_ms)

    async def _fill_consumers(self, topic: Topic, result: Any, call: GrpcCall) -> None:
        """Fill in the statistics of a topic's consumers over all partitions, whose logs are open."""
        sums = {consumer.name: ConsumerSums() for consumer in result.consumers}
        now = clock.now_ms()
        async for name, measure in in_turns(self._service.measures.of_topic(topic)):
            if name in sums:
                sums[name].measured(measure, now)
        looked_at = len(sums) * len(result.partitions) <= _LAGS_LOOKED_AT
        if looked_at:
            async for partition in in_turns(result.partitions):
                log = self._service.log_to_read(topic, partition.partition_id)
                lags: dict[int, int] = {}  # most consumers have the same position
                for name, one in sums.items():
                    if self._is_elsewhere(name):
                        continue
                    offset = self._committed(topic, partition.partition_id, name)
                    if offset not in lags:
                        lags[offset] = await self._committed_lag(log, offset, call)
                    one.lag("max_committed_time_lag", lags[offset])
        async for consumer in in_turns(result.consumers):
            sums[consumer.name].fill(consumer.consumer_stats)
            if not looked_at or self._is_elsewhere(consumer.name):
                consumer.consumer_stats.ClearField("max_committed_time_lag")

    def _is_elsewhere(self, consumer: str) -> bool:
        """Return whether another node knows the consumer's positions."""
        return self._service.readers.coordination.is_elsewhere(consumer)

    def _committed(self, topic: Topic, partition: int, consumer: str) -> int:
        committed = self._service.node.progress.committed(consumer, topic.name, partition)
        return 0 if committed is None else committed.offset

    async def _committed_lag(self, log: ReadableLog, committed: int, call: GrpcCall) -> int:
        """Return how many ms ago the first uncommitted message was written; 0 if all is committed, or the time is
        unknown."""
        offset = max(committed, log.log_start_offset)
        if offset >= log.high_watermark:
            return 0
        async with self._service.readers.searches:
            written_ms = await written_at(log, offset, call.account)
        return 0 if written_ms < 0 else max(0, clock.now_ms() - written_ms)


def fill_entry(entry: Any, name: str, kind: int, created_ms: int = 0) -> None:
    """Fill in a path's entry. ``kind`` is a ``Ydb.Scheme.Entry.Type``. The owner stays empty: paths have none."""
    entry.SetInParent()
    entry.name = name
    entry.type = kind
    if created_ms:
        entry.created_at.plan_step = created_ms


def _fill_keys(info: PartitionInfo, splits: bool, target: Any) -> None:
    """Fill in the key range of a partition that has its own."""
    if not splits and info.keys == WHOLE:
        return
    target.key_range.SetInParent()
    low, high = info.keys.byte_strings
    if low:
        target.key_range.from_bound = low
    if high:
        target.key_range.to_bound = high


def register(registry: Registry, service: YdbService) -> None:
    """Add this module's methods."""
    descriptions = Descriptions(service)
    registry.call("DescribeTopic", descriptions.topic)
    registry.call("DescribePartition", descriptions.partition)
    find = by_consumer(service.readers.coordination, "DescribeConsumer")
    registry.call("DescribeConsumer", descriptions.consumer, service.forwarding.led_call("DescribeConsumer", find))


LAGS = ("max_read_time_lag", "max_write_time_lag", "max_committed_time_lag")
"""Lag fields of a consumer's statistics, per partition and in total."""


class Sums:
    """Statistics of several partitions together."""

    __slots__ = ("_first_ms", "_lags", "_windows")

    lags: ClassVar[tuple[str, ...]] = ("max_write_time_lag",)
    time, first_time, moved = "last_write_time", "min_last_write_time", "bytes_written"
    """Names of a partition's last time, of the first of these times, and of the bytes that were moved."""

    def __init__(self) -> None:
        self._first_ms: int | None = None
        self._lags = dict.fromkeys(self.lags, 0)
        self._windows = dict.fromkeys((name for name, _ in WINDOWS), 0)

    def add(self, stats: Any) -> None:
        """Add one partition's statistics."""
        if stats.HasField(self.time):
            self._include(_milliseconds(getattr(stats, self.time)))
        for name in self.lags:
            self.lag(name, _milliseconds(getattr(stats, name)))
        for name in self._windows:
            self._windows[name] += getattr(getattr(stats, self.moved), name)

    def _include(self, milliseconds: int) -> None:
        self._first_ms = milliseconds if self._first_ms is None else min(self._first_ms, milliseconds)

    def lag(self, name: str, milliseconds: int) -> None:
        """Add one partition's lag: the highest counts."""
        self._lags[name] = max(self._lags[name], milliseconds)

    def fill(self, target: Any) -> None:
        """Fill in statistics of a topic or of a consumer."""
        target.SetInParent()
        if self._first_ms is not None:
            fill_time(getattr(target, self.first_time), self._first_ms)
        for name, lag in self._lags.items():
            fill_duration(getattr(target, name), lag)
        moved = getattr(target, self.moved)
        moved.SetInParent()
        for name, many in self._windows.items():
            setattr(moved, name, many)


class ConsumerSums(Sums):
    """Statistics of a consumer over all its partitions."""

    __slots__ = ()

    lags = LAGS
    time, first_time, moved = "last_read_time", "min_partitions_last_read_time", "bytes_read"

    def measured(self, measure: ReadMeasure, now_ms: int) -> None:
        """Add the measure of one partition."""
        self._include(measure.last_ms)
        self.lag("max_read_time_lag", measure.read_lag.most(now_ms))
        self.lag("max_write_time_lag", measure.write_lag.most(now_ms))
        for name, size in measure.size.sums(now_ms).items():
            self._windows[name] += size


def fill_time(target: Any, milliseconds: int) -> None:
    target.seconds, rest = divmod(milliseconds, 1000)
    target.nanos = rest * 1_000_000


def fill_duration(target: Any, milliseconds: int) -> None:
    """Set a Duration, present even if it is zero."""
    target.SetInParent()
    fill_time(target, milliseconds)


def _milliseconds(time_or_duration: Any) -> int:
    return int(time_or_duration.seconds * 1000 + time_or_duration.nanos // 1_000_000)
