"""One node as one process and as several workers, under the same clients in one run: `python -m benchmarks.cluster`.
With ``--objects``, a node on its disk beside one, two and three over an S3 server; with ``--database``, how many nodes
one PostgreSQL carries; with ``--partitions N``, nodes that have so many.

On a machine of two cores the clients need one of them, so what it serves says little of more cores. What says more is
the CPU that a gigabyte costs all processes together, beside that of a node by itself: a core serves its reciprocal, and
what workers need beyond a single process is the price of being several.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.librdkafka import build_driver, install
from benchmarks.probe import Machine, on_machine
from benchmarks.targets import TARGETS
from benchmarks.workloads import Bench, Metrics, latency, throughput

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("anabranch-fsync", "workers-2-fsync")
CORES = 16
COLUMNS = (
    ("produce_mb_per_s", "produce MB/s"),
    ("produce_broker_cpu_per_gb", "CPU s/GB"),
    ("consume_mb_per_s", "consume MB/s"),
    ("consume_broker_cpu_per_gb", "CPU s/GB"),
    ("acknowledge_p50_us", "acknowledged p50 us"),
    ("acknowledge_p99_us", "p99 us"),
    ("end_to_end_p99_us", "end to end p99 us"),
    ("produce_broker_peak_rss_mb", "memory MB"),
)


def table(found: dict[str, dict[str, list[Metrics]]]) -> str:
    """Medians, a line for each workload and target, and what they say of more cores."""
    lines = ["| workload | processes | " + " | ".join(head for _, head in COLUMNS) + " |", "|---" * 10 + "|"]
    for workload, targets in found.items():
        for target, rounds in targets.items():
            cells = []
            for metric, _ in COLUMNS:
                values = [one[metric] for one in rounds if metric in one]
                cells.append(f"{statistics.median(values):,.1f}" if values else "-")
            count = TARGETS[target].settings.get("node.workers", "1")
            lines.append(f"| {workload} | {count} | " + " | ".join(cells) + " |")
    lines.append("")
    for workload, targets in found.items():
        for way in ("produce", "consume"):
            costs = [
                statistics.median(one[f"{way}_broker_cpu_per_gb"] for one in rounds)
                for rounds in targets.values()
                if f"{way}_broker_cpu_per_gb" in rounds[0]
            ]
            if len(costs) == len(NAMES):
                one, two = costs
                lines.append(
                    f"{workload}, {way}: two processes cost {two / one:.2f} times the CPU of one; at that price "
                    f"{CORES} cores with clients elsewhere serve {CORES / two:.1f} GB/s, if network and disk do, where "
                    f"one process serves {1 / one:.2f} GB/s at most."
                )
    return "\n".join(lines)


def main() -> int:
    """Run; writes JSON and Markdown, prints the Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load, one round: only whether it works")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of every workload (default 3, quick: 1)")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "bench", help="directory on the disk to measure")
    parser.add_argument("--output", type=Path, default=None, help="directory of the results")
    parser.add_argument("--objects", action="store_true", help="nodes over an S3 server, and nothing else")
    parser.add_argument(
        "--database", action="store_true", help="how many nodes one PostgreSQL carries, and nothing else"
    )
    parser.add_argument("--partitions", type=int, default=0, help="one node and three with so many, and nothing else")
    parser.add_argument("--nodes", default="1,3", help="with --partitions: 1, 3 or both (default)")
    args = parser.parse_args()
    cut = 10 if args.quick else 1
    output = args.output or (ROOT / "build" / "bench-results" if args.quick else ROOT / "benchmarks" / "results")
    args.data.mkdir(parents=True, exist_ok=True)
    output.mkdir(parents=True, exist_ok=True)
    host = Machine.at(args.data)
    if args.database or args.partitions:
        # Each has a PostgreSQL, which the other one does not need.
        from benchmarks import cluster_database, cluster_partitions

        if args.database:
            kind = "cluster-database"
            text, told = cluster_database.measure(args.data, quick=args.quick)
        else:
            kind = "cluster-partitions"
            which = args.nodes.split(",")
            text, told = cluster_partitions.measure(args.data, args.partitions, which, quick=args.quick)
        facts = host.measured()
        write(output, kind, f"{on_machine(facts)}\n\n{text}", {"machine": facts, "found": told})
        return 0
    driver = build_driver(install())
    if args.objects:
        from benchmarks import cluster_objects

        with tempfile.TemporaryDirectory(dir=args.data) as scratch:
            text, rows = cluster_objects.measure(Path(scratch), driver, quick=args.quick)
        facts = host.measured()
        write(output, "cluster-objects", f"{on_machine(facts)}\n\n{text}\n", {"machine": facts, "found": rows})
        return 0
    chosen: dict[str, Callable[[Bench], Metrics]] = {
        "1 KB, 50 partitions": throughput(1000, 50, 600_000 // cut),
        "100 B, 50 partitions": throughput(100, 50, 3_000_000 // cut),
        "latency at 1000/s": latency(1000, 2.0 if args.quick else 10.0),
    }
    found: dict[str, dict[str, list[Metrics]]] = {name: {target: [] for target in NAMES} for name in chosen}
    with tempfile.TemporaryDirectory(dir=args.data) as scratch, ExitStack() as stack:
        benches: dict[str, Bench] = {}
        for target in NAMES:
            server = TARGETS[target].server(Path(scratch))
            stack.callback(server.stop)
            server.start()
            benches[target] = Bench(driver, None, server)
            throughput(100, 8, 1_000_000 // cut)(benches[target])  # filled caches, as of a node that runs
        for workload, run in chosen.items():
            for number in range(args.rounds or (1 if args.quick else 3)):
                for target in NAMES if number % 2 == 0 else NAMES[::-1]:
                    os.sync()
                    found[workload][target].append(run(benches[target]))
    facts = host.measured()
    text = f"{on_machine(facts)}\n\n{table(found)}\n"
    write(output, "cluster", text, {"machine": facts, "rounds": found})
    return 0


def write(output: Path, kind: str, text: str, told: dict[str, object]) -> None:
    """The files of a run, and its Markdown to whoever looks."""
    stem = output / f"{kind}-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}"
    stem.with_suffix(".json").write_text(json.dumps(told, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)
    print(f"{text}\nwritten: {stem}.json and .md")


if __name__ == "__main__":
    sys.exit(main())
