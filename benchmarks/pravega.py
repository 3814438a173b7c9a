"""Pravega's clients against a node and a real Pravega: `python -m benchmarks.pravega [--quick]`, or
`make bench-pravega`.

Events of 100 B, 1 KB and 100 KB, in streams of one segment and of four, by the PyPI wheel and by the Java client:
written with many on their way, written one at a time (how long an acknowledgement takes), read by a reader group.
Servers take turns within each round, and all share the machine's cores with the clients.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import psutil
from pravega_client import StreamManager

from benchmarks.pravega_load import SCOPE, Load, Wheel, java
from benchmarks.pravega_standalone import PravegaStandalone
from benchmarks.probe import Machine, Watch, on_machine
from tests.node_process import ANY, NodeProcess

ROOT = Path(__file__).resolve().parent.parent
PRAVEGA = "pravega"
PROMISES = {
    "anabranch-fsync": "power loss: flushed before acknowledged",
    "anabranch-os": "death of the process, not power loss",
    PRAVEGA: "nothing: a standalone Pravega 0.13.0 keeps its log in memory (heap of 1.5 GB)",
}
"""What an acknowledgement survives."""
SIZES = (100, 1_000, 100_000)
SEGMENTS = (1, 4)
#: Events of a run, and events that are written one at a time, by their size.
LOAD = {100: 60_000, 1_000: 40_000, 100_000: 1_000}
ACKS = {100: 300, 1_000: 300, 100_000: 100}


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement: events a second, acknowledgements' times in ms, CPU of the server for an event of either way,
    and its peak of resident memory in MB."""

    client: str
    size: int
    segments: int
    server: str
    written_per_s: float
    read_per_s: float
    ack_p50_ms: float
    ack_p99_ms: float
    write_cpu_us: float
    read_cpu_us: float
    rss_mb: float

    @property
    def place(self) -> tuple[str, int, int]:
        return self.client, self.size, self.segments


@dataclass(frozen=True, slots=True)
class Target:
    """A server that serves: its name, the controller's ``host:port``, its process."""

    name: str
    controller: str
    pid: int


def target(name: str, directory: Path, stack: ExitStack) -> Target:
    """Start a server, until the stack ends."""
    if name == PRAVEGA:
        server = stack.enter_context(PravegaStandalone(directory / name))
        return Target(name, server.bootstrap, server.pid)
    listen = {"kafka": "off", "console": "off", "sbp-pd": "off", "sbp-range-server": "off"}
    listen |= {"pravega": ANY, "pravega-segmentstore": ANY}
    settings = {"sbp.durability": name.removeprefix("anabranch-")}
    node = stack.enter_context(NodeProcess(directory / name, settings=settings, listen=listen))
    return Target(name, node.addresses["pravega"], node.pid)


class Bench:
    """Runs one thing after the other, each in a stream of its own, which is deleted afterwards."""

    def __init__(self, scale: float, name: str) -> None:
        self._scale = scale
        self._name = name
        self._streams = 0

    def run(self, server: Target, name: str, load: Load, size: int, segments: int) -> Run:
        """Write to one server, wait for acknowledgements, and read it again."""
        self._streams += 1
        stream = f"{self._name}-{self._streams}"
        count = max(10, int(LOAD[size] * self._scale))
        streams = StreamManager(f"tcp://{server.controller}")
        streams.create_scope(SCOPE)
        streams.create_stream(SCOPE, stream, segments)
        os.sync()  # bytes that an earlier run left unwritten are not paid for by this one
        with Watch(server.pid) as writing:
            wrote = load.write(server.controller, stream, size, count)
        with Watch(server.pid) as reading:
            read = load.read(server.controller, stream, f"group-of-{stream}", count)
        times = sorted(load.acks(server.controller, stream, size, max(10, int(ACKS[size] * self._scale))))
        streams.seal_stream(SCOPE, stream)
        streams.delete_stream(SCOPE, stream)
        return Run(
            client=name,
            size=size,
            segments=segments,
            server=server.name,
            written_per_s=count / wrote,
            read_per_s=read,
            ack_p50_ms=statistics.median(times) * 1e3,
            ack_p99_ms=times[int(len(times) * 0.99)] * 1e3,
            write_cpu_us=writing.usage.cpu_seconds / count * 1e6,
            read_cpu_us=reading.usage.cpu_seconds / count * 1e6,
            rss_mb=max(writing.usage.peak_rss, reading.usage.peak_rss) / 1e6,
        )


METRICS = {
    "written_per_s": ("written/s", ",.0f"),
    "read_per_s": ("read/s", ",.0f"),
    "ack_p50_ms": ("ack p50 ms", ".2f"),
    "ack_p99_ms": ("ack p99 ms", ".2f"),
    "write_cpu_us": ("server's CPU for an event written, us", ",.0f"),
    "read_cpu_us": ("server's CPU for an event read, us", ",.0f"),
    "rss_mb": ("peak of resident memory, MB", ",.0f"),
}


def tables(runs: Sequence[Run], names: Sequence[str]) -> str:
    """Medians, a table for each metric."""
    lines: list[str] = []
    for metric, (title, form) in METRICS.items():
        head = ["client", "bytes", "segments", *names]
        lines += [f"## {title}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for place in dict.fromkeys(run.place for run in runs):
            found = [
                [getattr(run, metric) for run in runs if (run.place, run.server) == (place, name)] for name in names
            ]
            cells = [*map(str, place), *(format(statistics.median(those), form) for those in found)]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


@contextmanager
def serving(names: Sequence[str], data: Path) -> Iterator[list[Target]]:
    """The servers, started anew in a directory that goes with them."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=data)))
        yield [target(name, scratch, stack) for name in names]


def resting(names: Sequence[str], data: Path) -> dict[str, float]:
    """Resident memory of each server that has done nothing, in MB."""
    with serving(names, data) as servers:
        return {server.name: psutil.Process(server.pid).memory_info().rss / 1e6 for server in servers}


def measure(names: Sequence[str], loads: dict[str, Load], rounds: int, scale: float, data: Path) -> list[Run]:
    """Everything, the servers taking turns. They are started anew for each kind of load: a Pravega that keeps its log
    in memory ends when it has kept too much. Each does a load once before it is measured: Java compiles what runs."""
    runs: list[Run] = []
    warm, bench = Bench(scale, "warm"), Bench(scale, "bench")
    for (name, load), size, segments in product(loads.items(), SIZES, SEGMENTS):
        with serving(names, data) as servers:
            for server in servers:
                warm.run(server, name, load, size, segments)
            for number in range(rounds):
                for server in servers if number % 2 == 0 else reversed(servers):
                    run = bench.run(server, name, load, size, segments)
                    runs.append(run)
                    rates = f"{run.written_per_s:10,.0f}/s {run.read_per_s:10,.0f}/s {run.ack_p50_ms:8.2f} ms"
                    print(f"{rates} {run.rss_mb:6,.0f} MB  {name} {size} x {segments} {server.name}", flush=True)
    return runs


def main() -> int:
    """Run; writes JSON and Markdown, prints the Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pravega", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load, one round: only whether it works")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of every measurement (default 3, quick: 1)")
    parser.add_argument("--clients", default="wheel,java", help="of wheel, java")
    parser.add_argument("--targets", default=",".join(PROMISES), help=f"of {', '.join(PROMISES)}")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "bench-pravega", help="directory on the disk")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench-pravega-results")
    args = parser.parse_args()
    names = args.targets.split(",")
    unknown = [name for name in names if name not in PROMISES]
    if unknown:
        parser.error(f"unknown target {', '.join(unknown)}; there are {', '.join(PROMISES)}")
    args.data.mkdir(parents=True, exist_ok=True)
    args.output.mkdir(parents=True, exist_ok=True)
    rounds = args.rounds or (1 if args.quick else 3)
    host = Machine.at(args.data)
    with ExitStack() as stack:
        idle = resting(names, args.data)
        clients = args.clients.split(",")
        loads: dict[str, Load] = {"wheel": Wheel()} if "wheel" in clients else {}
        if "java" in clients:
            loads["java"] = stack.enter_context(java())
        runs = measure(names, loads, rounds, 0.1 if args.quick else 1.0, args.data)
    about = host.measured()
    text = f"{on_machine(about)}\n\n"
    text += f"Medians of {rounds}. What an acknowledgement survives, and resident memory after the start:\n\n"
    text += "".join(f"* {name}: {PROMISES[name]}; {idle[name]:,.0f} MB\n" for name in names)
    text += f"\n{tables(runs, names)}"
    stem = args.output / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    facts = {"machine": about, "idle_rss_mb": idle, "runs": [asdict(run) for run in runs]}
    stem.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)
    print(f"\n{text}\nwritten: {stem}.json and .md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
