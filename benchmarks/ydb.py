"""StreamWrite and StreamRead beside a bare gRPC server: `python -m benchmarks.ydb [--quick]`, or `make bench-ydb`.

Messages of 1 KB, 1 to 1000 in a request, in one stream and in four, sent by a raw gRPC client whose requests are made
beforehand and by YDB's SDK for Python. The bare server only parses and acknowledges (benchmarks/ydb_bare.py): what it
does is what gRPC in this language allows. Servers take turns within each round; the client has one process, the server
another.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from benchmarks.probe import Machine, on_machine
from benchmarks.ydb_load import MESSAGE_BYTES, Raw, Sdk, requests_of
from tests.node_process import ANY, NodeProcess

ROOT = Path(__file__).resolve().parent.parent
BARE = "bare"
BATCHES = (1, 10, 100, 1000)
STREAMS = (1, 4)
#: Messages of a run, by messages in a request.
LOAD = {1: 6_000, 10: 30_000, 100: 100_000, 1000: 200_000}
SDK_LOAD = {1: 6_000, 10: 30_000, 100: 60_000, 1000: 100_000}


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement: messages a second, and CPU of the server for each of them."""

    what: str
    client: str
    batch: int
    streams: int
    server: str
    messages_per_s: float
    cpu_us: float

    @property
    def place(self) -> tuple[str, str, int, int]:
        return self.what, self.client, self.batch, self.streams


@dataclass(slots=True)
class Target:
    """A server under test."""

    name: str
    address: str
    pid: int

    def cpu(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)


@contextmanager
def bare() -> Iterator[Target]:
    command = [sys.executable, "-m", "benchmarks.ydb_bare"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield Target(BARE, f"127.0.0.1:{int(process.stdout.readline())}", process.pid)
    finally:
        process.stdin.close()
        process.wait(30)


@contextmanager
def node(directory: Path, durability: str) -> Iterator[Target]:
    listen = {"kafka": "off", "console": "off", "sbp-pd": "off", "sbp-range-server": "off", "ydb": ANY}
    with NodeProcess(directory / durability, settings={"sbp.durability": durability}, listen=listen) as server:
        yield Target(f"anabranch-{durability}", server.ydb, server.pid)


class Bench:
    """Runs one thing after the other, each in a topic of its own."""

    def __init__(self, scale: float, name: str) -> None:
        self._scale = scale
        self._name = name
        self._topics = 0
        self._requests: dict[tuple[int, int], list[bytes]] = {}

    def _made(self, batch: int, number: int) -> list[bytes]:
        found = self._requests.get((batch, number))
        if found is None:
            self._requests.clear()  # they are large
            found = self._requests[batch, number] = requests_of(batch, number)
        return found

    async def run(self, target: Target, client: str, batch: int, streams: int) -> list[Run]:
        """Write to one server, and read it again."""
        load = LOAD if client == "raw" else SDK_LOAD
        calls = max(2, int(load[batch] * self._scale) // batch // streams)
        messages = calls * batch * streams
        self._topics += 1
        path = f"{self._name}-{self._topics}"
        # What the bare server sends in a response is said by the consumer's name; a node makes its own.
        consumer = str(max(batch, 100))
        raw, sdk = Raw(target.address), Sdk(target.address)
        try:
            if target.name != BARE:
                await raw.create(path, streams, consumer)
            if client == "sdk":
                await sdk.open()
            requests = self._made(batch, calls) if client == "raw" else []
            if client == "raw":
                writes = [raw.write(path, number, requests, f"p{number}") for number in range(streams)]
                reads = [raw.read(path, number, consumer, calls * batch) for number in range(streams)]
            else:
                writes = [sdk.write(path, number, batch, calls) for number in range(streams)]
                reads = [sdk.read(path, number, consumer, calls * batch) for number in range(streams)]
            found = []
            for what, works in (("write", writes), ("read", reads)):
                cpu, began = target.cpu(), time.perf_counter()
                await asyncio.gather(*works)
                lasted = time.perf_counter() - began
                used = (target.cpu() - cpu) / messages * 1e6
                found.append(Run(what, client, batch, streams, target.name, messages / lasted, used))
            return found
        finally:
            await raw.close()
            await sdk.close()


def table(runs: list[Run], names: list[str]) -> str:
    """Medians; what share of the bare server's they are; microseconds of the server's CPU for a message."""
    shares = [f"{name} / bare" for name in names[1:]]
    head = ["", "client", "messages in a request", "streams", *names, *shares, *(f"CPU {name}" for name in names)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for place in dict.fromkeys(run.place for run in runs):
        found = {name: [run for run in runs if (run.place, run.server) == (place, name)] for name in names}
        speed = {name: statistics.median(run.messages_per_s for run in those) for name, those in found.items()}
        cells = [*map(str, place), *(f"{speed[name]:,.0f}" for name in names)]
        cells += [f"{speed[name] / speed[BARE]:.0%}" for name in names[1:]]
        cells += [f"{statistics.median(run.cpu_us for run in found[name]):.1f}" for name in names]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


async def measure(targets: list[Target], rounds: int, scale: float, clients: list[str]) -> list[Run]:
    """Everything, the servers taking turns."""
    bench = Bench(scale, "bench")
    runs: list[Run] = []
    for target in targets:
        await Bench(0.1, "warm").run(target, "raw", 100, 1)  # modules imported, caches warm
    for client in clients:
        for batch in BATCHES:
            for streams in STREAMS:
                for number in range(rounds):
                    for target in targets if number % 2 == 0 else reversed(targets):
                        for run in await bench.run(target, client, batch, streams):
                            runs.append(run)
                            cells = f"{run.what:5} {client} {batch:4} x {streams} {target.name}"
                            print(f"{run.messages_per_s:12,.0f}/s {run.cpu_us:8.2f} us  {cells}", flush=True)
    return runs


def main() -> int:
    """Run; writes JSON and Markdown, prints the Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ydb", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load, one round: only whether it works")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of every measurement (default 3, quick: 1)")
    parser.add_argument("--clients", default="raw,sdk", help="of raw, sdk")
    parser.add_argument("--durability", default="fsync,os", help="of fsync, os")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "bench-ydb", help="directory on the disk")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench-ydb-results")
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    args.output.mkdir(parents=True, exist_ok=True)
    rounds = args.rounds or (1 if args.quick else 3)
    host = Machine.at(args.data)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=args.data)))
        targets = [stack.enter_context(bare())]
        targets += [stack.enter_context(node(scratch, durability)) for durability in args.durability.split(",")]
        runs = asyncio.run(measure(targets, rounds, 0.1 if args.quick else 1.0, args.clients.split(",")))
    names = [target.name for target in targets]
    about = host.measured()
    text = f"{on_machine(about)}\n\n"
    text += f"Messages of {MESSAGE_BYTES} bytes a second, medians of {rounds}.\n\n{table(runs, names)}\n"
    stem = args.output / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    facts = {"machine": about, "runs": [asdict(run) for run in runs]}
    stem.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)
    print(f"\n{text}\nwritten: {stem}.json and .md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
