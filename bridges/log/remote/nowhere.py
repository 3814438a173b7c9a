"""The way to other nodes' logs at a node that is a cluster of one: there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from bridges.errors import PeerUnreachable

if TYPE_CHECKING:
    from bridges.log.remote.readable import ReadableLog


class Nowhere:
    """The missing way to other nodes' logs (see :class:`bridges.log.remote.partitions.Elsewhere`,
    :class:`bridges.log.remote.readable.ReadableElsewhere`)."""

    def takes(self, topic: str, partition: int) -> bool:
        return False

    def append(self, topic: str, partition: int, batch: Any, done: Any) -> NoReturn:
        raise PeerUnreachable(f"{topic}-{partition} is this node's")

    def get(self, topic: str, partition: int, stream_id: int) -> ReadableLog:
        raise PeerUnreachable(f"{topic}-{partition} is this node's")

    async def close(self) -> None:
        pass
