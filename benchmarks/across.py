"""Reading what another protocol wrote: `python -m benchmarks.across [--quick]`, or `make bench-across`.

Records of 100 B and of 1 KB are written through each protocol by a client of it (librdkafka, raw gRPC, Pravega's wheel)
and read through each: nine cells, of which three are a protocol reading its own. What is read was never read before, so
no translation is found in the cache. A node and its client have two cores together and a client may be what is slow, so
the node's processor time for a record stands beside the rate; "per core" is what that alone would allow.

Then what foreign readers cost writers: librdkafka writes alone, and while a reader of YDB's takes what it writes as
slowly as it can.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from pravega_client import StreamManager

from benchmarks.librdkafka import build_driver, install
from benchmarks.pravega_load import SCOPE, Wheel
from benchmarks.probe import Machine, Watch, on_machine
from benchmarks.workloads import Bench, drive
from benchmarks.ydb_load import Raw, requests_of
from tests.node_process import ANY, NodeProcess

ROOT = Path(__file__).resolve().parent.parent
PROTOCOLS = ("kafka", "ydb", "pravega")
RECORDS = {100: 600_000, 1000: 200_000}
"""Records of a topic, by their size."""
AIM = 300_000
"""Records of 100 B a second and core that readers of other protocols are to get."""
_IN_A_REQUEST = 1000
_CONSUMER = "bench"


@dataclass(frozen=True, slots=True)
class Run:
    """One protocol reading what one has written: records a second, microseconds of the node for each."""

    writer: str
    reader: str
    size: int
    read_per_s: float
    cpu_us: float

    @property
    def place(self) -> tuple[int, str, str]:
        return self.size, self.writer, self.reader


@dataclass(frozen=True, slots=True)
class Writing:
    """librdkafka writing, with or without a slow reader of another protocol."""

    slow_reader: bool
    size: int
    written_per_s: float
    cpu_us: float


class Across:
    """Topics of one partition at one node, each written by one protocol and read by all."""

    def __init__(self, node: NodeProcess, driver: Path) -> None:
        self._node = node
        self._bench = Bench(driver, None, node)
        self._wheel = Wheel()
        self._topics = 0
        StreamManager(f"tcp://{node.addresses['pravega']}").create_scope(SCOPE)

    def topic(self) -> str:
        """A new one; its name as a stream's of the scope, as the last part of a path, and behind the dot in Kafka."""
        self._topics += 1
        name = f"t{self._topics}"
        self._ydb(lambda raw: raw.create(f"{SCOPE}/{name}", 1, _CONSUMER))
        return name

    def write(self, writer: str, name: str, size: int, records: int) -> float:
        """Seconds that it took."""
        began = time.perf_counter()
        if writer == "kafka":
            options = ("-n", str(records), "-p", "1", "-s", str(size), "-X", "acks=all", "-X", "linger.ms=5")
            return drive(self._bench, "produce", f"{SCOPE}.{name}", *options)["seconds"]
        if writer == "pravega":
            return self._wheel.write(self._node.addresses["pravega"], name, size, records)
        requests = requests_of(_IN_A_REQUEST, records // _IN_A_REQUEST, size)
        began = time.perf_counter()
        self._ydb(lambda raw: raw.write(f"{SCOPE}/{name}", 0, requests, "bench"))
        return time.perf_counter() - began

    def read(self, reader: str, name: str, records: int) -> float:
        """Records a second."""
        if reader == "kafka":
            found = drive(self._bench, "consume", f"{SCOPE}.{name}", "-n", str(records), "-p", "1")
            return records / found["seconds"]
        if reader == "pravega":
            return self._wheel.read(self._node.addresses["pravega"], name, f"group-{name}", records)
        began = time.perf_counter()
        self._ydb(lambda raw: raw.read(f"{SCOPE}/{name}", 0, _CONSUMER, records))
        return records / (time.perf_counter() - began)

    def cell(self, writer: str, reader: str, size: int, records: int) -> Run:
        """Write a topic, and read it."""
        name = self.topic()
        self.write(writer, name, size, records)
        os.sync()
        with Watch(self._node.pid) as watch:
            rate = self.read(reader, name, records)
        return Run(writer, reader, size, rate, watch.usage.cpu_seconds / records * 1e6)

    def writing(self, size: int, records: int, *, slow_reader: bool) -> Writing:
        """librdkafka writing a topic of its own."""
        name = self.topic()
        with self._slow_reader(name) if slow_reader else _nobody(), Watch(self._node.pid) as watch:
            lasted = self.write("kafka", name, size, records)
        return Writing(slow_reader, size, records / lasted, watch.usage.cpu_seconds / records * 1e6)

    @contextmanager
    def _slow_reader(self, name: str) -> Iterator[None]:
        """Takes a response every now and then, of a few KiB."""
        loop = asyncio.new_event_loop()
        raw = loop.run_until_complete(_made(self._node.ydb))
        task = loop.create_task(raw.read(f"{SCOPE}/{name}", 0, _CONSUMER, sys.maxsize, credit=4096, rest=0.2))
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            assert not task.done(), "the slow reader has ended"
            loop.call_soon_threadsafe(task.cancel)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(30)
            loop.run_until_complete(raw.close())
            loop.close()

    def _ydb(self, work: Callable[[Raw], object]) -> None:
        async def run() -> None:
            raw = Raw(self._node.ydb)
            try:
                await work(raw)  # type: ignore[misc]
            finally:
                await raw.close()

        asyncio.run(run())


async def _made(address: str) -> Raw:
    return Raw(address)


@contextmanager
def _nobody() -> Iterator[None]:
    yield


def table(runs: Sequence[Run]) -> str:
    """Medians of the rounds."""
    head = [
        "bytes",
        "written through",
        "read through",
        "records/s",
        "node's CPU us",
        "records/s per core",
        "of its own",
    ]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    medians = {
        place: (
            statistics.median(run.read_per_s for run in runs if run.place == place),
            statistics.median(run.cpu_us for run in runs if run.place == place),
        )
        for place in dict.fromkeys(run.place for run in runs)
    }
    for (size, writer, reader), (rate, cpu) in medians.items():
        own = medians.get((size, reader, reader))
        share = "-" if own is None or writer == reader else f"{rate / own[0]:.0%}"
        cells = [f"{size}", writer, reader, f"{rate:,.0f}", f"{cpu:.2f}", f"{1e6 / max(cpu, 1e-3):,.0f}", share]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _written(found: Sequence[Writing]) -> str:
    lines = ["| bytes | beside a slow reader of YDB's | records/s | node's CPU us |", "|---|---|---|---|"]
    for size, slow in dict.fromkeys((one.size, one.slow_reader) for one in found):
        those = [one for one in found if (one.size, one.slow_reader) == (size, slow)]
        rate = statistics.median(one.written_per_s for one in those)
        cpu = statistics.median(one.cpu_us for one in those)
        lines.append(f"| {size} | {'yes' if slow else 'no'} | {rate:,.0f} | {cpu:.2f} |")
    return "\n".join(lines)


def measure(across: Across, rounds: int, cut: int, only: Sequence[str]) -> tuple[list[Run], list[Writing]]:
    """All cells, those of one writer and size after one another."""
    runs: list[Run] = []
    written: list[Writing] = []
    for size, records in RECORDS.items():
        for _ in range(rounds):
            for writer in PROTOCOLS:
                for reader in PROTOCOLS:
                    if only and f"{writer}-{reader}" not in only:
                        continue
                    run = across.cell(writer, reader, size, records // cut)
                    runs.append(run)
                    print(f"{run.read_per_s:12,.0f}/s {run.cpu_us:8.2f} us  {size} {writer} -> {reader}", flush=True)
            for slow in (False, True) if not only else ():
                one = across.writing(size, records // cut, slow_reader=slow)
                written.append(one)
                beside = "beside a slow reader" if slow else "alone"
                print(f"{one.written_per_s:12,.0f}/s {one.cpu_us:8.2f} us  {size} kafka writes {beside}", flush=True)
    return runs, written


def main() -> int:
    """Run; writes JSON and Markdown, prints the Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.across", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load, one round: only whether it works")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of every measurement (default 3, quick: 1)")
    parser.add_argument("--only", default="", help="cells, such as kafka-ydb,pravega-kafka")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "bench-across", help="directory on the disk")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench-across-results")
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    args.output.mkdir(parents=True, exist_ok=True)
    rounds = args.rounds or (1 if args.quick else 3)
    host = Machine.at(args.data)
    driver = build_driver(install())
    listen = {"kafka": ANY, "ydb": ANY, "pravega": ANY, "pravega-segmentstore": ANY}
    listen |= {"console": "off", "sbp-pd": "off", "sbp-range-server": "off"}
    with (
        tempfile.TemporaryDirectory(dir=args.data) as scratch,
        NodeProcess(Path(scratch) / "node", listen=listen) as node,
    ):
        across = Across(node, driver)
        for protocol in PROTOCOLS:
            across.cell(protocol, protocol, 100, 20_000)  # modules imported, caches warm
        runs, written = measure(across, rounds, 10 if args.quick else 1, [one for one in args.only.split(",") if one])
    about = host.measured()
    text = f"{on_machine(about)}\n\nMedians of {rounds}; the aim is {AIM:,} records of 100 B a second and core.\n\n"
    text += f"{table(runs)}\n\nWhat a foreign reader costs a writer:\n\n{_written(written)}\n"
    stem = args.output / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    facts = {"machine": about, "runs": [asdict(run) for run in runs], "written": [asdict(one) for one in written]}
    stem.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)
    print(f"\n{text}\nwritten: {stem}.json and .md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
