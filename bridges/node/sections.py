"""Sections of settings that every process has."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from anabranch_kit.net.address import Address
from bridges.node.setting import DatabaseUrl, Duration, Section, Size, SizeOrNone, setting

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


def _names(value: object) -> object:
    if isinstance(value, str):
        names = [part.strip() for part in value.split(",") if part.strip()]
        if any(not _HOST.fullmatch(name) for name in names):
            raise ValueError("must be names of hosts, without ports, separated by commas")
        return ",".join(names)
    return value


class NodeSettings(Section):
    id: int = setting(0, ge=0, le=2**31 - 1, description="Number of this node among its peers.")
    workers: int = setting(
        1,
        ge=1,
        le=64,
        description="Processes that serve this node's data together, as a cluster of their own on this machine: about "
        "one for each core. As --workers.",
    )
    worker_port_step: int = setting(
        300,
        ge=0,
        le=10_000,
        description="By how much the ports of each worker are above those of the one before; 0: all but the first "
        "one's take any free port.",
    )
    rack: str = setting("", description="Where the node stands; told to clients that prefer near nodes.")
    drain_timeout_ms: Duration = setting(
        10_000,
        description="How long a stopping node waits for requests in flight before it closes connections.",
    )
    stall_ms: Duration = setting(
        10_000,
        description="How long the event loop may stand still before the process writes the stacks of its threads to "
        "the log and ends with exit code 6, to be started again. 0: for ever.",
    )
    http_names: str = setting(
        "",
        read=_names,
        description="Further names by which HTTP listeners are reached, as a proxy's, separated by commas. Addresses, "
        "localhost, the machine's name and the one that is listened at or advertised are taken anyway.",
    )

    check_interval_ms: ClassVar[Duration] = 10_000
    """Interval at which committed positions and producers are checked for expiry."""


class SbpSettings(Section):
    mode: Literal["embedded", "external"] = setting(
        "embedded",
        description="Where data is kept: embedded runs range server and placement driver in the node, external uses "
        "those that sbp.pd leads to.",
    )
    pd: str = setting(
        "",
        read=_pd_addresses,
        description="Placement driver of an external backend, HOST:PORT; several nodes of one are separated by commas.",
    )
    flavor: str = setting(
        "anabranch",
        description="Whose servers an external backend runs: anabranch, or those of a backend that is installed "
        "besides (docs/sbp.md). Other servers are refused.",
    )
    dialect: str = setting(
        "0.2",
        read=_dialect,
        description="What an external backend speaks: 0.2, or the dialect of a backend that is installed besides.",
    )
    timeout_ms: Duration = setting(
        15_000,
        ge=100,
        description="How long an external backend may leave an append, a read or the opening of a partition without "
        "progress before clients are told to try again.",
    )
    heartbeat_ms: Duration = setting(
        3_000, ge=10, description="How often a range server reports to the placement driver."
    )
    alive_ms: Duration = setting(
        10_000,
        ge=10,
        description="Silence after which a placement driver gives a range server no new ranges.",
    )
    tls: bool = setting(
        False, description="Whether the placement driver and range servers elsewhere are reached with TLS."
    )
    tls_ca: str = setting(
        "", description="Authority of their certificates, a PEM file; empty: those that the system trusts."
    )
    tls_cert: str = setting(
        "", description="Certificate that is shown where they ask for one, a PEM file; with sbp.tls_key."
    )
    tls_key: str = setting("", description="Its key, a PEM file without a password.")
    tickets: bool = setting(
        False,
        description="Whether sbp-pd and sbp-range-server demand tickets: of all rights from nodes and servers, which "
        "make them with auth.keys_file; to read with, from others, whom a node gives them. All processes of a backend "
        "need the same.",
    )
    durability: Literal["fsync", "os", "object"] = setting(
        "fsync",
        description="What an acknowledgement means: fsync survives power loss, os only the end of the process: after a "
        "loss of power the log ends before the first thing that is missing, and the start warns of it; object: it is "
        "in the object storage of sbp.objects and survives the loss of the machine.",
    )
    objects: str = setting(
        "",
        description="Where objects are kept, with durability object, or with fsync what is beyond sbp.local_bytes: "
        "s3://BUCKET/PREFIX, gs://, az://, file:///DIRECTORY (for tests: not flushed). Credentials and endpoint come "
        "from the environment, as AWS_ENDPOINT_URL.",
    )
    object_log: str = setting(
        "0",
        description="Name of what is this range server's in sbp.objects: those that share a bucket need one each, and "
        "keep it. A server whose log was adopted by another begins a new one below the same name.",
    )
    object_linger_ms: Duration = setting(
        50,
        ge=1,
        description="With durability object: how fast groups of appends follow each other, unless one has "
        "8 MiB before. Each is a put.",
    )
    object_cache_bytes: Size = setting(
        4 * 1024**3,
        ge=3 * 1024**2,
        description="With objects: disk space for what was lately written there or read; with durability object at "
        "least three times sbp.segment_bytes.",
    )
    object_range_bytes: Size = setting(
        64 * 1024**2,
        ge=64 * 1024,
        le=512 * 1024**2,
        description="With objects: what was written among other partitions' data is written again as objects of one "
        "partition's, of about this size.",
    )
    local_bytes: SizeOrNone = setting(
        -1,
        description="With durability fsync and sbp.objects: so much of the log stays on the disk, and what is older is "
        "moved to objects; -1: all stays.",
    )
    segment_bytes: Size = setting(256 * 1024**2, ge=1024**2, description="Size of the store's write-ahead files.")
    retention_bytes: SizeOrNone = setting(
        -1,
        description="Most bytes of all topics, on disk and in objects; beyond it the oldest data is dropped; -1: no "
        "bound.",
    )
    max_connections: int = setting(
        2_000, ge=1, description="Most connections of each listener for SBP at the same time."
    )
    low_water_bytes: SizeOrNone = setting(
        -1,
        description="Free disk space below which appends are refused; reads go on. -1: a segment and 32 MiB.",
    )

    ticket_ms: ClassVar[Duration] = 600_000
    """How long a ticket is valid, at most auth.token_ms; readers get new ones in time."""
    group_max_bytes: ClassVar[Size] = 8 * 1024**2
    """Most bytes that are written and flushed together."""


class ClusterSettings(Section):
    database: DatabaseUrl = setting(
        "",
        description="PostgreSQL database for metadata, as postgresql://USER@HOST/DATABASE; empty: SQLite in data_dir. "
        "The password comes from ANABRANCH_CLUSTER__DATABASE, the settings file, or PGPASSFILE: others see command "
        "lines.",
    )
    heartbeat_ms: Duration = setting(
        500, ge=50, description="How often a node of a cluster shows the others that it lives."
    )
    lease_ms: Duration = setting(
        2_000,
        ge=200,
        description="Without a heartbeat for so long a node is taken for dead, and others take over what it owns; at "
        "least three times cluster.heartbeat_ms.",
    )

    @property
    def lease_s(self) -> float:
        """The effective lease in seconds: at least three heartbeats."""
        return max(self.lease_ms, 3 * self.heartbeat_ms) / 1000


class LogSettings(Section):
    tail_cache_bytes: Size = setting(
        32 * 1024**2,
        description="Memory for the newest batches of all partitions, from which most fetches are served.",
    )
    max_producers: int = setting(
        2_000_000,
        ge=1000,
        description="Producers remembered over all partitions, each once for each of its partitions; a million takes "
        "170 to 320 MB. Beyond it the longest idle of the partitions with most are forgotten.",
    )
    producer_idle_ms: Duration = setting(
        86_400_000, ge=1, description="Time after which an idle producer is forgotten."
    )
    retention_check_interval_ms: Duration = setting(
        300_000, ge=10, description="How often partitions are looked at for data past their retention."
    )
    positions_idle_ms: Duration = setting(
        3_600_000,
        ge=0,
        description="How long compaction spares what lies ahead of a Pravega reader, whose position would move.",
    )
    cleaner_interval_ms: Duration = setting(
        15_000, ge=10, description="How often partitions of compacted topics are looked at for what may be compacted."
    )
    cleaner_buffer_bytes: Size = setting(
        64 * 1024**2,
        ge=64 * 1024,
        description="Memory for the keys of one pass of compaction, 30 bytes a key; with more new keys than that a "
        "partition takes several passes.",
    )
    cleaner_bytes_per_second: Size = setting(
        32 * 1024**2,
        description="Most bytes that compaction reads and writes in a second, of all topics together; 0: no bound.",
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
    max_partitions: int = setting(100_000, ge=1, description="Most partitions of all topics together.")
    max_partitions_per_topic: int = setting(
        10_000,
        ge=1,
        description="Most partitions of one topic; sealed ones of which everything was trimmed do not count.",
    )
    connections_memory_bytes: Size = setting(
        256 * 1024**2,
        ge=1024**2,
        description="Memory for all that connections have under way: requests, answers that were not taken, reads.",
    )
    batch_records: int = setting(
        250_000,
        ge=1,
        description="Most records of one batch; producers that can split a larger one do. 1 MiB holds fewer.",
    )
    batch_inflated_bytes: Size = setting(
        128 * 1024**2,
        ge=1024**2,
        description="Most bytes a batch is decompressed to when its records must be looked at.",
    )
    translated_bytes: Size = setting(
        64 * 1024**2,
        description="Memory for batches translated for readers of another protocol.",
    )
    http_connections: int = setting(
        1_000, ge=1, description="Most connections to the console address at the same time."
    )
    http_request_ms: Duration = setting(
        60_000,
        ge=100,
        description="How long a connection to the console address may go without a request in progress, or with one of "
        "which it sends nothing more, or takes nothing of the answer.",
    )
    group_lag_series: int = setting(
        10_000,
        ge=0,
        description="Most time series of the metric of lag, one for each position of a group; small groups come first.",
    )
    history_bytes: Size = setting(
        48 * 1024**2,
        description="Memory for what the console shows of the last day, an eighth of it for groups and one for their "
        "partitions; never more than a quarter of connections_memory_bytes, in which it counts. 0: none.",
    )

    http_line_bytes: ClassVar[Size] = 4 * 1024**2
    """Longest line of records that the HTTP interface takes. It is parsed in one step of the event loop, some 10 ms."""


class MigrateSettings(Section):
    grace_ms: Duration = setting(
        86_400_000,
        description="How long retention leaves a topic alone that was brought from elsewhere, once it is handed over.",
    )


class AuthSettings(Section):
    required: bool = setting(
        False,
        description="Refuse clients that do not say who they are, with a password, a token or a certificate.",
    )
    open_health: bool = setting(
        True,
        description="Whether health and metrics (/healthz, /readyz, /metrics) are told to everybody all the same, "
        "without the names of topics, groups and jobs, and without the reason of a failure.",
    )
    users_file: str = setting(
        "", description="File of users and what recognises their passwords; empty: users.json in data_dir."
    )
    keys_file: str = setting(
        "",
        description="File of the keys that tokens are signed with, made if need be; empty: token-keys.json in "
        "data_dir. Nodes that share it take each other's tokens.",
    )
    token_ms: Duration = setting(
        12 * 3_600_000, ge=1000, description="How long a token is valid; clients get a new one in time."
    )
    oauth_keys: str = setting(
        "",
        description="File or https URL of the public keys (JWKS) of a server of logins, whose tokens say who somebody "
        "is: Kafka's OAUTHBEARER, and tokens elsewhere. Empty: none are taken.",
    )
    oauth_issuer: str = setting("", description="Who must have made such a token (iss); empty: not looked at.")
    oauth_audience: str = setting("", description="For whom it must be (aud); empty: not looked at.")
    oauth_claim: str = setting("sub", description="Claim of a token that has the user's name.")
    rules: Literal["off", "deny", "allow"] = setting(
        "off",
        description="Who may do what: off, everybody everything; deny, only what access rules allow; allow, what "
        "they allow, and everything to what none is about.",
    )
    super_users: str = setting(
        "",
        read=_super_users,
        description="Who may do everything whatever rules say, as User:NAME, with ; between them.",
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


class LoggingSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = setting("info", description="Least important level logged.")
    format: Literal["auto", "console", "json"] = setting(
        "auto", description="json gives one object per line; auto is console on a terminal and json elsewhere."
    )
    repeated_lines: int = setting(
        20,
        ge=1,
        description="Most lines in ten seconds that say the same but for their fields; the others are counted.",
    )
