"""What was decided is carried out as often as it takes: the ends of transactions, and merges."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import structlog

if TYPE_CHECKING:
    from bridges.errors import LogError

T = TypeVar("T")

log = structlog.get_logger(__name__)

_AGAIN_S = 1.0
_AGAIN_LIMIT_S = 30.0


async def carry_out(
    work: Callable[[], Awaitable[T]],
    slots: asyncio.Semaphore,
    again: type[LogError] | tuple[type[LogError], ...],
    what: str,
    **about: object,
) -> T:
    """Do ``work`` until it does not fail with an error of the kinds ``again``; any other is raised. One of ``slots`` is
    taken while it is tried, and not in between: what waits for its next time holds up no other."""
    delay = _AGAIN_S
    while True:
        try:
            async with slots:
                return await work()
        except again as error:
            log.warning("what was decided is carried out later", what=what, reason=str(error), **about)
        await asyncio.sleep(delay)
        delay = min(2 * delay, _AGAIN_LIMIT_S)
