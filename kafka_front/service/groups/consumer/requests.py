"""Requests to the coordinator of KIP-848's groups, and its answers."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import force_setattr

from anabranch_kit.run.sliced import Sliced
from bridges.auth import Principal
from kafka_front.service.groups.admission import said_bytes
from kafka_front.service.groups.consumer.assignors import Targets
from kafka_front.service.groups.consumer.group import Partitions
from kafka_front.wire.errors import ErrorCode


class HeartbeatRequest(Struct, frozen=True):
    """A ConsumerGroupHeartbeat. None means unchanged since the member's last request, as does -1 for
    ``rebalance_timeout_ms``.

    ``viewer`` may describe the same topics as the member; None: all topics.
    """

    group_id: str
    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] | None = None
    pattern: str | None = None
    viewer: Principal | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    said_bytes: int = 0
    """Approximate bytes of the member's metadata; computed once, since it may name very many topics."""

    def __post_init__(self) -> None:
        names = (self.member_id, self.instance_id, self.rack_id, self.pattern)
        force_setattr(self, "said_bytes", said_bytes(self.topics or (), *names))

    @property
    def is_full(self) -> bool:
        """Return whether the request has all fields: its answer then has all, too."""
        return (
            self.rebalance_timeout_ms != -1
            and (self.topics is not None or self.pattern is not None)
            and self.owned is not None
        )


class HeartbeatReply(Struct, frozen=True):
    """The answer to one ConsumerGroupHeartbeat; ``assignment`` is None if the member knows it already."""

    error: int = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assignment: Partitions | None = None


HeartbeatCallback = Callable[[HeartbeatReply], None]


Encode = Callable[[Callable[[int], int]], bytes]
"""Returns the stored form; its argument converts times of the coordinator's clock to Unix time."""


Compute = Callable[[Callable[[], Sliced[Targets]], Callable[[int, Targets | None], None]], None]
"""Begins a computation, and calls back with (now_ms, its result or None if it raised), at once or later."""
