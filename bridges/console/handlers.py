"""The base of the handlers of all paths."""

from __future__ import annotations

from bridges.console.host import Host
from bridges.http.access import Access


class Handlers:
    """Handlers of requests about a node."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._access = Access(node.authorizer)
