"""Stopping in steps: each step protects data or frees a resource, so a failed step must not prevent the later ones."""

from __future__ import annotations

from collections.abc import Awaitable

import structlog

_log = structlog.get_logger("anabranch.node")


class Stopping:
    """A base for services that run as a process.

    ``failure``: why it cannot go on, or what went wrong while it stopped; it determines the exit code.
    """

    failure: str | None = None

    async def _step(self, what: str, work: Awaitable[object]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - logged, and reported by the exit code
            _log.exception(f"{what} failed")
            if self.failure is None:
                self.failure = f"{what} failed: {error}"
