"""The members of a cluster as its database lists them, and a failure detector for them.

Each node raises a counter in its row. An observer times the counter's last change by its own clock, so no two clocks
are ever compared. A suspicion only decides *when* the others try to go on without a member. Two owners of a log are
prevented by the fence of the object log and the epochs of ranges (docs/cluster.md, "Taking over a log").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from msgspec import Struct, field

from anabranch_kit.net.address import WILDCARDS, Address
from bridges.cluster.versions import Version


class State(Enum):
    """The state of a member.

    JOINING: it starts, and owns nothing yet. LEAVING: it gives away what it owns. ENDING: it has ended, and its log is
    being taken over.
    """

    JOINING = "joining"
    UP = "up"
    LEAVING = "leaving"
    ENDING = "ending"


class Member(Struct, frozen=True):
    """A start of a node.

    ``start``: a number that is never given to another start. ``beats``: its counter of heartbeats. ``by``: the start
    that ends it (0: none). ``addresses``: the advertised address ("host:port") of each of its listeners, by name.
    ``server_id``: its range server, -1 while it has none. ``drained``: it is LEAVING because it shall own nothing, and
    goes on serving. ``version``: the versions of its messages and stored data.
    """

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
        """Return the address at which a client reaches one of its listeners, None if it has no such listener.

        ``host`` is the host at which the client has reached this node: a worker of the same machine that listens on all
        addresses is reached there too.
        """
        told = self.addresses.get(listener)
        if told is None:
            return None
        found = Address.parse(told)
        return Address(host, found.port) if found.host in WILDCARDS else found


class Patience(Struct, frozen=True):
    """Seconds between heartbeats, and seconds without a heartbeat after which a member is suspected (``lease``)."""

    heartbeat: float = 0.5
    lease: float = 2.0

    @property
    def doubt(self) -> float:
        """Seconds without a heartbeat after which a member's process is probed; if it is gone, the member is suspected
        at once.
        """
        return min(2 * self.heartbeat, self.lease)


class Watch:
    """A failure detector: measures how long each member's counter has stood still, by the observer's monotonic clock.

    Only time in which the observer looked counts. So after its own pause, or after an outage of the database in which
    no node could raise its counter, every member has a whole lease again to show that it is alive.
    """

    __slots__ = ("_answered", "_most", "_patience", "_still")

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._most = 2 * patience.heartbeat
        self._answered: float | None = None
        # By start: the counter, and the seconds for which it was seen standing still.
        self._still: dict[int, tuple[int, float]] = {}

    def take_in(self, members: Iterable[Member], asked: float, answered: float) -> None:
        """Take in the database's members; ``asked`` and ``answered`` are the monotonic times around the query.

        A counter is known to have stood still from an answer to the next query.
        """
        watched = 0.0 if self._answered is None else max(0.0, min(asked - self._answered, self._most))
        self._answered = answered
        before, self._still = self._still, {}
        for member in members:
            beats, still = before.get(member.start, (-1, 0.0))
            self._still[member.start] = (beats, still + watched) if beats == member.beats else (member.beats, 0.0)

    def past(self, start: int, beats: int) -> None:
        """Note that a member's process had ended when its counter was ``beats``; ignored if the counter has moved
        since.
        """
        if self._still.get(start, (-1, 0.0))[0] == beats:
            self._still[start] = (beats, max(self.still(start), self._patience.lease))

    def is_doubtful(self, start: int) -> bool:
        """Return whether a member that is not suspected yet is late with its heartbeat."""
        return self._patience.doubt <= self.still(start) < self._patience.lease

    def still(self, start: int) -> float:
        """Return the seconds for which the counter was seen standing still."""
        return self._still.get(start, (0, 0.0))[1]

    def is_suspected(self, start: int) -> bool:
        """Return whether the counter has not moved for a lease."""
        return self.still(start) >= self._patience.lease
