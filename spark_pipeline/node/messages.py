"""Messages between the nodes of a cluster for sinks and migrations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from bridges.cluster.ownership import Ownership

MARKERS = "sink markers"
WHOLE = "sink attempts"
ABORT = "sink abort"
ENDS = "import ends"

QUERY = "sink query"
"""The kind of name by which a query's slot is computed."""

Place = tuple[str, int]


class Mark(Struct, frozen=True):
    """A request to end an attempt's transaction in partitions of the asked node; ``epoch`` is the attempt's."""

    producer_id: int
    epoch: int
    commit: bool
    places: list[Place]


class Whole(Struct, frozen=True):
    """A request to check that an attempt's transaction is still open in partitions of the asked node."""

    producer_id: int
    places: list[Place]


class Missing(Struct, frozen=True):
    """The partitions that lack an attempt's transaction; empty also as an answer without content."""

    places: list[Place] = []


class AbortAttempt(Struct, frozen=True):
    """A request to the owner of a query to abort one of its attempts, by its name (:mod:`.sinks.view`)."""

    name: str


class Aborted(Struct, frozen=True):
    """The state of an attempt after a request to abort it; empty if there is no such attempt."""

    state: str


class SettleEnds(Struct, frozen=True):
    """A request to settle partitions of the asked node for run ``epoch`` of a topic's migration.

    ``ends``: the expected end of each partition, with no transaction open. ``abort_open``: abort open transactions
    first, whose producers do not exist here.
    """

    topic: str
    epoch: int
    partitions: list[int]
    ends: list[int] | None = None
    abort_open: bool = False


class Ends(Struct, frozen=True):
    """Log start, last stable offset and high watermark of each settled partition, and the number of aborted
    transactions. ``wrong``: what is not as expected, in words.
    """

    bounds: list[tuple[int, int, int]]
    aborted: int = 0
    wrong: str = ""


def query_slot(owners: Ownership, query: str) -> int:
    """Return the slot whose owner owns a query."""
    return owners.slot_of_key(QUERY, query)
