"""What the documents call modules, rooms and classes is what they are called: each name is looked up in the tree."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.test_import_rules import ALLOWED, FLOORS, ROOT

DOCS = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
_TOPS = "|".join((*ALLOWED, "tests", "benchmarks", "docs", "scripts"))
_PATH = re.compile(rf"(?<![\w/.-])(?:{_TOPS})/[\w./*-]*\w")
_DOTTED = re.compile(rf"`((?:{'|'.join(ALLOWED)})(?:\.\w+)+)`")
_MODULE = re.compile(r"[\w/]+\.py\b")


def _section(title: str) -> str:
    """The first block of preformatted text under a heading of docs/design.md."""
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].split("```")[1]


def missing_paths(text: str, root: Path) -> list[str]:
    """Paths in a text that lead nowhere below ``root``; a star stands for any characters of a name."""
    return [path for path in _PATH.findall(text) if not any(root.glob(path))]


def missing_modules(picture: str, root: Path) -> tuple[list[str], int]:
    """Modules in a picture of two columns that are not there, and how many it names.

    A name without a directory is a neighbour of the one with a directory that its column named last.
    """
    lines = picture.splitlines()
    second = lines[1].index("out")
    missing: list[str] = []
    named = 0
    rooms = ["", ""]
    for line in lines:
        for found in _MODULE.finditer(line):
            column = int(found.start() >= second)
            directory, slash, name = found.group().rpartition("/")
            if slash:
                rooms[column] = directory
            named += 1
            if not (root / rooms[column] / name).is_file():
                missing.append(f"{rooms[column]}/{name}")
    return missing, named


def unknown(name: str) -> bool:
    """Whether a dotted name of a module, or of something in one, leads to nothing."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return part not in getattr(found, "__annotations__", {})
            found = getattr(found, part)
        return False
    return True


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_what_documents_name_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert missing_paths(text, ROOT) == []
    assert [name for name in _DOTTED.findall(text) if unknown(name)] == []


def kinds_served(root: Path) -> set[str]:
    """Kinds of messages that a node serves to others: each is a string or the name of one."""
    kinds: set[str] = set()
    for package in ALLOWED:
        for path in (root / package).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            origins = {
                name.name: node.module
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and node.module
                for name in node.names
            }
            here = ".".join(path.relative_to(root).with_suffix("").parts)
            for node in ast.walk(tree):
                match node:
                    case ast.Call(func=ast.Attribute(value, "serve" | "serve_stream"), args=[kind, *_]) if ast.unparse(
                        value
                    ).endswith("peers"):
                        match kind:
                            case ast.Constant(str(text)):
                                kinds.add(text)
                            case ast.Name(name):
                                kinds.add(getattr(import_module(origins.get(name, here)), name))
                            case _:
                                raise AssertionError(f"{path}:{node.lineno}: which kind is {ast.unparse(kind)}?")
    return kinds


def test_the_table_of_messages_between_nodes_has_every_kind() -> None:
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8").partition("| kind | from, to |")[2]
    rows = re.findall(r"^\| `([^`]+)`", text.partition("\n\n")[0], re.MULTILINE)
    assert sorted(rows) == sorted(kinds_served(ROOT))


def test_the_picture_of_a_batchs_way_names_modules_that_exist() -> None:
    missing, named = missing_modules(_section("A batch's way in and out"), ROOT)
    assert missing == []
    assert named > 25


def test_the_rooms_are_those_on_the_floors() -> None:
    told: dict[str, set[str]] = {}
    package = ""
    for line in _section("Rooms").splitlines():
        if not line.startswith(" ") and "/" in line:
            package = line.partition("/")[0]
        elif (names := line[4:].split("  ")[0]) and line[:4] == "    " and line[4] != " ":
            told.setdefault(package, set()).update(name.strip(" /") for name in names.split(","))
    for package in ("anabranch_kit", "bridges", "sbp_back"):
        rooms = {name for name in FLOORS[package] if (ROOT / package / name).is_dir()}
        assert rooms <= told[package]
        assert told[package] <= FLOORS[package].keys()


def test_a_name_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "bridges/log").mkdir(parents=True)
    (tmp_path / "bridges/log/here.py").touch()
    text = "`bridges/log/here.py`, bridges/log/gone.py: and `tests/gone`"
    assert missing_paths(text, tmp_path) == ["bridges/log/gone.py", "tests/gone"]
    picture = "\nin                 out\nbridges/log/here.py\n  | gone.py          ^ bridges/net/away.py\n"
    assert missing_modules(picture, tmp_path) == (["bridges/log/gone.py", "bridges/net/away.py"], 3)
    assert unknown("bridges.log.partition.partition_log.Nobody")
    assert unknown("bridges.nowhere")
    assert not unknown("bridges.log.partition.partition_log.PartitionLog.read_committed")
