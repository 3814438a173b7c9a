"""The node's settings for what Apache Kafka's tests ask of their brokers, property by property."""

from __future__ import annotations

from collections.abc import Mapping

SETTINGS = {
    "auto.create.topics.enable": "kafka.auto_create_topics",
    "broker.rack": "node.rack",
    "connections.max.idle.ms": "kafka.connections_max_idle_ms",
    "feature.transaction.version": "kafka.transaction_version",
    "group.consumer.heartbeat.interval.ms": "kafka.group.consumer_heartbeat_interval_ms",
    "group.consumer.migration.policy": "kafka.group.consumer_migration_policy",
    "group.consumer.session.timeout.ms": "kafka.group.consumer_session_timeout_ms",
    "group.initial.rebalance.delay.ms": "kafka.group.initial_rebalance_delay_ms",
    "group.max.session.timeout.ms": "kafka.group.max_session_timeout_ms",
    "group.max.size": "kafka.group.max_size",
    "group.min.session.timeout.ms": "kafka.group.min_session_timeout_ms",
    "group.share.delivery.count.limit": "kafka.group.share_delivery_count_limit",
    "group.share.max.size": "kafka.group.share_max_size",
    "group.share.min.record.lock.duration.ms": "kafka.group.share_min_record_lock_duration_ms",
    "group.share.partition.max.record.locks": "kafka.group.share_partition_max_record_locks",
    "group.share.record.lock.duration.ms": "kafka.group.share_record_lock_duration_ms",
    "max.connections": "kafka.max_connections",
    "num.partitions": "kafka.num_partitions",
    "super.users": "auth.super_users",
    "transaction.max.timeout.ms": "kafka.transaction_max_timeout_ms",
    "transactional.id.expiration.ms": "kafka.transactional_id_expiration_ms",
}
"""Settings that take a property's value as it is."""

TOPIC_DEFAULTS = {
    "compression.type": "compression.type",
    "log.cleanup.policy": "cleanup.policy",
    "log.message.timestamp.after.max.ms": "message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms": "message.timestamp.before.max.ms",
    "log.message.timestamp.type": "message.timestamp.type",
    "log.retention.bytes": "retention.bytes",
    "log.retention.ms": "retention.ms",
    "log.segment.bytes": "segment.bytes",
    "message.max.bytes": "max.message.bytes",
    "min.insync.replicas": "min.insync.replicas",
}
"""Properties of brokers that are defaults of topics."""


def settings_for(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the node's settings. What has no counterpart here, threads and files for instance, is left out."""
    settings = {SETTINGS[name]: value for name, value in properties.items() if name in SETTINGS}
    settings |= {
        f"topic_defaults.{TOPIC_DEFAULTS[name]}": value for name, value in properties.items() if name in TOPIC_DEFAULTS
    }
    if "offsets.retention.minutes" in properties:
        settings["kafka.group.offsets_retention_ms"] = f"{properties['offsets.retention.minutes']}m"
    if "authorizer.class.name" in properties:
        open_to_all = properties.get("allow.everyone.if.no.acl.found", "false").lower() == "true"
        settings["auth.rules"] = "allow" if open_to_all else "deny"
    return settings
