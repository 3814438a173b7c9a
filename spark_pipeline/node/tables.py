"""The front's tables in the node's database. Rows that belong to a topic are deleted in the topic's own transaction."""

from __future__ import annotations

from collections.abc import Callable

from bridges.catalog.sql import Connection
from spark_pipeline.node import jobs, write_tables

MIGRATIONS: tuple[Callable[[Connection], None], ...] = (
    write_tables.create,
    jobs.create,
    write_tables.add_targets,
    write_tables.add_content,
)
"""Migrations from each version of the tables to the next; never change one that was released."""

ERASERS: tuple[Callable[[Connection, str], None], ...] = (write_tables.erase_topic,)
