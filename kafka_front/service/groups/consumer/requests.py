"""What the coordinator of KIP-848's groups is asked, what it answers, and what it needs to know of topics."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from msgspec import Struct
from msgspec.structs import force_setattr

from anabranch_kit.run.sliced import Sliced
from bridges.auth import Principal
from kafka_front.service.groups import codes
from kafka_front.service.groups.admission import said_bytes
from kafka_front.service.groups.classic.requests import SavedCallback
from kafka_front.service.groups.consumer.assignors import Targets
from kafka_front.service.groups.consumer.group import Partitions, View


class HeartbeatRequest(Struct, frozen=True):
    """ConsumerGroupHeartbeat. What is None is as the member said before; ``rebalance_timeout_ms`` then is -1.

    ``viewer`` may describe the same topics as the member; None: all of them.
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
    """What the member says of itself takes, about; derived, since it may name very many topics."""

    def __post_init__(self) -> None:
        names = (self.member_id, self.instance_id, self.rack_id, self.pattern)
        force_setattr(self, "said_bytes", said_bytes(self.topics or (), *names))

    @property
    def is_full(self) -> bool:
        """Whether it says everything: such a request is answered with everything."""
        return (
            self.rebalance_timeout_ms != -1
            and (self.topics is not None or self.pattern is not None)
            and self.owned is not None
        )


class HeartbeatReply(Struct, frozen=True):
    """Answer to one ConsumerGroupHeartbeat; ``assignment`` is None where it is what the member knows."""

    error: int = codes.NONE
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assignment: Partitions | None = None


HeartbeatCallback = Callable[[HeartbeatReply], None]


class TopicIndex(Protocol):
    """The topics there are, and what patterns match."""

    @property
    def version(self) -> int:
        """Rises whenever one of the other answers may have changed."""
        ...

    def find(self, name: str) -> tuple[bytes, int] | None:
        """Id and number of partitions of a topic."""
        ...

    def seen(self, view: View) -> Collection[str]:
        """Names of topics that are seen in a view, which somebody has seen to being known."""
        ...


Encode = Callable[[Callable[[int], int]], bytes]
"""Gives the stored form, where what it is called with makes times of day of moments of the coordinator's clock."""


class ConsumerJournal(Protocol):
    """Where groups are stored."""

    def put(self, group_id: str, encode: Encode, done: SavedCallback) -> None:
        """Replace what is stored of a group by what ``encode`` gives when the write begins."""
        ...


Compute = Callable[[Callable[[], Sliced[Targets]], Callable[[int, Targets | None], None]], None]
"""Begins a computation, calls back with (now_ms, its result or None if it raised): at once or later."""
