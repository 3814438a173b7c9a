"""Requests that name very many things, and answers that tell of them, are worked on in turns with everybody else.

How long the work on one thing takes differs by a thousand, so a turn is a time and not a number.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from itertools import islice
from time import monotonic
from typing import Any, TypeVar

from kafka_front.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")

_TURN_SECONDS = 0.003
_PORTION = 50
_AT_ONCE = 100
"""Coroutines of one request that run at the same time: enough to share flushes of the database."""
MAX_ROWS = 500_000
"""Of an answer whose rows are more than its request names: some 300 bytes each until they are sent."""


class Turns:
    """The turns of one request."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = monotonic() + _TURN_SECONDS

    async def rest(self) -> None:
        """Let others have theirs, if this one is over."""
        if monotonic() >= self._until:
            await asyncio.sleep(0)
            self._until = monotonic() + _TURN_SECONDS


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """``items`` one after the other. What they are taken from may change meanwhile, so give a list or a view of one."""
    until = monotonic() + _TURN_SECONDS
    for item in items:
        if monotonic() >= until:
            await asyncio.sleep(0)
            until = monotonic() + _TURN_SECONDS
        yield item


async def portions(items: Iterable[T]) -> AsyncIterator[list[T]]:
    """``items`` in order, a few at a time: for so little work on each that :func:`in_turns` would be more."""
    turns = Turns()
    rest = iter(items)
    while some := list(islice(rest, _PORTION)):
        yield some
        await turns.rest()


async def gathered(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all coroutines in their order, a bounded number of them at work at the same time.

    ``work`` is best a generator expression: a coroutine is then not made before it can start.
    """
    results: list[T] = []
    waiting: list[Coroutine[Any, Any, T]] = []
    async for one in in_turns(work):
        waiting.append(one)
        if len(waiting) == _AT_ONCE:
            results += await asyncio.gather(*waiting)
            waiting.clear()
    if waiting:
        results += await asyncio.gather(*waiting)
    return results


class Once:
    """What a request may name once: where a few bytes ask for many rows, repeating them would ask for all memory."""

    __slots__ = ("_named", "_rows")

    def __init__(self) -> None:
        self._named: set[object] = set()
        self._rows = 0

    def name(self, thing: object) -> None:
        """Raise KafkaError (INVALID_REQUEST) if the request has named it, or its answer is long enough."""
        if thing in self._named:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names it twice")
        if self._rows > MAX_ROWS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the answer would be too long: ask for less at a time")
        self._named.add(thing)

    def rows(self, count: int) -> None:
        """So many rows of the answer tell of what was named last."""
        self._rows += count
