"""Deaths of a process at the instants just before and just after something becomes durable."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from bridges.log.transactions.marking import Markers


class Steps:
    """Kills the process at the step ``kill_at``; None never. Steps are counted while ``armed``."""

    def __init__(self, kill_at: int | None, *, armed: bool = True) -> None:
        self.kill_at = kill_at
        self.armed = armed
        self.seen = 0
        self._lock = threading.Lock()  # the database has a thread of its own

    def step(self, *_: object) -> None:
        with self._lock:
            if self.armed:
                self.seen += 1
                if self.seen == self.kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

    def around_commits(self, db: Any) -> None:
        """Step before and after each commit of a node's database."""
        db._execute = self.around(db._execute)

    def around_markers(self) -> None:
        """Step before and after each marker of a transaction."""
        markers: Any = Markers
        markers._append = self.around_async(markers._append)

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def done(*args: Any) -> Any:
            self.step()
            result = work(*args)
            self.step()
            return result

        return done

    def around_async(self, work: Callable[..., Any]) -> Callable[..., Any]:
        async def done(*args: Any) -> Any:
            self.step()
            result = await work(*args)
            self.step()
            return result

        return done

    def around_future(self, work: Callable[..., asyncio.Future[Any]]) -> Callable[..., asyncio.Future[Any]]:
        def done(*args: Any) -> asyncio.Future[Any]:
            self.step()
            future = work(*args)
            future.add_done_callback(self.step)
            return future

        return done
