"""What a node's settings mean in Kafka's node-level configuration keys, for DescribeConfigs and topic defaults."""

from __future__ import annotations

from collections.abc import Mapping

from bridges.catalog.topic_config import TOPIC_CONFIGS
from bridges.net.address import Address
from bridges.node.config import Settings

_MINUTE = 60_000


def static_config(
    settings: Settings, listening: Mapping[str, Address], advertised: Mapping[str, Address]
) -> dict[str, str]:
    """Node-level keys and values that the settings determine; ``listening`` and ``advertised`` by listener."""
    kafka, group, log = settings.kafka, settings.kafka.group, settings.log
    values = {
        "node.id": settings.node.id,
        "broker.id": settings.node.id,
        "process.roles": "broker,controller",
        "log.dir": settings.data_dir,
        "log.dirs": settings.data_dir,
        "auto.create.topics.enable": "true" if kafka.auto_create_topics else "false",
        "num.partitions": kafka.num_partitions,
        "socket.request.max.bytes": kafka.max_request_bytes,
        "fetch.max.bytes": kafka.fetch_max_bytes,
        "max.connections": kafka.max_connections,
        "connections.max.idle.ms": kafka.connections_max_idle_ms,
        "offset.metadata.max.bytes": kafka.offset_metadata_max_bytes,
        "max.incremental.fetch.session.cache.slots": kafka.fetch_sessions,
        "transaction.max.timeout.ms": kafka.transaction_max_timeout_ms,
        "group.initial.rebalance.delay.ms": group.initial_rebalance_delay_ms,
        "group.min.session.timeout.ms": group.min_session_timeout_ms,
        "group.max.session.timeout.ms": group.max_session_timeout_ms,
        "group.max.size": group.max_size,
        "offsets.retention.minutes": max(1, group.offsets_retention_ms // _MINUTE),
        "log.retention.check.interval.ms": log.retention_check_interval_ms,
        "producer.id.expiration.ms": log.producer_idle_ms,
        "transaction.state.log.replication.factor": 1,
        "offsets.topic.replication.factor": 1,
    }
    if settings.node.rack:
        values["broker.rack"] = settings.node.rack
    for key, addresses in (("listeners", listening), ("advertised.listeners", advertised)):
        if "kafka" in addresses:
            values[key] = f"PLAINTEXT://{addresses['kafka']}"
    texts = {key: str(value) for key, value in values.items()}
    for key, value in settings.topic_defaults.items():
        synonyms = TOPIC_CONFIGS[key].synonyms
        if synonyms:
            texts[synonyms[0].name] = value
    return texts
