"""Limits and delays of the group coordinators, with Kafka's defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

Configured = Callable[[str, str], int | None]
"""Returns a group's own value of a key, by the group's name and the key; None: the settings apply (KIP-848)."""

MigrationPolicy = Literal["bidirectional", "upgrade", "downgrade", "disabled"]
"""Directions in which groups may change their kind: an upgrade makes a classic group one of KIP-848."""

_MINUTE_MS = 60_000


class GroupSettings(Struct, frozen=True):
    """Settings of the coordinators. Times are in milliseconds; the comment names the field's Kafka broker setting."""

    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 30 * _MINUTE_MS  # group.max.session.timeout.ms
    # Kafka has no bound for classic groups. Clients ask for the longest time that they may work between two polls.
    max_rebalance_timeout_ms: int = 24 * 60 * _MINUTE_MS
    max_size: int = 2**31 - 1  # group.max.size
    # Kafka has no bound; a group costs a kilobyte or two even without members.
    max_groups: int = 100_000
    # Limit of the members' metadata, and of their leader's assignment. At a broker they must fit into one batch of the
    # log.
    max_bytes: int = 16 * 1024 * 1024
    # Clients know two or three. Kafka bounds only the request's size.
    max_protocols: int = 1_000
    # How long a member's very first join may stay unanswered. Fixed in Kafka: the client does not know its id yet, so
    # it can neither send heartbeats nor leave. If it gave up and retried, its first member would stay in the group for
    # ever.
    new_member_join_timeout_ms: int = 5 * _MINUTE_MS
    consumer_heartbeat_interval_ms: int = 5_000  # group.consumer.heartbeat.interval.ms
    consumer_session_timeout_ms: int = 45_000  # group.consumer.session.timeout.ms
    consumer_migration_policy: MigrationPolicy = "bidirectional"  # group.consumer.migration.policy
    # Kafka has no bound; a group costs some hundred bytes for each partition of the topics it reads.
    max_consumer_partitions: int = 1_000_000
    offset_metadata_max_bytes: int = 4_096  # offset.metadata.max.bytes
    offsets_retention_ms: int = 7 * 24 * 60 * _MINUTE_MS  # offsets.retention.minutes
    offsets_retention_check_ms: int = 10 * _MINUTE_MS  # offsets.retention.check.interval.ms


def nothing_configured(group_id: str, key: str) -> int | None:
    """Return None: a :data:`Configured` for groups without configuration."""
    return None
