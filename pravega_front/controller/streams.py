"""Topics as Pravega's streams: names, segments with key ranges, and configurations."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from anabranch_kit.run.task_set import TaskSet
from bridges.catalog.config_types import InvalidConfig
from bridges.catalog.database.following import rows_named
from bridges.catalog.database.sql import Connection, upsert
from bridges.catalog.topics.config import SPLIT
from bridges.catalog.topics.lineage import KEY_SPACE, KeyRange, PartitionInfo
from bridges.catalog.topics.names import canonical_name
from bridges.catalog.topics.topic import (
    FOLLOWED,
    Change,
    ChangeKind,
    InvalidPartitions,
    Topic,
    TopicKind,
    TopicNotFound,
)
from bridges.net.grpc_server import Code, GrpcRefusal
from pravega_front.controller.scopes import Scopes
from pravega_front.names import GROUP, MARK, is_internal_name, is_users_name, partition_at, segment_of, split_id
from pravega_front.wire.controller import RetentionType, ScaleType, message

if TYPE_CHECKING:
    from bridges.node.front import NodeServices

_StreamConfig = message("StreamConfig")
_SegmentRange = message("SegmentRange")

_BYTES = "retention.bytes"
_MOST_SAID = 64 * 1024
"""Most bytes of a stream's, a reader group's or a table's configuration. Pravega's clients give a stream at most 128
tags of 256 characters."""


class Ranged(NamedTuple):
    """A segment with its key range from ``low`` to ``high``."""

    partition: PartitionInfo
    low: float
    high: float


def ranged(partitions: Sequence[PartitionInfo]) -> list[Ranged]:
    """Return partitions with key ranges that cover [0, 1] without overlapping, as Pravega's clients need them.

    These are their own ranges, if they cover it. The partitions of a topic that all have the whole range, such as
    Kafka's, get equal parts: records of other protocols lie wherever their writers put them.
    """
    ordered = sorted(partitions, key=lambda one: one.keys.low)
    bounds = ordered and (ordered[0].keys.low, ordered[-1].keys.high) == (0, KEY_SPACE)
    if bounds and all(one.keys.high == after.keys.low for one, after in pairwise(ordered)):
        return [Ranged(one, *one.keys.doubles) for one in ordered]
    count = len(partitions)
    return [Ranged(one, at / count, (at + 1) / count) for at, one in enumerate(partitions)]


def even(count: int) -> list[KeyRange]:
    """Divide the key space into ``count`` equal ranges."""
    return [KeyRange.of_doubles(at / count, (at + 1) / count) for at in range(count)]


class Streams:
    """All streams. Call :meth:`load` first."""

    def __init__(self, node: NodeServices, max_scopes: int) -> None:
        self._node = node
        self._catalog = node.catalog
        self._db = node.db
        self.scopes = Scopes(node, max_scopes)
        self._configs: dict[str, bytes] = {}
        self._by_rate: set[str] = set()
        self._by_size: set[str] = set()
        self._work = TaskSet()

    async def load(self) -> None:
        """Read scopes and streams' configurations from the database, and follow changes."""
        await self.scopes.load()

        self._db.changes.mirror(FOLLOWED, _read, self._follow)
        self._catalog.on_change.append(self._changed)
        self._configs = await self._db.run(lambda connection: _read(connection, None))
        for name, raw in self._configs.items():
            self._note_policy(name, _StreamConfig.FromString(raw))

    def _follow(self, found: dict[str, bytes], names: Collection[str] | None) -> None:
        for name in set(self._configs if names is None else names) - found.keys():
            self._forget(name)
        for name, raw in found.items():
            if self._configs.get(name) != raw:
                self._know(name, raw, _StreamConfig.FromString(raw))

    def _changed(self, change: Change) -> None:
        if change.kind is ChangeKind.DELETED and change.topic is not None:
            self._forget(change.topic.name)

    def _know(self, name: str, raw: bytes, config: Any) -> None:
        self._configs[name] = raw
        self._note_policy(name, config)

    def _forget(self, name: str) -> None:
        self._configs.pop(name, None)
        self._by_rate.discard(name)
        self._by_size.discard(name)

    def _note_policy(self, name: str, config: Any) -> None:
        if config.scalingPolicy.scaleType == ScaleType.FIXED_NUM_SEGMENTS or config.scalingPolicy.targetRate <= 0:
            self._by_rate.discard(name)
        else:
            self._by_rate.add(name)
        if config.retentionPolicy.retentionType == RetentionType.SIZE and config.retentionPolicy.retentionParam > 0:
            self._by_size.add(name)
        else:
            self._by_size.discard(name)

    def scaled_by_rate(self) -> Iterator[Topic]:
        """Yield the unsealed streams with scaling by rate; they may change during the iteration."""
        return (topic for topic in self._find_all(self._by_rate) if topic.active)

    def kept_by_size(self) -> Iterator[Topic]:
        """Yield the streams with retention by size; they may change during the iteration."""
        return self._find_all(self._by_size)

    def _find_all(self, names: set[str]) -> Iterator[Topic]:
        for name in list(names):
            topic = self._catalog.topics.get(name)
            if topic is not None:
                yield topic

    def share(self, topic: Topic, segments: int) -> dict[str, str]:
        """Return the topic configuration with which ``segments`` active segments share the size of the stream's
        retention policy. Empty for a stream without such a policy, or if the topic's configuration was set otherwise
        since."""
        config = self.config(topic)
        if topic.name not in self._by_size or not topic.active or not segments:
            return {}
        if topic.config.get(_BYTES) != _retention(config, len(topic.active))[_BYTES]:
            return {}  # it was set through another protocol
        return {_BYTES: _retention(config, segments)[_BYTES]}

    # --- looking up ------------------------------------------------------------------------------------------------

    def find(self, scope: str, stream: str) -> Topic | None:
        return self._catalog.by_name("pravega", f"{scope}/{stream}")

    def get(self, info: Any) -> Topic:
        """Return the topic of a stream. Raises TopicNotFound."""
        found = self.find(info.scope, info.stream)
        if found is None:
            raise TopicNotFound(f"there is no stream {info.scope}/{info.stream}")
        return found

    def marked(self, info: Any) -> Topic | None:
        """Return the stream whose watermarks the stream ``info`` holds, or None. A watermark stream has one segment,
        with the number of its stream's first."""
        return self.find(info.scope, info.stream.removeprefix(MARK)) if info.stream.startswith(MARK) else None

    def partition(self, topic: Topic, number: int) -> PartitionInfo:
        """Return the partition of a segment id. Raises GrpcRefusal (NOT_FOUND)."""
        index, epoch = split_id(number)
        found = partition_at(topic, index, epoch)
        if found is None:
            raise GrpcRefusal(Code.NOT_FOUND, f"{topic.name} has no segment {index}.#epoch.{epoch}")
        return found

    def range_message(self, info: Any, topic: Topic, one: Ranged) -> Any:
        """Encode a segment with its key range as the controller's message; ``info`` is the stream's name."""
        found = _SegmentRange(minKey=one.low, maxKey=one.high)
        found.segmentId.streamInfo.scope, found.segmentId.streamInfo.stream = info.scope, info.stream
        found.segmentId.segmentId = segment_of(topic, one.partition).segment_id
        return found

    # --- streams ---------------------------------------------------------------------------------------------------

    def check_name(self, stream: str) -> bool:
        """Return whether a stream may have this name: a user's, or an internal one of Pravega."""
        return is_users_name(stream) or is_internal_name(stream)

    async def close(self) -> None:
        """Finish changes under way, and stop following the catalog."""
        await self._work.drain()
        if self._changed in self._catalog.on_change:
            self._catalog.on_change.remove(self._changed)
        self.scopes.close()

    async def create(self, config: Any, kind: TopicKind = TopicKind.USER) -> Topic:
        """Create the topic of a stream. Raises the errors of
        :meth:`bridges.catalog.topics.catalog.Catalog.create_topic`.
        """
        return await self._work.finish(self._create(config, kind))

    async def _create(self, config: Any, kind: TopicKind) -> Topic:
        info = config.streamInfo
        name = f"{info.scope}/{info.stream}"
        canonical = canonical_name("pravega", name)
        raw = stored(config)

        def also(connection: Connection) -> None:
            connection.execute(upsert("front_pravega_streams", "topic", "config"), (canonical, raw))

        count = max(1, config.scalingPolicy.minNumSegments)
        if count > self._catalog.options.max_partitions_per_topic:  # before allocating anything per segment
            raise InvalidPartitions(f"{count} segments, of {self._catalog.options.max_partitions_per_topic} at most")
        return await self._catalog.create_topic(
            canonical,
            count,
            {**_retention(config, count), SPLIT: "true"},
            names={"pravega": name},
            keys=even(count),
            kind=kind,
            also=also,
            then=lambda: self._know(canonical, raw, config),
        )

    async def update(self, topic: Topic, config: Any) -> None:
        """Change a stream's configuration, durably. Raises LogError."""
        await self._work.finish(self._db.changes.settle(lambda: self._update(topic, config)))

    async def _update(self, topic: Topic, config: Any) -> None:
        raw = stored(config)

        def also(connection: Connection) -> None:
            connection.execute(upsert("front_pravega_streams", "topic", "config"), (topic.name, raw))

        share = dict(_retention(config, len(topic.active)))
        await self._catalog.set_config(topic.name, share, also, lambda: self._know(topic.name, raw, config))

    def has_tag(self, topic: Topic, tag: str) -> bool:
        raw = self._configs.get(topic.name)
        # Most streams have no tags: search the encoded bytes before decoding.
        return raw is not None and tag.encode() in raw and tag in _StreamConfig.FromString(raw).tags.tag

    async def delete(self, topic: Topic) -> None:
        """Delete a stream with its data. Raises LogError."""
        await self._work.finish(self._delete(topic))

    async def _delete(self, topic: Topic) -> None:
        await self._catalog.delete_topic(topic.name, own=True)

    def config(self, topic: Topic) -> Any:
        """Return a stream's configuration; for a topic of another protocol, the closest equivalent."""
        raw = self._configs.get(topic.name)
        config = _StreamConfig() if raw is None else _StreamConfig.FromString(raw)
        if raw is None:
            scope, _, stream = topic.names["pravega"].partition("/")
            config.streamInfo.scope, config.streamInfo.stream = scope, stream
            config.scalingPolicy.scaleType = ScaleType.FIXED_NUM_SEGMENTS
            config.scalingPolicy.minNumSegments = max(1, len(topic.active))
        config.retentionPolicy.SetInParent()
        config.tags.SetInParent()  # clients require the field, even if it is empty
        return config


def _read(connection: Connection, names: Collection[str] | None) -> dict[str, bytes]:
    return dict(rows_named(connection, "SELECT topic, config FROM front_pravega_streams", "topic", names))


def stored(config: Any) -> bytes:
    """Encode the configuration of a stream, a reader group or a table for the database. Raises InvalidConfig."""
    raw: bytes = config.SerializeToString()
    if len(raw) > _MOST_SAID:
        raise InvalidConfig(f"a configuration of {len(raw)} bytes, of {_MOST_SAID} at most")
    return raw


def group_stream(group: str) -> str:
    """Return the name of the stream with a reader group's state."""
    return GROUP + group


def _retention(config: Any, segments: int) -> dict[str, str]:
    """Convert a retention policy to topic configuration. The bytes of a stream are divided evenly among its
    segments."""
    policy = config.retentionPolicy
    found = {"retention.ms": "-1", _BYTES: "-1"}
    if policy.retentionType == RetentionType.TIME and policy.retentionParam > 0:
        found["retention.ms"] = str(policy.retentionParam)
    elif policy.retentionType == RetentionType.SIZE and policy.retentionParam > 0:
        found[_BYTES] = str(max(1, policy.retentionParam // segments))
    return found
