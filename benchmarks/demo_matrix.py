"""One topic that three protocols write, a third each, and that each of them, and Spark, reads whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks.demo_fronts import read_pravega, read_ydb, write_pravega, write_ydb
from benchmarks.demo_kafka import read_values, write_confluent
from benchmarks.demo_spark import read_all
from benchmarks.flights import PARTITIONS, DemoFailed, Flight, number_of

Write = Callable[[str, Sequence[Flight]], None]
Read = Callable[[str, int], list[bytes]]


@dataclass(slots=True)
class Matrix:
    """``written``: by writer, records and seconds; ``read``: by reader, seconds, and how many records of each writer
    came back as they were sent."""

    written: dict[str, tuple[int, float]] = field(default_factory=dict)
    read: dict[str, tuple[float, dict[str, int]]] = field(default_factory=dict)


def thirds(flights: Sequence[Flight], writers: Iterable[str]) -> dict[str, Sequence[Flight]]:
    """Like parts of the flights, one after the other."""
    names = list(writers)
    ends = [len(flights) * place // len(names) for place in range(len(names) + 1)]
    return {name: flights[begin:end] for name, begin, end in zip(names, ends, ends[1:], strict=False)}


def same(name: str, parts: Mapping[str, Sequence[Flight]], values: Iterable[bytes]) -> dict[str, int]:
    """How many records of each writer there are, all of them and each once. Raises DemoFailed at a difference."""
    writer_of = {flight.number: writer for writer, part in parts.items() for flight in part}
    found: dict[str, list[bytes]] = {writer: [] for writer in parts}
    for value in values:
        writer = writer_of.get(number_of(value))
        if writer is None:
            raise DemoFailed(f"{name} read what nobody has written: {value[:80]!r}")
        found[writer].append(value)
    for writer, part in parts.items():
        if sorted(found[writer]) != sorted(flight.value for flight in part):
            raise DemoFailed(f"{name} read {len(found[writer])} records of {writer}'s, not the {len(part)} it wrote")
    return {writer: len(some) for writer, some in found.items()}


def run_matrix(
    bootstrap: str, fronts: Mapping[str, str], flights: Sequence[Flight], topic: str, console: Console, *, spark: bool
) -> Matrix:
    """Write and read ``topic``, which is made. Raises DemoFailed, or a client's own error."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    writers: dict[str, Write] = {
        "Kafka": partial(write_confluent, bootstrap),
        "YDB": partial(write_ydb, fronts["ydb"]),
        "Pravega": partial(write_pravega, fronts["pravega"]),
    }
    readers: dict[str, Read] = {
        "Kafka": partial(read_values, bootstrap),
        "YDB": lambda name, count: read_ydb(fronts["ydb"], name, count, lambda message: bytes(message.data)),
        "Pravega": partial(read_pravega, fronts["pravega"]),
    }
    if spark:
        readers["Spark"] = partial(read_all, fronts["pipeline"])
    matrix = Matrix()
    parts = thirds(flights, writers)
    for name, write in writers.items():
        with console.status(f"{name}'s client writes {len(parts[name]):,} flights"):
            began = time.monotonic()
            write(topic, parts[name])
            matrix.written[name] = len(parts[name]), time.monotonic() - began
    for name, read in readers.items():
        with console.status(f"{name} reads {len(flights):,} flights of {len(parts)} protocols"):
            began = time.monotonic()
            values = read(topic, len(flights))
            seconds = time.monotonic() - began
            matrix.read[name] = seconds, same(name, parts, values)
    return matrix


def show_matrix(matrix: Matrix, console: Console) -> None:
    """A row for each writer, a column for each reader."""
    table = Table(title="One topic: written a third through each protocol, read whole through each", show_footer=True)
    total = sum(count for count, _ in matrix.written.values())
    table.add_column("written by", "read at, records/s")
    table.add_column("at, records/s", "", justify="right")
    for name, (seconds, _) in matrix.read.items():
        table.add_column(f"read by {name}", f"{total / seconds:,.0f}", justify="right")
    for name, (count, seconds) in matrix.written.items():
        cells = (f"{counts[name]:,} [green]same[/]" for _, counts in matrix.read.values())
        table.add_row(name, f"{count / seconds:,.0f}", *cells)
    console.print(table)
