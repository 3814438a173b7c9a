"""Nodes with very many partitions: `python -m benchmarks.cluster --partitions 100000`.

One node on its disk, and three over a real PostgreSQL and a directory of objects: how long it takes to make the
partitions by Kafka's CreateTopics, what the nodes need at rest with them (CPU, memory, requests to the store and to the
database, stalls of the event loop), the same once each was written to and while a thousand records a second come, how
long a start takes, and how long after ``kill -9`` of a node the partitions take records again.

On a machine with fewer processors than processes a stall may be none of the node's: beside the stalls stands how long
the nodes' main threads were ready to run and had no processor.
"""

from __future__ import annotations

import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import inf
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.cluster_database import Server, head, line
from benchmarks.probe import first_metadata
from tests.cluster.together import together
from tests.node_process import FRONTS, NodeProcess

_PARTITIONS_OF_TOPIC = 100
_TOPICS_AT_ONCE = 20
_PROBED = 200
"""Partitions that are written to after a kill."""
_SETTLES_S = 5.0
_LATE_S = 0.005
_LOAD = 1000
"""Records a second, to as many partitions in turns: of few topics, since a producer asks for all that there is of each
topic every few seconds."""
_OF_PRODUCER = 10_000
"""Partitions that one producer writes to: librdkafka asks for all that it knows of with each doubt about one."""

Row = dict[str, Any]


def metrics_of(node: NodeProcess) -> str:
    """What a node tells of itself."""
    with urllib.request.urlopen(f"{node.console}/metrics", timeout=60) as answer:
        return str(answer.read(), "utf-8")


def scraped(node: NodeProcess) -> dict[str, float]:
    """A node's metrics, those with labels added up."""
    text = metrics_of(node)
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


class Stalls:
    """Beats of the event loop that came later than 5 ms, of all nodes, and the longest, since the last look; and how
    long their main threads have waited for a processor meanwhile, which makes beats late, too."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[dict[float, float], float, float]] = {}

    def look(self, nodes: Sequence[NodeProcess]) -> tuple[float, str, float]:
        """Since this was called before: late beats, the longest in ms (what it was below, where an earlier one was
        longer), seconds of waiting."""
        late = waited = longest = 0.0
        told = "0"
        for node in nodes:
            with urllib.request.urlopen(f"{node.console}/metrics", timeout=60) as answer:
                text = answer.read().decode()
            below: dict[float, float] = {}
            most = 0.0
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.name == "anabranch_loop_stall_seconds_bucket":
                        below[float(sample.labels["le"])] = sample.value
                    elif sample.name == "anabranch_loop_stall_longest_seconds":
                        most = sample.value
            queued = waited_for_processor(node.pid)
            before, former, then = self._before.get(node.pid, ({}, 0.0, 0.0))
            new = {bound: value - before.get(bound, 0.0) for bound, value in below.items()}
            late += new[inf] - new[_LATE_S]
            waited += queued - then
            bound = min((bound for bound, value in new.items() if value == new[inf]), default=inf)
            if most > former:
                bound, text = most, f"{most * 1e3:,.1f}"
            else:
                text = f"< {bound * 1e3:,.0f}"
            if bound > longest:
                longest, told = bound, text
            self._before[node.pid] = (below, most, queued)
        return late, told, waited


def waited_for_processor(pid: int) -> float:
    """Seconds for which a process's main thread was ready to run and did not."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


class Watched:
    """Nodes, what they say of themselves, and the rows that were measured."""

    def __init__(self, name: str, nodes: Sequence[NodeProcess], server: Server | None) -> None:
        self.name = name
        self.nodes = nodes
        self.rows: list[Row] = []
        self._server = server
        self._stalls = Stalls()

    def done(self, what: str, seconds: float, nodes: Sequence[NodeProcess] | None = None) -> None:
        """Something that took so long."""
        alive = self.nodes if nodes is None else nodes
        late, longest, waited = self._stalls.look(alive)
        memory = sum(psutil.Process(node.pid).memory_info().rss for node in alive) / len(alive) / 1e6
        found = {"what": what, "seconds": seconds, "memory": memory, "late": late, "longest": longest, "waited": waited}
        self._tell(found)

    def watch(self, what: str, seconds: float) -> None:
        """What they do meanwhile: nothing, if nobody asks for anything."""
        time.sleep(_SETTLES_S)
        self._stalls.look(self.nodes)
        processes = [psutil.Process(node.pid) for node in self.nodes]
        asked = time.monotonic()
        before = [scraped(node) for node in self.nodes]
        # A scrape of very many partitions is work itself.
        cpu = [sum(one.cpu_times()[:2]) for one in processes]
        counted: list[float] = []
        if self._server is None:
            time.sleep(seconds)
        else:
            counted = self._server.measured(seconds)
        spent = sum(sum(one.cpu_times()[:2]) for one in processes) - sum(cpu)
        between = time.monotonic() - asked  # the nodes are asked in the same order, and take as long for it
        after = [scraped(node) for node in self.nodes]
        late, longest, waited = self._stalls.look(self.nodes)
        memory = sum(one.memory_info().rss for one in processes) / len(processes) / 1e6

        def rate(metric: str) -> float:
            return (
                sum(now.get(metric, 0.0) - was.get(metric, 0.0) for was, now in zip(before, after, strict=True))
                / between
            )

        found = {
            "what": what,
            "memory": memory,
            "late": late,
            "longest": longest,
            "waited": waited,
            "cpu": 1e3 * spent / seconds / len(processes),
            "store": rate("anabranch_objects_requests_total"),
            "closures": rate("anabranch_database_closures_total"),
        }
        if counted:
            found |= {"transactions": counted[0], "rows": counted[2]}
        self._tell(found)

    def _tell(self, row: Row) -> None:
        self.rows.append(row)
        print(line([self.name, *(row.get(key, "") for key in KEYS)]), flush=True)


KEYS = ("what", "seconds", "memory", "late", "longest", "waited", "cpu", "store", "closures", "transactions", "rows")
HEADS = (
    "nodes",
    "",
    "s",
    "memory MB a node",
    "beats > 5 ms late",
    "longest ms",
    "main threads without a processor s",
    "CPU ms/s a node",
    "store requests/s",
    "closures/s",
    "PostgreSQL transactions/s",
    "its rows/s",
)


def make(node: NodeProcess, partitions: int) -> None:
    """Topics with a hundred partitions each, twenty topics in a request."""
    admin = AdminClient({"bootstrap.servers": node.kafka})
    topics = [NewTopic(f"t{n}", _PARTITIONS_OF_TOPIC, 1) for n in range(partitions // _PARTITIONS_OF_TOPIC)]
    for start in range(0, len(topics), _TOPICS_AT_ONCE):
        futures = admin.create_topics(
            topics[start : start + _TOPICS_AT_ONCE], operation_timeout=300, request_timeout=300
        )
        for made in futures.values():
            made.result()


def write(nodes: Sequence[NodeProcess], places: Sequence[tuple[str, int]], seconds: float) -> float:
    """A record to each of these partitions, acknowledged; seconds until the last was."""
    failed: list[str] = []

    def told(error: object, _: object) -> None:
        if error is not None:
            failed.append(str(error))

    began = time.monotonic()
    for start in range(0, len(places), _OF_PRODUCER):
        some = places[start : start + _OF_PRODUCER]
        producer = _producer(nodes, len(some), seconds)
        for topic, partition in some:
            producer.produce(topic, b"value", partition=partition, on_delivery=told)
            producer.poll(0)
        left = producer.flush(seconds)
        if left or failed:
            raise RuntimeError(f"{left} records without an answer, {len(failed)} failed: {failed[:1]}")
    return time.monotonic() - began


def _producer(nodes: Sequence[NodeProcess], most: int, seconds: float) -> Producer:
    return Producer(
        {
            "bootstrap.servers": ",".join(node.kafka for node in nodes),
            "queue.buffering.max.messages": most + 1000,
            "linger.ms": 20,
            "delivery.timeout.ms": int(seconds * 1000),
            "topic.metadata.refresh.interval.ms": 5000,
        }
    )


@contextmanager
def loaded(nodes: Sequence[NodeProcess], places: Sequence[tuple[str, int]]) -> Iterator[None]:
    """While so many records a second are written to these partitions in turns. Raises RuntimeError when one was not."""
    ended = threading.Event()
    failed: list[str] = []
    producer = _producer(nodes, 100 * _LOAD, 60)

    def told(error: object, _: object) -> None:
        if error is not None:
            failed.append(str(error))

    def produce() -> None:
        began, count = time.monotonic(), 0
        while not ended.wait(0.02):
            while count < (time.monotonic() - began) * _LOAD:
                topic, partition = places[count % len(places)]
                producer.produce(topic, b"value" * 20, partition=partition, on_delivery=told)
                count += 1
            producer.poll(0)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        left = producer.flush(60)
    if left or failed:
        raise RuntimeError(f"{left} records without an answer, {len(failed)} failed: {failed[:1]}")


def run(watched: Watched, partitions: int, seconds: float) -> None:
    """All of it, on nodes that were just started."""
    nodes = watched.nodes
    places = [(f"t{n}", p) for n in range(partitions // _PARTITIONS_OF_TOPIC) for p in range(_PARTITIONS_OF_TOPIC)]
    watched.done("started empty", 0.0)
    began = time.monotonic()
    make(nodes[0], partitions)
    watched.done("made", time.monotonic() - began)
    watched.watch("idle, none open", seconds)
    began = time.monotonic()
    AdminClient({"bootstrap.servers": nodes[-1].kafka}).list_topics(timeout=120)
    watched.done("metadata of all", time.monotonic() - began)
    watched.done("a record to each", write(nodes, places, 1200))
    watched.watch("idle, all open", seconds)
    with loaded(nodes, places[:_LOAD]):
        watched.watch(f"{_LOAD} records/s", seconds)
    probed = places[:: max(1, len(places) // _PROBED)]
    watched.done(f"a record to {len(probed)}", write(nodes, probed, 120))
    if len(nodes) > 1:
        nodes[-1].kill()
        watched.done(f"after a kill, a record to {len(probed)}", write(nodes[:-1], probed, 300), nodes[:-1])
        began = time.monotonic()
        nodes[-1].start()
        watched.done("that node back", time.monotonic() - began)
        watched.done(f"a record to {len(probed)} then", write(nodes, probed, 300))
    for node in nodes:
        node.terminate(600)
    began = time.monotonic()
    for node in nodes:
        node.launch()
    answered = first_metadata(nodes[0].port, began, 600)
    for node in nodes:
        node.await_ready()
    watched.done(f"all started again (first metadata after {answered:.1f} s)", time.monotonic() - began)
    watched.done(f"a record to {len(probed)} then", write(nodes, probed, 300))


def measure(data: Path, partitions: int, which: Sequence[str], *, quick: bool) -> tuple[str, dict[str, Any]]:
    """Markdown, and what goes beside it as JSON."""
    seconds = 5.0 if quick else 20.0
    lines = [head(HEADS)]
    told: dict[str, Any] = {}
    print(lines[0])
    chosen: dict[str, Callable[[ExitStack, Path], Watched]] = {"1": _alone, "3": _cluster}
    for name in which:
        with tempfile.TemporaryDirectory(dir=data) as scratch, ExitStack() as stack:
            watched = chosen[name](stack, Path(scratch))
            run(watched, partitions, seconds)
        lines += [line([name, *(row.get(key, "") for key in KEYS)]) for row in watched.rows]
        told[name] = watched.rows
    return f"{partitions:,} partitions:\n\n" + "\n".join(lines) + "\n", told


def _alone(stack: ExitStack, scratch: Path) -> Watched:
    node = NodeProcess(scratch / "node", listen=dict.fromkeys(FRONTS, "127.0.0.1:0"), start_seconds=600)
    stack.callback(node.stop)
    node.start()
    return Watched("1", [node], None)


def _cluster(stack: ExitStack, scratch: Path) -> Watched:
    server = Server(60)
    stack.callback(server.close)
    bucket = scratch / "bucket"
    bucket.mkdir()
    stored = {"sbp.durability": "object", "sbp.objects": f"file://{bucket}"}
    made = together(scratch, 3, server.url, FRONTS, lambda n: stored | {"sbp.object_log": f"{n}"})
    nodes = stack.enter_context(made)
    for node in nodes:
        node.start_seconds = 600
    return Watched("3", nodes, server)
