"""Room in memory for the answer to one request that came over a connection.

The size of a fetch's answer is unknown before there is something to read, and may then be much larger than the request.
So the handler asks for room at that moment, waits while there is none, and reads no more than it was given. A request
from inside the process carries no room: its caller has already counted the bytes it asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Room(Protocol):
    """Bytes of room that one request holds until its last answer, which takes over the rest."""

    @property
    def gone(self) -> bool:
        """Return whether the requester has gone; the answer is still to be given, and should cost nothing."""

    def reserve(self, most: int, least: int) -> int:
        """Reserve the bytes that may be read now, from ``least`` to ``most``, and return them; 0 when not even
        ``least`` may.
        """

    def settle(self, reserved: int, used: int, pieces: int = 0) -> None:
        """Count ``used`` of ``reserved`` bytes, in ``pieces`` pieces, as part of a coming answer, and release the
        others. More may be used than was reserved, if that cannot be helped.
        """

    def wait(self, most: int, least: int, again: Callable[[], None]) -> None:
        """Call ``again`` when the same :meth:`reserve` may succeed, the longest waiting first; or when the request's
        connection has ended.
        """

    def watch(self, ended: Callable[[], None]) -> None:
        """Call ``ended`` if the request's connection ends while the request is unanswered."""
