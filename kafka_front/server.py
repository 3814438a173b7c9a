"""The server of the Kafka front: the handlers and limits that all its listeners share."""

from __future__ import annotations

import struct
from collections.abc import Callable

from anabranch_kit.memory.budget import MemoryBudget
from anabranch_kit.net.framing import Framing
from anabranch_kit.run.barrier import Barrier
from bridges.clients import Clients
from bridges.net import server as net
from bridges.net.quotas import Quotas
from bridges.net.server import Limits
from kafka_front.dispatch import Registry
from kafka_front.long_requests import LongRequests
from kafka_front.session import Connection, Observer

#: The smallest request: key, version, correlation id (docs/protocols/kafka.md, rule 1).
_LEAST_BYTES = 8
#: First bytes of a Produce request (API key 0). Its frame is mutable, so that the offset and epoch of its batches can
#: be stamped in place.
_PRODUCE = b"\0\0"


class NullObserver:
    """An observer that ignores everything."""

    def connection_opened(self) -> None:
        pass

    def connection_closed(self) -> None:
        pass

    def connection_refused(self) -> None:
        pass

    def request_done(self, key: int, version: int, seconds: float, received: int, sent: int) -> None:
        pass

    def request_failed(self, key: int) -> None:
        pass

    def error_told(self, key: int, code: int) -> None:
        pass


class Server(net.Server):
    """The server of all listeners of the front; see :class:`bridges.net.server.Server`."""

    observer: Observer

    def __init__(
        self,
        registry: Registry,
        limits: Limits | None = None,
        observer: Observer | None = None,
        budget: MemoryBudget | None = None,
        barrier: Barrier | None = None,
        quotas: Quotas | None = None,
        clients: Clients | None = None,
        *,
        must_log_in: Callable[[str], bool] = lambda listener: False,
    ) -> None:
        super().__init__("kafka", limits or Limits(), observer or NullObserver(), budget, barrier, quotas, clients)
        self.registry = registry
        #: Returns whether clients of a listener must authenticate first.
        self.must_log_in = must_log_in
        self.long_requests = LongRequests(self.budget)
        self.framing = Framing(struct.Struct(">i"), _LEAST_BYTES, self.limits.frame_bytes, mutable=(_PRODUCE,))

    def connection(self, listener: str, advertised: tuple[str, int] | None) -> Connection:
        return Connection(self, listener, advertised)
