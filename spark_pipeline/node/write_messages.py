"""What nodes of a cluster ask one another for sinks: the owner of a query asks the owners of partitions."""

from __future__ import annotations

from msgspec import Struct

MARKERS = "sink markers"
WHOLE = "sink attempts"

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
