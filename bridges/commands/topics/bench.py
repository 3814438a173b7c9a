"""``anabranch bench``: how many records a node appends and gives, and how long it takes to acknowledge them."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import click

from bridges.commands.client import NodeClient, asks_node, complete_topics, topic_path
from bridges.commands.common import NOTHING, print_table

Work = Callable[[NodeClient, int], Iterator[int]]
"""Work of one connection, by its number: yields the records of each step."""


@click.command("bench")
@click.argument("topic", required=False, shell_complete=complete_topics)
@click.option("--seconds", type=click.FloatRange(0.1), default=5.0, show_default=True, help="Time of each part.")
@click.option("--size", type=click.IntRange(1, 1 << 20), default=1000, show_default=True, help="Bytes of a value.")
@click.option("--batch", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Records of a request.")
@click.option("--connections", type=click.IntRange(1, 256), default=4, show_default=True, help="Requests at a time.")
@asks_node
def command(topic: str | None, seconds: float, size: int, batch: int, connections: int, client: NodeClient) -> None:
    """Append records for some seconds, then read them, through the HTTP interface: a request is over when its records
    are durable. Clients of Kafka, YDB and Pravega are faster, since nothing is JSON there.

    Without TOPIC, the records go to a topic that is deleted afterwards; those in TOPIC stay.
    """
    name = topic or f"bench-{uuid.uuid4().hex[:8]}"
    if topic is None:
        client.call("POST", "/api/topics", {"name": name, "partitions": connections})
    try:
        partitions = len(client.call("GET", topic_path(name))["partitions"])
        lines = [
            (json.dumps({"value": "x" * size, "partition": number % partitions}) + "\n").encode() * batch
            for number in range(connections)
        ]

        def append(own: NodeClient, number: int) -> Iterator[int]:
            while True:
                yield own.upload(topic_path(name, "records"), iter([lines[number]]))["records"]

        def read(own: NodeClient, number: int) -> Iterator[int]:
            path = partial(topic_path, name, "records", offset="earliest")
            for partition in range(number, partitions, connections):
                yield from (1 for _ in own.lines(path(partition=partition)))

        found = [
            _measure(client, part, work, connections, seconds, size)
            for part, work in (("append", append), ("read", read))
        ]
    finally:
        if topic is None:
            client.call("DELETE", topic_path(name))
    client.end_with_json(found)
    heads = ("PART", "RECORDS", "RECORDS/s", "MB/s", "P50-ms", "P99-ms", "MAX-ms")
    print_table([*heads], ([NOTHING if cell is None else cell for cell in row.values()] for row in found))


def _measure(
    client: NodeClient, part: str, work: Work, connections: int, seconds: float, size: int
) -> dict[str, object]:
    """Return a row about work of several connections, ``seconds`` long. Only requests have times."""
    start = time.perf_counter()

    def run(number: int) -> tuple[int, list[float]]:
        own, count, times = client.another(), 0, list[float]()
        at = start
        for records in work(own, number):
            now = time.perf_counter()
            count += records
            if part == "append":
                times.append(1000 * (now - at))
            at = now
            if now - start >= seconds:
                break
        own.close()
        return count, times

    with ThreadPoolExecutor(connections) as threads:
        done = list(threads.map(run, range(connections)))
    took = time.perf_counter() - start
    count = sum(one for one, _ in done)
    times = sorted(each for _, some in done for each in some)

    def share(part: float) -> float | None:
        return round(times[min(len(times) - 1, int(part * len(times)))], 2) if times else None

    return {
        "part": part,
        "records": count,
        "records_per_s": round(count / took),
        "megabytes_per_s": round(count * size / took / 1e6, 2),
        "p50_ms": share(0.5),
        "p99_ms": share(0.99),
        "max_ms": share(1.0),
    }
