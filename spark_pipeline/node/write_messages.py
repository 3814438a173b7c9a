"""What nodes of a cluster ask one another for sinks: the owner of a query asks the owners of partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from bridges.cluster.ownership import Ownership

MARKERS = "sink markers"
WHOLE = "sink attempts"
ABORT = "sink abort"

QUERY = "sink query"
"""What slots of queries are asked for by."""

Place = tuple[str, int]


class Mark(Struct, frozen=True):
    """Asks for the end of an attempt's transaction in partitions of the asked node; ``epoch`` is the attempt's."""

    producer_id: int
    epoch: int
    commit: bool
    places: list[Place]


class Whole(Struct, frozen=True):
    """Asks whether what an attempt has open in partitions of the asked node is there."""

    producer_id: int
    places: list[Place]


class Missing(Struct, frozen=True):
    """Where it is not; empty, too, where there is nothing to be said."""

    places: list[Place] = []


class AbortAttempt(Struct, frozen=True):
    """Asks the owner of a query to abort one of its attempts, by its name (:mod:`.write_view`)."""

    name: str


class Aborted(Struct, frozen=True):
    """What became of it; empty: there is none."""

    state: str


def query_slot(owners: Ownership, query: str) -> int:
    """The slot whose owner has a query."""
    return owners.slot_of_key(QUERY, query)
