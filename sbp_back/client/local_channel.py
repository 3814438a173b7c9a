"""The way from writers to a range server of the same process: entries are handed over as they are.

There are no messages, nothing can be lost, and what is confirmed is known to the server the moment it is to the writer.
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
    """A range server of this process, as far as writers here see it."""

    def push(self, replica: Replica, entry: Entry) -> None:
        """Take ``entry`` for the end of this cycle of the event loop; ``replica`` is told what became of it, never
        before this returns. Entries are taken in the order in which they are pushed."""

    def confirmed(self, replicas: Iterable[Replica]) -> None:
        """What they have confirmed may be shown to anybody."""


class LocalChannel:
    """What :class:`~sbp_back.client.replica.Channel` is to a server elsewhere."""

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
        """The server knows."""

    async def told(self) -> None:
        """The server knows."""

    def closed(self, replica: Replica) -> None:
        """Nothing is kept of a replica here."""
