"""How long a node takes until it answers a Kafka client's Metadata request, and what memory it has then.

    python -m benchmarks.start                           # this tree: each set of listeners, each of them on its own
    python -m benchmarks.start --tree ../other --rounds 9  # in turns with another checkout and its own environment

A start is on a directory that was served once before, so that nothing is made for the first time. Seconds are from the
start of the process to the first answer that names a broker, and until everything is open; CPU seconds are of user and
system up to there; memory is resident (RSS) when everything is open. Medians of all rounds, whose order turns round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.probe import first_metadata
from tests.ports import free_port

ROOT = Path(__file__).resolve().parent.parent
LISTENERS = ("kafka", "console", "sbp-pd", "sbp-range-server", "ydb", "pravega", "pravega-segmentstore", "pipeline")
SETS: dict[str, tuple[str, ...]] = {
    "all": LISTENERS,
    "kafka alone": ("kafka",),
    "kafka, sbp": ("kafka", "sbp-pd", "sbp-range-server"),
    "kafka, console": ("kafka", "console"),
    "kafka, ydb": ("kafka", "ydb"),
    "kafka, pravega": ("kafka", "pravega", "pravega-segmentstore"),
    "kafka, pipeline": ("kafka", "pipeline"),
}


@dataclass(slots=True)
class Measured:
    """Of every start: seconds to the first answer, until all is open, CPU seconds, MB."""

    answered: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    rss: list[float] = field(default_factory=list)

    def row(self) -> str:
        ends = f"{min(self.answered):.2f} to {max(self.answered):.2f}"
        seconds = [f"{statistics.median(one):.2f}" for one in (self.answered, self.ready, self.cpu)]
        return f"| {seconds[0]} ({ends}) | {seconds[1]} | {seconds[2]} | {statistics.median(self.rss):.1f} |"


def start(tree: Path, data: Path, listeners: tuple[str, ...], measured: Measured | None) -> None:
    """One start of the node of ``tree``, and its end."""
    ready = data.with_suffix(".ready")
    ready.unlink(missing_ok=True)
    port = free_port()
    command = [
        str(tree / ".venv/bin/python"),
        "-m",
        "bridges",
        "serve",
        "--data",
        str(data),
        "--ready-file",
        str(ready),
    ]
    for name in LISTENERS:
        address = f"127.0.0.1:{port if name == 'kafka' else free_port()}" if name in listeners else "off"
        command += ["--listen", f"{name}={address}"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with ThreadPoolExecutor(1) as pool, open(data.with_suffix(".log"), "ab") as log:
        began = time.monotonic()
        process = subprocess.Popen(command, cwd=tree, env=environment, stdout=log, stderr=log)
        try:
            answered = pool.submit(first_metadata, port, began)
            while not ready.exists():
                if process.poll() is not None or time.monotonic() - began > 60:
                    raise SystemExit(f"the node did not start: see {log.name}")
                time.sleep(0.002)
            until_ready = time.monotonic() - began
            seconds = answered.result()
            if measured is not None:
                node = psutil.Process(process.pid)
                times = node.cpu_times()
                measured.answered.append(seconds)
                measured.ready.append(until_ready)
                measured.cpu.append(times.user + times.system)
                measured.rss.append(node.memory_info().rss / 1e6)
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__.partition("\n")[0])
    parser.add_argument("--tree", type=Path, action="append", default=[], help="another checkout to take turns with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sets", default=",".join(str(number) for number in range(len(SETS))), help="numbers of sets")
    args = parser.parse_args()
    trees = [ROOT, *(tree.resolve() for tree in args.tree)]
    names = [list(SETS)[int(number)] for number in args.sets.split(",")]
    with tempfile.TemporaryDirectory() as directory:
        places = {
            (tree, name): (Path(directory) / f"{number}-{names.index(name)}", Measured())
            for number, tree in enumerate(trees)
            for name in names
        }
        for (tree, name), (data, _) in places.items():
            start(tree, data, SETS[name], None)
        for number in range(args.rounds):
            for (tree, name), (data, measured) in (list(places.items()))[:: -1 if number % 2 else 1]:
                start(tree, data, SETS[name], measured)
        print("| tree | listeners | first metadata, s | all open, s | CPU, s | RSS, MB |\n|---|---|---|---|---|---|")
        for (tree, name), (_, measured) in sorted(places.items(), key=lambda one: names.index(one[0][1])):
            print(f"| {tree.name} | {name} {measured.row()}")


if __name__ == "__main__":
    main()
