"""Tests wait for a thing, never for a time: each sleep outside of a loop says beside it what the time is for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
LOADS = {"compose", "hostile", "soak", "spark_proof", "torture"}
"""Programs that make load: their sleeps pace it."""
SIMULATED = {"several.py"}
"""Worlds whose loop has a time of its own: a sleep there takes none."""


def sleeps(node: ast.AST, looped: bool = False) -> Iterator[int]:
    """Yield the lines of sleeps that no loop repeats until a condition holds. ``sleep(0)`` lets others run, and waits
    for no time."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Call(func=ast.Attribute(attr="sleep") | ast.Name(id="sleep"), args=[ast.Constant(value=0)]):
                pass
            case ast.Call(func=ast.Attribute(attr="sleep") | ast.Name(id="sleep"), args=[_, *_]) if not looped:
                yield child.lineno
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from sleeps(child)
        else:
            yield from sleeps(child, looped or isinstance(child, ast.While | ast.For | ast.AsyncFor))


def without_reason(source: str) -> list[int]:
    """Return the lines of such sleeps without a comment there or in the line above."""
    lines = ["", *source.splitlines()]
    return [
        at for at in sleeps(ast.parse(source)) if "# " not in lines[at] and not lines[at - 1].lstrip().startswith("#")
    ]


def test_a_sleep_says_what_its_time_is_for() -> None:
    paths = (path for path in TESTS.rglob("*.py") if path.relative_to(TESTS).parts[0] not in LOADS)
    sources = {path: path.read_text(encoding="utf-8") for path in paths if path.name not in SIMULATED}
    found = {
        path: lines for path, source in sources.items() if "sleep(" in source and (lines := without_reason(source))
    }
    assert not found, "wait for the thing (tests/kit/waiting.py), or say why it has to be a time"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("time.sleep(1)", [1]),
        ("time.sleep(1)  # nothing may come within this time", []),
        ("# until its lease is over\nawait_(sleep(LEASE_S))", []),
        ("while not done():\n    time.sleep(0.1)", []),
        ("for one in all:\n    def later():\n        time.sleep(0.1)", [3]),
        ("async def turn():\n    await asyncio.sleep(0)", []),
    ],
)
def test_sleeps_without_a_reason_are_found(source: str, lines: list[int]) -> None:
    assert without_reason(source) == lines
