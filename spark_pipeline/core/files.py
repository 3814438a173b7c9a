"""Files that exist as a whole or not at all, and that survive a loss of power."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def written_beside(path: Path, content: bytes) -> Path:
    """Write ``content`` durably to a temporary file, which the caller renames to ``path``."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return partial


def replace(path: Path, content: bytes) -> None:
    """Replace a file atomically: no reader ever sees half of it. Durable when this returns."""
    written_beside(path, content).replace(path)
    sync(path.parent)


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """Return indented JSON, readable for people and machines."""
    return json.dumps(content, indent=1).encode() + b"\n"


def make_directory(path: Path) -> None:
    """Create a directory and its parents so that they survive a loss of power."""
    made = []
    above = path
    while not above.exists():
        made.append(above)
        above = above.parent
    path.mkdir(parents=True, exist_ok=True)
    for one in made:
        sync(one.parent)


def sync(path: Path) -> None:
    """Flush a file's content, or a directory's created and renamed entries, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
