"""The life of a process that serves: its phases, its failure, and a stop in steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum

import structlog

from anabranch_kit.run.clock import now_ms

_log = structlog.get_logger("anabranch.node")


class Phase(Enum):
    """The phases of a process's life; ``/readyz`` answers 200 in SERVING only."""

    NEW = "new"
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"


class Life:
    """A base for services that run as a process."""

    failure: str | None = None
    """Why the process cannot go on, or what went wrong while it stopped; it determines the exit code."""

    def __init__(self, on_failed: Callable[[str], None] | None = None) -> None:
        """``on_failed`` is called with a sentence when the process can no longer serve and must end."""
        self.phase = Phase.NEW
        self.served_ms = 0
        """When the process began to serve, in milliseconds since 1970; 0 before."""
        self.drains = False
        """Whether a stop in progress waits for requests in flight."""
        self._on_failed = on_failed
        self._hurry = asyncio.Event()

    @property
    def is_serving(self) -> bool:
        """Return whether the process accepts clients now."""
        return self.phase is Phase.SERVING

    def begin_serving(self) -> None:
        self.phase, self.served_ms = Phase.SERVING, now_ms()

    def fail(self, reason: str) -> None:
        """Record that the process cannot go on, and have it stopped. Only the first reason counts."""
        if self.failure is not None:
            return
        self.failure = reason
        _log.critical("the process cannot go on", reason=reason)
        if self._on_failed is not None:
            self._on_failed(reason)

    async def step(self, what: str, work: Awaitable[object]) -> None:
        """Await a step of stopping. Each protects data or frees a resource, so that one fails must not prevent the
        later ones: its failure is logged, and reported by the exit code.
        """
        try:
            await work
        except Exception as error:  # noqa: BLE001 - logged, and reported by the exit code
            _log.exception(f"{what} failed")
            if self.failure is None:
                self.failure = f"{what} failed: {error}"

    def hurry(self) -> None:
        """Have a stop in progress no longer wait for requests in flight."""
        self._hurry.set()

    async def unless_hurried(self, work: Awaitable[object], seconds: float | None = None) -> bool:
        """Await ``work``, and cancel it when the stop must be quick or after ``seconds``; return whether it ended by
        itself. Raises what it raises.
        """
        task, hurry = asyncio.ensure_future(work), asyncio.ensure_future(self._hurry.wait())
        done, _ = await asyncio.wait({task, hurry}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return task in done
