"""What every fuzz target does when it is run: write its seeds (`--seeds DIRECTORY`), or let atheris look for inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any


def run(one_input: Callable[[bytes], None], seeds: Callable[[], Mapping[str, bytes]], packages: Sequence[str]) -> None:
    """``seeds`` gives inputs by file name; ``one_input`` raises what nobody expects of it. Coverage is that of modules
    whose names begin with one of ``packages``: to watch all that is imported takes minutes before the first input."""
    if sys.argv[1:2] == ["--seeds"]:
        directory = Path(sys.argv[2])
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in seeds().items():
            (directory / name).write_bytes(data)
        return
    import atheris

    watched = 0
    for function in functions(tuple(packages)):
        atheris.instrument_func(function)
        watched += 1
    if not watched:
        raise SystemExit(f"nothing is imported of {packages}: the target would look for inputs blindly")
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


def functions(packages: tuple[str, ...]) -> Iterator[FunctionType]:
    """All functions and methods of the imported modules whose names begin so, each once."""
    seen: set[int] = set()
    for name, module in list(sys.modules.items()):
        if name.startswith(packages):
            for value in list(vars(module).values()):
                yield from _within(value, name, seen)


def _within(value: Any, module: str, seen: set[int]) -> Iterator[FunctionType]:
    """What is defined in a module: functions, and those of classes, whatever decorators made of them."""
    value = getattr(value, "__func__", value)
    value = getattr(value, "fget", value)
    value = getattr(value, "__wrapped__", value)
    if id(value) in seen or getattr(value, "__module__", None) != module:
        return
    seen.add(id(value))
    if isinstance(value, FunctionType):
        yield value
    elif isinstance(value, type):
        for member in list(vars(value).values()):
            yield from _within(member, module, seen)
