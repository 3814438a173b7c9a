"""The page of the kit names every tool that is there, and nothing that is not."""

from __future__ import annotations

import ast
import re
from pathlib import Path

KIT = Path(__file__).resolve().parent
PAGE = (KIT / "README.md").read_text(encoding="utf-8")


def public_names(module: Path) -> set[str]:
    """Return the functions and classes that other modules may use."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    body = ast.parse(module.read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, kinds) and not node.name.startswith("_")}


def test_each_module_has_a_section_that_names_its_tools() -> None:
    modules = {path.stem: public_names(path) for path in KIT.glob("*.py") if not path.stem.startswith(("test_", "__"))}
    sections = re.findall(r"^## (\w+): (.*)$", PAGE, re.M)
    assert {name: set(re.findall(r"`(\w+)`", tools)) for name, tools in sections} == modules


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (KIT.parent.parent / name).exists()] == []


def test_every_tool_for_several_rooms_is_on_the_page() -> None:
    """A module directly below ``tests`` that three rooms import is a tool for all."""
    tests = KIT.parent
    rooms: dict[str, set[str]] = {}
    for path in tests.rglob("*.py"):
        room = path.relative_to(tests).parts[0]
        for name in re.findall(r"^from tests\.(\w+) import", path.read_text(encoding="utf-8"), re.M):
            rooms.setdefault(name, set()).add(room)
    shared = {name for name, users in rooms.items() if len(users) > 2 and not name.startswith("test_")}
    assert [name for name in sorted(shared) if f"`tests/{name}.py`" not in PAGE] == []
