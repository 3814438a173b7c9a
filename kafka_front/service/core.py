"""What all request handlers of the Kafka front work with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from kafka_front.service.access import Access
from kafka_front.service.brokers import Brokers
from kafka_front.service.fetch_sessions import FetchSessions
from kafka_front.service.transactions.producer_ids import ProducerIds
from kafka_front.service.transactions.service import Transactions
from kafka_front.settings import KafkaSettings

if TYPE_CHECKING:
    from bridges.node.front import NodeServices
    from kafka_front.service.share.service import ShareService


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
        self.translator = node.translator
        self.fetch_sessions = FetchSessions(
            kafka.fetch_sessions, partitions=kafka.fetch_session_partitions, later=self.loop.call_soon
        )
        self.producer_ids = ProducerIds(node.catalog)
        self.transactions = Transactions(node, kafka, self.producer_ids.take)
        self.share: ShareService | None = None
        """The share groups, once they are known."""
        self.fetch_max_bytes = kafka.fetch_max_bytes
        self.fetch_max_wait_ms = kafka.fetch_max_wait_ms
        self.auto_create_topics = kafka.auto_create_topics

    def default_partitions(self) -> int:
        """Partitions of a topic whose creator does not say."""
        return self.settings.num_partitions
