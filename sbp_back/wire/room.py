"""Room in memory for the answer to one request that came over a connection.

What a fetch will be answered with is not known before there is something to read, and may then be much longer than the
request. So whoever serves it asks for room at that moment, waits while there is none, and reads no more than it was
given. A request from inside the process carries no room: whoever asked has counted what it wants already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Room(Protocol):
    """Belongs to a request until its last answer, which takes over what is still held; bytes are counted."""

    @property
    def gone(self) -> bool:
        """Whether nobody waits for the answer any more; it is still to be given, and should cost nothing."""

    def reserve(self, most: int, least: int) -> int:
        """Holds as many bytes as may be read now, from ``least`` to ``most``; 0 when not even ``least`` may."""

    def settle(self, reserved: int, used: int, pieces: int = 0) -> None:
        """Of ``reserved`` bytes ``used``, in so many ``pieces``, are part of an answer that is to come, the others were
        not needed. More may be used than was reserved, if that cannot be helped."""

    def wait(self, most: int, least: int, again: Callable[[], None]) -> None:
        """Has ``again`` called when it is worth to :meth:`reserve` the same once more, those that have waited longer
        first; or when the request's connection has ended."""

    def watch(self, ended: Callable[[], None]) -> None:
        """Has ``ended`` called, while the request is unanswered, if its connection ends."""
