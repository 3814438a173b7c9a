"""Settings of a topic as YDB's clients give them: checked, altered, and split into the topic's configuration and the
front's own part.

Retention is the topic's configuration, which every protocol sees. All else is stored as one ``CreateTopicRequest``, as
if the topic were created anew, and is returned as it came. docs/ydb.md lists each field's effect; several are stored
without any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import Any, NamedTuple

from msgspec import Struct

from bridges.catalog.topics.config import RETAINED_FOR, SPLIT, retained_for_text
from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.statuses import Issue, Status, YdbError, bad_request

CreateTopicRequest = messages["Ydb.Topic.CreateTopicRequest"]
Consumer = messages["Ydb.Topic.Consumer"]

MAX_BYTES = 256 * 1024
"""Most bytes of one topic's settings, including its consumers: they stay in memory."""
MAX_BYTES_OF_ALL = 64 * 1024 * 1024
"""Most bytes of all topics' settings."""
MAX_CONSUMERS = 3000
MAX_CODECS = 100
MAX_CONSUMER_NAME = 1024
_LAST_STANDARD_CODEC = 4
_FIRST_CUSTOM_CODEC, _LAST_CUSTOM_CODEC = 10_000, 19_999

_DISABLED = 1
_STRATEGIES = frozenset({2, 3, 4})
"""Strategies under which partitions may be split: up, up and down, paused."""
_SCALING_UP = frozenset({2, 3})
_SCALING_DOWN = 3
_WINDOW_S, _UP_PERCENT, _DOWN_PERCENT = 300, 90, 30
_WRITE_SPEED = 1024 * 1024
"""Default write speed of a partition for auto-partitioning, in bytes per second."""
_LONGEST_WINDOW_S = 7 * 86_400
_MIB = 1024 * 1024
_MAX_SECONDS = 2**53
_FOR_OTHERS = ("operation_params", "path", "retention_period", "retention_storage_mb")
"""Fields of the request that are not stored with the settings."""


class TopicSettings(Struct, frozen=True):
    """Stored settings of one topic. The messages in it are immutable by convention."""

    wanted: Any
    """A CreateTopicRequest."""
    codecs: frozenset[int]
    """Codecs that writers may use; empty for any."""
    consumers: Mapping[str, Any]
    """Consumer messages by name, in the order in which they were added."""
    splits: bool
    """Whether the topic's partitions may be split; each then has a key range."""
    scales_up: bool
    """Whether a partition with a high write rate is split."""
    scales_down: bool
    """Whether neighbours with a low write rate are merged."""
    size: int
    """Encoded size in bytes."""

    @classmethod
    def parse(cls, wanted: Any) -> TopicSettings:
        """Make settings from a CreateTopicRequest, which the caller must not change afterwards."""
        strategy = int(wanted.partitioning_settings.auto_partitioning_settings.strategy)
        return cls(
            wanted,
            frozenset(wanted.supported_codecs.codecs),
            {consumer.name: consumer for consumer in wanted.consumers},
            strategy in _STRATEGIES,
            strategy in _SCALING_UP,
            strategy == _SCALING_DOWN,
            wanted.ByteSize(),
        )

    @classmethod
    def stored(cls, data: bytes) -> TopicSettings:
        """Decode the bytes of :meth:`to_bytes`. Raises ``google.protobuf.message.DecodeError``."""
        return cls.parse(CreateTopicRequest.FromString(data))

    def to_bytes(self) -> bytes:
        """Encode the settings for the database."""
        return bytes(self.wanted.SerializeToString())


class Thresholds(NamedTuple):
    """Bounds of auto-partitioning: a partition is hot with ``hot`` bytes or more within ``window_ms``, and cold with
    ``cold`` or less."""

    window_ms: int
    hot: int
    cold: int


NONE = TopicSettings.parse(CreateTopicRequest())
"""Settings of a topic without any from YDB's clients."""


def created(request: Any) -> TopicSettings:
    """Return the settings from a CreateTopicRequest. Raises YdbError: BAD_REQUEST, UNSUPPORTED."""
    _check_many(request.consumers)
    _check_size(request)
    wanted = CreateTopicRequest()
    wanted.CopyFrom(request)
    return _checked(wanted, twice=Status.BAD_REQUEST)


def altered(settings: TopicSettings, request: Any) -> TopicSettings:
    """Apply an AlterTopicRequest to ``settings``. Raises YdbError: BAD_REQUEST, UNSUPPORTED, NOT_FOUND for a consumer
    to change or drop that does not exist, ALREADY_EXISTS for one to add that does."""
    for named in (request.add_consumers, request.drop_consumers, request.alter_consumers):
        _check_many(named)
    _check_size(request)
    wanted = CreateTopicRequest()
    wanted.CopyFrom(settings.wanted)
    _alter(wanted, request)
    _alter_attributes(wanted.attributes, request.alter_attributes)
    _alter_consumers(wanted, request)
    return _checked(wanted, twice=Status.ALREADY_EXISTS)


def configuration(request: Any) -> dict[str, str]:
    """Return the topic configuration that a CreateTopicRequest asks for. Raises YdbError: BAD_REQUEST."""
    config: dict[str, str] = {}
    if request.HasField("retention_period"):
        config["retention.ms"] = _retention_ms(request.retention_period)
    if request.retention_storage_mb:
        config["retention.bytes"] = _retention_bytes(request.retention_storage_mb)
    return config


def configuration_changes(request: Any) -> dict[str, str | None]:
    """Return the changes of the topic configuration that an AlterTopicRequest asks for. Raises YdbError:
    BAD_REQUEST."""
    changes: dict[str, str | None] = {}
    if request.HasField("set_retention_period"):
        changes["retention.ms"] = _retention_ms(request.set_retention_period)
    if request.HasField("set_retention_storage_mb"):
        megabytes = request.set_retention_storage_mb
        changes["retention.bytes"] = _retention_bytes(megabytes) if megabytes else None
    return changes


def split_configuration(settings: TopicSettings) -> dict[str, str]:
    """Return the topic configuration that lets the catalog split partitions; empty for a topic that is not split."""
    return {SPLIT: "true"} if settings.splits else {}


def retention_configuration(settings: TopicSettings) -> dict[str, str | None]:
    """Return the topic configuration that makes retention wait for consumers: for important ones without limit, for
    others during their ``availability_period``."""
    waits: dict[str, int] = {}
    for name, consumer in settings.consumers.items():
        period = consumer.availability_period
        milliseconds = min(period.seconds, _MAX_SECONDS) * 1000 + period.nanos // 1_000_000
        if consumer.important:
            waits[name] = 0
        elif milliseconds:
            waits[name] = milliseconds
    return {RETAINED_FOR: retained_for_text(waits) if waits else None}


def thresholds(settings: TopicSettings) -> Thresholds:
    """Return the thresholds for splits and merges of a topic, with YDB's defaults for unset fields."""
    wanted = settings.wanted
    speed = wanted.partitioning_settings.auto_partitioning_settings.partition_write_speed
    window = speed.stabilization_window
    window_ms = min(window.seconds, _LONGEST_WINDOW_S) * 1000 + window.nanos // 1_000_000
    window_ms = window_ms or _WINDOW_S * 1000
    whole = (wanted.partition_write_speed_bytes_per_second or _WRITE_SPEED) * window_ms
    up, down = speed.up_utilization_percent or _UP_PERCENT, speed.down_utilization_percent or _DOWN_PERCENT
    return Thresholds(window_ms, max(1, whole * up // 100_000), whole * down // 100_000)


def describe_partitioning(settings: TopicSettings, active: int, target: Any) -> None:
    """Fill in a PartitioningSettings for a topic with ``active`` partitions, with YDB's defaults for unset fields:
    clients read its sub-messages without checking that they are present."""
    target.CopyFrom(settings.wanted.partitioning_settings)
    if not settings.splits:
        target.min_active_partitions = active
    target.min_active_partitions = max(1, target.min_active_partitions)
    auto = target.auto_partitioning_settings
    auto.strategy = auto.strategy or _DISABLED
    speed = auto.partition_write_speed
    speed.stabilization_window.seconds = speed.stabilization_window.seconds or _WINDOW_S
    speed.up_utilization_percent = speed.up_utilization_percent or _UP_PERCENT
    speed.down_utilization_percent = speed.down_utilization_percent or _DOWN_PERCENT


def _alter(target: Any, change: Any) -> None:
    """Apply the fields of an Alter message that are set. ``set_NAME`` replaces the target's NAME, ``alter_NAME`` alters
    it, and ``reset_NAME`` clears it; names that the target does not have are applied elsewhere. ``set_NAME`` with an
    Alter message of its own alters, too (partition_write_speed)."""
    known = target.DESCRIPTOR.fields_by_name
    for field, value in change.ListFields():
        how, _, name = field.name.partition("_")
        if name not in known or known[name].is_repeated:
            continue
        if how == "reset":
            target.ClearField(name)
        elif how == "set" and field.message_type is None:
            setattr(target, name, value)
        elif field.message_type is known[name].message_type:
            getattr(target, name).CopyFrom(value)
        else:
            _alter(getattr(target, name), value)


def _alter_attributes(attributes: Any, changes: Mapping[str, str]) -> None:
    """Apply changes of attributes. An empty value removes an attribute."""
    for key, value in changes.items():
        if value:
            attributes[key] = value
        elif key in attributes:
            del attributes[key]


def _alter_consumers(wanted: Any, request: Any) -> None:
    """Apply changes of consumers. Drops come first, so that one request may recreate a consumer."""
    consumers = {consumer.name: consumer for consumer in wanted.consumers}
    if missing := [name for name in request.drop_consumers if name not in consumers]:
        raise YdbError(Status.NOT_FOUND, f"there is no consumer '{missing[0][:MAX_CONSUMER_NAME]}' to drop")
    dropped = set(request.drop_consumers)
    kept = [consumer for consumer in wanted.consumers if consumer.name not in dropped]
    for added in request.add_consumers:
        kept.append(Consumer())
        kept[-1].CopyFrom(added)
    by_name = {consumer.name: consumer for consumer in kept}
    for change in request.alter_consumers:
        consumer = by_name.get(change.name)
        if consumer is None:
            raise YdbError(Status.NOT_FOUND, f"there is no consumer '{change.name[:MAX_CONSUMER_NAME]}' to alter")
        _alter(consumer, change)
        _alter_attributes(consumer.attributes, change.alter_attributes)
    # Serialized copies: the messages may belong to ``wanted``, whose consumers are cleared now.
    whole = [consumer.SerializeToString() for consumer in kept]
    del wanted.consumers[:]
    for data in whole:
        wanted.consumers.add().MergeFromString(data)


def _checked(wanted: Any, twice: Status) -> TopicSettings:
    for name in _FOR_OTHERS:
        wanted.ClearField(name)
    for consumer in wanted.consumers:
        consumer.ClearField("consumer_stats")
    _drop_repeated(wanted.supported_codecs)
    _check_size(wanted)
    if wanted.content_based_deduplication:
        raise YdbError(Status.UNSUPPORTED, "messages are not deduplicated by their content here")
    for name in ("partition_write_speed_bytes_per_second", "partition_write_burst_bytes"):
        if getattr(wanted, name) < 0:
            raise bad_request(f"{name} is negative")
    if "" in wanted.attributes:
        raise bad_request("an attribute has an empty name")
    _check_codecs(wanted.supported_codecs.codecs)
    _check_partitioning(wanted.partitioning_settings)
    _check_many(wanted.consumers)
    names: set[str] = set()
    for consumer in wanted.consumers:
        _check_consumer(consumer)
        if consumer.name in names:
            raise YdbError(twice, f"there is a consumer '{consumer.name}' already", Issue.BAD_REQUEST)
        names.add(consumer.name)
    return TopicSettings.parse(wanted)


def _check_many(consumers: Sized) -> None:
    """Check the number of consumers, which the client chooses, before any work is done per consumer."""
    if len(consumers) > MAX_CONSUMERS:
        raise bad_request(f"a topic has at most {MAX_CONSUMERS} consumers, not {len(consumers)}")


def _check_size(message: Any) -> None:
    if message.ByteSize() > MAX_BYTES:
        raise bad_request(f"attributes and consumers of a topic have at most {MAX_BYTES} bytes together")


def _check_partitioning(settings: Any) -> None:
    least, most = settings.min_active_partitions, settings.max_active_partitions
    if least < 0 or most < 0 or settings.partition_count_limit < 0:
        raise bad_request("the numbers of partitions must not be negative")
    auto = settings.auto_partitioning_settings
    if auto.strategy not in (0, _DISABLED, *_STRATEGIES):
        raise bad_request(f"there is no strategy {auto.strategy} of auto-partitioning")
    if auto.strategy in _STRATEGIES and most and most < max(1, least):
        raise bad_request(f"max_active_partitions = {most} is less than min_active_partitions = {max(1, least)}")
    speed = auto.partition_write_speed
    up, down = speed.up_utilization_percent or _UP_PERCENT, speed.down_utilization_percent or _DOWN_PERCENT
    if not 0 < down <= up <= 100:
        raise bad_request(f"of a partition's speed {down} % and {up} % are no bounds to merge and to split at")
    if not 0 <= speed.stabilization_window.seconds <= _MAX_SECONDS or speed.stabilization_window.nanos < 0:
        raise bad_request("stabilization_window must be a duration, and not negative")


def _check_consumer(consumer: Any) -> None:
    name = consumer.name
    if not name:
        raise bad_request("a consumer needs a name")
    if len(name) > MAX_CONSUMER_NAME:
        raise bad_request(f"the name of a consumer has at most {MAX_CONSUMER_NAME} characters")
    if "/" in name or "|" in name:
        raise bad_request(f"consumer '{name}' has '/' or '|' in its name")
    if not 0 <= consumer.read_from.seconds <= _MAX_SECONDS or not 0 <= consumer.read_from.nanos < 1_000_000_000:
        raise bad_request(f"read_from of consumer '{name}' is not a valid time")
    if consumer.availability_period.seconds < 0 or consumer.availability_period.nanos < 0:
        raise bad_request(f"availability_period of consumer '{name}' is negative")
    if "" in consumer.attributes:
        raise bad_request(f"an attribute of consumer '{name}' has no name")
    _check_codecs(consumer.supported_codecs.codecs)


def _check_codecs(codecs: Iterable[int]) -> None:
    many = 0
    for codec in codecs:
        many += 1
        if not (1 <= codec <= _LAST_STANDARD_CODEC or _FIRST_CUSTOM_CODEC <= codec <= _LAST_CUSTOM_CODEC):
            raise bad_request(f"there is no codec {codec}")
    if many > MAX_CODECS:
        raise bad_request(f"{many} codecs are more than {MAX_CODECS}")


def _drop_repeated(supported: Any) -> None:
    codecs = list(dict.fromkeys(supported.codecs))
    if len(codecs) < len(supported.codecs):
        supported.codecs[:] = codecs


def _retention_ms(period: Any) -> str:
    milliseconds = period.seconds * 1000 + period.nanos // 1_000_000
    if not 0 < milliseconds <= _MAX_SECONDS * 1000:
        raise bad_request("retention_period must be a length of time, at least a millisecond")
    return str(milliseconds)


def _retention_bytes(megabytes: int) -> str:
    if not 0 < megabytes <= 2**63 // _MIB - 1:
        raise bad_request(f"retention_storage_mb = {megabytes} is no number of megabytes")
    return str(megabytes * _MIB)
