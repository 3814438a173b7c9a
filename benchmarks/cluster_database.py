"""How many nodes one PostgreSQL carries: `python -m benchmarks.cluster --database`.

First what real nodes ask of it, at rest and busy, with few topics and many: it counts its statements
(``pg_stat_statements``), rows and log, and its processes tell their CPU. Then members of a cluster in a few processes
(:mod:`benchmarks.cluster_members`) ask it for the same, 3 of them, 10, 30 and so on, until heartbeats come late.

The server flushes its log before it says that something is committed, as one that is relied on does. Clients and server
share the processors here; so beside what was seen stands what a node costs the server, which is what sizing needs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from benchmarks.cluster_members import PATIENCE
from tests.cluster.together import together
from tests.node_process import FRONTS, NodeProcess
from tests.postgres import Postgres, binaries

_PROCESSES = 2
"""Among which the members are shared out."""
_CONNECTIONS = 5
"""Of a node."""
_COMMITS = 10.0
"""Of positions, a second and node: 50 consumers that commit every 5 s."""
_CHANGES = 0.1
"""Of topics, a second and node."""
_GROUPS = 20
_AT_ONCE = 500
_HEADS = ("transactions/s", "statements/s", "rows/s", "log kB/s", "CPU ms/s")


class Server:
    """A PostgreSQL that counts, with room for so many connections."""

    def __init__(self, connections: int) -> None:
        counts = (binaries().parent / "lib" / "pg_stat_statements.so").exists()
        preload = ["shared_preload_libraries=pg_stat_statements"] if counts else []
        self.server = Postgres(["shared_buffers=256MB", *preload], connections=connections)
        self.url = self.server.made()
        self._counts = counts
        self._link = psycopg.connect(self.url, autocommit=True)
        self.use(self.url)

    def use(self, url: str) -> None:
        """Count what is asked of this database from now on."""
        self._link.close()
        self._link = psycopg.connect(url, autocommit=True)
        if self._counts:
            self._link.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")

    def _one(self, query: str) -> Any:
        (found,) = self._link.execute(query.encode()).fetchone() or (0,)
        return found

    def cpu(self) -> float:
        """Seconds of all its processes, those included that have ended."""
        first = psutil.Process(self.server.pid)
        times = first.cpu_times()
        spent = times.user + times.system + times.children_user + times.children_system
        for one in first.children():
            try:
                its = one.cpu_times()
            except psutil.NoSuchProcess:
                continue
            spent += its.user + its.system
        return float(spent)

    def memory(self) -> float:
        """MB that its processes have for themselves."""
        first = psutil.Process(self.server.pid)
        return sum(one.memory_full_info().uss for one in (first, *first.children())) / 1e6

    def counted(self) -> list[float]:
        """Since it began, in the order of ``_HEADS``."""
        self._link.execute("SELECT pg_stat_force_next_flush()")
        transactions, rows = self._link.execute(
            "SELECT xact_commit + xact_rollback, tup_returned + tup_fetched FROM pg_stat_database "
            "WHERE datname = current_database()"
        ).fetchone() or (0, 0)
        statements = self._one("SELECT sum(calls) FROM pg_stat_statements") if self._counts else 0
        written = self._one("SELECT pg_current_wal_lsn() - '0/0'")
        return [float(transactions), float(statements or 0), float(rows), float(written) / 1e3, self.cpu() * 1e3]

    def measured(self, seconds: float) -> list[float]:
        """A second's, of the next ``seconds``."""
        before, began = self.counted(), time.monotonic()
        time.sleep(seconds)
        after, took = self.counted(), time.monotonic() - began
        return [(now - then) / took for now, then in zip(after, before, strict=True)]

    def statements(self, seconds: float, most: int = 12) -> list[tuple[float, float, str]]:
        """(calls a second, ms of the server a second, text) of what takes most of its time in ``seconds``."""
        if not self._counts:
            return []
        self._link.execute("SELECT pg_stat_statements_reset()")
        time.sleep(seconds)
        found = self._link.execute(
            "SELECT calls, total_exec_time + total_plan_time, query FROM pg_stat_statements "
            "WHERE query !~ 'pg_stat' ORDER BY 2 DESC LIMIT %s",
            (most,),
        ).fetchall()
        return [(calls / seconds, spent / seconds, " ".join(text.split())[:110]) for calls, spent, text in found]

    def close(self) -> None:
        """Stop it."""
        self._link.close()
        self.server.close()


def line(cells: Iterable[object]) -> str:
    """A row of a table."""
    return "| " + " | ".join(f"{one:,.1f}" if isinstance(one, float) else str(one) for one in cells) + " |"


def head(cells: Sequence[str]) -> str:
    """The head of a table."""
    return f"{line(cells)}\n{'|---' * len(cells)}|"


# --- real nodes -------------------------------------------------------------------------------------------------------


def make_topics(node: NodeProcess, first: int, end: int) -> None:
    """Topics of one partition, many in a request."""
    admin = AdminClient({"bootstrap.servers": node.kafka})
    for start in range(first, end, _AT_ONCE):
        wanted = [NewTopic(f"topic-{n}", 1, 1) for n in range(start, min(end, start + _AT_ONCE))]
        for made in admin.create_topics(wanted, operation_timeout=60, request_timeout=120).values():
            made.result()


@contextmanager
def busy(nodes: Sequence[NodeProcess]) -> Iterator[None]:
    """While groups commit and topics change, as often as the simulated members do it."""
    code = "import sys; from benchmarks.cluster_database import keep_busy; keep_busy(sys.argv[1], float(sys.argv[2]))"
    command = [sys.executable, "-c", code, ",".join(node.kafka for node in nodes), str(len(nodes))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()


def keep_busy(bootstrap: str, nodes: float) -> None:
    """Commit and change without an end; a line is said when the groups have their coordinators."""
    readers = [Consumer({"bootstrap.servers": bootstrap, "group.id": f"readers-{n}"}) for n in range(_GROUPS)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for reader in readers:
        reader.commit(offsets=[TopicPartition("topic-0", 0, 0)], asynchronous=False)
    print("busy", flush=True)
    every = 1 / (_COMMITS * nodes)
    began, count = time.monotonic(), 0
    while True:
        count += 1
        place = TopicPartition(f"topic-{count % 7}", 0, count)
        readers[count % _GROUPS].commit(offsets=[place], asynchronous=True)
        readers[count % _GROUPS].poll(0)
        if count % int(_COMMITS / _CHANGES) == 0:
            entry = ConfigEntry("retention.ms", f"{100_000 + count}", incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ResourceType.TOPIC, f"topic-{count % 9}", incremental_configs=[entry])
            admin.incremental_alter_configs([resource])
        time.sleep(max(0.0, began + count * every - time.monotonic()))


def real(server: Server, scratch: Path, topics: Sequence[int], seconds: float) -> tuple[str, list[Any]]:
    """What nodes cost it: a table, and the statements of the last rows."""
    lines = [head(("nodes", "topics", "", *_HEADS))]
    told: list[Any] = []
    for count in (1, 3):
        bucket = scratch / f"bucket{count}"
        bucket.mkdir()
        stored = {"sbp.durability": "object", "sbp.objects": f"file://{bucket}", "limits.max_partitions": "200000"}
        url = server.server.made() if count > 1 else server.url
        server.use(url)
        directory = scratch / f"nodes{count}"
        with together(directory, count, url, FRONTS, lambda n: stored | {"sbp.object_log": f"{n}"}) as nodes:  # noqa: B023
            there = 0
            for wanted in topics:
                make_topics(nodes[0], there, wanted)
                there = wanted
                time.sleep(5)  # what follows a creation
                lines.append(line((count, f"{wanted:,}", "idle", *server.measured(seconds))))
                print(lines[-1], flush=True)
                with busy(nodes):
                    lines.append(line((count, f"{wanted:,}", "busy", *server.measured(seconds))))
                    print(lines[-1], flush=True)
                    if wanted == topics[-1]:
                        told.append({"nodes": count, "topics": wanted, "statements": server.statements(seconds)})
    return "\n".join(lines), told


# --- simulated ones ---------------------------------------------------------------------------------------------------


class Members:
    """Simulated ones, in some processes, that have joined."""

    def __init__(self, url: str, count: int, commits: float, changes: float) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        first = 1
        try:
            for number in range(_PROCESSES):
                share = count // _PROCESSES + (number < count % _PROCESSES)
                command = [sys.executable, "-m", "benchmarks.cluster_members", url]
                command += [str(first), str(share), str(commits), str(changes)]
                pipe = subprocess.PIPE
                self._processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
                first += share
            self._answers()
        except BaseException:
            self.end()
            raise

    def _answers(self) -> list[dict[str, Any]]:
        found = []
        for process in self._processes:
            assert process.stdout is not None
            said = process.stdout.readline()
            while said and not said.startswith("{"):
                said = process.stdout.readline()  # of its log
            if not said:
                raise RuntimeError("simulated members have ended")
            found.append(json.loads(said))
        return found

    def measured(self, server: Server, seconds: float) -> tuple[list[float], list[dict[str, Any]]]:
        """What the server counted a second, and what the members say, of the next ``seconds``."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"measure {seconds}\n")
            process.stdin.flush()
        counted = server.measured(seconds)
        return counted, self._answers()

    def end(self) -> None:
        """At once: a database is for one step."""
        for process in self._processes:
            process.kill()
            process.wait()


def simulated(server: Server, steps: Sequence[int], seconds: float) -> tuple[str, list[Any]]:
    """A table of steps, until heartbeats come late."""
    heads = ("nodes", "", "connections", *_HEADS, "CPU ms/s a node", "server MB", "members' CPU ms/s")
    lines = [head((*heads, "heartbeat p50 ms", "p99 ms", "longest ms", "commit p99 ms", "ended"))]
    told: list[Any] = []
    late = False
    for count in steps:
        for kind, rates in (("idle", (0.0, 0.0)), ("busy", (_COMMITS, _CHANGES))):
            url = server.server.made()
            server.use(url)
            began = time.monotonic()
            members = Members(url, count, *rates)
            try:
                joined = time.monotonic() - began
                time.sleep(10)  # slots find their owners
                counted, said = members.measured(server, seconds)
                memory = server.memory()
                told.append({"nodes": count, "kind": kind, "statements": server.statements(seconds / 2)})
            finally:
                members.end()
            beats = sorted(took for one in said for took in one["beats"])
            commits = sorted(took for one in said for took in one["commits"])
            ended = sum(one["ended"] for one in said)
            cpu = sum(one["cpu"] for one in said) * 1e3
            told[-1] |= {"joined_s": joined, "failed": sum(one["failed"] for one in said)}
            cells = [count, kind, count * _CONNECTIONS, *counted, counted[-1] / count, memory, cpu]
            cells += [1e3 * one for one in (statistics.median(beats), at(beats, 0.99), beats[-1])]
            lines.append(line((*cells, 1e3 * at(commits, 0.99) if commits else "-", ended)))
            print(lines[-1], flush=True)
            expected = count * seconds / PATIENCE.heartbeat
            late = late or at(beats, 0.99) > PATIENCE.heartbeat or len(beats) < 0.8 * expected or ended > 0
        if late:
            break
    return "\n".join(lines), told


def at(took: Sequence[float], share: float) -> float:
    """A percentile of what is sorted."""
    return took[min(len(took) - 1, int(len(took) * share))]


def measure(data: Path, *, quick: bool) -> tuple[str, dict[str, Any]]:
    """Both parts: Markdown, and what goes beside it as JSON."""
    seconds = 4.0 if quick else 20.0
    topics = (10, 100) if quick else (10, 1_000, 10_000)
    steps = (3, 10) if quick else (3, 10, 30, 100, 200, 300)
    server = Server(connections=_CONNECTIONS * max(steps) + 50)
    try:
        with tempfile.TemporaryDirectory(dir=data) as scratch:
            found, statements = real(server, Path(scratch), topics, seconds)
        table, steps_told = simulated(server, steps, seconds)
    finally:
        server.close()
    text = f"Real nodes, what they ask of PostgreSQL a second:\n\n{found}\n\nSimulated members:\n\n{table}\n"
    return text, {"real": statements, "simulated": steps_told, "processors": os.cpu_count()}
