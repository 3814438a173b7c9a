"""``python as_version.py SAYS STORES -m bridges ...``: a node that is of another version, and has a table more then."""

from __future__ import annotations

import runpy
import sys

from bridges.catalog.database import schema
from bridges.catalog.database.sql import Connection


def _another(connection: Connection) -> None:
    connection.execute("CREATE TABLE of_a_newer_release (one INTEGER PRIMARY KEY) STRICT")


says, stores = int(sys.argv[1]), int(sys.argv[2])
schema.MIGRATIONS = (*schema.MIGRATIONS, _another)  # type: ignore[assignment]

from bridges.cluster import versions  # noqa: E402

versions.OURS = versions.Version(says, stores)
sys.argv = ["bridges", *sys.argv[5:]]
runpy.run_module("bridges", run_name="__main__")
