"""The coordinators of consumer groups, classic and of KIP-848, and the requests that reach them.

``coordinator`` and ``group`` decide, without clock or sockets; ``runtime`` and ``journal`` give them time and a disk;
``membership``, ``offsets`` and ``admin`` answer the requests; ``group_service`` is the state that these share.

All coordinators, of transactions too, refuse a request in one way: they raise KafkaError, or give it to the callback of
a request that fails later. A code stands in an answer only where the answer has more to say, or is one of several.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_front.dispatch import Registry
from kafka_front.service.groups.classic import membership
from kafka_front.service.groups.consumer import membership as consumer_membership
from kafka_front.service.groups.group_service import GroupService
from kafka_front.service.groups.requests import admin, offsets

if TYPE_CHECKING:
    from bridges.node.front import NodeServices
    from kafka_front.service.access import Access
    from kafka_front.service.admin.own_configs import OwnConfigs
    from kafka_front.service.brokers import Brokers
    from kafka_front.settings import KafkaSettings

__all__ = ["GroupService", "groups_of", "register"]


def groups_of(node: NodeServices, kafka: KafkaSettings, access: Access, configs: OwnConfigs) -> GroupService:
    """Return the groups of a node's clients, not started; ``configs`` are the groups' own configurations."""
    service = GroupService(
        node.progress,
        node.catalog,
        node.owners,
        node.peers,
        kafka.group,
        barrier=node.barrier,
        access=access,
        works=node.works,
        configured=configs.number,
    )
    if node.access_rules is not None:
        node.access_rules.on_change.append(service.runtime.topics.rules_changed)
    return service


def register(registry: Registry, groups: GroupService, brokers: Brokers) -> None:
    """Serve keys 8-16, 42, 47, 68 and 69."""
    registry = groups.owned.guarding(registry)
    for module in (membership, consumer_membership, offsets):
        module.register(registry, groups)
    admin.register(registry, groups, brokers)
