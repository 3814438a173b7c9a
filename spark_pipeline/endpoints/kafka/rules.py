"""A Kafka cluster's state beside topics and committed positions, in words: a migration's plan lists it as not carried.

Brokers do not reveal their users' passwords, so accounts cannot be carried; rules with accounts and addresses are for
the operator to take over. Each list is requested separately, because a cluster without an authorizer, or of an earlier
version, lacks some lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.admin import ACLResourcePatternType as Pattern
from kafka.protocol.admin import DescribeClientQuotasRequest

from spark_pipeline.core.errors import EndpointUnavailable
from spark_pipeline.endpoints.kafka.client import KafkaClient

_MOST = 1_000
"""Most rows of a list; further rows are only counted."""

Lists = dict[str, tuple[Callable[[KafkaAdminClient], list[str]], str]]


def left_behind(client: KafkaClient) -> Iterator[tuple[str, str]]:
    """Yield each item of the cluster's state, and what to do about it at the target."""
    for name, (read, remedy) in _LISTS.items():
        try:
            rows = sorted(client.ask(read))
        except EndpointUnavailable:
            continue
        yield from ((f"{name} {row}", remedy) for row in rows[:_MOST])
        if len(rows) > _MOST:
            yield f"{len(rows) - _MOST} more of {name}", remedy


def _acls(admin: KafkaAdminClient) -> list[str]:
    everything = ACLFilter(
        principal=None,
        host=None,
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ANY,
        resource_pattern=ResourcePatternFilter(ResourceType.ANY, None, Pattern.ANY),
    )
    found = admin.describe_acls(everything)
    return [
        f"{one.permission_type.name} {one.operation.name} on {one.resource_pattern.resource_type.name} "
        f"{one.resource_pattern.pattern_type.name} {one.resource_pattern.resource_name} for {one.principal} "
        f"from {one.host}"
        for one in (found[0] if isinstance(found, tuple) else found)
    ]


def _quotas(admin: KafkaAdminClient) -> list[str]:
    found = admin._manager.run(admin._manager.send, DescribeClientQuotasRequest(components=[], strict=False))
    rows = []
    for entry in found.entries or ():
        whose = (f"{one.entity_type}={one.entity_name or '(default)'}" for one in entry.entity)
        values = (f"{one.key}={one.value:g}" for one in entry.values)
        rows.append(f"{', '.join(whose)}: {', '.join(values)}")
    return rows


def _users(admin: KafkaAdminClient) -> list[str]:
    found = admin.describe_user_scram_credentials()
    return [
        f"{user} ({', '.join(one['mechanism'].name.replace('_', '-') for one in told['credential_infos'])})"
        for user, told in found.items()
    ]


def _share_groups(admin: KafkaAdminClient) -> list[str]:
    return [one["group_id"] for one in admin.list_groups() if one.get("group_type") == "share"]


def _group_configs(admin: KafkaAdminClient) -> list[str]:
    names = admin.list_config_resources(["GROUP"]).get("group", [])
    wanted = [ConfigResource(ConfigResourceType.GROUP, name) for name in names]
    found: dict[str, dict[str, Any]] = admin.describe_configs(wanted).get("group", {}) if wanted else {}
    return [f"{group}: {key} = {row['value']}" for group, rows in found.items() for key, row in rows.items()]


_LISTS: Lists = {
    "user": (_users, "the source tells nobody its users' passwords: give them with `anabranch user add`"),
    "ACL": (_acls, "make it at the target with kafka-acls"),
    "quota of": (_quotas, "set it at the target with kafka-configs or `anabranch quota set`"),
    "share group": (
        _share_groups,
        "its positions are not carried: at the target it begins where share.auto.offset.reset says, or where "
        "kafka-share-groups sets it",
    ),
    "configuration of group": (_group_configs, "set it at the target with kafka-configs --entity-type groups"),
}
