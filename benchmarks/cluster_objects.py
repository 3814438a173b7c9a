"""What object storage costs: `python -m benchmarks.cluster --objects`.

One node on its disk, the same with its log in an S3 server, and one, two and three nodes over that and a PostgreSQL,
under the same clients in one run. Of each: throughput, time until acknowledged, CPU for a gigabyte, of the nodes and of
the store, and what is asked of the store and of the database. The store's own time is measured beside it: objects as
large as the nodes put them at a low rate, one after the other.

The store is a process on the same machine, whose CPU the nodes do not have; in earnest it is elsewhere, and spoken to
with TLS. Here it is not, and so nodes are told what they know by themselves then: that bodies need no SHA-256.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import obstore
import psutil
from obstore.store import from_url
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.cluster_database import Server, head, line
from benchmarks.cluster_partitions import metrics_of
from benchmarks.workloads import Bench, Metrics, latency, throughput
from tests.cluster.together import together
from tests.node_process import NodeProcess
from tests.s3_server import ACCESS, s3_server

BUCKET = "bench"
LINGER_MS = 50.0
"""``sbp.object_linger_ms`` as it comes."""
_PUTS = 200
"""Of the store by itself."""
_RATE = 1000
Row = dict[str, Any]
SHAPES = (("disk", 1), ("store", 1), ("store, database", 1), ("store, database", 2), ("store, database", 3))
"""Where acknowledged records and metadata are, and how many nodes there are."""
COLUMNS = (
    ("where", "acknowledged when in"),
    ("nodes", "nodes"),
    ("workload", "workload"),
    ("produce_mb_per_s", "produce MB/s"),
    ("produce_broker_cpu_per_gb", "CPU s/GB"),
    ("consume_mb_per_s", "consume MB/s"),
    ("consume_broker_cpu_per_gb", "CPU s/GB"),
    ("acknowledge_p50_us", "acknowledged p50 us"),
    ("acknowledge_p99_us", "p99 us"),
    ("puts", "puts a second"),
    ("put_kb", "kB each"),
    ("gets", "gets a second"),
    ("store_cpu", "store CPU s"),
    ("transactions", "database transactions a second"),
)


class Nodes:
    """Nodes as one server under load."""

    def __init__(self, nodes: Sequence[NodeProcess]) -> None:
        self.nodes = nodes

    @property
    def bootstrap(self) -> str:
        """Addresses for Kafka clients."""
        return ",".join(node.bootstrap for node in self.nodes)

    @property
    def pid(self) -> Sequence[int]:
        """Process ids of all of them."""
        return [node.pid for node in self.nodes]

    def asked(self) -> dict[str, float]:
        """What they have asked of the store since they started."""
        found = [_of_store(node) for node in self.nodes]
        return {key: sum(one[key] for one in found) for key in found[0]}


def _of_store(node: NodeProcess) -> dict[str, float]:
    found = dict.fromkeys(("puts", "gets", "bytes"), 0.0)
    for family in text_string_to_metric_families(metrics_of(node)):
        for sample in family.samples:
            operation = sample.labels.get("operation", "")
            if sample.name == "anabranch_objects_requests_total" and f"{operation}s" in found:
                found[f"{operation}s"] += sample.value
            elif sample.name == "anabranch_objects_bytes_total" and operation == "put":
                found["bytes"] += sample.value
    return found


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Has ``values`` in the environment of what is started."""
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


def of_itself(endpoint: str, size: int) -> tuple[float, float]:
    """(p50, p99) in ms of puts of ``size`` bytes, one after the other, to the store that nobody else uses."""
    store = from_url(f"s3://{BUCKET}/alone", endpoint=endpoint, client_options={"allow_http": True})
    body, took = os.urandom(size), []
    for number in range(_PUTS):
        began = time.perf_counter()
        obstore.put(store, f"{number:06}", body, mode="create", use_multipart=False)
        took.append((time.perf_counter() - began) * 1e3)
    cut = statistics.quantiles(took, n=100)
    return cut[49], cut[98]


def measure(data: Path, driver: Path, *, quick: bool) -> tuple[str, list[Row]]:
    """Run all of it in directories below ``data``; the table, and its rows."""
    cut = 10 if quick else 1
    workloads: dict[str, Callable[[Bench], Metrics]] = {
        "1 KB, 50 partitions": throughput(1000, 50, 600_000 // cut),
        "100 B, 50 partitions": throughput(100, 50, 3_000_000 // cut),
        f"{_RATE} a second": latency(_RATE, 2.0 if quick else 10.0),
    }
    rows: list[Row] = []
    with ExitStack() as stack:
        (data / "s3" / BUCKET).mkdir(parents=True)
        endpoint = stack.enter_context(s3_server(data / "s3"))
        stack.enter_context(environment({**ACCESS, "AWS_ENDPOINT_URL": endpoint, "AWS_UNSIGNED_PAYLOAD": "true"}))
        database = Server(100)
        stack.callback(database.close)
        store = _process_of(endpoint)
        for where, count in SHAPES:
            place = data / f"{where.replace(', ', '-')}-{count}"
            place.mkdir()
            with ExitStack() as alive:
                under = alive.enter_context(_started(place, where, count, database))
                bench = Bench(driver, None, under)
                throughput(100, 8, 500_000 // cut)(bench)  # filled caches, as of nodes that run
                for workload, run in workloads.items():
                    row: Row = {"where": where, "nodes": count, "workload": workload}
                    row |= _beside(run, bench, under, store, database if "database" in where else None)
                    rows.append(row)
                    print(line([row.get(key, "") for key, _ in COLUMNS]), flush=True)
        puts = [row for row in rows if row["where"] == "store" and row["workload"].endswith("second")]
        size = int(puts[0]["put_kb"] * 1e3)
        p50, p99 = of_itself(endpoint, size)
    lines = [head([name for _, name in COLUMNS])]
    lines += [line([row.get(key, "") for key, _ in COLUMNS]) for row in rows]
    lines += ["", *_said(rows, size, p50, p99)]
    rows.append({"where": "the store by itself", "put_kb": size / 1e3, "p50_ms": p50, "p99_ms": p99})
    return "\n".join(lines), rows


def _process_of(endpoint: str) -> psutil.Process:
    """The child that listens at ``endpoint``."""
    port = int(endpoint.rpartition(":")[2])
    for child in psutil.Process().children():
        if any(one.laddr.port == port for one in child.net_connections("tcp") if one.status == psutil.CONN_LISTEN):
            return child
    raise RuntimeError(f"nobody listens at {endpoint}")


@contextmanager
def _started(place: Path, where: str, count: int, database: Server) -> Iterator[Nodes]:
    settings = {"sbp.durability": "fsync"}
    if where != "disk":
        settings = {"sbp.durability": "object", "sbp.objects": f"s3://{BUCKET}/{place.name}"}
    if "database" not in where:
        with NodeProcess(place / "data", settings=settings) as node:
            yield Nodes([node])
        return
    url = database.server.made()
    database.use(url)
    with together(
        place, count, url, ("kafka", "console"), lambda number: settings | {"sbp.object_log": f"{number}"}
    ) as nodes:
        yield Nodes(nodes)


def _beside(
    run: Callable[[Bench], Metrics], bench: Bench, under: Nodes, store: psutil.Process, database: Server | None
) -> Row:
    """What one workload found, and what was asked of the store and the database meanwhile."""
    os.sync()
    asked, cpu = under.asked(), sum(store.cpu_times()[:2])
    counted = database.counted() if database else []
    began = time.monotonic()
    row: Row = dict(run(bench))
    took = time.monotonic() - began
    more = {key: value - asked[key] for key, value in under.asked().items()}
    row["puts"], row["gets"] = more["puts"] / took, more["gets"] / took
    row["put_kb"] = more["bytes"] / 1e3 / more["puts"] if more["puts"] else 0.0
    row["store_cpu"] = sum(store.cpu_times()[:2]) - cpu
    if database:
        row["transactions"] = (database.counted()[0] - counted[0]) / took
    return row


def _said(rows: Sequence[Row], size: int, p50: float, p99: float) -> list[str]:
    """What the issue of it is."""
    told = []
    by = {(row["where"], row["nodes"], row["workload"]): row for row in rows}
    for workload in dict.fromkeys(row["workload"] for row in rows):
        disk, there = by["disk", 1, workload], by["store", 1, workload]
        if "produce_mb_per_s" not in disk:
            waits = there["acknowledge_p99_us"] / 1e3
            told.append(
                f"{workload}: acknowledged after {waits:.1f} ms (p99), of {LINGER_MS + 3 * p99:.1f} ms that the linger "
                f"and three times the store's own p99 are: {p50:.1f} and {p99:.1f} ms for {size / 1e3:.0f} kB."
            )
            continue
        rate = there["produce_mb_per_s"] / disk["produce_mb_per_s"]
        cpu = there["produce_broker_cpu_per_gb"] / disk["produce_broker_cpu_per_gb"]
        told.append(
            f"{workload}: with objects {rate:.2f} times what the disk takes, beside the store's own process, at "
            f"{cpu:.2f} times the nodes' CPU a GB: {1 / cpu:.2f} times as much for the same CPU."
        )
    return told
