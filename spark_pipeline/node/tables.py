"""The front's tables in the node's database. What belongs to a topic goes in the transaction that deletes it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from spark_pipeline.node import jobs, write_tables

MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (
    write_tables.create,
    jobs.create,
    write_tables.add_targets,
)
"""What brings each version to the next; never change one that was released."""

ERASERS: tuple[Callable[[sqlite3.Connection, str], None], ...] = (write_tables.erase_topic,)
