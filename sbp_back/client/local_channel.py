"""The way from writers to a range server of the same process: entries are handed over as they are.

There are no messages, nothing can be lost, and the server learns what is confirmed at the same moment as the writer.
Requests that change ranges still go through the carrier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from anabranch_kit.run.barrier import Barrier
from sbp_back.client.replica import Replica
from sbp_back.transport.carrier import Carrier
from sbp_back.wire.model import Entry


class LocalServer(Protocol):
    """A range server of this process, as its writers see it."""

    def push(self, replica: Replica, entry: Entry) -> None:
        """Take ``entry`` for the end of this cycle of the event loop; ``replica`` gets its result, never before this
        returns. Entries are taken in the order in which they are pushed.
        """

    def confirmed(self, replicas: Iterable[Replica]) -> None:
        """Show readers everything that these replicas have confirmed."""


class LocalChannel:
    """Counterpart of :class:`~sbp_back.client.replica.Channel` for a range server of this process."""

    __slots__ = ("barrier", "carrier", "confirmed", "loop", "push", "timeout")

    framed = False

    def __init__(
        self,
        server: LocalServer,
        carrier: Carrier,
        loop: asyncio.AbstractEventLoop,
        timeout: float,
        barrier: Barrier,
    ) -> None:
        self.carrier = carrier
        self.loop = loop
        self.timeout = timeout
        self.barrier = barrier
        self.push = server.push
        self.confirmed = server.confirmed

    def tell(self, replicas: Iterable[Replica]) -> None:
        """Do nothing: the server already knows."""

    async def told(self) -> None:
        """Return at once: the server already knows."""

    def closed(self, replica: Replica) -> None:
        """Do nothing: this channel keeps nothing of a replica."""
