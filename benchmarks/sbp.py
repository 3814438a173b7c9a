"""The SBP backend alone: `python -m benchmarks.sbp [--quick]`, or `make bench-sbp`.

Appends per second with 1, 16 and 256 writers, each of which waits for its batch to be durable before it sends the next,
beside what the disk can do at most: pwritev with RWF_DSYNC in writes as large as the store's own groups were, measured
right after; once over and over into the same zeroed file, which no log can do, and once through a new one, as a log
must. Then recovery after kill -9 and after a stop in order, memory of the index, and many streams.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil

from anabranch_kit.run.cycle import CycleLoop
from benchmarks.probe import Machine, disk_speed, on_machine
from benchmarks.sbp_recovery import RecoveryRun, opened_memory, recovery
from benchmarks.sbp_store import fill
from bridges.node.process.memory import collect_seldom, switch_threads_often
from sbp_back.client.client import Client, StreamWriter
from sbp_back.embedded import PD_LISTENER, RANGE_SERVER_LISTENER, Embedded, EmbeddedOptions, start_embedded
from sbp_back.errors import SbpError
from sbp_back.range_server.store import Store, StoreOptions
from sbp_back.transport.tcp_carrier import TcpCarrier, tcp_connector

ROOT = Path(__file__).resolve().parent.parent
LOCAL = ("127.0.0.1", 0)
MB = 1e6
PARTS = ("appends", "recovery", "memory", "streams")
T = TypeVar("T")
RAW_BYTES = 64 << 20
IOV_BYTES = 64 << 10


@dataclass(slots=True)
class AppendRun:
    """One measurement; ``group_bytes`` is the mean size of a group on disk, ``raw_mb_per_s`` the disk's limit at it."""

    mode: str
    writers: int
    entry_bytes: int
    appends_per_s: float
    mb_per_s: float
    p50_us: float
    p99_us: float
    cpu_us_per_append: float
    group_bytes: float
    disk_mb_per_s: float
    raw_mb_per_s: float
    raw_new_mb_per_s: float

    @property
    def share(self) -> float:
        """Bytes given to the disk each second, as a share of what it takes at most in writes of that size."""
        return self.disk_mb_per_s / self.raw_mb_per_s

    @property
    def share_new(self) -> float:
        """The same beside a file that grows."""
        return self.disk_mb_per_s / self.raw_new_mb_per_s


@dataclass(slots=True)
class Report:
    """All numbers of one run."""

    machine: dict[str, object]
    disk: list[dict[str, float]]
    appends: list[AppendRun] = field(default_factory=list)
    recovery: list[RecoveryRun] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)
    streams: dict[str, float] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)


# --- the disk's limit -----------------------------------------------------------------------------------------------


class RawDisk:
    """Files on the disk under test, written without any program around it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "raw"
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        for start in range(0, RAW_BYTES, 1 << 20):
            os.pwrite(self._fd, bytes(1 << 20), start)
        os.fsync(self._fd)
        self._block = os.urandom(IOV_BYTES)

    def mb_per_s(self, size: int, seconds: float) -> float:
        """Writes of ``size`` bytes (rounded up to 4 KiB), one after the other, each durable when it returns, into space
        that was written before."""
        size = min(max(4096, -(-size // 4096) * 4096), RAW_BYTES)
        parts = self._parts(size)
        place, written = 0, 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            if place + size > RAW_BYTES:
                place = 0
            os.pwritev(self._fd, parts, place, os.RWF_DSYNC)
            place += size
            written += size
        return written / (time.perf_counter() - began) / MB

    def new_mb_per_s(self, size: int, seconds: float) -> float:
        """The same through a new file, whose space is reserved in steps of 16 MiB: at most 1 GiB."""
        size = max(4096, -(-size // 4096) * 4096)
        parts = self._parts(size)
        path = self._directory / "raw-new"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        place, reserved = 0, 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds and place < 1 << 30:
            while reserved < place + size:
                os.posix_fallocate(fd, reserved, 16 << 20)
                reserved += 16 << 20
            os.pwritev(fd, parts, place, os.RWF_DSYNC)
            place += size
        lasted = time.perf_counter() - began
        os.close(fd)
        path.unlink()
        return place / lasted / MB

    def _parts(self, size: int) -> list[bytes]:
        whole, rest = divmod(size, IOV_BYTES)
        return [self._block] * whole + ([self._block[:rest]] if rest else [])

    def close(self) -> None:
        os.close(self._fd)
        self._path.unlink()


# --- the backend under test -----------------------------------------------------------------------------------------


Stats = dict[str, float]


def stats_of(embedded: Embedded) -> Stats:
    """Counters of the process that has the store."""
    store = embedded.store.stats
    times = psutil.Process().cpu_times()
    return {"groups": store.groups, "group_bytes": store.group_bytes, "cpu": times.user + times.system}


async def serve_for_parent(directory: Path) -> None:
    """In a process of its own: says where it listens, then answers each line with its counters until there is none."""
    options = EmbeddedOptions(listen={PD_LISTENER: LOCAL, RANGE_SERVER_LISTENER: LOCAL})
    embedded = await start_embedded(directory, options)
    collect_seldom()
    switch_threads_often()
    print(json.dumps(embedded.addresses), flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(stats_of(embedded)), flush=True)
    await embedded.close()


class Inside:
    """The backend in this process."""

    mode = "in process"

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def start(self) -> Client:
        self._embedded = await start_embedded(self._directory)
        return self._embedded.client

    def stats(self) -> Stats:
        return stats_of(self._embedded)

    async def stop(self) -> None:
        await self._embedded.close()


class Outside:
    """The backend in another process, reached over TCP on loopback."""

    mode = "over TCP"

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def start(self) -> Client:
        command = [sys.executable, "-m", "benchmarks.sbp", "--serve", str(self._directory)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        addresses = json.loads(self._read())
        self._client = Client(TcpCarrier(*addresses[PD_LISTENER]), tcp_connector())
        return self._client

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def stats(self) -> Stats:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        theirs: Stats = json.loads(self._read())
        times = psutil.Process().cpu_times()
        return {**theirs, "cpu": theirs["cpu"] + times.user + times.system}

    async def stop(self) -> None:
        await self._client.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.to_thread(self._process.wait, 60)


class Appender:
    """One writer with one batch on its way at any time."""

    __slots__ = ("_began", "_clock", "_payload", "_writer", "took", "until")

    def __init__(self, writer: StreamWriter, payload: bytes) -> None:
        self._writer = writer
        self._payload = payload
        self._clock = time.perf_counter
        self._began = 0.0
        self.until = 0.0
        self.took: list[float] = []

    def go(self) -> None:
        self._began = self._clock()
        self._writer.append(self._payload, 1, 0, 1, self._done)

    @property
    def unconfirmed(self) -> int:
        return self._writer.unconfirmed

    def _done(self, error: SbpError | None) -> None:
        if error is not None:
            raise error
        now = self._clock()
        self.took.append(now - self._began)
        if now < self.until:
            self.go()


async def appends(
    side: Inside | Outside, raw: RawDisk, writers: Sequence[int], sizes: Sequence[int], seconds: float
) -> list[AppendRun]:
    """All numbers of writers and sizes against one backend."""
    client = await side.start()
    opened = [await client.open((await client.create_stream()).stream_id, 0) for _ in range(max(writers))]
    collect_seldom()  # as a node does
    switch_threads_often()
    runs = []
    for size in sizes:
        for count in writers:
            payload = os.urandom(size)
            used = [Appender(writer, payload) for writer in opened[:count]]
            await _go(used, seconds / 4)  # ranges made, caches warm
            for one in used:
                one.took.clear()
            before = side.stats()
            began = time.perf_counter()
            await _go(used, seconds)
            lasted = time.perf_counter() - began
            after = side.stats()
            took = sorted(duration for one in used for duration in one.took)
            written = after["group_bytes"] - before["group_bytes"]
            group = written / max(1.0, after["groups"] - before["groups"])
            # The disk has good and bad moments: its limit is measured close to what is compared with it.
            limit, limit_new = raw.mb_per_s(int(group), seconds / 2), raw.new_mb_per_s(int(group), seconds / 2)
            runs.append(
                AppendRun(
                    side.mode,
                    count,
                    size,
                    len(took) / lasted,
                    len(took) * size / lasted / MB,
                    statistics.median(took) * 1e6,
                    took[int(len(took) * 0.99)] * 1e6,
                    (after["cpu"] - before["cpu"]) / len(took) * 1e6,
                    group,
                    written / lasted / MB,
                    limit,
                    limit_new,
                )
            )
            print(line(_cells(runs[-1])), flush=True)
    await side.stop()
    return runs


async def _go(appenders: Sequence[Appender], seconds: float) -> None:
    until = time.perf_counter() + seconds
    for one in appenders:
        one.until = until
        one.go()
    await asyncio.sleep(seconds)
    for one in appenders:
        while one.unconfirmed:
            await asyncio.sleep(0.0005)


# --- memory, streams ------------------------------------------------------------------------------------------------


async def memory(directory: Path, batches: int) -> dict[str, float]:
    """Resident MB that a million batches take in the index, while they are written and after a restart."""
    options = StoreOptions(durability="os", low_water_bytes=0)
    store = Store.open(directory, options)
    store.start(asyncio.get_running_loop())
    await fill(store, batches // 10, 64)  # buffers and threads exist
    gc.collect()
    before = psutil.Process().memory_info().rss
    store.close()
    store = Store.open(directory / "more", options)
    store.start(asyncio.get_running_loop())
    await fill(store, batches, 64)
    gc.collect()
    after = psutil.Process().memory_info().rss
    store.close()
    opened = opened_memory(directory / "more")
    return {
        "batches": batches,
        "mb_per_million": (after - before) / batches,
        "opened_mb_per_million": opened.rss_bytes / batches,
    }


async def streams(directory: Path, count: int) -> dict[str, float]:
    """Seconds to make ``count`` streams, to append a batch to each, and to start again with all of them."""
    embedded = await start_embedded(directory)
    client = embedded.client
    began = time.perf_counter()
    ids = [made.stream_id for made in await _in_batches([client.create_stream] * count)]
    created = time.perf_counter()
    opened = await _in_batches([partial(client.open, stream_id, 0) for stream_id in ids])
    all_open = time.perf_counter()

    async def append(writer: StreamWriter) -> None:
        future: asyncio.Future[SbpError | None] = asyncio.get_running_loop().create_future()
        writer.append(b"x" * 100, 1, 0, 1, future.set_result)
        error = await future
        if error is not None:
            raise error

    await _in_batches([partial(append, writer) for writer in opened])
    appended = time.perf_counter()
    await embedded.close()
    closed = time.perf_counter()
    embedded = await start_embedded(directory)
    started = time.perf_counter()
    await embedded.close()
    return {
        "streams": count,
        "create_s": created - began,
        "open_s": all_open - created,
        "append_s": appended - all_open,
        "stop_s": closed - appended,
        "start_s": started - closed,
    }


async def _in_batches(works: Sequence[Callable[[], Awaitable[T]]], at_once: int = 256) -> list[T]:
    found: list[T] = []
    for first in range(0, len(works), at_once):
        found += await asyncio.gather(*(work() for work in works[first : first + at_once]))
    return found


# --- output ---------------------------------------------------------------------------------------------------------


def line(cells: Sequence[object]) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(number(cell) for cell in cells) + " |"


def number(value: object) -> str:
    """A number as a person reads it."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


HEADS = (
    "carrier",
    "writers",
    "entry bytes",
    "appends/s",
    "MB/s",
    "p50 us",
    "p99 us",
    "CPU us/append",
    "group bytes",
    "MB/s to disk",
    "raw MB/s",
    "raw, new file",
    "share",
    "of new file",
)


def _cells(run: AppendRun) -> list[object]:
    return [*asdict(run).values(), f"{run.share:.0%}", f"{run.share_new:.0%}"]


def markdown(report: Report) -> str:
    """The whole report."""
    lines = ["# SBP backend", "", on_machine(report.machine), ""]
    lines += [f"Run with: {', '.join(f'{k}={v}' for k, v in report.options.items())}."]
    if report.appends:
        lines += _append_lines(report.appends)
    if report.recovery:
        lines += _recovery_lines(report.recovery)
    for title, values in (
        ("Memory of the index", report.memory),
        ("Many streams", report.streams),
    ):
        if values:
            lines += [
                "",
                f"## {title}",
                "",
                line(list(values)),
                "|---" * len(values) + "|",
                line(list(values.values())),
            ]
    return "\n".join(lines) + "\n"


def _append_lines(runs: Sequence[AppendRun]) -> list[str]:
    return [
        "",
        "## Appends, each durable (fsync) before its writer sends the next",
        "",
        "Raw is pwritev with RWF_DSYNC, one write at a time, as large as the store's groups were on average, measured "
        "right after: over and over into the same file, and through a new one. CPU is that of all processes together.",
        "",
        line(HEADS),
        "|---" * len(HEADS) + "|",
        *(line(_cells(run)) for run in runs),
    ]


def _recovery_lines(runs: Sequence[RecoveryRun]) -> list[str]:
    heads = list(asdict(runs[0]))
    return [
        "",
        "## Recovery",
        "",
        "Seconds of Store.open. killed: kill -9 while appending, with the last checkpoint as it happened to be; "
        "killed, no checkpoint: the same with one large segment, so that every entry is read again; stopped: closed in "
        "order. tail is what is read again; cold: nothing of the files was in the page cache. What was acknowledged "
        "was there.",
        "",
        line(heads),
        "|---" * len(heads) + "|",
        *(line(list(asdict(one).values())) for one in runs),
    ]


def _apart(part: str, directory: Path, amount: float) -> dict[str, float]:
    """A part in a process of its own: its memory and its caches are nobody else's."""
    command = [sys.executable, "-m", "benchmarks.sbp", "--part", part, str(directory / part), str(amount)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, cwd=ROOT)
    found: dict[str, float] = json.loads(done.stdout)
    print(f"{part}: " + ", ".join(f"{key} {number(value)}" for key, value in found.items()), flush=True)
    return found


def main() -> int:
    """Run; writes JSON and Markdown, prints the Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sbp", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load: only whether it works")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "bench", help="directory on the disk to measure")
    parser.add_argument("--output", type=Path, default=None, help="directory of the results")
    parser.add_argument("--seconds", type=float, default=0.0, help="of every measurement of appends (default 4)")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run, separated by commas (default: all)")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    wanted = set(args.only.split(","))
    if not wanted <= set(PARTS):
        parser.error(f"--only takes {', '.join(PARTS)}")
    if args.serve is not None:
        asyncio.run(serve_for_parent(args.serve))
        return 0
    if args.part is not None:
        part, place, amount = args.part
        Path(place).mkdir(parents=True)
        works = {
            "memory": lambda: memory(Path(place), int(float(amount))),
            "streams": lambda: streams(Path(place), int(float(amount))),
        }
        print(json.dumps(asyncio.run(works[part]())))
        return 0
    seconds = args.seconds or (0.4 if args.quick else 4.0)
    output = args.output or (ROOT / "build" / "bench-results" if args.quick else ROOT / "benchmarks" / "results")
    for directory in (args.data, output):
        directory.mkdir(parents=True, exist_ok=True)
    host = Machine.at(args.data)
    report = Report(
        host.facts, disk_speed(args.data), options={"quick": args.quick, "seconds": seconds, "parts": args.only}
    )
    with tempfile.TemporaryDirectory(dir=args.data) as scratch:
        directory = Path(scratch)
        if "appends" in wanted:
            raw = RawDisk(directory)
            for kind in (Inside, Outside):
                side = kind(directory / kind.__name__)
                with asyncio.Runner(loop_factory=CycleLoop) as runner:  # as a node does
                    report.appends += runner.run(appends(side, raw, (1, 16, 256), (1024, 16384), seconds))
            raw.close()
        less = 10 if args.quick else 1
        if "recovery" in wanted:
            for one in recovery(directory / "recovery", 1.0 / less):
                report.recovery.append(one)
                print(line(list(asdict(one).values())), flush=True)
        if "memory" in wanted:
            report.memory = _apart("memory", directory, 1_000_000 // less)
        if "streams" in wanted:
            report.streams = _apart("streams", directory, 10_000 // less)
    report.machine = host.measured()
    text = markdown(report)
    stem = output / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-sbp"
    document = asdict(report)
    stem.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)
    print(f"\n{text}\nwritten: {stem}.json and .md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
