"""The listeners: of the controller, whose address clients are given, and of the segment store, of which it tells them.

A further one of the controller, as ``pravega-external``, sends its clients to the segment store's of the same name,
``pravega-segmentstore-external``.
"""

from __future__ import annotations

from bridges.node.front import listener_kind

CONTROLLER = "pravega"
SEGMENT_STORE = "pravega-segmentstore"


def is_segment_store(listener: str) -> bool:
    """Whether a listener is of the segment store, else it is of the controller."""
    return listener_kind(listener, (CONTROLLER, SEGMENT_STORE)) == SEGMENT_STORE


def segment_store_of(listener: str) -> str:
    """Name of the segment store's listener to which one of the controller sends its clients."""
    return SEGMENT_STORE + listener.removeprefix(CONTROLLER)
