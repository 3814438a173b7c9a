"""Configuration of a topic: Kafka's keys are the canonical ones for every protocol, and two are ours.

Names, types, ranges, defaults and node-level synonyms are those of Kafka 4.2; the sentences say what they mean here.
A value is looked for in the topic, then in the node's dynamic configuration, then in the node's settings, then in the
table below (docs/protocols/kafka.md, rule 65).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from bridges.catalog.config_types import (
    LONG_MAX,
    ConfigDef,
    ConfigSource,
    ConfigType,
    ConfigValue,
    InvalidConfig,
    Synonym,
    between,
    between_or,
    one_of,
    some_of,
    table,
    throttled_replicas,
    to_text,
)

MAX_MESSAGE_BYTES = 16 * 1024 * 1024 - 4096
"""Largest batch that fits into one SBP frame (16 MiB) together with its headers.

A topic may be configured with more, as at a broker: the value is kept and shown, and larger batches are refused.
"""

SPLIT = "anabranch.partitions.split"
"""Whether partitions may be split. This key and the next are the only ones that are not Kafka's."""
RETAINED_FOR = "anabranch.retention.consumers"
"""The consumers that retention waits for: a JSON object of milliseconds by the consumer's name, which may have any
characters: ``{"billing": 0}``. A record that a consumer has not committed is kept for so many milliseconds after it was
written; with 0, until it is committed."""


def retained_for_text(consumers: Mapping[str, int]) -> str:
    """Return the value of :data:`RETAINED_FOR` for these consumers."""
    return json.dumps(consumers, ensure_ascii=False, separators=(",", ":"))


@lru_cache(maxsize=64)
def parse_retained_for(value: str) -> tuple[tuple[str, int], ...]:
    """Return the names and milliseconds of a value of :data:`RETAINED_FOR`. Raises ValueError."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError('must be a JSON object of milliseconds by name, for instance {"billing": 0}') from None
    if not isinstance(found, dict):
        raise ValueError("must be a JSON object")
    for name, milliseconds in found.items():
        if not name:
            raise ValueError("a consumer has no name")
        if type(milliseconds) is not int or not 0 <= milliseconds < 2**63:
            raise ValueError(f"{milliseconds!r} is no number of milliseconds")
    return tuple(found.items())


_MINUTE = 60_000
_HOUR = 60 * _MINUTE

TOPIC_CONFIGS: Mapping[str, ConfigDef] = table(
    ConfigDef(
        SPLIT,
        ConfigType.BOOLEAN,
        "false",
        "Whether partitions of the topic may be split and merged, as Pravega's scaling and YDB's auto-partitioning do. "
        "Producers of Kafka cannot follow: what they send to a partition that was split is refused.",
    ),
    ConfigDef(
        RETAINED_FOR,
        ConfigType.STRING,
        "{}",
        "For whom retention waits: milliseconds by consumer group, as JSON. What a group has not committed is kept so "
        "long after it was written; with 0, until it is committed. YDB's important consumers are these.",
        parse_retained_for,
    ),
    ConfigDef(
        "cleanup.policy",
        ConfigType.LIST,
        "delete",
        "How old records go away: delete drops them by age and size, compact keeps the last record of every key.",
        some_of("delete", "compact"),
        (Synonym("log.cleanup.policy"),),
    ),
    ConfigDef(
        "compression.gzip.level",
        ConfigType.INT,
        "-1",
        "Level used when the node itself compresses with gzip; -1 is the library's choice.",
        between_or(1, 9, -1),
        (Synonym("compression.gzip.level"),),
        honoured=False,
    ),
    ConfigDef(
        "compression.lz4.level",
        ConfigType.INT,
        "9",
        "Level used when the node itself compresses with lz4.",
        between(1, 17),
        (Synonym("compression.lz4.level"),),
        honoured=False,
    ),
    ConfigDef(
        "compression.type",
        ConfigType.STRING,
        "producer",
        "Compression of stored batches. Batches are kept as the producer sent them, whatever is set here.",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        (Synonym("compression.type"),),
        honoured=False,
    ),
    ConfigDef(
        "compression.zstd.level",
        ConfigType.INT,
        "3",
        "Level used when the node itself compresses with zstd.",
        between(-131072, 22),
        (Synonym("compression.zstd.level"),),
        honoured=False,
    ),
    ConfigDef(
        "delete.retention.ms",
        ConfigType.LONG,
        "86400000",
        "Milliseconds for which a compacted topic still shows that a key was deleted.",
        between(0),
        (Synonym("log.cleaner.delete.retention.ms"),),
    ),
    ConfigDef(
        "file.delete.delay.ms",
        ConfigType.LONG,
        "60000",
        "Milliseconds between a segment's removal from the log and that of its file. The store reclaims space itself.",
        between(0),
        (Synonym("log.segment.delete.delay.ms"),),
        honoured=False,
    ),
    ConfigDef(
        "flush.messages",
        ConfigType.LONG,
        str(LONG_MAX),
        "Records after which data is forced to disk. Every acknowledged record is on disk already.",
        between(1),
        (Synonym("log.flush.interval.messages"),),
        honoured=False,
    ),
    ConfigDef(
        "flush.ms",
        ConfigType.LONG,
        str(LONG_MAX),
        "Milliseconds after which data is forced to disk. Every acknowledged record is on disk already.",
        between(0),
        (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
        honoured=False,
    ),
    ConfigDef(
        "follower.replication.throttled.replicas",
        ConfigType.LIST,
        "",
        "Replicas whose copying is slowed down on the receiving side.",
        throttled_replicas,
        honoured=False,
    ),
    ConfigDef(
        "index.interval.bytes",
        ConfigType.INT,
        "4096",
        "Bytes of log between two index entries. Here every batch is indexed.",
        between(0),
        (Synonym("log.index.interval.bytes"),),
        honoured=False,
    ),
    ConfigDef(
        "leader.replication.throttled.replicas",
        ConfigType.LIST,
        "",
        "Replicas whose copying is slowed down on the sending side.",
        throttled_replicas,
        honoured=False,
    ),
    ConfigDef(
        "local.retention.bytes",
        ConfigType.LONG,
        "-2",
        "Bytes of a partition kept on local disk when older data lies in object storage; -2 follows retention.bytes.",
        between(-2),
        (Synonym("log.local.retention.bytes"),),
        honoured=False,
    ),
    ConfigDef(
        "local.retention.ms",
        ConfigType.LONG,
        "-2",
        "Age of data kept on local disk when older data lies in object storage; -2 follows retention.ms.",
        between(-2),
        (Synonym("log.local.retention.ms"),),
        honoured=False,
    ),
    ConfigDef(
        "max.compaction.lag.ms",
        ConfigType.LONG,
        str(LONG_MAX),
        "Milliseconds after which a record must be considered for compaction.",
        between(1),
        (Synonym("log.cleaner.max.compaction.lag.ms"),),
    ),
    ConfigDef(
        "max.message.bytes",
        ConfigType.INT,
        "1048588",
        f"Largest batch of records accepted, in bytes as sent; none above {MAX_MESSAGE_BYTES}, whatever is set.",
        between(0),
        (Synonym("message.max.bytes"),),
    ),
    ConfigDef(
        "message.timestamp.after.max.ms",
        ConfigType.LONG,
        "3600000",
        "How far a record's own timestamp may lie ahead of the node's clock, in milliseconds.",
        between(0),
        (Synonym("log.message.timestamp.after.max.ms"),),
    ),
    ConfigDef(
        "message.timestamp.before.max.ms",
        ConfigType.LONG,
        str(LONG_MAX),
        "How far a record's own timestamp may lie behind the node's clock, in milliseconds.",
        between(0),
        (Synonym("log.message.timestamp.before.max.ms"),),
    ),
    ConfigDef(
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        "Whose clock stamps records: CreateTime the producer's, LogAppendTime the node's.",
        one_of("CreateTime", "LogAppendTime"),
        (Synonym("log.message.timestamp.type"),),
    ),
    ConfigDef(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        "0.5",
        "Share of a compacted log that must be new before it is compacted again.",
        between(0, 1),
        (Synonym("log.cleaner.min.cleanable.ratio"),),
    ),
    ConfigDef(
        "min.compaction.lag.ms",
        ConfigType.LONG,
        "0",
        "Milliseconds for which a record is safe from compaction.",
        between(0),
        (Synonym("log.cleaner.min.compaction.lag.ms"),),
    ),
    ConfigDef(
        "min.insync.replicas",
        ConfigType.INT,
        "1",
        "Replicas that must hold a record before acks=all is answered. Every acknowledgement here waits for the disk.",
        between(1),
        (Synonym("min.insync.replicas"),),
        honoured=False,
    ),
    ConfigDef(
        "errors.deadletterqueue.group.enable",
        ConfigType.BOOLEAN,
        "false",
        "Whether share groups may write their dead letters to the topic (KIP-1191).",
    ),
    ConfigDef(
        "preallocate",
        ConfigType.BOOLEAN,
        "false",
        "Whether files are allocated before they are written. The store decides that itself.",
        None,
        (Synonym("log.preallocate"),),
        honoured=False,
    ),
    ConfigDef(
        "remote.log.copy.disable",
        ConfigType.BOOLEAN,
        "false",
        "Stops moving sealed data to object storage.",
        honoured=False,
    ),
    ConfigDef(
        "remote.log.delete.on.disable",
        ConfigType.BOOLEAN,
        "false",
        "Whether data in object storage is deleted when the topic stops using it.",
        honoured=False,
    ),
    ConfigDef(
        "remote.storage.enable",
        ConfigType.BOOLEAN,
        "false",
        "Whether sealed data of the topic may move to object storage.",
        honoured=False,
    ),
    ConfigDef(
        "retention.bytes",
        ConfigType.LONG,
        "-1",
        "Bytes a partition may hold before its oldest records are dropped; -1 is no limit.",
        between(-1),
        (Synonym("log.retention.bytes"),),
    ),
    ConfigDef(
        "retention.ms",
        ConfigType.LONG,
        "604800000",
        "Age in milliseconds at which records are dropped; -1 keeps them for ever.",
        between(-1),
        (
            Synonym("log.retention.ms"),
            Synonym("log.retention.minutes", _MINUTE),
            Synonym("log.retention.hours", _HOUR),
        ),
    ),
    ConfigDef(
        "segment.bytes",
        ConfigType.INT,
        "1073741824",
        "Bytes after which a partition's log file is closed. The store shares its files between partitions.",
        between(1048576),
        (Synonym("log.segment.bytes"),),
        honoured=False,
    ),
    ConfigDef(
        "segment.index.bytes",
        ConfigType.INT,
        "10485760",
        "Largest index of one log file, in bytes.",
        between(4),
        (Synonym("log.index.size.max.bytes"),),
        honoured=False,
    ),
    ConfigDef(
        "segment.jitter.ms",
        ConfigType.LONG,
        "0",
        "Random part of segment.ms, which keeps files from being closed all at once.",
        between(0),
        (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", _HOUR)),
        honoured=False,
    ),
    ConfigDef(
        "segment.ms",
        ConfigType.LONG,
        "604800000",
        "Milliseconds after which a partition's log file is closed.",
        between(1),
        (Synonym("log.roll.ms"), Synonym("log.roll.hours", _HOUR)),
        honoured=False,
    ),
    ConfigDef(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        "false",
        "Whether a replica that lacks acknowledged records may take over. It never may.",
        None,
        (Synonym("unclean.leader.election.enable"),),
        honoured=False,
    ),
)


def validate(config: Mapping[str, str]) -> dict[str, str]:
    """Check a topic's own configuration as a whole and return it in stored form. Raises InvalidConfig."""
    parsed: dict[str, Any] = {}
    for key, value in config.items():
        definition = TOPIC_CONFIGS.get(key)
        if definition is None:
            raise InvalidConfig(f"{key!r} is not a topic configuration")
        parsed[key] = definition.parse(value)
    low, high = parsed.get("min.compaction.lag.ms", 0), parsed.get("max.compaction.lag.ms", LONG_MAX)
    if low > high:
        raise InvalidConfig(f"min.compaction.lag.ms = {low} is more than max.compaction.lag.ms = {high}")
    for local, whole in (("local.retention.ms", "retention.ms"), ("local.retention.bytes", "retention.bytes")):
        if local in parsed and whole in parsed and parsed[whole] != -1 and parsed[local] > parsed[whole]:
            raise InvalidConfig(f"{local} = {parsed[local]} is more than {whole} = {parsed[whole]}")
    return {key: to_text(value) for key, value in parsed.items()}


def resolve(key: str, topic: Mapping[str, str], node: Mapping[str, str], static: Mapping[str, str]) -> ConfigValue:
    """Return the effective value of ``key`` for a topic with the configuration ``topic``.

    ``node`` is the node's dynamic configuration and ``static`` that of its settings, both by node-level keys
    (:data:`TOPIC_DEFAULTS`). ``synonyms`` of the result lists every source that has a value, strongest
    first. Raises InvalidConfig for an unknown key.
    """
    definition = TOPIC_CONFIGS.get(key)
    if definition is None:
        raise InvalidConfig(f"{key!r} is not a topic configuration")
    found: list[tuple[str, str | None, ConfigSource]] = []
    value: str | None = None
    places = (
        (ConfigSource.DYNAMIC_NODE, node),
        (ConfigSource.DYNAMIC_DEFAULT, cluster_defaults(node, static)),
        (ConfigSource.STATIC_NODE, static),
    )
    for source, values in places:
        for synonym in definition.synonyms:
            text = values.get(synonym.name)
            if text is None:
                continue
            found.append((synonym.name, text, source))
            if value is None:
                value = text if synonym.scale == 1 or int(text) < 0 else str(int(text) * synonym.scale)
    # Of several node-level keys with one meaning only the coarsest has a default, and a broker lists synonyms only from
    # the finest one on. So the default is listed only where the finest key is set.
    if definition.synonyms and definition.default is not None and (len(definition.synonyms) == 1 or found):
        last = definition.synonyms[-1]
        default = definition.default if last.scale == 1 else str(int(definition.default) // last.scale)
        found.append((last.name, default, ConfigSource.DEFAULT))
    if key in topic:
        value = topic[key]
        found.insert(0, (key, value, ConfigSource.TOPIC))
    source = found[0][2] if found else ConfigSource.DEFAULT
    return ConfigValue(definition, definition.default if value is None else value, source, found)


def cluster_defaults(node: Mapping[str, str], static: Mapping[str, str]) -> dict[str, str]:
    """Return the node-level values that Kafka, from 4.1 on, stores from the start as the default of all brokers."""
    key = "min.insync.replicas"
    if key in node:
        return {}
    default = TOPIC_CONFIGS[key].default
    assert default is not None
    return {key: static.get(key, default)}


def effective(key: str, topic: Mapping[str, str], node: Mapping[str, str], static: Mapping[str, str]) -> Any:
    """Return the effective value of ``key`` as a Python value: bool, int, float, str or list of str."""
    resolved = resolve(key, topic, node, static)
    if resolved.value is None:
        return None
    return resolved.definition.parse(resolved.value)


# Of several keys with one meaning, the coarsest carries the default, as in Kafka.
_HOURS = {"log.retention.hours": "168", "log.roll.hours": "168", "log.roll.jitter.hours": "0"}
_HOURS["log.flush.scheduler.interval.ms"] = str(LONG_MAX)


def _topic_defaults() -> list[ConfigDef]:
    """Return the definition of every node-level synonym of a topic key."""
    definitions: dict[str, ConfigDef] = {}
    for topic in TOPIC_CONFIGS.values():
        for place, synonym in enumerate(topic.synonyms):
            scaled = synonym.scale != 1
            default = topic.default if place == 0 and len(topic.synonyms) == 1 else None
            unit = {60_000: "minutes", 3_600_000: "hours"}.get(synonym.scale)
            doc = f"Default of the topic configuration {topic.name}{f', in {unit}' if unit else ''}. {topic.doc}"
            definitions[synonym.name] = ConfigDef(
                synonym.name,
                ConfigType.INT if scaled else topic.type,
                _HOURS.get(synonym.name, default),
                doc,
                between(-1, LONG_MAX // synonym.scale) if scaled else topic.check,
                dynamic=not scaled and synonym.name != "log.flush.scheduler.interval.ms",
                honoured=topic.honoured,
            )
    return list(definitions.values())


TOPIC_DEFAULTS: Mapping[str, ConfigDef] = table(*_topic_defaults())
"""The node-level synonyms of topic keys, by name."""


def node_config_of(topic_defaults: Mapping[str, str]) -> dict[str, str]:
    """Translate the setting ``topic_defaults`` from topic keys to node-level keys."""
    synonyms = ((TOPIC_CONFIGS[key].synonyms, value) for key, value in topic_defaults.items())
    return {own[0].name: value for own, value in synonyms if own}


def validate_node_changes(changes: Mapping[str, str | None]) -> dict[str, str | None]:
    """Check changes of dynamic keys (None removes) and return them in stored form. Raises InvalidConfig."""
    checked: dict[str, str | None] = {}
    for key, value in changes.items():
        definition = TOPIC_DEFAULTS.get(key)
        if definition is None:
            raise InvalidConfig(f"{key!r} is not a node configuration")
        if not definition.dynamic:
            raise InvalidConfig(f"{key} cannot be changed while the node runs")
        checked[key] = None if value is None else definition.canonical(value)
    return checked
