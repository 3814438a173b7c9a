"""Debezium: the changes of a table in PostgreSQL, exactly once, through a connector in Kafka Connect."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psycopg

from benchmarks.java_server import JavaServer, free_port
from tests.ecosystem.brokers import topics
from tests.ecosystem.connect import Worker
from tests.ecosystem.passage import Came, Passage, carry_through, each_once
from tests.node_process import NodeProcess
from tests.postgres import QUICK, Postgres

TOPIC = "db.public.accounts"
BEFORE, ROWS = 500, 3000
"""Rows that are there before the connector, which takes a snapshot of them, and rows in all."""


class Inserts(threading.Thread):
    """Makes rows, each in a transaction of its own."""

    def __init__(self, conninfo: str, numbers: Sequence[int], per_second: int) -> None:
        super().__init__(daemon=True)
        self._conninfo, self._numbers, self._per_second = conninfo, numbers, per_second
        self.start()

    def run(self) -> None:
        began = time.monotonic()
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            for done, number in enumerate(self._numbers):
                connection.execute("INSERT INTO accounts VALUES (%s, %s)", (number, f"owner {number}"))
                time.sleep(max(0.0, began + done / self._per_second - time.monotonic()))

    def finish(self) -> None:
        """Return when all are there."""
        self.join()


def _row(came: Came) -> Came:
    """With the row's number as value."""
    return replace(came, value=str(json.loads(came.value or b"")["after"]["id"]).encode())


def run(server: NodeProcess | JavaServer, directory: Path) -> str:
    """What was seen, in a line. Raises WentWrong, ServerFailed."""
    topics(server.bootstrap, TOPIC, partitions=1)
    port = free_port()
    database = Postgres((*QUICK, "listen_addresses=127.0.0.1", f"port={port}", "wal_level=logical"))
    conninfo = f"host=127.0.0.1 port={port} user=anabranch dbname=postgres"
    worker = Worker(directory / "connect", server.bootstrap)
    config = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": "127.0.0.1",
        "database.port": str(port),
        "database.user": "anabranch",
        "database.password": "-",
        "database.dbname": "postgres",
        "topic.prefix": "db",
        "table.include.list": "public.accounts",
        "exactly.once.support": "required",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "tasks.max": "1",
    }
    try:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("CREATE TABLE accounts (id integer PRIMARY KEY, owner text)")
            connection.execute(f"INSERT INTO accounts SELECT n, 'owner ' || n FROM generate_series(0, {BEFORE - 1}) n")

        def write() -> Inserts:
            worker.call("PUT", "/connectors/accounts/config", config)
            worker.running("accounts")
            return Inserts(conninfo, range(BEFORE, ROWS), 150)

        values = [str(number).encode() for number in range(ROWS)]
        came = carry_through(server, worker, Passage(values, "", TOPIC, ROWS, partitions=1), write)
    finally:
        database.close()
    each_once(map(_row, came), values)
    return f"{len(came)} rows told of once each, {BEFORE} of them in the snapshot"
