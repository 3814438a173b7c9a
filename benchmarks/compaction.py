"""What compaction costs producers beside it: `python -m benchmarks.compaction [--bytes 10GB --keys 1000000]`.

A topic is filled, each key many times. Then another one is written to at a fixed rate: before anything is compacted,
in windows of the same length while the full one is, and after that. What is compared is how long a producer waits for
an acknowledgement. Compaction is paced (`log.cleaner_bytes_per_second`): a smaller bound takes longer and costs less.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from benchmarks.librdkafka import build_driver, install
from benchmarks.probe import Machine, on_machine
from benchmarks.targets import TARGETS
from benchmarks.workloads import Bench, drive, latency
from bridges.node.settings.quantities import parse_size
from tests.node_process import NodeProcess

ROOT = Path(__file__).resolve().parent.parent
FULL = "compacted"
PARTITIONS = 4
SIZE = 1000
STARTS_S = 60.0
PERCENTILES = ("p50", "p99", "p999", "max")


def told(node: NodeProcess) -> dict[str, float]:
    """What the node says of its compaction, by the end of the metric's name."""
    with urllib.request.urlopen(f"{node.console}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = re.findall(r'^anabranch_compaction_(\w+)(?:\{[^}]*state="(\w+)"[^}]*\})? (\S+)$', text, re.MULTILINE)
    return {state or name: float(value) for name, state, value in found}


def begin(node: NodeProcess, admin: AdminClient) -> None:
    """Have the full topic compacted, and return when it is being."""
    wanted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in wanted.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, FULL, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(30)
    deadline = time.monotonic() + STARTS_S
    while not told(node).get("read_bytes_total"):
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing was compacted in {STARTS_S} s: {told(node)}")
        time.sleep(0.05)


def is_going_on(state: Mapping[str, float]) -> bool:
    """Whether a partition is being compacted, or waits for its turn."""
    return state.get("cleaning", 0) > 0 or state.get("passes_total", 0) < PARTITIONS


def main() -> int:
    """Run; writes JSON and Markdown, prints the Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compaction", description=__doc__)
    parser.add_argument("--bytes", type=parse_size, default=parse_size("10GB"), help="of the topic that is compacted")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=1000, help="records a second of the producer that is measured")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each window")
    parser.add_argument("--target", default="anabranch-fsync", help="anabranch-fsync or anabranch-os")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "bench", help="directory on the disk to measure")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench-results", help="where results go")
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    args.output.mkdir(parents=True, exist_ok=True)
    driver = build_driver(install())
    host = Machine.at(args.data)
    settings = {**TARGETS[args.target].settings, "log.cleaner_interval_ms": "100"}
    settings |= dict(one.split("=", 1) for one in args.sets)
    measure = latency(args.rate, args.seconds)
    rows: list[dict[str, float | str]] = []
    with (
        tempfile.TemporaryDirectory(dir=args.data) as scratch,
        NodeProcess(Path(scratch) / "data", settings=settings) as node,
    ):
        bench = Bench(driver, None, node)

        def window(what: str) -> None:
            found = measure(bench)
            rows.append({"when": what} | {key: found[f"acknowledge_{key}_us"] for key in PERCENTILES})
            print(f"{rows[-1]['p99']:12,.0f} us p99, {what}", flush=True)

        topic = NewTopic(FULL, PARTITIONS, 1, config={"cleanup.policy": "delete"})
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([topic])[FULL].result(30)
        count = str(args.bytes // SIZE)
        partitions, keys = ("-p", str(PARTITIONS)), ("-K", str(args.keys))
        filled = drive(bench, "produce", FULL, "-n", count, "-s", str(SIZE), *partitions, *keys, "-X", "linger.ms=5")
        print(f"{filled['bytes'] / 1e9:.2f} GB with {args.keys:,} keys written", flush=True)
        window("warming up")
        rows.clear()
        for _ in range(3):
            window("before")
        begin(node, admin)
        began, before = time.monotonic(), told(node)
        while is_going_on(told(node)):
            window("beside")
            if not is_going_on(told(node)):
                rows[-1]["when"] = "beside, to its end"
        took, after = time.monotonic() - began, told(node)
        for _ in range(3):
            window("after")
    facts = host.measured()
    lines = ["| when | p50 us | p99 us | p99.9 us | most us |", "|---|---|---|---|---|"]
    for row in rows:
        lines.append(f"| {row['when']} | " + " | ".join(f"{row[key]:,.0f}" for key in PERCENTILES) + " |")
    quiet = statistics.median(float(row["p99"]) for row in rows if row["when"] in ("before", "after"))
    beside = [float(row["p99"]) for row in rows if row["when"] == "beside"]
    moved = {key: after.get(key, 0.0) for key in ("read_bytes_total", "written_bytes_total", "removed_bytes_total")}
    lines.append("")
    lines.append(
        f"{args.bytes / 1e9:.2f} GB in {PARTITIONS} partitions, {args.keys:,} keys; {args.rate} records a second "
        f"beside it, each window {args.seconds:.0f} s. Compaction took {took:.1f} s: "
        + ", ".join(f"{value / 1e6:,.0f} MB {name.split('_')[0]}" for name, value in moved.items())
        + f" ({before.get('read_bytes_total', 0) / 1e6:,.0f} MB before the first window)."
    )
    if beside:
        median = statistics.median(beside)
        lines.append(f"p99 beside it is {median / quiet:.2f} times that without ({median:,.0f} and {quiet:,.0f} us).")
    else:
        lines.append("It was over within one window: write more, or make windows shorter.")
    text = f"# Producing beside compaction\n\n{on_machine(facts)}\n\n" + "\n".join(lines) + "\n"
    stem = args.output / f"compaction-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}"
    stem.with_suffix(".json").write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)
    print(f"\n{text}\nwritten: {stem}.json and .md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
