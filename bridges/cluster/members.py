"""The nodes of a cluster as its database tells them, and which of them seem to have ended.

A node raises a counter in its row. Whoever looks knows the counter's last change by a clock of its own, so no two
clocks are ever compared. That somebody is suspected only decides *when* it is tried to go on without it: what keeps two
nodes from both being acknowledged is the fence of the object log and the epochs of ranges (docs/design.md, "More than
one machine").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from msgspec import Struct, field

from anabranch_kit.net.address import WILDCARDS, Address
from bridges.cluster.versions import Version


class State(Enum):
    """What a member is doing. JOINING: it starts and owns nothing yet; LEAVING: it gives away what it owns; ENDING: it
    has ended, and its log is being taken over."""

    JOINING = "joining"
    UP = "up"
    LEAVING = "leaving"
    ENDING = "ending"


class Member(Struct, frozen=True):
    """One start of a node. ``start`` is a number that no other start was or will be given; ``beats`` the counter of its
    heartbeats; ``by`` the start of whoever ends it (0: nobody). ``addresses``: what clients of each of its listeners
    are told ("host:port"), by the listener's name; ``server_id``: of its range server, -1 while it has none.
    ``drained``: it is LEAVING since it is to own nothing, and goes on serving. ``version``: of what it says and
    stores."""

    start: int
    node_id: int
    state: State
    beats: int = 0
    by: int = 0
    server_id: int = -1
    addresses: Mapping[str, str] = field(default_factory=dict)
    rack: str = ""
    drained: bool = False
    version: Version = Version()

    def address(self, listener: str, host: str) -> Address | None:
        """Where clients of one of its listeners reach it; ``host`` is how they have reached this node: a worker of the
        same machine that listens everywhere is there, too. None: it has no such listener."""
        told = self.addresses.get(listener)
        if told is None:
            return None
        found = Address.parse(told)
        return Address(host, found.port) if found.host in WILDCARDS else found


class Patience(Struct, frozen=True):
    """Seconds between heartbeats, and without one after which a member is suspected."""

    heartbeat: float = 0.5
    lease: float = 2.0

    @property
    def doubt(self) -> float:
        """Seconds without a heartbeat after which it is looked whether a member's process is there: if it is not, the
        member is suspected at once."""
        return min(2 * self.heartbeat, self.lease)


class Watch:
    """Which members' counters stand still, by this observer's own monotonic clock.

    Counted is only time in which the observer looked, so after its own pause, or an outage of the database in which
    nobody could raise a counter, everybody has a whole lease again to show that it lives.
    """

    __slots__ = ("_answered", "_most", "_patience", "_still")

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._most = 2 * patience.heartbeat
        self._answered: float | None = None
        # By start: the counter, and the seconds in which it was seen to stand still.
        self._still: dict[int, tuple[int, float]] = {}

    def looked(self, members: Iterable[Member], asked: float, answered: float) -> None:
        """``members`` are what the database said; between which times it was asked. A counter is known to have stood
        still from one answer to the next question."""
        watched = 0.0 if self._answered is None else max(0.0, min(asked - self._answered, self._most))
        self._answered = answered
        before, self._still = self._still, {}
        for member in members:
            beats, still = before.get(member.start, (-1, 0.0))
            self._still[member.start] = (beats, still + watched) if beats == member.beats else (member.beats, 0.0)

    def past(self, start: int, beats: int) -> None:
        """A member's process has ended; its counter was ``beats`` when that was found. If it has moved since, it was
        not so."""
        if self._still.get(start, (-1, 0.0))[0] == beats:
            self._still[start] = (beats, max(self.still(start), self._patience.lease))

    def is_doubtful(self, start: int) -> bool:
        """Whether a member that is not suspected should have shown a heartbeat."""
        return self._patience.doubt <= self.still(start) < self._patience.lease

    def still(self, start: int) -> float:
        """Seconds for which the counter was seen to stand still."""
        return self._still.get(start, (0, 0.0))[1]

    def is_suspected(self, start: int) -> bool:
        """Whether the counter has not moved for a lease."""
        return self.still(start) >= self._patience.lease
