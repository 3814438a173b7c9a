"""Retry loop for decisions that are durable and must be carried out: ends of transactions, and merges."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import structlog

from bridges.errors import LogError

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier

T = TypeVar("T")

log = structlog.get_logger(__name__)

AGAIN_S = 1.0
_AGAIN_LIMIT_S = 30.0


async def carry_out(
    work: Callable[[], Awaitable[T]],
    slots: asyncio.Semaphore,
    again: type[LogError] | tuple[type[LogError], ...],
    what: str,
    **about: object,
) -> T:
    """Repeat ``work`` with back-off while it fails with an error of the kinds ``again``; other errors are raised. Holds
    one of ``slots`` during an attempt, but not between attempts, so that other work goes on."""
    delay = AGAIN_S
    while True:
        try:
            async with slots:
                return await work()
        except again as error:
            log.warning("a decision could not be carried out, and is retried", what=what, reason=str(error), **about)
        await asyncio.sleep(delay)
        delay = min(2 * delay, _AGAIN_LIMIT_S)


async def fail_as_log_error(work: Callable[[], Awaitable[T]], barrier: Barrier, what: str, **about: object) -> T:
    """Await ``work``, which fails with a LogError only: other exceptions are logged and counted, and become one."""
    try:
        return await work()
    except LogError:
        raise
    except Exception as error:
        barrier.caught(what, error, **about)
        raise LogError(f"unexpected error: {what}") from error
