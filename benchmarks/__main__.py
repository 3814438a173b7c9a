"""Our node and a real Apache Kafka broker under the same clients, in one run: `python -m benchmarks [--quick]`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import psutil

from benchmarks.kafka_broker import install_jars
from benchmarks.librdkafka import build_driver, install
from benchmarks.probe import Machine, disk_speed, first_metadata
from benchmarks.report import Results, markdown
from benchmarks.targets import TARGETS, Server
from benchmarks.workloads import Bench, RunFailed, Workload, throughput, workloads

ROOT = Path(__file__).resolve().parent.parent


def launch(server: Server) -> dict[str, float]:
    """Start a server; seconds to its first metadata answer and its memory then.

    A first start that is not counted lets both make what they need only once (Kafka formats its storage).
    """
    server.start()
    server.stop()
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(first_metadata, server.port, time.monotonic())
        server.start()
        seconds = answered.result()
    return {"seconds": seconds, "rss_mb": psutil.Process(server.pid).memory_info().rss / 1e6}


def measure(results: Results, benches: dict[str, Bench], chosen: Sequence[Workload], rounds: int) -> None:
    """Every workload in rounds, the targets taking turns; only one of them has load at any time."""
    for workload in chosen:
        for number in range(rounds):
            order = list(benches) if number % 2 == 0 else list(reversed(benches))
            for name in order:
                os.sync()  # bytes that an earlier run left unwritten are not paid for by this one
                try:
                    metrics = workload.run(benches[name])
                except RunFailed as error:
                    # Results are kept, and say nothing of where they were made.
                    told = str(error).replace(f"{ROOT}/", "")
                    results.failures.append(f"{workload.name}, {name}: {told}")
                    print(f"FAILED  {name:16} {workload.name}: {error}", flush=True)
                    continue
                results.add(workload.name, name, metrics)
                value = metrics[workload.headline]
                print(f"{value:12,.1f} {workload.unit:6} {name:16} {workload.name} [{number + 1}/{rounds}]", flush=True)


def main() -> int:
    """Run; writes JSON and Markdown, prints the Markdown. Exit code 1 when any run lost records or failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load, one round: only whether it works")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of every workload (default 3, quick: 1)")
    parser.add_argument(
        "--targets",
        default=",".join(name for name, target in TARGETS.items() if not target.asked_for),
        help=f"of {', '.join(TARGETS)}",
    )
    parser.add_argument(
        "--tree", type=Path, default=None, help="another checkout, whose nodes are before-fsync and -os"
    )
    parser.add_argument("--only", default="", help="regular expression on the names of workloads")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "bench", help="directory on the disk to measure")
    parser.add_argument("--output", type=Path, default=None, help="directory of the results")
    args = parser.parse_args()
    names = [name for name in args.targets.split(",") if name]
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        parser.error(f"unknown target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    if args.tree is None and any(TARGETS[name].kind == "before" for name in names):
        parser.error("nodes of before are those of --tree")
    rounds = args.rounds or (1 if args.quick else 3)
    output = args.output or (ROOT / "build" / "bench-results" if args.quick else ROOT / "benchmarks" / "results")
    chosen = [workload for workload in workloads(quick=args.quick) if re.search(args.only, workload.name)]
    args.data.mkdir(parents=True, exist_ok=True)
    output.mkdir(parents=True, exist_ok=True)
    driver = build_driver(install())
    jars = install_jars()
    host = Machine.at(args.data)
    results = Results(host.facts, disk_speed(args.data), options={"quick": args.quick, "rounds": rounds})
    with tempfile.TemporaryDirectory(dir=args.data) as scratch, contextlib.ExitStack() as stack:
        benches: dict[str, Bench] = {}
        for name in names:
            server = TARGETS[name].server(Path(scratch), args.tree)
            stack.callback(server.stop)
            results.start[name] = launch(server)
            print(f"{results.start[name]['seconds']:12.2f} s      {name:16} start to first metadata", flush=True)
            benches[name] = Bench(driver, jars, server)
            for _ in range(1 if args.quick else 2):  # compiled code, filled caches: what a broker that runs has
                throughput(100, 8, 200_000 if args.quick else 2_000_000)(benches[name])
        measure(results, benches, chosen, rounds)
    results.machine = host.measured()
    text = markdown(results, chosen, names)
    stem = output / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    stem.with_suffix(".json").write_text(json.dumps(results.as_dict(), indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)
    print(f"\n{text}\nwritten: {stem}.json and .md")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
