"""State shared by the controller's calls: streams, segments, addresses, tokens."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pravega_front.controller.auto_scale import AutoScaler
from pravega_front.controller.size_retention import SizeRetention
from pravega_front.controller.streams import Streams
from pravega_front.controller.watermarks import Watermarks
from pravega_front.listeners import segment_store_of
from pravega_front.service.asking import SegmentsAnywhere
from pravega_front.service.tables.key_value_tables import KeyValueTables
from pravega_front.service.transactions.transactions import Transactions

if TYPE_CHECKING:
    from anabranch_kit.net.address import Address
    from bridges.catalog.topics.catalog import Catalog
    from bridges.catalog.topics.lineage import KeyRange
    from bridges.catalog.topics.topic import Topic
    from bridges.node.front import NodeServices
    from pravega_front.access import Access
    from pravega_front.service.segments import Segments
    from pravega_front.service.tables.life import DroppedTables
    from pravega_front.settings import PravegaSettings

_EXPIRE_MS = 1000
_EVERYWHERE = ("", "0.0.0.0", "::")


class Controller:
    """A node's controller. Call :meth:`load` first."""

    def __init__(
        self,
        node: NodeServices,
        settings: PravegaSettings,
        segments: Segments,
        access: Access,
        dropped: DroppedTables,
    ) -> None:
        self.node = node
        self.settings = settings
        self.catalog: Catalog = node.catalog
        self.segments = segments
        self.access = access
        self.anywhere = SegmentsAnywhere(node, segments)
        self.streams = Streams(node, settings.scopes)
        self.transactions = Transactions(node, settings, segments)
        self.key_value_tables = KeyValueTables(node.db, dropped, segments.room_for_tables)
        self.watermarks = Watermarks(self)
        self.addresses: dict[str, tuple[str, int]] = {}
        """Advertised addresses of this node's listeners, by name."""

    async def load(self) -> None:
        """Read durable state from the database and start the chores."""
        await self.streams.load()
        await self.transactions.load()
        await self.watermarks.load()
        self.node.every(self.settings.watermark_interval_ms, self.watermarks.check_all, "watermarks")
        self.node.every(self.settings.scale_interval_ms, AutoScaler(self).check_all, "scaling by rate")
        self.node.every(self.settings.retention_interval_ms, SizeRetention(self).check_all, "retention by size")
        self.node.every(_EXPIRE_MS, self.transactions.expire, "ends of transactions' leases")

    async def scale(self, topic: Topic, seal: Sequence[int], ranges: Sequence[KeyRange]) -> None:
        """Seal segments of a stream and create their replacements; open transactions go on. Raises the errors of
        :meth:`bridges.catalog.topics.catalog.Catalog.change_partitions` and of changing a configuration."""
        self.catalog.check_partition_change(topic.name, seal, ranges)
        before, after = len(topic.active), len(topic.active) - len(set(seal)) + len(ranges)
        share = self.streams.share(topic, after)
        # Raise the share before, lower it after the change: a segment never keeps less than the policy says.
        if share and after < before:
            await self.catalog.set_config(topic.name, share)
        await self.catalog.change_partitions(topic.name, seal, ranges)
        if share and after > before:
            await self.catalog.set_config(topic.name, share)

    async def close(self) -> None:
        """Stop; the next start continues work under way."""
        await self.streams.close()
        await self.watermarks.close()
        await self.transactions.close()

    def listening(self, listener: str, bound: Address) -> None:
        """Advertise the address of a listener to clients."""
        address = self.node.advertised(listener) or bound
        host = socket.gethostname() if address.host in _EVERYWHERE else address.host
        self.addresses[listener] = host, address.port

    def controllers(self, listener: str) -> list[tuple[str, int]]:
        """Return the addresses of all nodes' controllers for clients of ``listener``, this node's first."""
        owners = self.segments.owners
        others = (owners.address(node, listener) for node in owners.nodes)
        return [self.addresses[listener], *(other for other in others if other is not None)]

    async def place_of(self, segment: str, listener: str) -> tuple[str, int]:
        """Return the address of the segment store that has a segment, for clients of the controller's ``listener``."""
        store = segment_store_of(listener)
        own = self.addresses.get(store, ("", 0))
        owners = self.segments.owners
        owner = await owners.find_reachable(self.segments.slot_of_name(segment))
        return own if owner is None else owners.address(owner, store) or own
