"""Modules with a safeguard left out: a scenario that passes with what is there has to fail without it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from types import ModuleType

import pytest

Scenario = Callable[[ModuleType], Awaitable[None]]


def without(module: ModuleType, line: str, instead: str) -> ModuleType:
    """The module as it would be with ``instead`` in place of ``line``, which stands in it once."""
    source = inspect.getsource(module)
    assert source.count(line) == 1, f"{module.__name__} has {source.count(line)} times {line!r}"
    made = ModuleType(module.__name__)
    made.__file__ = module.__file__
    exec(compile(source.replace(line, instead), module.__name__, "exec"), made.__dict__)
    return made


async def is_noticed(module: ModuleType, scenarios: Iterable[Scenario]) -> bool:
    """Whether one of the scenarios fails with such a module."""
    for scenario in scenarios:
        try:
            await scenario(module)
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - failing is what it is for, and any way will do
            return True
    return False
