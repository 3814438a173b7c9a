"""Wait for what others do: until a condition holds, never for a fixed time."""

from __future__ import annotations

import asyncio
import inspect
import linecache
import time
from collections.abc import Awaitable, Callable
from types import FunctionType
from typing import TypeVar

T = TypeVar("T")

SECONDS = 120.0
"""The deadline unless a test names its own: only what will never happen takes so long."""

_TURNS_AT_ONCE = 1000
"""Turns of the loop in which :func:`until` looks without a pause. Counted, since a simulated loop's clock stands still
while there is work."""


async def until(condition: Callable[[], T], what: object = None, *, seconds: float = SECONDS) -> T:
    """Let the loop turn until ``condition`` gives something true, and return that.

    Raises AssertionError at the deadline. It says ``what``, which may be a function that describes the state by then,
    or else the condition's line and the variables it uses.
    """
    loop = asyncio.get_running_loop()
    began, turns = loop.time(), 0
    while not (found := condition()):
        assert loop.time() - began < seconds, _describe(condition, what, seconds)
        turns += 1
        await asyncio.sleep(0 if turns < _TURNS_AT_ONCE else 0.001)
    return found


async def until_asked(
    ask: Callable[[], Awaitable[T]], holds: Callable[[T], object] = bool, *, seconds: float = SECONDS
) -> T:
    """Ask again and again until ``holds`` is true of the answer, and return that answer. For what only a question
    tells, of a client for instance. Raises AssertionError with the last answer at the deadline."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not holds(answer := await ask()):
        assert loop.time() - began < seconds, f"not within {seconds:g} s; the last answer: {answer}"
        await asyncio.sleep(0.02)
    return answer


def wait_until(
    condition: Callable[[], T],
    what: object = None,
    *,
    seconds: float = SECONDS,
    pause: float = 0.05,
    meanwhile: Callable[[], object] | None = None,
) -> T:
    """Block until ``condition`` gives something true, and return that. Raises AssertionError as :func:`until` does.

    ``pause``: seconds between two looks. ``meanwhile`` runs between them, to poll a client, or to raise because whoever
    is waited for has failed.
    """
    began = time.monotonic()
    while not (found := condition()):
        assert time.monotonic() - began < seconds, _describe(condition, what, seconds)
        if meanwhile is not None:
            meanwhile()
        time.sleep(pause)
    return found


def _describe(condition: Callable[[], object], what: object, seconds: float) -> str:
    if callable(what):
        what = what()
    if what is None and isinstance(condition, FunctionType):
        code = condition.__code__
        line = linecache.getline(code.co_filename, code.co_firstlineno).strip()
        what = f"{line} with {inspect.getclosurevars(condition).nonlocals}"
    return f"not within {seconds:g} s: {condition if what is None else what}"
