"""The nodes that clients see, at the addresses of the listener that they use, and the partitions that each node leads.

To Kafka's clients a node is a broker, and leads the partitions that it owns. Every node can serve reads of all
partitions. Of the nodes with racks (``node.rack``), one of each other rack is a replica of a partition, from which
consumers of that rack read (KIP-392); otherwise the owner is the only replica. The controller is the node with the
lowest id, since every node serves a controller's requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bridges.catalog.views.groups import CONSUMERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bridges.cluster.members import Member
    from bridges.cluster.ownership import Ownership
    from kafka_front.context import Client

NOBODY = -1
GROUP, TRANSACTION = CONSUMERS, "kafka transaction"
"""Kinds of names that have one coordinator. Groups have their space as kind, since protocols share them."""


class Broker(NamedTuple):
    """A node as its clients see it."""

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
        self._of_racks: tuple[Sequence[Member], dict[str, list[int]]] = ((), {})

    async def await_known(self) -> None:
        """Wait until this node knows the others; await it before an answer lists nodes. A node that starts knows none
        yet, and librdkafka keeps for 15 minutes that a topic's partitions have no leader."""
        await self._owners.await_known()

    def all(self, client: Client) -> list[Broker]:
        """Return the serving nodes in the order of their ids, at the addresses for this client."""
        own = self._own(client)
        found = {own.node_id: own}
        for member in self._owners.nodes:
            broker = self._broker(member, client)
            if broker is not None:
                found[member.node_id] = broker
        return [found[node_id] for node_id in sorted(found)]

    def controller(self, client: Client) -> int:
        """Return the node id of the controller, the same for every client."""
        return self.all(client)[0].node_id

    def leader(self, topic: str, partition: int) -> int:
        """Return the node id of a partition's owner, or NOBODY."""
        owner = self._owners.owner(self._owners.slot_of(topic, partition))
        return NOBODY if owner is None else owner.node_id

    def replicas(self, topic: str, partition: int) -> list[int]:
        """Return the nodes from which clients may read a partition: its owner, and a node of each other rack. Empty if
        it has no owner."""
        owner = self._owners.owner(self._owners.slot_of(topic, partition))
        if owner is None:
            return []
        others = (self._of_rack(rack, topic, partition) for rack in self._racks() if rack != owner.rack)
        return [owner.node_id, *sorted(others)]

    def nearest(self, rack: str, topic: str, partition: int) -> int:
        """Return the replica of a partition in a rack, or NOBODY."""
        return self._of_rack(rack, topic, partition) if rack in self._racks() else NOBODY

    def _of_rack(self, rack: str, topic: str, partition: int) -> int:
        nodes = self._racks()[rack]
        return nodes[self._owners.slot_of(topic, partition) % len(nodes)]

    def _racks(self) -> dict[str, list[int]]:
        """Return the serving nodes of each rack that is known."""
        members = self._owners.nodes
        if members is not self._of_racks[0]:
            racks: dict[str, list[int]] = {}
            for member in members:
                if member.rack:
                    racks.setdefault(member.rack, []).append(member.node_id)
            self._of_racks = members, racks
        return self._of_racks[1]

    def find(self, node_id: int, client: Client) -> Broker | None:
        """Return a node by its id; None if it is unknown or does not have the client's listener."""
        if node_id == self._node_id:
            return self._own(client)
        for member in self._owners.nodes:
            if member.node_id == node_id:
                return self._broker(member, client)
        return None

    def coordinator(self, kind: str, key: str, client: Client) -> Broker | None:
        """Return the coordinator of a group or a transactional id; None if no node coordinates it at the moment."""
        owner = self._owners.owner(self._owners.slot_of_key(kind, key))
        return None if owner is None else self.find(owner.node_id, client)

    def coordinates(self, kind: str, key: str) -> bool:
        """Return whether this node coordinates the name."""
        return self._owners.is_mine(self._owners.slot_of_key(kind, key))

    def _own(self, client: Client) -> Broker:
        return Broker(self._node_id, *client.advertised, self._rack)

    def _broker(self, member: Member, client: Client) -> Broker | None:
        if member.node_id == self._node_id:
            return self._own(client)
        address = member.address(client.listener, client.advertised[0])
        if address is None:
            return None  # it has no such listener
        return Broker(member.node_id, address.host, address.port, member.rack or None)
