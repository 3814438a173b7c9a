"""Segment store server: state that its connections share, such as segments, handlers and metrics."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from anabranch_kit.net.framing import Framing
from bridges.errors import LogError
from bridges.net import server as net
from bridges.net.server import Limits
from pravega_front.access import Access
from pravega_front.service.segments import Segments
from pravega_front.service.transactions.merging import Merges
from pravega_front.session.connection import Connection, Encoded
from pravega_front.wire.commands import Command
from pravega_front.wire.frames import HEAD, LENGTH, MAX_FRAME

if TYPE_CHECKING:
    from bridges.metrics import FrontMetrics
    from bridges.node.front import NodeServices
    from pravega_front.settings import PravegaSettings

Handler = Callable[[Connection, Any], Awaitable[Command | Encoded | None]]
"""Returns the answer to a command of the connection, or None. Raises LogError to end the connection."""

#: Names of the answers that count as errors in the metrics.
ERRORS = frozenset(
    {
        "WrongHost",
        "SegmentIsSealed",
        "SegmentAlreadyExists",
        "NoSuchSegment",
        "SegmentIsTruncated",
        "OperationUnsupported",
        "AuthTokenCheckFailed",
        "ErrorMessage",
        "TableSegmentNotEmpty",
        "TableKeyDoesNotExist",
        "TableKeyBadVersion",
    }
)


class Observer:
    """Records events of connections in the node's metrics."""

    def __init__(self, metrics: FrontMetrics) -> None:
        self._metrics = metrics
        self.connection_opened = metrics.connection_opened
        self.connection_closed = metrics.connection_closed
        self.connection_refused = metrics.connection_refused

    def request_done(self, kind: str, seconds: float, received: int, sent: int) -> None:
        """Count an answered command; ``kind`` is its name."""
        self._metrics.kind(kind).done(seconds, received, sent)

    def error_told(self, kind: str, error: str) -> None:
        """Count a command that was answered with an error, or ended its connection."""
        self._metrics.kind(kind).failed(error)


_FIRST_S = 0.05
_CALM_S = 5.0
"""Time without a close after which the delays begin at zero again."""
_MOST_SEGMENTS = 1000


class SlowCloses:
    """Delays before connections are closed because of a failed segment, by segment: clients reconnect at once, and for
    as long as it takes. The segments without a close for longest are evicted first."""

    __slots__ = ("known",)

    def __init__(self) -> None:
        # Due time of a segment's last close (monotonic clock), and its delay.
        self.known: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def delay(self, segment: str, most: float, now: float) -> float:
        """Return the delay of a close in seconds: 0 for the first, then doubling up to ``most``."""
        due, last = self.known.pop(segment, (-_CALM_S, 0.0))
        delay = 0.0 if now - due >= _CALM_S else min(most, max(_FIRST_S, 2 * last))
        self.known[segment] = now + delay, delay
        if len(self.known) > _MOST_SEGMENTS:
            self.known.popitem(last=False)
        return delay


class SegmentStore(net.Server):
    """Server for all listeners of the segment store; see :class:`bridges.net.server.Server`."""

    observer: Observer

    def __init__(
        self, node: NodeServices, settings: PravegaSettings, segments: Segments, merges: Merges, access: Access
    ) -> None:
        limits = Limits(
            frame_bytes=MAX_FRAME,
            connection_bytes=settings.unacknowledged_bytes_per_connection,
            idle_seconds=settings.connections_max_idle_ms / 1000,
            receive_seconds=settings.receive_ms / 1000,
            max_connections=settings.max_connections,
        )
        super().__init__(
            "pravega", limits, Observer(node.metrics), node.budget, node.barrier, node.quotas, node.clients
        )
        self.metrics = node.metrics
        self.appends = node.metrics.kind("Append")
        self.settings = settings
        self.segments = segments
        self.merges = merges
        self.access = access
        self.errors = ERRORS
        self.handlers: dict[type[Command], Handler] = {}
        self.slow_closes = SlowCloses()
        self.framing = Framing(LENGTH, 0, MAX_FRAME - HEAD.size, head=HEAD.size)

    def connection(self, listener: str, advertised: tuple[str, int] | None) -> Connection:
        return Connection(self, listener, advertised)

    def _stop_listening(self) -> None:
        self.segments.owners.is_stopping = True
        super()._stop_listening()

    async def forget_transient(self, name: str) -> None:
        """Delete the transient segment of a large event whose writer has disconnected, unless it is being merged."""
        try:
            await self.merges.forget(name)
        except LogError as error:
            self.barrier.caught("deletion of a transient segment", error, segment=name)
