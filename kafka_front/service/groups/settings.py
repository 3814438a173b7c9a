"""Limits and delays of the group coordinators, with Kafka's defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

Configured = Callable[[str, str], int | None]
"""The number that a group has of its own, by its name and the key's; None: the settings' counts (KIP-848)."""

MigrationPolicy = Literal["bidirectional", "upgrade", "downgrade", "disabled"]
"""Which way groups may change their kind: an upgrade makes a classic group one of KIP-848."""

_MINUTE_MS = 60_000


class GroupSettings(Struct, frozen=True):
    """All times in milliseconds; the comment names the Kafka broker setting each field stands for."""

    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 30 * _MINUTE_MS  # group.max.session.timeout.ms
    # Kafka has no bound for classic groups. Clients ask for as long as they may work between two polls.
    max_rebalance_timeout_ms: int = 24 * 60 * _MINUTE_MS
    max_size: int = 2**31 - 1  # group.max.size
    # Kafka has no bound; a group costs a kilobyte or two even if nobody is in it.
    max_groups: int = 100_000
    # What members say of themselves, and what their leader assigns. At a broker it must fit into one batch of the log.
    max_bytes: int = 16 * 1024 * 1024
    # Clients know two or three. Kafka has no bound but that of the request.
    max_protocols: int = 1_000
    # How long a member's very first join may stay unanswered. Fixed in Kafka: such a member has no id yet, so it can
    # neither heartbeat nor leave, and a client that gave up and retried would otherwise stay in the group for ever.
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
    """A :data:`Configured` for groups that have nothing of their own."""
    return None
