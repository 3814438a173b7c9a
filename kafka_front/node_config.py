"""Configuration of a node as Kafka's admin tools see it: broker-level keys, their types, defaults and meaning here.

Names, types and defaults are those of Kafka 4.2; the descriptions are ours. The table has two kinds of keys: defaults
of topics (bridges/catalog/topics/config.py), which may all change while the node runs, and this node's limits and
behaviour, which are read-only since they come from its settings. It leaves out keys of features that Anabranch lacks,
except those of Kerberos, which brokers without Kerberos store as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridges.catalog.config_types import (
    INT_MAX,
    ConfigDef,
    ConfigSource,
    ConfigType,
    ConfigValue,
    InvalidConfig,
    between,
    one_of,
    table,
)
from bridges.catalog.topics.config import TOPIC_DEFAULTS, cluster_defaults
from bridges.node.front import NodeFacts, listener_kind
from kafka_front.settings import KafkaSettings

_MINUTE = 60_000
_LISTENER = "kafka"


def _fixed(
    name: str, kind: ConfigType, default: str | None, doc: str, check: Any = None, honoured: bool = True
) -> ConfigDef:
    return ConfigDef(name, kind, default, doc, check, dynamic=False, honoured=honoured)


THROTTLES = frozenset(
    (
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    )
)
"""Rates that tools for moving replicas set, and remove when they check for completed moves; here no replica moves."""

_GROUP_BOUNDS = {
    f"group.{kind}.{end}.{what}.ms": default
    for kind in ("consumer", "share")
    for what, bounds in (
        ("heartbeat.interval", (5_000, 15_000)),
        ("session.timeout", (45_000, 60_000)),
        ("record.lock.duration", (15_000, 60_000)),
    )
    for end, default in zip(("min", "max"), bounds, strict=True)
    if (kind, what) != ("consumer", "record.lock.duration")
}
"""Bounds of what groups may be configured with (KIP-848, KIP-932): node-level key and default in ms."""

KERBEROS: Mapping[str, ConfigDef] = table(
    *(
        ConfigDef(f"sasl.kerberos.{name}", kind, default, doc, honoured=False)
        for name, kind, default, doc in (
            ("kinit.cmd", ConfigType.STRING, "/usr/bin/kinit", "The program that logs in."),
            ("min.time.before.relogin", ConfigType.LONG, "60000", "Milliseconds between two logins."),
            ("principal.to.local.rules", ConfigType.LIST, "DEFAULT", "How names become shorter ones."),
            ("service.name", ConfigType.STRING, None, "Name of the service."),
            ("ticket.renew.jitter", ConfigType.DOUBLE, "0.05", "By how much a renewal varies."),
            ("ticket.renew.window.factor", ConfigType.DOUBLE, "0.8", "After which part of its time one is renewed."),
        )
    )
)
"""Kerberos keys, stored and ignored as by a broker without Kerberos; they may change while the node runs."""

NODE_CONFIGS: Mapping[str, ConfigDef] = table(
    *TOPIC_DEFAULTS.values(),
    *(
        _fixed(name, ConfigType.INT, str(default), "A bound of what a group may be configured with, in ms.", between(1))
        for name, default in _GROUP_BOUNDS.items()
    ),
    _fixed("advertised.listeners", ConfigType.LIST, None, "Addresses told to clients."),
    _fixed("authorizer.class.name", ConfigType.STRING, "", "Who decides what a client may do; empty: everybody may."),
    _fixed(
        "auto.create.topics.enable",
        ConfigType.BOOLEAN,
        "true",
        "Whether a topic that is asked for is created with default settings.",
    ),
    _fixed(
        "auto.leader.rebalance.enable", ConfigType.BOOLEAN, "true", "Whether leadership moves by itself.", None, False
    ),
    _fixed("broker.id", ConfigType.INT, "-1", "Number of this node."),
    _fixed("broker.rack", ConfigType.STRING, None, "Where this node stands, for clients that prefer near nodes."),
    _fixed(
        "connection.failed.authentication.delay.ms",
        ConfigType.INT,
        "100",
        "Milliseconds before a connection that failed to authenticate is closed.",
        between(0),
    ),
    _fixed(
        "connections.max.idle.ms", ConfigType.LONG, "600000", "Milliseconds after which an idle connection is closed."
    ),
    _fixed(
        "connections.max.reauth.ms",
        ConfigType.LONG,
        "0",
        "Milliseconds after which a client must authenticate again; 0: never.",
    ),
    _fixed(
        "default.replication.factor",
        ConfigType.INT,
        "1",
        "Replicas a topic reports when its creator does not say.",
        None,
        False,
    ),
    _fixed("delete.topic.enable", ConfigType.BOOLEAN, "true", "Whether topics may be deleted."),
    _fixed(
        "fetch.max.bytes",
        ConfigType.INT,
        "8388608",
        "Most bytes one fetch is answered with, unless a single batch is larger.",
        between(1024),
    ),
    _fixed(
        "group.consumer.assignors",
        ConfigType.LIST,
        "uniform,range",
        "Assignors offered to groups that leave assignment to the node.",
    ),
    _fixed(
        "group.consumer.heartbeat.interval.ms",
        ConfigType.INT,
        "5000",
        "Milliseconds between heartbeats of a member.",
        between(1),
    ),
    _fixed(
        "group.consumer.max.size", ConfigType.INT, str(INT_MAX), "Most members of a group of the new kind.", between(1)
    ),
    _fixed(
        "group.consumer.migration.policy",
        ConfigType.STRING,
        "bidirectional",
        "Whether classic groups become ones of the new kind (upgrade), and go back (downgrade).",
        one_of("bidirectional", "upgrade", "downgrade", "disabled"),
    ),
    _fixed(
        "group.consumer.session.timeout.ms",
        ConfigType.INT,
        "45000",
        "Milliseconds without a heartbeat after which a member is taken for dead.",
        between(1),
    ),
    _fixed(
        "group.coordinator.rebalance.protocols",
        ConfigType.LIST,
        "classic,consumer,streams",
        "Kinds of group this node serves.",
    ),
    _fixed(
        "group.initial.rebalance.delay.ms",
        ConfigType.INT,
        "3000",
        "Milliseconds the first rebalance of an empty group waits for more members.",
    ),
    _fixed(
        "group.max.session.timeout.ms",
        ConfigType.INT,
        "1800000",
        "Longest session timeout a member may ask for, in ms.",
    ),
    _fixed("group.max.size", ConfigType.INT, str(INT_MAX), "Most members of a group.", between(1)),
    _fixed("group.min.session.timeout.ms", ConfigType.INT, "6000", "Shortest session timeout a member may ask for."),
    _fixed("group.share.delivery.count.limit", ConfigType.INT, "5", "How often a share group gets a record at most."),
    _fixed("group.share.heartbeat.interval.ms", ConfigType.INT, "5000", "Milliseconds between a member's heartbeats."),
    _fixed("group.share.max.share.sessions", ConfigType.INT, "2000", "Most share sessions of this node."),
    _fixed("group.share.max.size", ConfigType.INT, "200", "Most members of a share group."),
    _fixed(
        "group.share.partition.max.record.locks",
        ConfigType.INT,
        "2000",
        "Most records of a partition that a share group has in flight.",
    ),
    _fixed(
        "group.share.record.lock.duration.ms",
        ConfigType.INT,
        "30000",
        "Milliseconds for which a member of a share group has a record for itself.",
    ),
    _fixed(
        "group.share.session.timeout.ms",
        ConfigType.INT,
        "45000",
        "Milliseconds without a heartbeat after which a member is taken for dead.",
    ),
    _fixed("inter.broker.listener.name", ConfigType.STRING, None, "Listener that nodes use among themselves."),
    _fixed(
        "listener.security.protocol.map",
        ConfigType.STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Which kind of connection each listener takes.",
    ),
    _fixed("listeners", ConfigType.LIST, "PLAINTEXT://:9092", "Addresses this node listens on."),
    _fixed("log.cleaner.backoff.ms", ConfigType.LONG, "15000", "Milliseconds between looks for logs to compact."),
    _fixed("log.cleaner.enable", ConfigType.BOOLEAN, "true", "Whether compacted topics are compacted."),
    _fixed("log.cleaner.threads", ConfigType.INT, "1", "Workers that compact.", between(0), False),
    _fixed("log.dir", ConfigType.LIST, "/tmp/kafka-logs", "Directory of the data, when log.dirs is not set."),
    _fixed("log.dirs", ConfigType.LIST, None, "Directory of the data."),
    _fixed(
        "log.retention.check.interval.ms",
        ConfigType.LONG,
        "300000",
        "Milliseconds between two looks for records that may go.",
        between(1),
    ),
    _fixed("max.connections", ConfigType.INT, str(INT_MAX), "Most connections of this node.", between(0)),
    _fixed("max.connections.per.ip", ConfigType.INT, str(INT_MAX), "Most connections of one address.", between(0)),
    _fixed(
        "max.incremental.fetch.session.cache.slots", ConfigType.INT, "1000", "Most fetch sessions kept.", between(0)
    ),
    _fixed("node.id", ConfigType.INT, None, "Number of this node.", between(0)),
    _fixed("num.io.threads", ConfigType.INT, "8", "Threads that serve requests.", between(1), False),
    _fixed("num.network.threads", ConfigType.INT, "3", "Threads that serve connections.", between(1), False),
    _fixed(
        "num.partitions",
        ConfigType.INT,
        "1",
        "Partitions of a topic whose creator does not say.",
        between(1),
    ),
    _fixed("num.recovery.threads.per.data.dir", ConfigType.INT, "2", "Threads that recover data.", between(1), False),
    _fixed("num.replica.fetchers", ConfigType.INT, "1", "Threads that copy from other nodes.", between(1), False),
    _fixed("offset.metadata.max.bytes", ConfigType.INT, "4096", "Longest text a consumer may attach to a position."),
    _fixed(
        "offsets.retention.check.interval.ms",
        ConfigType.LONG,
        "600000",
        "Milliseconds between two looks for positions that may go.",
        between(1),
    ),
    _fixed(
        "offsets.retention.minutes",
        ConfigType.INT,
        "10080",
        "Minutes for which positions of a group without members are kept.",
        between(1),
    ),
    _fixed("offsets.topic.num.partitions", ConfigType.INT, "50", "Shares of the groups.", between(1), False),
    _fixed("offsets.topic.replication.factor", ConfigType.SHORT, "3", "Replicas of positions.", between(1), False),
    _fixed("process.roles", ConfigType.LIST, None, "What this node does."),
    _fixed(
        "producer.id.expiration.ms",
        ConfigType.INT,
        "86400000",
        "Milliseconds after which an idle producer's sequence numbers are forgotten.",
        between(1),
    ),
    _fixed("queued.max.requests", ConfigType.INT, "500", "Requests that may wait.", between(1), False),
    _fixed("replica.fetch.max.bytes", ConfigType.INT, "1048576", "Bytes copied at a time.", between(0), False),
    _fixed(
        "replica.lag.time.max.ms", ConfigType.LONG, "30000", "Lag at which a replica counts as behind.", None, False
    ),
    _fixed("request.timeout.ms", ConfigType.INT, "30000", "Milliseconds a request between nodes may take."),
    _fixed("sasl.enabled.mechanisms", ConfigType.LIST, "GSSAPI", "Ways in which clients may authenticate."),
    _fixed(
        "security.inter.broker.protocol",
        ConfigType.STRING,
        "PLAINTEXT",
        "Kind of connection between nodes.",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    ),
    _fixed("socket.listen.backlog.size", ConfigType.INT, "50", "Connections that may wait to be taken.", between(1)),
    _fixed("socket.receive.buffer.bytes", ConfigType.INT, "102400", "Receive buffer of a connection.", None, False),
    _fixed("socket.request.max.bytes", ConfigType.INT, "104857600", "Largest request accepted, in bytes.", between(1)),
    _fixed("socket.send.buffer.bytes", ConfigType.INT, "102400", "Send buffer of a connection.", None, False),
    _fixed("ssl.client.auth", ConfigType.STRING, "none", "Whether clients must show a certificate."),
    _fixed(
        "transaction.max.timeout.ms",
        ConfigType.INT,
        "900000",
        "Longest transaction a producer may ask for.",
        between(1),
    ),
    _fixed("transaction.state.log.num.partitions", ConfigType.INT, "50", "Shares of transactions.", between(1), False),
    _fixed(
        "transaction.state.log.replication.factor",
        ConfigType.SHORT,
        "3",
        "Replicas of transactions.",
        between(1),
        False,
    ),
    _fixed(
        "transactional.id.expiration.ms",
        ConfigType.INT,
        "604800000",
        "Milliseconds after which an unused transactional id is forgotten.",
        between(1),
    ),
)

EVERY: Mapping[str, ConfigDef] = {**NODE_CONFIGS, **KERBEROS}


def static(settings: KafkaSettings, facts: NodeFacts) -> dict[str, str]:
    """Return the keys and values that a node's settings determine."""
    group, node, log = settings.group, facts.node, facts.log
    values: dict[str, object] = {
        "node.id": node.id,
        "broker.id": node.id,
        "process.roles": "broker,controller",
        "log.dir": facts.data_dir,
        "log.dirs": facts.data_dir,
        "auto.create.topics.enable": "true" if settings.auto_create_topics else "false",
        "num.partitions": settings.num_partitions,
        "socket.request.max.bytes": settings.max_request_bytes,
        "fetch.max.bytes": settings.fetch_max_bytes,
        "max.connections": settings.max_connections,
        "connections.max.idle.ms": settings.connections_max_idle_ms,
        "connections.max.reauth.ms": settings.sasl_max_reauth_ms,
        "offset.metadata.max.bytes": settings.offset_metadata_max_bytes,
        "max.incremental.fetch.session.cache.slots": settings.fetch_sessions,
        "transaction.max.timeout.ms": settings.transaction_max_timeout_ms,
        "group.initial.rebalance.delay.ms": group.initial_rebalance_delay_ms,
        "group.min.session.timeout.ms": group.min_session_timeout_ms,
        "group.max.session.timeout.ms": group.max_session_timeout_ms,
        "group.max.size": group.max_size,
        "group.consumer.max.size": group.max_size,
        "group.consumer.heartbeat.interval.ms": group.consumer_heartbeat_interval_ms,
        "group.consumer.session.timeout.ms": group.consumer_session_timeout_ms,
        "group.consumer.migration.policy": group.consumer_migration_policy,
        "group.share.delivery.count.limit": group.share_delivery_count_limit,
        "group.share.heartbeat.interval.ms": group.share_heartbeat_interval_ms,
        "group.share.max.share.sessions": group.share_sessions,
        "group.share.max.size": group.share_max_size,
        "group.share.partition.max.record.locks": group.share_partition_max_record_locks,
        "group.share.record.lock.duration.ms": group.share_record_lock_duration_ms,
        "group.share.session.timeout.ms": group.share_session_timeout_ms,
        "offsets.retention.minutes": max(1, group.offsets_retention_ms // _MINUTE),
        "log.cleaner.backoff.ms": log.cleaner_interval_ms,
        "log.retention.check.interval.ms": log.retention_check_interval_ms,
        "producer.id.expiration.ms": log.producer_idle_ms,
        "transaction.state.log.replication.factor": 1,
        "offsets.topic.replication.factor": 1,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512" + (",OAUTHBEARER" if facts.takes_oauth else ""),
    }
    for key in _GROUP_BOUNDS:
        values[key] = getattr(group, key.removeprefix("group.").replace(".", "_"))
    if node.rack:
        values["broker.rack"] = node.rack
    for key, addresses in (("listeners", facts.listening), ("advertised.listeners", facts.advertised)):
        # Names of listeners. Kafka's usual listener has the name of a security protocol, PLAINTEXT.
        told = {
            name.removeprefix(f"{_LISTENER}-").upper() if name != _LISTENER else "PLAINTEXT": address
            for name, address in addresses.items()
            if listener_kind(name, [_LISTENER]) is not None
        }
        if told:
            values[key] = ",".join(f"{name}://{address}" for name, address in told.items())
    return {key: str(value) for key, value in values.items()}


def resolve(key: str, dynamic: Mapping[str, str], static: Mapping[str, str]) -> ConfigValue:
    """Return the effective value of a node-level key. Raises InvalidConfig for an unknown key."""
    definition = NODE_CONFIGS.get(key)
    if definition is None:
        raise InvalidConfig(f"{key!r} is not a node configuration")
    found: list[tuple[str, str | None, ConfigSource]] = []
    if key in dynamic:
        found.append((key, dynamic[key], ConfigSource.DYNAMIC_NODE))
    if key in (shared := cluster_defaults(dynamic, static)):
        found.append((key, shared[key], ConfigSource.DYNAMIC_DEFAULT))
    if key in static:
        found.append((key, static[key], ConfigSource.STATIC_NODE))
    if definition.default is not None:
        found.append((key, definition.default, ConfigSource.DEFAULT))
    value, source = (found[0][1], found[0][2]) if found else (None, ConfigSource.DEFAULT)
    return ConfigValue(definition, value, source, found)
