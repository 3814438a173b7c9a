"""Entry points of installed distributions: the way in which fronts, backends and commands of other packages are found.

``importlib.metadata`` of the standard library finds them too, but imports modules for mail and archives: a twentieth of
a node's start-up time. It is used only where distributions may lie in something other than directories.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any

from msgspec import Struct

_ABOUT = (".dist-info", ".egg-info")
"""Suffixes of directories with a distribution's metadata."""


class EntryPoint(Struct, frozen=True):
    """A name, and the object that it refers to: ``module:attribute``."""

    name: str
    value: str

    def load(self) -> Any:
        """Import and return the object. Raises ImportError, AttributeError."""
        module, _, attributes = self.value.partition("[")[0].partition(":")
        found: Any = import_module(module.strip())
        for attribute in filter(None, attributes.strip().split(".")):
            found = getattr(found, attribute)
        return found


def entry_points(group: str) -> list[EntryPoint]:
    """Return the entry points of a group, sorted by name."""
    found = _in_directories(group)
    if found is None:
        from importlib import metadata

        found = [EntryPoint(point.name, point.value) for point in metadata.entry_points(group=group)]
    return sorted(found, key=lambda point: point.name)


def _in_directories(group: str) -> list[EntryPoint] | None:
    """Return the entry points of the directories in the path, None if the path has other places than directories."""
    if any(finder is not PathFinder and hasattr(finder, "find_distributions") for finder in sys.meta_path):
        return None
    seen: set[str] = set()
    found: list[EntryPoint] = []
    for directory in sys.path:
        if directory.endswith(".egg"):
            return None
        try:
            names = os.listdir(directory or ".")
        except NotADirectoryError:
            return None
        except OSError:
            continue
        for name in names:
            if name.endswith(_ABOUT):
                # Of two versions of a distribution, only the first counts, as it is the one that is imported.
                distribution = name.rpartition(".")[0].partition("-")[0].replace(".", "_").lower()
                if distribution not in seen:
                    seen.add(distribution)
                    found += _read(os.path.join(directory, name, "entry_points.txt"), group)
    return found


def _read(path: str, group: str) -> Iterator[EntryPoint]:
    text = ""
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError), open(path, encoding="utf-8") as file:
        text = file.read()
    if f"[{group}]" not in text:
        return
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif section == group and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield EntryPoint(name.strip(), value.strip())
