"""Which nodes clients are told of, at the addresses of the listener by which they came, and which of them leads what.

To Kafka's clients a node is a broker: it leads the partitions that it owns, and is their only replica. The controller
is the first of them, since every node carries out whatever a controller is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bridges.catalog.group_view import CONSUMERS

if TYPE_CHECKING:
    from bridges.cluster.members import Member
    from bridges.cluster.ownership import Ownership
    from kafka_front.context import Client

NOBODY = -1
GROUP, TRANSACTION = CONSUMERS, "kafka transaction"
"""Kinds of what has one coordinator: groups by their space, since protocols share them."""


class Broker(NamedTuple):
    """A node as its clients know it."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Brokers:
    """The nodes of the cluster."""

    def __init__(self, node_id: int, rack: str | None, owners: Ownership) -> None:
        self._node_id = node_id
        self._rack = rack
        self._owners = owners

    async def known(self) -> None:
        """To be awaited before any of this is told to clients: a node that starts knows nobody yet, and librdkafka
        keeps for 15 minutes that a topic's partitions have no leader."""
        await self._owners.known()

    def all(self, client: Client) -> list[Broker]:
        """Those that serve, as a client may reach them."""
        own = self._own(client)
        found = {own.node_id: own}
        for member in self._owners.nodes:
            broker = self._told(member, client)
            if broker is not None:
                found[member.node_id] = broker
        return [found[node_id] for node_id in sorted(found)]

    def controller(self, client: Client) -> int:
        """The id of one that every client is told alike."""
        return self.all(client)[0].node_id

    def leader(self, topic: str, partition: int) -> int:
        """Who leads a partition, or NOBODY."""
        owner = self._owners.owner(self._owners.slot_of(topic, partition))
        return NOBODY if owner is None else owner.node_id

    def find(self, node_id: int, client: Client) -> Broker | None:
        """A node by its id."""
        if node_id == self._node_id:
            return self._own(client)
        for member in self._owners.nodes:
            if member.node_id == node_id:
                return self._told(member, client)
        return None

    def coordinator(self, kind: str, key: str, client: Client) -> Broker | None:
        """Who coordinates a group or a transactional id; None: nobody does at the moment."""
        owner = self._owners.owner(self._owners.slot_of_key(kind, key))
        return None if owner is None else self.find(owner.node_id, client)

    def coordinates(self, kind: str, key: str) -> bool:
        """Whether this node does."""
        return self._owners.is_mine(self._owners.slot_of_key(kind, key))

    def _own(self, client: Client) -> Broker:
        return Broker(self._node_id, *client.advertised, self._rack)

    def _told(self, member: Member, client: Client) -> Broker | None:
        if member.node_id == self._node_id:
            return self._own(client)
        address = member.address(client.listener, client.advertised[0])
        if address is None:
            return None  # it has no such listener
        return Broker(member.node_id, address.host, address.port, member.rack or None)
