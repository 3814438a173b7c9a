"""The Kafka protocol as a front of a node (docs/fronts.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from anabranch_kit.net.address import Address
from bridges.node.front import Front, Listener, NodeFacts, NodeServices
from kafka_front import checkup
from kafka_front.service import delegation
from kafka_front.service.admin import own_configs
from kafka_front.service.groups.share import tables as share
from kafka_front.service.transactions import tables as transactions
from kafka_front.settings import KafkaSettings

if TYPE_CHECKING:
    from bridges.catalog.views.groups import GroupDirectory
    from bridges.catalog.views.transactions import TransactionDirectory
    from bridges.node.settings.setting import Section
    from kafka_front.serving import KafkaServer


class KafkaFront(Front):
    """The Kafka front: its listener, settings, tables and checks. Its record format is in ``bridges.formats``; its
    tables hold transactions, share groups, configurations and delegation tokens."""

    name = "kafka"
    listeners = (Listener("kafka", 9092, tls=True, authentication=("certificate", "password", "scram")),)
    settings = KafkaSettings
    connection_bounds = ("max_connections",)
    migrations = (*transactions.MIGRATIONS, *share.MIGRATIONS, *own_configs.MIGRATIONS, *delegation.MIGRATIONS)
    erasers = (*transactions.ERASERS, *share.ERASERS)
    checks = (checkup.transactional_ids,)

    @classmethod
    def node_configuration(cls, facts: NodeFacts) -> Mapping[str, str]:
        from kafka_front.node_config import static

        assert isinstance(facts.settings, KafkaSettings)
        return static(facts.settings, facts)

    @classmethod
    def connection_line(cls, settings: Section | None, addresses: Sequence[str], *, tls: bool, login: bool) -> str:
        protocol = ("SASL_SSL" if login else "SSL") if tls else ("SASL_PLAINTEXT" if login else "")
        return f"bootstrap.servers={','.join(addresses)}" + (f" security.protocol={protocol}" if protocol else "")

    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self.server: KafkaServer | None = None

    @property
    def groups(self) -> GroupDirectory | None:
        return None if self.server is None else self.server.groups

    @property
    def transactions(self) -> TransactionDirectory | None:
        return None if self.server is None else self.server.transactions

    async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
        from kafka_front.serving import KafkaServer  # not before: settings are read by every command

        self.server = KafkaServer(self._node)
        return await self.server.start(listen)

    async def drain(self) -> None:
        if self.server is not None:
            await self.server.drain()

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop()
