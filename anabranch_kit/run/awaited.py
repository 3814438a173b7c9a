"""Conversion of a call that answers by a callback into a future."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Settle(Protocol[T_contra]):
    """The callback: gets the answer, or an exception in its place or beside it. Later calls have no effect."""

    def __call__(self, answer: T_contra | Exception, error: Exception | None = None, /) -> None: ...


def awaited(call: Callable[[Settle[T]], object]) -> asyncio.Future[T]:
    """Run ``call`` at once, with a callback; return a future with the callback's answer, or its exception."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def settle(answer: T | Exception, error: Exception | None = None, /) -> None:
        if future.done():
            return  # the waiter may have been cancelled
        if error is not None:
            future.set_exception(error)
        elif isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    call(settle)
    return future
