"""An answer in parts: results that come in one turn of the event loop share a frame."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from sbp_back.transport.handler import Reply

R = TypeVar("R")


class Parts(Generic[R]):
    """Results of one request that wait to be sent. A subclass counts what is missing, and marks the last frame."""

    __slots__ = ("_reply", "_results", "_scheduled")

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._results: list[R] = []
        self._scheduled = False

    def tell(self, result: R, *, last: bool) -> None:
        """Send a result: at once if it is the last one, else with the others of this turn."""
        self._results.append(result)
        if last:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._tick)

    def flush(self) -> None:
        """Reply with ``_results``, and empty it."""
        raise NotImplementedError

    def _tick(self) -> None:
        self._scheduled = False
        if self._results:
            self.flush()
