"""Configuration of a node as Kafka's admin tools see it: broker-level keys, their types, defaults and meaning here.

Names, types and defaults are those of Kafka 4.2; the descriptions are ours. The table has two kinds of keys: defaults
of topics (bridges/catalog/topics/config.py), which may all change while the node runs, and this node's limits and
behaviour. Of these, :data:`DYNAMIC` may change; the others are read-only since they come from its settings. The table
leaves out keys of features that Anabranch lacks, except those of Kerberos, which brokers without Kerberos store as
well.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping, Sequence

from bridges.auth.scram import MECHANISMS
from bridges.catalog.config_types import (
    INT_MAX,
    ConfigDef,
    ConfigSource,
    ConfigType,
    ConfigValue,
    InvalidConfig,
    between,
    table,
)
from bridges.catalog.topics.config import TOPIC_DEFAULTS, cluster_defaults
from bridges.node.front import NodeFacts, listener_kind
from bridges.node.process.descriptors import RESERVED
from kafka_front.group_config import GROUP_CONFIGS
from kafka_front.settings import KafkaSettings

_MINUTE = 60_000
_LISTENER = "kafka"


THROTTLES = frozenset(
    (
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    )
)
"""Rates that tools for moving replicas set, and remove when they check for completed moves; here no replica moves."""

_GROUP_BOUNDS = {
    f"group.{kind}.{end}.{what}": default
    for kind in ("consumer", "share", "streams")
    for what, bounds in (
        ("heartbeat.interval.ms", (5_000, 15_000)),
        ("session.timeout.ms", (45_000, 60_000)),
        ("record.lock.duration.ms", (15_000, 60_000)),
        ("delivery.count.limit", (2, 10)),
        ("partition.max.record.locks", (100, 4_000)),
    )
    for end, default in zip(("min", "max"), bounds, strict=True)
    if kind == "share" or what in ("heartbeat.interval.ms", "session.timeout.ms")
}
_GROUP_BOUNDS["group.streams.max.standby.replicas"] = 2
"""Bounds of what groups may be configured with (KIP-848, KIP-932, KIP-1071, KIP-1240): node-level key and default."""

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

EVERY_BROKER = "<default>"
"""Stands for all brokers among the names of brokers' configurations."""

DYNAMIC: Mapping[str, ConfigDef] = table(
    ConfigDef("max.connections", ConfigType.INT, str(INT_MAX), "Most connections of this node.", between(1)),
    ConfigDef(
        "producer.id.expiration.ms",
        ConfigType.INT,
        "86400000",
        "Milliseconds after which an idle producer's sequence numbers are forgotten.",
        between(1),
    ),
    ConfigDef(
        "errors.deadletterqueue.auto.create.topics.enable",
        ConfigType.BOOLEAN,
        "false",
        "Whether the dead letter topic of a share group is created if it does not exist (KIP-1191).",
    ),
    ConfigDef(
        "errors.deadletterqueue.topic.name.prefix",
        ConfigType.STRING,
        "dlq.",
        "Beginning of the names of share groups' dead letter topics; empty: any (KIP-1191).",
    ),
)
"""Keys of one node, or of all, that may change while the node runs."""

_FIXED: Mapping[ConfigType, Sequence[tuple[str, str | None, str]]] = {
    ConfigType.BOOLEAN: (
        ("auto.create.topics.enable", "true", "Whether a topic that is asked for is created with default settings."),
        ("auto.leader.rebalance.enable", "true", "Whether leadership moves by itself."),
        ("delete.topic.enable", "true", "Whether topics may be deleted."),
        ("log.cleaner.enable", "true", "Whether compacted topics are compacted."),
    ),
    ConfigType.STRING: (
        ("authorizer.class.name", "", "Who decides what a client may do; empty: everybody may."),
        ("broker.rack", None, "Where this node stands, for clients that prefer near nodes."),
        (
            "group.consumer.migration.policy",
            "bidirectional",
            "Whether classic groups become ones of the new kind (upgrade), and go back (downgrade).",
        ),
        ("inter.broker.listener.name", None, "Listener that nodes use among themselves."),
        (
            "listener.security.protocol.map",
            "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
            "Which kind of connection each listener takes.",
        ),
        ("security.inter.broker.protocol", "PLAINTEXT", "Kind of connection between nodes."),
        ("ssl.client.auth", "none", "Whether clients must show a certificate."),
    ),
    ConfigType.INT: (
        ("broker.id", "-1", "Number of this node."),
        (
            "connection.failed.authentication.delay.ms",
            "100",
            "Milliseconds before a connection that failed to authenticate is closed.",
        ),
        ("default.replication.factor", "1", "Replicas a topic reports when its creator does not say."),
        ("fetch.max.bytes", "8388608", "Most bytes one fetch is answered with, unless a single batch is larger."),
        ("group.consumer.max.size", str(INT_MAX), "Most members of a group of the new kind."),
        (
            "group.initial.rebalance.delay.ms",
            "3000",
            "Milliseconds the first rebalance of an empty group waits for more members.",
        ),
        ("group.max.session.timeout.ms", "1800000", "Longest session timeout a member may ask for, in ms."),
        ("group.max.size", str(INT_MAX), "Most members of a group."),
        ("group.min.session.timeout.ms", "6000", "Shortest session timeout a member may ask for."),
        ("group.share.delivery.count.limit", "5", "How often a share group gets a record at most."),
        ("group.share.max.share.sessions", "2000", "Most share sessions of this node."),
        ("group.share.max.size", "200", "Most members of a share group."),
        ("group.streams.max.size", str(INT_MAX), "Most members of a streams group."),
        (
            "group.share.partition.max.record.locks",
            "2000",
            "Most records of a partition that a share group has in flight.",
        ),
        ("log.cleaner.threads", "1", "Workers that compact."),
        ("max.connections.per.ip", str(INT_MAX), "Most connections of one address."),
        ("max.incremental.fetch.session.cache.slots", "1000", "Most fetch sessions kept."),
        ("node.id", None, "Number of this node."),
        ("num.io.threads", "8", "Threads that serve requests."),
        ("num.network.threads", "3", "Threads that serve connections."),
        ("num.partitions", "1", "Partitions of a topic whose creator does not say."),
        ("num.recovery.threads.per.data.dir", "2", "Threads that recover data."),
        ("num.replica.fetchers", "1", "Threads that copy from other nodes."),
        ("offset.metadata.max.bytes", "4096", "Longest text a consumer may attach to a position."),
        ("offsets.retention.minutes", "10080", "Minutes for which positions of a group without members are kept."),
        ("offsets.topic.num.partitions", "50", "Shares of the groups."),
        ("queued.max.requests", "500", "Requests that may wait."),
        ("replica.fetch.max.bytes", "1048576", "Bytes copied at a time."),
        ("request.timeout.ms", "30000", "Milliseconds a request between nodes may take."),
        ("socket.listen.backlog.size", "50", "Connections that may wait to be taken."),
        ("socket.receive.buffer.bytes", "102400", "Receive buffer of a connection."),
        ("socket.request.max.bytes", "104857600", "Largest request accepted, in bytes."),
        ("socket.send.buffer.bytes", "102400", "Send buffer of a connection."),
        ("transaction.max.timeout.ms", "900000", "Longest transaction a producer may ask for."),
        ("transaction.state.log.num.partitions", "50", "Shares of transactions."),
        (
            "transactional.id.expiration.ms",
            "604800000",
            "Milliseconds after which an unused transactional id is forgotten.",
        ),
    ),
    ConfigType.SHORT: (
        ("offsets.topic.replication.factor", "3", "Replicas of positions."),
        ("transaction.state.log.replication.factor", "3", "Replicas of transactions."),
    ),
    ConfigType.LONG: (
        ("connections.max.idle.ms", "600000", "Milliseconds after which an idle connection is closed."),
        ("connections.max.reauth.ms", "0", "Milliseconds after which a client must authenticate again; 0: never."),
        (
            "delegation.token.expiry.time.ms",
            "86400000",
            "Milliseconds after which a delegation token expires unless it is renewed.",
        ),
        (
            "delegation.token.max.lifetime.ms",
            "604800000",
            "Milliseconds after which a delegation token ends, however often it is renewed.",
        ),
        ("log.cleaner.backoff.ms", "15000", "Milliseconds between looks for logs to compact."),
        ("log.retention.check.interval.ms", "300000", "Milliseconds between two looks for records that may go."),
        ("offsets.retention.check.interval.ms", "600000", "Milliseconds between two looks for positions that may go."),
        ("replica.lag.time.max.ms", "30000", "Lag at which a replica counts as behind."),
    ),
    ConfigType.LIST: (
        ("advertised.listeners", None, "Addresses told to clients."),
        ("group.consumer.assignors", "uniform,range", "Assignors offered to groups that leave assignment to the node."),
        ("group.coordinator.rebalance.protocols", "classic,consumer,streams", "Kinds of group this node serves."),
        ("listeners", "PLAINTEXT://:9092", "Addresses this node listens on."),
        ("log.dir", "/tmp/kafka-logs", "Directory of the data, when log.dirs is not set."),
        ("log.dirs", None, "Directory of the data."),
        ("process.roles", None, "What this node does."),
        ("sasl.enabled.mechanisms", "GSSAPI", "Ways in which clients may authenticate."),
    ),
}
"""Read-only keys by type: name, Kafka's default and meaning."""

NODE_CONFIGS: Mapping[str, ConfigDef] = table(
    *TOPIC_DEFAULTS.values(),
    *DYNAMIC.values(),
    *(
        ConfigDef(f"group.{name}", one.type, one.default, one.doc, dynamic=False)
        for name, one in GROUP_CONFIGS.items()
        if name.startswith("streams.")
        or name.endswith((".heartbeat.interval.ms", ".session.timeout.ms", ".lock.duration.ms"))
    ),
    *(
        ConfigDef(name, ConfigType.INT, str(default), "A bound of what a group may be configured with.", dynamic=False)
        for name, default in _GROUP_BOUNDS.items()
    ),
    *(
        ConfigDef(name, kind, default, doc, dynamic=False)
        for kind, rows in _FIXED.items()
        for name, default, doc in rows
    ),
)

EVERY: Mapping[str, ConfigDef] = {**NODE_CONFIGS, **KERBEROS}
CHANGED: Mapping[str, ConfigDef] = {**DYNAMIC, **KERBEROS}
"""Keys that are set for a node by its number."""


def static(settings: KafkaSettings, facts: NodeFacts) -> dict[str, str]:
    """Return the keys and values that a node's settings determine."""
    group, node, log = settings.group, facts.node, facts.log
    values: dict[str, object] = {
        **_GROUP_BOUNDS,
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
        "delegation.token.expiry.time.ms": settings.delegation_token_expiry_ms,
        "delegation.token.max.lifetime.ms": settings.delegation_token_max_lifetime_ms,
        "offset.metadata.max.bytes": settings.offset_metadata_max_bytes,
        "max.incremental.fetch.session.cache.slots": settings.fetch_sessions,
        "transaction.max.timeout.ms": settings.transaction_max_timeout_ms,
        "group.consumer.max.size": group.max_size,
        "group.share.max.share.sessions": group.share_sessions,
        "group.streams.heartbeat.interval.ms": group.consumer_heartbeat_interval_ms,
        "group.streams.initial.rebalance.delay.ms": group.initial_rebalance_delay_ms,
        "group.streams.max.size": group.max_size,
        "group.streams.session.timeout.ms": group.consumer_session_timeout_ms,
        "offsets.retention.minutes": max(1, group.offsets_retention_ms // _MINUTE),
        "log.cleaner.backoff.ms": log.cleaner_interval_ms,
        "log.retention.check.interval.ms": log.retention_check_interval_ms,
        "producer.id.expiration.ms": log.producer_idle_ms,
        "transaction.state.log.replication.factor": 1,
        "offsets.topic.replication.factor": 1,
        "sasl.enabled.mechanisms": ",".join(
            ("PLAIN", *MECHANISMS, *["OAUTHBEARER"] * facts.takes_oauth, *["GSSAPI"] * (facts.kerberos is not None))
        ),
    }
    if facts.kerberos is not None:
        values["sasl.kerberos.principal.to.local.rules"] = facts.kerberos.rules
    for key in NODE_CONFIGS:
        setting = key.removeprefix("group.").replace(".", "_")
        if key.startswith("group.") and hasattr(group, setting):
            values[key] = getattr(group, setting)
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


def bounded(static: Mapping[str, str]) -> Callable[[Mapping[str, str]], None]:
    """Return a check of a node's own values. It raises InvalidConfig for more connections than the process has file
    descriptors for: without one, the store cannot open a file, which ends the node."""

    def check(own: Mapping[str, str]) -> None:
        key = "max.connections"
        most = max(int(static[key]), (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED) // 3)
        if int(own.get(key, 0)) > most:
            raise InvalidConfig(
                f"{key} = {own[key]}: at most {most}, a third of the process's file descriptors; raise that limit first"
            )

    return check


def resolve(
    key: str, dynamic: Mapping[str, str], static: Mapping[str, str], every: Mapping[str, str] | None = None
) -> ConfigValue:
    """Return the effective value of a node-level key; ``every`` has the values set for all nodes. Raises InvalidConfig
    for an unknown key."""
    definition = NODE_CONFIGS.get(key)
    if definition is None:
        raise InvalidConfig(f"{key!r} is not a node configuration")
    found: list[tuple[str, str | None, ConfigSource]] = []
    if key in dynamic:
        found.append((key, dynamic[key], ConfigSource.DYNAMIC_NODE))
    if key in (shared := {**cluster_defaults(dynamic, static), **(every or {})}):
        found.append((key, shared[key], ConfigSource.DYNAMIC_DEFAULT))
    if key in static:
        found.append((key, static[key], ConfigSource.STATIC_NODE))
    if definition.default is not None:
        found.append((key, definition.default, ConfigSource.DEFAULT))
    value, source = (found[0][1], found[0][2]) if found else (None, ConfigSource.DEFAULT)
    return ConfigValue(definition, value, source, found)
