"""Who may import whom (docs/design.md, "Rooms"): read from the syntax trees, so that a lazy import counts as well."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

ALLOWED: dict[str, frozenset[str]] = {
    "anabranch_kit": frozenset(),
    "sbp_back": frozenset({"anabranch_kit"}),
    "sbp_document": frozenset({"anabranch_kit", "bridges", "sbp_back"}),
    "bridges": frozenset({"anabranch_kit", "sbp_back"}),
    "kafka_front": frozenset({"anabranch_kit", "bridges"}),
    "pravega_front": frozenset({"anabranch_kit", "bridges"}),
    "ydb_topic_front": frozenset({"anabranch_kit", "bridges"}),
    # It reads Pravega itself, whose commands are in the front's codec.
    "spark_pipeline": frozenset({"anabranch_kit", "bridges", "sbp_back", "pravega_front.wire"}),
    "pyspark_anabranch": frozenset({"spark_pipeline"}),
    "compose": frozenset(),
}
"""Package -> our other packages, or rooms of them, that it may import."""

FLOORS: dict[str, dict[str, int]] = {
    "anabranch_kit": {
        "sql": 3,
        "net": 2,
        "disk": 2,
        "memory": 1,
        "run": 1,
        "errors": 0,
    },
    "bridges": {
        "__main__": 9,
        "commands": 8,
        "checkup": 7,
        "front_kit": 7,
        "node": 6,
        "backends": 5,
        "console": 5,
        "log": 4,
        "cluster": 3,
        "http": 3,
        "catalog": 2,
        "formats": 2,
        "net": 2,
        "auth": 1,
        "clients": 1,
        "metrics": 2,
        "metric_text": 3,
        "entry_points": 0,
        "extras": 0,
        "errors": 0,
        "life": 0,
        "version": 0,
    },
    "sbp_back": {
        "__init__": 9,
        "embedded": 8,
        "range_server": 6,
        "client": 5,
        "placement_driver": 5,
        "transport": 4,
        "wire": 2,
        "errors": 0,
    },
    "spark_pipeline": {
        "jobs": 5,
        "spark": 4,
        "endpoints": 3,
        "node": 3,
        "lake": 2,
        "core": 1,
    },
}
"""Package -> its rooms and the floor each is on: a room imports only from floors below its own."""

TOGETHER: tuple[tuple[str, str], ...] = (
    ("anabranch_kit.net", "connection server"),
    (
        "bridges.log",
        "byte_positions.search byte_positions.tail damage.missing interfaces logs opener "
        "partition.admission partition.append_path partition.partition_log partition.reading partition.time_search "
        "partition.upkeep partition.waiters rebuilding remote.readable state.snapshotter stores "
        "transactions.aborted_blocks",
    ),
    ("bridges.net", "connection server"),
    ("kafka_front", "server session"),
    ("kafka_front.service.transactions", "owned service"),
    ("pravega_front.controller", "auto_scale core size_retention watermarks"),
    ("pravega_front", "server session.appends session.connection session.reads"),
    ("sbp_back.client", "client fetch replica stream_writer"),
    ("sbp_back.range_server", "appends fetches ranges"),
    ("sbp_back.range_server.store", "index segment"),
    ("sbp_back.transport", "answer_room connection listener"),
    ("sbp_document.client", "document_writer follower streams"),
    ("ydb_topic_front.service", "core read.coordination read.readers transactions.coordinator"),
    ("ydb_topic_front.service", "read.commits read.partitions"),
)
"""(Room, its modules that know of each other, at least by the types of their arguments): one object and its parts."""

NOT_PACKAGES = {"tests", "benchmarks", "docs", "scripts", "build", "dist", "data", "requirements"}
IO_MODULES = {"asyncio", "socket", "selectors", "ssl", "threading"}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module: absolute dotted name, and where it is imported."""

    module: str
    path: Path
    line: int

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]


@cache
def imports_of(path: Path, root: Path) -> tuple[Import, ...]:
    """Every module that the file imports anywhere in it, relative ones made absolute."""
    return tuple(_imports_of(path, root))


def _imports_of(path: Path, root: Path) -> Iterator[Import]:
    parts = path.relative_to(root).with_suffix("").parts
    containing = parts[:-1]  # of `a/b/c.py` and of `a/b/__init__.py` alike: a.b
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, path, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(containing[: len(containing) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            # `from package import module` names a module too; a name that is none does no harm here.
            for alias in node.names:
                yield Import(f"{module}.{alias.name}", path, node.lineno)
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = node.args[0]
            if (
                called in {"import_module", "__import__"}
                and isinstance(first, ast.Constant)
                and isinstance(first.value, str)
            ):
                yield Import(first.value, path, node.lineno)


def packages_in(root: Path) -> list[str]:
    """Directories at the top that hold Python code of ours."""
    return sorted(
        entry.name
        for entry in root.iterdir()
        if entry.is_dir()
        and not entry.name.startswith(".")
        and not entry.name.endswith(".egg-info")
        and entry.name not in NOT_PACKAGES
        and any(entry.rglob("*.py"))
    )


def violations(root: Path) -> list[str]:
    """All broken rules below ``root``, one sentence each."""
    found: list[str] = []
    packages = packages_in(root)
    for package in packages:
        if package not in ALLOWED:
            found.append(f"{package}/: no rule says what it may import")
            continue
        for path in sorted((root / package).rglob("*.py")):
            inside = path.relative_to(root / package)
            in_wire = inside.parts[0] == "wire" and package.endswith("_front")
            for item in imports_of(path, root):
                where = f"{path.relative_to(root)}:{item.line}"
                ours = item.package in ALLOWED or item.package in packages
                allowed = {item.package, ".".join(item.module.split(".")[:2])} & ALLOWED[package]
                if ours and item.package != package and not allowed:
                    found.append(f"{where}: {package} must not import {item.module}")
                if in_wire and item.package in IO_MODULES:
                    found.append(f"{where}: a wire codec is sans-IO and must not import {item.module}")
                if in_wire and item.module.startswith((f"{package}.session", f"{package}.service")):
                    found.append(f"{where}: a wire codec stands alone and must not import {item.module}")
    return found


def upwards(root: Path) -> list[str]:
    """Imports between rooms of one package that do not go down, one sentence each."""
    found: list[str] = []
    for package, floors in FLOORS.items():
        for path in sorted((root / package).rglob("*.py")):
            room = path.relative_to(root / package).parts[0].removesuffix(".py")
            if room == "__init__" and package in {"anabranch_kit", "bridges", "spark_pipeline"}:
                continue
            if room not in floors:
                found.append(f"{path.relative_to(root)}: the room {room!r} is on no floor")
                continue
            for item in imports_of(path, root):
                names = item.module.split(".")
                if names[0] != package or len(names) < 2:
                    continue
                target = names[1] if names[1] in floors else "__init__"
                if target == room or floors.get(target, 0) < floors[room]:
                    continue
                inside = path.relative_to(root).as_posix()
                found.append(f"{inside}:{item.line}: {room} must not import {item.module}, which is not below it")
    return found


def naming(root: Path, add_on: str) -> list[str]:
    """Files of other packages in which the name of an add-on stands."""
    return [
        path.relative_to(root).as_posix()
        for package in ALLOWED
        if package != add_on
        for path in sorted((root / package).rglob("*.py"))
        if add_on in path.read_text(encoding="utf-8")
    ]


def test_the_core_does_not_know_its_add_on() -> None:
    """That it lives without it is what ``test_a_node_lives_without_the_specification_document`` shows."""
    assert naming(ROOT, "sbp_document") == []


@pytest.mark.parametrize("source", ["def f():\n    from sbp_document import wire\n", "# see sbp_document/format.py\n"])
def test_an_add_on_that_is_named_is_found(tmp_path: Path, source: str) -> None:
    (tmp_path / "bridges").mkdir(parents=True)
    (tmp_path / "bridges/a.py").write_text(source)
    assert naming(tmp_path, "sbp_document") == ["bridges/a.py"]


def test_rooms_import_downwards() -> None:
    assert upwards(ROOT) == []


def circles(root: Path) -> list[frozenset[str]]:
    """Sets of our modules each of which imports every other, be it through others, or only for types."""
    modules: dict[str, Path] = {}
    for package in ALLOWED:
        for path in (root / package).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    reached = {name: {known(item.module, modules) for item in imports_of(path, root)} for name, path in modules.items()}

    def behind(start: str) -> set[str]:
        found: set[str] = set()
        ahead = [start]
        while ahead:
            new = reached[ahead.pop()] - found - {""}
            found |= new
            ahead += new
        return found

    all_behind = {name: behind(name) for name in modules}
    return sorted(
        {
            frozenset(other for other in all_behind[name] if name in all_behind[other])
            for name in modules
            if name in all_behind[name]
        }
        - {frozenset((name,)) for name in modules},
        key=sorted,
    )


def known(module: str, modules: dict[str, Path]) -> str:
    """The module of ours that an import names, itself or by something in it; empty if it is none."""
    while module and module not in modules:
        module = module.rpartition(".")[0]
    return module


def test_modules_know_of_each_other_only_where_they_are_one_thing() -> None:
    together = [frozenset(f"{room}.{name}" for name in names.split()) for room, names in TOGETHER]
    assert circles(ROOT) == sorted(together, key=sorted)


def test_a_circle_is_found(tmp_path: Path) -> None:
    (tmp_path / "bridges").mkdir()
    (tmp_path / "bridges/a.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import bridges.b\n"
    )
    (tmp_path / "bridges/b.py").write_text("from bridges.c import x\n")
    (tmp_path / "bridges/c.py").write_text("from . import a\n")
    (tmp_path / "bridges/d.py").write_text("import bridges.c\n")
    assert circles(tmp_path) == [frozenset({"bridges.a", "bridges.b", "bridges.c"})]


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("bridges/log/a.py", "from bridges.node.settings.config import Settings\n", "log must not import bridges.node"),
        ("bridges/catalog/a.py", "import bridges.formats.base\n", "catalog must not import bridges.formats"),
        ("sbp_back/wire/a.py", "from sbp_back.transport import carrier\n", "wire must not import sbp_back.transport"),
        ("sbp_back/wire/a.py", "from sbp_back import Client\n", "wire must not import sbp_back.Client"),
        ("sbp_back/attic/a.py", "x = 1\n", "on no floor"),
    ],
)
def test_an_import_upwards_is_found(tmp_path: Path, path: str, source: str, complaint: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(source)
    (found,) = upwards(tmp_path)
    assert complaint in found


def test_the_tree_keeps_the_rules() -> None:
    assert packages_in(ROOT), "no packages found: the test looks in the wrong place"
    assert violations(ROOT) == []


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("sbp_back/a.py", "import bridges\n", "sbp_back must not import bridges"),
        (
            "sbp_back/a.py",
            "from bridges.formats.records import Record\n",
            "sbp_back must not import bridges.formats.records",
        ),
        ("bridges/deep/a.py", "from kafka_front import front\n", "bridges must not import kafka_front"),
        (
            "kafka_front/service/a.py",
            "import sbp_back.client.client as c\n",
            "kafka_front must not import sbp_back.client.client",
        ),
        ("kafka_front/a.py", "import pravega_front\n", "kafka_front must not import pravega_front"),
        ("spark_pipeline/a.py", "from pravega_front import names\n", "must not import pravega_front.names"),
        ("pravega_front/a.py", "import ydb_topic_front.x\n", "pravega_front must not import ydb_topic_front.x"),
        ("kafka_front/a.py", "def f():\n    import sbp_back\n", "a.py:2: kafka_front must not import sbp_back"),
        (
            "kafka_front/a.py",
            "import importlib\nimportlib.import_module('sbp_back.wire.model')\n",
            "sbp_back.wire.model",
        ),
        ("kafka_front/a.py", "__import__('sbp_back')\n", "kafka_front must not import sbp_back"),
        ("kafka_front/wire/a.py", "import asyncio\n", "sans-IO"),
        ("kafka_front/wire/a.py", "from ..session import Connection\n", "stands alone"),
        ("newcomer/a.py", "x = 1\n", "no rule says"),
    ],
)
def test_a_violation_is_found(tmp_path: Path, path: str, source: str, complaint: str) -> None:
    for package in ("anabranch_kit", "sbp_back", "bridges", "kafka_front", "pravega_front", "ydb_topic_front"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    target = tmp_path / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(source)
    found = violations(tmp_path)
    assert len(found) == 1, found
    assert complaint in found[0]


def test_what_is_allowed_passes(tmp_path: Path) -> None:
    sources = {
        "sbp_back/a.py": "import asyncio\nfrom . import b\nfrom sbp_back.c import d\n",
        "bridges/a.py": "from sbp_back import client\nfrom bridges.b import c\n",
        "kafka_front/service/a.py": "import asyncio\nfrom bridges.node.front import Front\nfrom ..wire import codec\n",
        "kafka_front/wire/a.py": "import struct\nfrom . import other\nfrom bridges.errors import DecodeError\n",
        "spark_pipeline/core/a.py": "import bridges\nimport sbp_back\n",
    }
    for name, source in sources.items():
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source)
    assert violations(tmp_path) == []
