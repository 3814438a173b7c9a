"""Modules with a safeguard left out: a scenario that passes with what is there has to fail without it.

A safeguard is written as it stands in the module and looked for in its syntax tree: layout and comments do not count,
and names may have been changed since. Of several places that look alike, the one with most of the names is meant.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Awaitable, Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import pytest

Scenario = Callable[[ModuleType], Awaitable[None]]
Names = dict[str, str]

_NAMES = {
    (ast.Name, "id"),
    (ast.Attribute, "attr"),
    (ast.arg, "arg"),
    (ast.keyword, "arg"),
    (ast.ExceptHandler, "name"),
    (ast.FunctionDef, "name"),
    (ast.AsyncFunctionDef, "name"),
}


def without(module: ModuleType, part: str, instead: str, within: str = "") -> ModuleType:
    """The module as it would be with ``instead`` in place of ``part``: an expression, statements, the head of a
    statement with its colon, or an ``except``. What is replaced by nothing goes. In ``part``, ``...`` stands for any
    expression. ``within``: the function in which ``part`` stands, where others have the like."""
    made = ModuleType(module.__name__)
    made.__file__ = module.__file__
    tree = replaced(inspect.getsource(module), part, instead, within)
    exec(compile(tree, module.__name__, "exec"), made.__dict__)
    return made


async def is_noticed(module: ModuleType, scenarios: Iterable[Scenario]) -> bool:
    """Whether one of the scenarios fails with such a module."""
    for scenario in scenarios:
        try:
            await scenario(module)
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - failing is what it is for, and any way will do
            return True
    return False


def replaced(source: str, part: str, instead: str, within: str = "") -> ast.Module:
    """The tree of ``source`` with ``instead`` in place of ``part``. Raises AssertionError unless just one place is
    meant, which has at least half of the names."""
    tree = ast.parse(source)
    functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    named = [one for one in functions if one.name == within]
    place = named[0] if len(named) == 1 else tree  # or the function's name was changed as well
    pattern, new = _parsed(part), _parsed(instead)
    assert not new or _is_head(pattern[-1]) == _is_head(new[-1]), f"{part!r} and {instead!r}: one is a head"
    as_expression = len(pattern) == len(new) == 1 and isinstance(pattern[0], ast.Expr) and isinstance(new[0], ast.Expr)
    found: list[tuple[int, Names, Callable[[list[Any]], None]]] = []
    for nodes, put in _expressions(place) if as_expression else _runs(place, len(pattern)):
        wanted = [pattern[0].value] if as_expression else pattern  # type: ignore[attr-defined]
        names: Names = {}
        alike = all(_is_alike(one, other, names) for one, other in zip(wanted, nodes, strict=True))
        if alike and len({*names.values()}) == len(names):
            found.append((sum(old != now for old, now in names.items()), names, put))
    least = min((count for count, _, _ in found), default=0)
    best = [(names, put) for count, names, put in found if count == least]
    assert len(best) == 1, f"{len(best)} places look like {part!r}"
    (names, put) = best[0]
    assert 2 * least <= len(names), f"nothing is left of {part!r}: names of what looks like it are {names}"
    for one in new:
        _rename(one, names)
    put([new[0].value] if as_expression else new)  # type: ignore[attr-defined]
    return ast.fix_missing_locations(tree)


_Put = Callable[[list[Any]], None]


def _parsed(text: str) -> list[ast.AST]:
    """Statements, or the one ``except``. A head of a statement has no body."""
    text = textwrap.dedent(text).strip()
    is_head = text.endswith(":")
    text += " pass" if is_head else ""
    if text.startswith("except"):
        (statement,) = ast.parse(f"try: pass\n{text}").body
        assert isinstance(statement, ast.Try)
        found: list[Any] = list(statement.handlers)
    else:
        found = list(ast.parse(text).body)
    if is_head:
        found[-1].body = []
    return found


def _expressions(tree: ast.AST) -> Iterator[tuple[list[ast.AST], _Put]]:
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if isinstance(value, ast.expr):
                yield [value], lambda new, parent=parent, field=field: setattr(parent, field, new[0])  # type: ignore[misc]
            elif isinstance(value, list):
                for at, one in enumerate(value):
                    if isinstance(one, ast.expr):
                        yield [one], lambda new, value=value, at=at: value.__setitem__(at, new[0])  # type: ignore[misc]


def _runs(tree: ast.AST, length: int) -> Iterator[tuple[list[ast.AST], _Put]]:
    """So many statements, or handlers, behind one another."""
    for parent in ast.walk(tree):
        for _, value in ast.iter_fields(parent):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt | ast.ExceptHandler):
                for at in range(len(value) - length + 1):
                    run = value[at : at + length]
                    yield run, lambda new, value=value, at=at: _put_run(value, at, length, new)  # type: ignore[misc]


def _put_run(value: list[Any], at: int, length: int, new: list[Any]) -> None:
    if new and _is_head(new[-1]):
        new[-1].body = value[at + length - 1].body
        if hasattr(new[-1], "orelse") and hasattr(value[at + length - 1], "orelse"):
            new[-1].orelse = value[at + length - 1].orelse
    value[at : at + length] = new
    if not value:
        value.append(ast.Pass())


def _is_alike(one: Any, other: Any, names: Names) -> bool:
    """Whether both are the same but for names; ``names`` leads from each in ``one`` to that in ``other``."""
    if isinstance(one, list):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(_is_alike(left, right, names) for left, right in pairs)
    if isinstance(one, ast.Constant) and one.value is ...:
        return True
    if not isinstance(one, ast.AST):
        return type(one) is type(other) and one == other
    if type(one) is not type(other):
        return False
    for field, value in ast.iter_fields(one):
        there = getattr(other, field)
        if field in ("ctx", "type_comment") or (_is_head(one) and field in ("body", "orelse")):
            continue
        if (type(one), field) in _NAMES and value is not None and there is not None:
            if names.setdefault(value, there) != there:
                return False
        elif not _is_alike(value, there, names):
            return False
    return True


def _is_head(one: ast.AST) -> bool:
    return getattr(one, "body", None) == []


def _rename(tree: ast.AST, names: Names) -> None:
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            if (type(node), field) in _NAMES and value in names:
                setattr(node, field, names[value])
