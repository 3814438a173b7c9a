"""The services that all request handlers of the Kafka front share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from bridges.catalog.config_types import ConfigSource
from kafka_front import group_config, node_config
from kafka_front.service.access import Access
from kafka_front.service.admin import own_configs
from kafka_front.service.admin.own_configs import OwnConfigs
from kafka_front.service.brokers import Brokers
from kafka_front.service.delegation import DelegationTokens
from kafka_front.service.fetch.sessions import FetchSessions
from kafka_front.service.internal import InternalTopics
from kafka_front.service.transactions.producer_ids import ProducerIds
from kafka_front.service.transactions.service import Transactions
from kafka_front.settings import KafkaSettings

if TYPE_CHECKING:
    from bridges.node.front import NodeServices


class KafkaService:
    """The node's parts and this front's own state; one per front, made on the event loop."""

    def __init__(self, node: NodeServices) -> None:
        kafka = node.section(KafkaSettings)
        self.node = node
        self.settings = kafka
        self.node_id: int = node.node_id
        self.rack: str | None = node.rack or None
        self.brokers = Brokers(self.node_id, self.rack, node.owners)
        self.cluster_id: str = node.cluster_id
        self.catalog = node.catalog
        self.logs = node.logs
        self.progress = node.progress
        self.works = node.works
        self.metrics = node.metrics
        self.loop = asyncio.get_running_loop()
        self.log = structlog.get_logger("anabranch.kafka")
        self.access = Access(node.authorizer)
        self.tokens = DelegationTokens(node, kafka)
        self.translator = node.translator
        self.fetch_sessions = FetchSessions(
            kafka.fetch_sessions, partitions=kafka.fetch_session_partitions, later=self.loop.call_soon
        )
        self.producer_ids = ProducerIds(node.catalog)
        self.transactions = Transactions(node, kafka, self.producer_ids.take)
        static, most = node.catalog.options.static, kafka.group.max_groups
        self.internal_topics = InternalTopics(node)
        self.group_configs = OwnConfigs(
            node.db,
            own_configs.GROUPS,
            "group",
            ConfigSource.GROUP,
            group_config.GROUP_CONFIGS,
            most,
            group_config.usual(static),
            group_config.bounded(static),
        )
        self.client_metrics = OwnConfigs(
            node.db,
            own_configs.CLIENT_METRICS,
            "subscription to client metrics",
            ConfigSource.CLIENT_METRICS,
            group_config.CLIENT_METRICS_CONFIGS,
            most,
            {},
        )
        self.broker_configs = OwnConfigs(
            node.db,
            own_configs.BROKERS,
            "broker",
            ConfigSource.DYNAMIC_NODE,
            node_config.CHANGED,
            most,
            static,
            node_config.bounded(static),
        )
        self.fetch_max_bytes = kafka.fetch_max_bytes
        self.fetch_max_wait_ms = kafka.fetch_max_wait_ms
        self.auto_create_topics = kafka.auto_create_topics

    def broker_config(self, key: str) -> str:
        """Return the value in force here of a key of ``node_config.DYNAMIC``."""
        own, every = (self.broker_configs.own_values(name) for name in (str(self.node_id), node_config.EVERY_BROKER))
        return node_config.resolve(key, own, self.catalog.options.static, every).value or ""

    def default_partitions(self) -> int:
        """Return the number of partitions of a topic whose creator names none."""
        return self.settings.num_partitions
