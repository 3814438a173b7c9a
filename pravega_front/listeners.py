"""Listeners of the front: the controller's, whose address clients are configured with, and the segment store's, which
the controller tells them.

An additional listener of the controller, such as ``pravega-external``, sends its clients to the segment store's
listener with the same suffix, ``pravega-segmentstore-external``.
"""

from __future__ import annotations

from bridges.node.front import listener_kind

CONTROLLER = "pravega"
SEGMENT_STORE = "pravega-segmentstore"


def is_segment_store(listener: str) -> bool:
    """Return whether a listener is the segment store's; otherwise it is the controller's."""
    return listener_kind(listener, (CONTROLLER, SEGMENT_STORE)) == SEGMENT_STORE


def segment_store_of(listener: str) -> str:
    """Return the name of the segment store's listener to which a listener of the controller sends its clients."""
    return SEGMENT_STORE + listener.removeprefix(CONTROLLER)
