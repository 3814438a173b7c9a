"""What stops in steps: each protects data or frees something, so one that fails keeps no later one from happening."""

from __future__ import annotations

from collections.abc import Awaitable

import structlog

_log = structlog.get_logger("anabranch.node")


class Stopping:
    """Inherited by what is started and stopped as a process. ``failure``: why it cannot go on, or what went wrong as it
    stopped; the exit code tells it."""

    failure: str | None = None

    async def _step(self, what: str, work: Awaitable[object]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - logged, and told by the exit code
            _log.exception(f"{what} failed")
            if self.failure is None:
                self.failure = f"{what} failed: {error}"
