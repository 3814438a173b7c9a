"""Settings of the Kafka front: the section ``kafka`` of the node's settings."""

from __future__ import annotations

from typing import ClassVar, Literal

from bridges.node.setting import Duration, Section, Size, setting


class KafkaGroupSettings(Section):
    """Settings of consumer groups and share groups."""

    initial_rebalance_delay_ms: Duration = setting(
        3_000, description="How long the first rebalance of an empty group waits for more members."
    )
    min_session_timeout_ms: Duration = setting(
        6_000, ge=1, description="Shortest session timeout a member may ask for."
    )
    max_session_timeout_ms: Duration = setting(
        1_800_000, ge=1, description="Longest session timeout a member may ask for."
    )
    max_size: int = setting(10_000, ge=1, description="Most members of a group.")
    max_bytes: Size = setting(
        16 * 1024**2,
        ge=1024,
        description="Most bytes that the members of a group may say of themselves, and that their leader may assign.",
    )
    consumer_heartbeat_interval_ms: Duration = setting(
        5_000, ge=1, description="How often members of a group of the new protocol are told to report."
    )
    consumer_session_timeout_ms: Duration = setting(
        45_000, ge=1, description="Time without a report after which a member of a group of the new protocol is out."
    )
    consumer_migration_policy: Literal["bidirectional", "upgrade", "downgrade", "disabled"] = setting(
        "bidirectional",
        description="Whether a classic group becomes one of the new protocol when a member of that joins (upgrade), and"
        " a classic one again when the last of them has left (downgrade).",
    )
    share_max_size: int = setting(200, ge=1, description="Most members of a share group.")
    share_record_lock_duration_ms: Duration = setting(
        30_000, ge=1, description="How long a member of a share group has a record, where the group does not say."
    )
    share_min_record_lock_duration_ms: Duration = setting(
        15_000, ge=1, description="Shortest lock of a record that a share group may be configured with."
    )
    share_delivery_count_limit: int = setting(
        5, ge=1, le=32_767, description="How often a record is delivered to a share group at most."
    )
    share_partition_max_record_locks: int = setting(
        2_000, ge=1, le=100_000, description="Most records of a partition that a share group has in flight."
    )
    offsets_retention_ms: Duration = setting(
        604_800_000, ge=1, description="How long positions of a group without members are kept."
    )

    max_rebalance_timeout_ms: ClassVar[Duration] = 86_400_000
    """Longest time a rebalance waits for members, whatever they ask for."""
    max_groups: ClassVar[int] = 100_000
    """Most groups, with or without members; beyond that no new group is created."""
    consumer_min_heartbeat_interval_ms: ClassVar[Duration] = 5_000
    """Shortest heartbeat interval that a consumer group may be configured with."""
    consumer_max_heartbeat_interval_ms: ClassVar[Duration] = 15_000
    """Longest heartbeat interval that a consumer group may be configured with."""
    consumer_min_session_timeout_ms: ClassVar[Duration] = 45_000
    """Shortest session timeout that a consumer group may be configured with."""
    consumer_max_session_timeout_ms: ClassVar[Duration] = 60_000
    """Longest session timeout that a consumer group may be configured with."""
    max_consumer_partitions: ClassVar[int] = 1_000_000
    """Most partitions that all groups of the new protocol read together, each group counted by itself; beyond that no
    new member may join. A million take up to 300 MB."""
    share_heartbeat_interval_ms: ClassVar[Duration] = 5_000
    """Interval at which members of a share group are asked to send heartbeats."""
    share_session_timeout_ms: ClassVar[Duration] = 45_000
    """Time without a heartbeat after which a member of a share group is removed."""
    share_min_heartbeat_interval_ms: ClassVar[Duration] = 5_000
    """Shortest heartbeat interval that a share group may be configured with."""
    share_max_heartbeat_interval_ms: ClassVar[Duration] = 15_000
    """Longest heartbeat interval that a share group may be configured with."""
    share_min_session_timeout_ms: ClassVar[Duration] = 45_000
    """Shortest session timeout that a share group may be configured with."""
    share_max_session_timeout_ms: ClassVar[Duration] = 60_000
    """Longest session timeout that a share group may be configured with."""
    share_max_record_lock_duration_ms: ClassVar[Duration] = 60_000
    """Longest lock of a record that a share group may be configured with."""
    share_sessions: ClassVar[int] = 2_000
    """Most share sessions kept, one for each member that fetches."""


class KafkaSettings(Section):
    """Settings of all that Kafka clients see. Where Kafka has the same setting, the default is Kafka's."""

    auto_create_topics: bool = setting(True, description="Whether a topic that a client asks for is created.")
    num_partitions: int = setting(1, ge=1, description="Partitions of a topic whose creator does not say.")
    max_request_bytes: Size = setting(
        100 * 1024**2,
        ge=1024,
        le=2**31 - 1,
        description="Largest request accepted; a larger one ends its connection.",
    )
    max_connections: int = setting(
        10_000,
        ge=1,
        description="Most connections at the same time; a further one takes the place of an idle one.",
    )
    connections_max_idle_ms: Duration = setting(
        600_000, ge=1, description="Time after which an idle connection is closed."
    )
    sasl_max_reauth_ms: Duration = setting(
        0,
        ge=0,
        description="Time after which a client of SASL must have said again who it is, or its connection is closed at "
        "its next request (connections.max.reauth.ms); 0: need not.",
    )
    fetch_sessions: int = setting(1_000, ge=0, description="Most incremental fetch sessions kept.")
    fetch_session_partitions: int = setting(
        500_000,
        ge=10,
        description="Most partitions that all incremental fetch sessions remember, one of them a tenth of it, and as"
        " many again all share sessions; half a million take up to 300 MB.",
    )
    transaction_max_timeout_ms: Duration = setting(
        900_000, ge=1, description="Longest transaction a producer may ask for."
    )
    transaction_version: int = setting(
        2,
        ge=1,
        le=2,
        description="Version of the protocol of transactions that clients are told of: with 2 each transaction has an"
        " epoch of its own (KIP-890).",
    )
    transactional_ids: int = setting(
        100_000,
        ge=1,
        description="Most transactional ids in memory; beyond them those of which nothing is open are in the database"
        " alone.",
    )
    transactional_id_expiration_ms: Duration = setting(
        604_800_000, ge=1, description="How long a transactional id is remembered after it was used last."
    )
    group: KafkaGroupSettings = KafkaGroupSettings()

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
