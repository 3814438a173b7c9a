"""Files of JSON that are there as a whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def written_beside(path: Path, content: Mapping[str, Any]) -> Path:
    """Write ``content`` durably to a file of its own, which the caller gives the name ``path``."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    return partial
