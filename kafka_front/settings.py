"""Settings of the Kafka front: the section ``kafka`` of the node's settings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from bridges.node.settings.setting import Duration, Kind, Section, Size, setting, shown_url


def _collector(given: object) -> str:
    url = str(given)
    if url and urlsplit(url).scheme not in ("http", "https"):
        raise ValueError("must be like http://HOST:4318/v1/metrics")
    return url


CollectorUrl = Annotated[str, Kind("URL", _collector, shown_url, secret=True)]
"""URL of a collector of metrics, shown without its password."""


class KafkaGroupSettings(Section):
    """Settings of consumer groups and share groups."""

    initial_rebalance_delay_ms: Duration = setting(
        3_000,
        description="How long the first rebalance of an empty consumer group waits for more members. 0: it starts at "
        "once.",
    )
    min_session_timeout_ms: Duration = setting(
        6_000, ge=1, description="Shortest session timeout that a member of a classic consumer group may request."
    )
    max_session_timeout_ms: Duration = setting(
        1_800_000, ge=1, description="Longest session timeout that a member of a classic consumer group may request."
    )
    max_size: int = setting(10_000, ge=1, description="Maximum number of members of a consumer group.")
    max_bytes: Size = setting(
        16 * 1024**2,
        ge=1024,
        description="Maximum size of the metadata that all members of a group send, and of the assignments that their "
        "leader sends.",
    )
    consumer_heartbeat_interval_ms: Duration = setting(
        5_000,
        ge=1,
        description="Interval at which members of a consumer group of the new protocol (KIP-848) or of a streams group "
        "(KIP-1071) send heartbeats.",
    )
    consumer_session_timeout_ms: Duration = setting(
        45_000,
        ge=1,
        description="Time without a heartbeat after which a member is removed from a consumer group of the new "
        "protocol (KIP-848) or from a streams group (KIP-1071).",
    )
    consumer_migration_policy: Literal["bidirectional", "upgrade", "downgrade", "disabled"] = setting(
        "bidirectional",
        description="Conversion of consumer groups between the classic and the new protocol (KIP-848). upgrade: a "
        "classic group is converted when a member of the new protocol joins. downgrade: a group becomes "
        "classic when the last member of the new protocol leaves. bidirectional: both. disabled: neither.",
    )
    share_max_size: int = setting(200, ge=1, description="Maximum number of members of a share group.")
    share_record_lock_duration_ms: Duration = setting(
        30_000,
        ge=1,
        description="How long a record stays locked for one member of a share group, unless the group's configuration "
        "sets another time.",
    )
    share_min_record_lock_duration_ms: Duration = setting(
        15_000, ge=1, description="Shortest record lock that a share group may be configured with."
    )
    share_delivery_count_limit: int = setting(
        5,
        ge=1,
        le=32_767,
        description="Maximum number of times a record is delivered to a share group, unless the group's configuration "
        "sets another number.",
    )
    share_partition_max_record_locks: int = setting(
        2_000,
        ge=1,
        le=100_000,
        description="Maximum number of records of one partition that a share group may have in flight, unless the "
        "group's configuration sets another number.",
    )
    offsets_retention_ms: Duration = setting(
        604_800_000,
        ge=1,
        description="How long the committed positions of a consumer group are kept after its last member left.",
    )

    max_rebalance_timeout_ms: ClassVar[Duration] = 86_400_000
    """Longest time a rebalance waits for members, whatever they ask for."""
    max_groups: ClassVar[int] = 100_000
    """Most groups, with or without members; beyond that no new group is created."""
    max_consumer_partitions: ClassVar[int] = 1_000_000
    """Most partitions that all groups of the new protocol read together, each group counted by itself; beyond that no
    new member may join. A million take up to 300 MB."""
    share_heartbeat_interval_ms: ClassVar[Duration] = 5_000
    """Interval at which members of a share group are asked to send heartbeats."""
    share_session_timeout_ms: ClassVar[Duration] = 45_000
    """Time without a heartbeat after which a member of a share group is removed."""
    share_sessions: ClassVar[int] = 2_000
    """Most share sessions kept, one for each member that fetches."""


class KafkaSettings(Section):
    """Settings of all that Kafka clients see. Where Kafka has the same setting, the default is Kafka's."""

    auto_create_topics: bool = setting(
        True, description="Create a topic when a client asks for one that does not exist."
    )
    num_partitions: int = setting(1, ge=1, description="Number of partitions of a new topic whose creator gives none.")
    max_request_bytes: Size = setting(
        100 * 1024**2,
        ge=1024,
        le=2**31 - 1,
        description="Largest Kafka request that is accepted. A larger request closes its connection.",
    )
    max_connections: int = setting(
        10_000,
        ge=1,
        description="Maximum number of Kafka connections. Above it, a new connection replaces an idle one.",
    )
    connections_max_idle_ms: Duration = setting(
        600_000, ge=1, description="Time without a request after which a Kafka connection is closed."
    )
    sasl_max_reauth_ms: Duration = setting(
        0,
        ge=0,
        description="Time after which a SASL client must authenticate again (connections.max.reauth.ms). If it does "
        "not, its next request closes the connection. 0: clients authenticate once per connection.",
    )
    fetch_sessions: int = setting(
        1_000,
        ge=0,
        description="Maximum number of incremental fetch sessions. 0: every fetch names all its partitions.",
    )
    client_metrics_url: CollectorUrl = setting(
        "",
        description="URL of an OpenTelemetry collector to which the node sends the metrics that subscriptions "
        "(kafka-client-metrics) want of clients (KIP-714), by OTLP over HTTP, for instance "
        "http://collector:4318/v1/metrics. Empty: no client is asked for metrics.",
    )
    delegation_token_max_lifetime_ms: ClassVar[int] = 604_800_000
    """Time after which a delegation token ends, however often it is renewed (delegation.token.max.lifetime.ms)."""
    delegation_token_expiry_ms: ClassVar[int] = 86_400_000
    """Time after which a delegation token expires unless it is renewed (delegation.token.expiry.time.ms)."""
    transaction_max_timeout_ms: Duration = setting(
        900_000, ge=1, description="Longest transaction timeout that a Kafka producer may request."
    )
    transaction_version: int = setting(
        2,
        ge=1,
        le=2,
        description="Version of Kafka's transaction protocol that the node announces. 2: each transaction has an epoch "
        "of its own (KIP-890). 1: the older protocol without such epochs.",
    )
    transactional_ids: int = setting(
        100_000,
        ge=1,
        description="Maximum number of transactional ids in memory. Above it, ids without an open transaction are kept "
        "in the database only.",
    )
    transactional_id_expiration_ms: Duration = setting(
        604_800_000, ge=1, description="How long an unused transactional id is kept after its last use."
    )
    group: KafkaGroupSettings = KafkaGroupSettings()

    fetch_session_partitions: ClassVar[int] = 500_000
    """Most partitions in all incremental fetch sessions together, and in all share sessions; a single session has a
    tenth of that at most. They take up to 300 MB."""
    fetch_max_bytes: ClassVar[Size] = 16 * 1024**2
    """Most bytes in the answer of one fetch."""
    fetch_max_wait_ms: ClassVar[Duration] = 300_000
    """Longest time a fetch waits for data, whatever it asks for."""
    unacknowledged_bytes_per_connection: ClassVar[Size] = 32 * 1024**2
    """Bytes a connection may have in flight before the node stops reading from it."""
    offset_metadata_max_bytes: ClassVar[Size] = 4096
    """Longest text a consumer may attach to a position."""
    transaction_partitions: ClassVar[int] = 1_000_000
    """Most partitions and groups in open transactions, counted once for each transaction."""
