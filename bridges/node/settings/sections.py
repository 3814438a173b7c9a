"""Sections of settings that every process has."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from anabranch_kit.net.address import Address
from bridges.auth.external.kerberos import LocalNames
from bridges.node.settings.setting import DatabaseUrl, Duration, HttpUrl, Section, Size, SizeOrNone, setting

_HOST = re.compile(r"[A-Za-z0-9._-]+")


class SettingsError(Exception):
    """One or more settings are wrong; the message has a line for each, ready for an operator."""


def _pd_addresses(value: object) -> object:
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
        for part in parts:
            if Address.parse(part).port == 0:
                raise ValueError(f"{part!r} has no port to connect to")
        return ",".join(parts)
    return value


def _dialect(value: object) -> object:
    # Listeners and documents call them sbp-0.2 and sbp-v0.1.
    return value.removeprefix("sbp-") if isinstance(value, str) else value


def _super_users(value: object) -> object:
    for name in value.split(";") if isinstance(value, str) else ():
        kind, _, rest = name.strip().partition(":")
        if name.strip() and (kind != "User" or rest in ("", "*") or ",User:" in rest):
            raise ValueError(f"{name.strip()!r} is nobody: users are named as User:admin;User:CN=admin,O=flights")
    return value


def _kerberos_rules(value: object) -> object:
    if isinstance(value, str):
        LocalNames.parse(value)
    return value


def _names(value: object) -> object:
    if isinstance(value, str):
        names = [part.strip() for part in value.split(",") if part.strip()]
        if any(not _HOST.fullmatch(name) for name in names):
            raise ValueError("must be names of hosts, without ports, separated by commas")
        return ",".join(names)
    return value


class NodeSettings(Section):
    id: int = setting(0, ge=0, le=2**31 - 1, description="Number of the node in its cluster.")
    workers: int = setting(
        1,
        ge=1,
        le=64,
        description="Number of worker processes that serve the node's data together, as a cluster on this machine. Use "
        "about one per core. The same as --workers.",
    )
    worker_port_step: int = setting(
        300,
        ge=0,
        le=10_000,
        description="Port offset between workers. 0: workers after the first use free ports.",
    )
    rack: str = setting(
        "",
        description="Rack or zone of the node. Clients that prefer near nodes use it, and Kafka's consumers with the "
        "same client.rack read from this node. Empty: unknown.",
    )
    drain_timeout_ms: Duration = setting(
        10_000,
        description="How long a stopping node waits for requests in flight before it closes its connections. 0: it "
        "does not wait.",
    )
    stall_ms: Duration = setting(
        10_000,
        description="Longest time the event loop may stand still. After it, the process logs the stacks of its threads "
        "and exits with code 6, so that a supervisor restarts it. 0: no limit.",
    )
    http_names: str = setting(
        "",
        read=_names,
        description="Additional host names, such as a proxy's, that HTTP requests to the node may use; separated by "
        "commas. IP addresses, localhost, the machine's name and the listened and advertised names are "
        "always accepted. Empty: no additional names.",
    )

    check_interval_ms: ClassVar[Duration] = 10_000
    """Interval at which committed positions and producers are checked for expiry."""


class SbpSettings(Section):
    mode: Literal["embedded", "external"] = setting(
        "embedded",
        description="Where the data is stored. embedded: the node runs a range server and a placement driver. "
        "external: the node uses the range servers of the placement driver in sbp.pd.",
    )
    pd: str = setting(
        "",
        read=_pd_addresses,
        description="Placement driver of an external backend: HOST:PORT. Separate the nodes of one placement driver by "
        "commas.",
    )
    flavor: str = setting(
        "anabranch",
        description="Software of the external backend's servers: anabranch, or the name of an installed add-on "
        "(docs/sbp.md). The node refuses servers of any other software.",
    )
    dialect: str = setting(
        "0.2",
        read=_dialect,
        description="Version of SBP for an external backend: 0.2, or the dialect of an installed add-on.",
    )
    timeout_ms: Duration = setting(
        15_000,
        ge=100,
        description="How long an append, a read or the opening of a partition may make no progress at an external "
        "backend before clients get an error that they retry.",
    )
    heartbeat_ms: Duration = setting(
        3_000, ge=10, description="Interval between the heartbeats that a range server sends to the placement driver."
    )
    alive_ms: Duration = setting(
        10_000,
        ge=10,
        description="Time without a heartbeat after which the placement driver assigns no new ranges to a range "
        "server.",
    )
    tls: bool = setting(
        False,
        description="Use TLS for connections to the placement driver and to range servers of an external backend.",
    )
    tls_ca: str = setting(
        "",
        description="PEM file with the authority that signs the certificates of the placement driver and range "
        "servers. Empty: the authorities that the system trusts.",
    )
    tls_cert: str = setting(
        "",
        description="PEM file with the client certificate for a placement driver and range servers that ask for one. "
        "Needs sbp.tls_key. Empty: no client certificate.",
    )
    tls_key: str = setting("", description="PEM file with the key of sbp.tls_cert, without a password.")
    tickets: bool = setting(
        False,
        description="Whether sbp-pd and sbp-range-server require tickets. Nodes and servers sign tickets with full "
        "rights with the keys of auth.keys_file; a node issues tickets for reading to other clients. All "
        "processes of a backend need the same value.",
    )
    durability: Literal["fsync", "os", "object"] = setting(
        "fsync",
        description="When a write is acknowledged. fsync: it is flushed to disk and survives power loss. os: it "
        "survives the end of the process; after power loss the log ends before the first missing entry, "
        "and the start logs a warning. object: it is in the object storage of sbp.objects and survives the "
        "loss of the machine.",
    )
    objects: str = setting(
        "",
        description="Object storage: s3://BUCKET/PREFIX, gs://, az:// or file:///DIRECTORY (for tests: not flushed). "
        "With durability object it holds all data, with fsync the data beyond sbp.local_bytes. Credentials "
        "and endpoint come from environment variables such as AWS_ENDPOINT_URL. Empty: no object storage.",
    )
    object_log: str = setting(
        "0",
        description="Name of this range server's log in sbp.objects. Range servers that share a bucket need different "
        "names, and keep them. A server whose log was adopted by another server begins a new log below the "
        "same name.",
    )
    object_linger_ms: Duration = setting(
        50,
        ge=1,
        description="Mean time between two groups of appends, with durability object. Each group is one put. Groups "
        "that were not needed in the last minute are written without waiting; a group of 1 MiB is written as soon as "
        "fewer than four puts are under way.",
    )
    object_cache_bytes: Size = setting(
        4 * 1024**3,
        ge=3 * 1024**2,
        description="Disk space for a cache of recently written and read objects, with sbp.objects. With durability "
        "object, at least three times sbp.segment_bytes.",
    )
    object_range_bytes: Size = setting(
        64 * 1024**2,
        ge=64 * 1024,
        le=512 * 1024**2,
        description="Target size of the objects, with sbp.objects, into which data of mixed partitions is rewritten so "
        "that each object holds one partition's data.",
    )
    local_bytes: SizeOrNone = setting(
        -1,
        description="Size of the log to keep on disk, with durability fsync and sbp.objects. Older data is moved to "
        "objects. -1: all data stays on disk.",
    )
    segment_bytes: Size = setting(
        256 * 1024**2, ge=1024**2, description="Size of one segment file of the store's write-ahead log."
    )
    retention_bytes: SizeOrNone = setting(
        -1,
        description="Maximum size of all topics together, on disk and in objects. Above it, the oldest data is "
        "deleted. -1: no limit.",
    )
    max_connections: int = setting(2_000, ge=1, description="Maximum number of connections of each SBP listener.")
    low_water_bytes: SizeOrNone = setting(
        -1,
        description="Free disk space below which the node refuses appends. Reads continue. -1: sbp.segment_bytes plus "
        "32 MiB.",
    )

    ticket_ms: ClassVar[Duration] = 600_000
    """How long a ticket is valid, at most auth.token_ms; readers get new ones in time."""
    group_max_bytes: ClassVar[Size] = 8 * 1024**2
    """Most bytes that are written and flushed together."""


class ClusterSettings(Section):
    database: DatabaseUrl = setting(
        "",
        description="PostgreSQL database for the metadata of a cluster: postgresql://USER@HOST/DATABASE. Give the "
        "password in ANABRANCH_CLUSTER__DATABASE, the settings file or PGPASSFILE, since other users of "
        "the machine can read command lines. Empty: SQLite in data_dir.",
    )
    heartbeat_ms: Duration = setting(
        500, ge=50, description="Interval between the heartbeats that a node sends to its cluster."
    )
    lease_ms: Duration = setting(
        2_000,
        ge=200,
        description="Time without a heartbeat after which the cluster treats a node as dead and other nodes take over "
        "its partitions and groups. Values below three times cluster.heartbeat_ms are raised to that.",
    )

    @property
    def lease_s(self) -> float:
        """The effective lease in seconds: at least three heartbeats."""
        return max(self.lease_ms, 3 * self.heartbeat_ms) / 1000


class LogSettings(Section):
    tail_cache_bytes: Size = setting(
        32 * 1024**2,
        description="Memory for the newest batches of all partitions (the tail cache). Most fetches are served from "
        "it.",
    )
    max_producers: int = setting(
        2_000_000,
        ge=1000,
        description="Maximum number of producers that all ledgers together remember, counted once per partition. A "
        "million takes 170 to 320 MB. Above it, the partitions with the most producers forget those that "
        "have been idle longest.",
    )
    producer_idle_ms: Duration = setting(
        86_400_000, ge=1, description="Time after which an idle producer is forgotten."
    )
    retention_check_interval_ms: Duration = setting(
        300_000, ge=10, description="Interval at which partitions are checked for data past their retention."
    )
    positions_idle_ms: Duration = setting(
        3_600_000,
        ge=0,
        description="How long compaction waits for a Pravega reader whose position does not advance. Compaction of the "
        "records ahead of that reader would move its position. 0: compaction does not wait.",
    )
    cleaner_interval_ms: Duration = setting(
        15_000,
        ge=10,
        description="Interval at which partitions of compacted topics are checked for records to compact.",
    )
    cleaner_buffer_bytes: Size = setting(
        64 * 1024**2,
        ge=64 * 1024,
        description="Memory for the keys of one compaction pass, 30 bytes per key. A partition with more new keys than "
        "fit takes several passes.",
    )
    cleaner_bytes_per_second: Size = setting(
        32 * 1024**2,
        description="Maximum number of bytes per second that compaction reads and writes, over all topics. 0: no "
        "limit.",
    )

    snapshot_bytes: ClassVar[Size] = 64 * 1024**2
    """Bytes appended to a partition between snapshots of its state; fewer make recovery faster."""
    max_producers_per_partition: ClassVar[int] = 20_000
    """Producers per partition whose repeated batches are recognised."""
    event_writers_per_partition: ClassVar[int] = 100_000
    """Writers per partition whose last event number is remembered."""
    event_writer_idle_ms: ClassVar[Duration] = 16 * 86_400_000
    """Time after which an idle writer of numbered events is forgotten."""
    seq_no_producers_per_partition: ClassVar[int] = 100_000
    """Producers per partition whose last seq_no is remembered."""
    seq_no_producer_idle_ms: ClassVar[Duration] = 16 * 86_400_000
    """Time after which an idle producer of seq_nos is forgotten."""
    transactions_per_partition: ClassVar[int] = 100_000
    """Open transactions of a partition; beyond it none begins until one ends."""
    open_concurrency: ClassVar[int] = 64
    """Partitions opened at the same time."""


class LimitSettings(Section):
    max_partitions: int = setting(100_000, ge=1, description="Maximum number of partitions of all topics together.")
    max_partitions_per_topic: int = setting(
        10_000,
        ge=1,
        description="Maximum number of partitions of one topic. Sealed partitions whose records are all trimmed do not "
        "count.",
    )
    connections_memory_bytes: Size = setting(
        256 * 1024**2,
        ge=1024**2,
        description="Memory that all connections together may hold for requests, for responses that clients have not "
        "read yet, and for reads.",
    )
    batch_records: int = setting(
        250_000,
        ge=1,
        description="Maximum number of records in a batch. A batch of 1 MiB holds fewer than the default. Producers "
        "that can split a refused batch do so.",
    )
    batch_inflated_bytes: Size = setting(
        128 * 1024**2,
        ge=1024**2,
        description="Maximum size of a batch after decompression, where the node must read its records.",
    )
    translated_bytes: Size = setting(
        64 * 1024**2,
        description="Memory for a cache of batches that were translated for readers of another protocol.",
    )
    http_connections: int = setting(1_000, ge=1, description="Maximum number of connections to the console address.")
    http_request_ms: Duration = setting(
        60_000,
        ge=100,
        description="Time after which a connection to the console address is closed if it has no request in progress, "
        "or if its client stops sending the request or reading the response.",
    )
    group_lag_series: int = setting(
        10_000,
        ge=0,
        description="Maximum number of time series of the lag metric, one per position of a group. Groups with few "
        "positions come first. 0: no lag series.",
    )
    history_bytes: Size = setting(
        48 * 1024**2,
        description="Memory for the console's history of the last day: one eighth for groups and one eighth for their "
        "partitions. It counts towards limits.connections_memory_bytes and takes at most a quarter of "
        "that. 0: no history.",
    )

    http_line_bytes: ClassVar[Size] = 4 * 1024**2
    """Longest line of records that the HTTP interface takes. It is parsed in one step of the event loop, some 10 ms."""


class MigrateSettings(Section):
    grace_ms: Duration = setting(
        86_400_000,
        description="How long retention leaves a migrated topic alone after its handover. 0: retention starts at once.",
    )


class AuthSettings(Section):
    required: bool = setting(
        False,
        description="Refuse clients that do not log in with a password, a token or a certificate.",
    )
    open_health: bool = setting(
        True,
        description="Serve /healthz, /readyz and /metrics without a login even if auth.required is set. The answers "
        "then omit the names of topics, groups and jobs, and the reason of a failure.",
    )
    users_file: str = setting(
        "", description="File with the users and the data that verifies their passwords. Empty: users.json in data_dir."
    )
    keys_file: str = setting(
        "",
        description="File with the keys that sign tokens; the node creates it if it does not exist. Nodes that share "
        "the file accept each other's tokens. Empty: token-keys.json in data_dir.",
    )
    token_ms: Duration = setting(
        12 * 3_600_000, ge=1000, description="How long a token is valid. Clients renew their tokens before they expire."
    )
    oauth_keys: str = setting(
        "",
        description="File or https URL of the login server's public keys (JWKS). They verify OAuth tokens: Kafka's "
        "OAUTHBEARER, and tokens of the other protocols. Empty: OAuth tokens are refused.",
    )
    oauth_issuer: str = setting(
        "", description="Issuer (iss) that an OAuth token must name. Empty: any issuer is accepted."
    )
    oauth_audience: str = setting(
        "", description="Audience (aud) that an OAuth token must name. Empty: any audience is accepted."
    )
    oauth_claim: str = setting("sub", description="Claim of an OAuth token that holds the user's name.")
    kerberos_keytab: str = setting(
        "",
        description="Keytab with the keys of the node's service principals, such as kafka/HOST@REALM. Kafka clients "
        "may then log in with tickets of its realm (GSSAPI). Empty: tickets are refused.",
    )
    kerberos_rules: str = setting(
        "DEFAULT",
        read=_kerberos_rules,
        description="Rules by which principals get local names, as in Kafka's "
        "sasl.kerberos.principal.to.local.rules, separated by commas. The first that applies decides. DEFAULT: the "
        "first part of principals of the default realm.",
    )
    rules: Literal["off", "deny", "allow"] = setting(
        "off",
        description="How access rules apply. off: every user may do everything. deny: users may do only what a rule "
        "allows. allow: as deny, but resources without a rule are open to every user.",
    )
    super_users: str = setting(
        "",
        read=_super_users,
        description="Users that may do everything, whatever the access rules say: User:NAME, separated by semicolons. "
        "Empty: no super users.",
    )

    key_ms: ClassVar[Duration] = 30 * 86_400_000
    """Age at which a key gets a successor; it is accepted until its last token has ended."""
    oauth_skew_ms: ClassVar[Duration] = 30_000
    """Tolerated difference between the clocks of the token issuer and the node."""
    oauth_refresh_ms: ClassVar[Duration] = 3_600_000
    """Interval at which the issuer's keys are fetched again; sooner, but not within ten seconds, after a token that
    names an unknown key.
    """
    max_rules: ClassVar[int] = 100_000
    """Most access rules that are kept."""
    max_quotas: ClassVar[int] = 100_000
    """Most quotas that are kept."""
    quota_clients: ClassVar[int] = 10_000
    """Users and client ids with a bucket of their own, per kind of quota; further ones share buckets."""


class SchemaSettings(Section):
    registry: HttpUrl = setting(
        "",
        description="Confluent-compatible schema registry: https://USER:PASSWORD@HOST:PORT/PATH, https://:TOKEN@HOST "
        "with a bearer token, or without a login. Give passwords in ANABRANCH_SCHEMAS__REGISTRY or the settings file, "
        "since other users of the machine can read command lines. The console and the commands tail, consume and "
        "produce use its schemas; needs anabranch[schemas]. Empty: no registry.",
    )
    ca: str = setting(
        "",
        description="PEM file with the authority that signs the schema registry's certificate. Empty: the authorities "
        "that the system trusts.",
    )


class LoggingSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = setting("info", description="Lowest level that is logged.")
    format: Literal["auto", "console", "json"] = setting(
        "auto",
        description="Format of the log. json: one object per line. console: text for people. auto: console on a "
        "terminal, otherwise json.",
    )
    repeated_lines: int = setting(
        20,
        ge=1,
        description="Maximum number of log lines within ten seconds that differ only in their fields. Further lines "
        "are counted, not written.",
    )
