"""How long a store takes to open again: after kill -9 in the middle of appending, and after a stop in order.

A process of its own appends as fast as it can, acknowledging after the flush to the disk, until it is killed with
SIGKILL; another one then opens what is left. What was acknowledged must be there, or there is no measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.sbp_store import fill
from sbp_back.range_server.store import Store, StoreOptions

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
SEGMENT = StoreOptions().segment_bytes
LARGEST_SEGMENT = 2048 * MIB
"""Nothing is checkpointed before the first segment is full, so everything has to be read again."""
REPORT_EVERY = 512
"""Acknowledged entries from one line of the appending process to the next."""


@dataclass(slots=True)
class Opened:
    """A store that was opened: seconds of ``Store.open``, bytes of the log it read again, resident bytes it took."""

    seconds: float
    scanned_bytes: int
    log_bytes: int
    entries: int
    rss_bytes: int


@dataclass(slots=True)
class RecoveryRun:
    """One measurement. GB are of entries in the store; ``tail_gb`` is of what lay behind the last checkpoint, which is
    read again. ``cold``: nothing of the store's files was in the page cache."""

    ended: str
    entry_bytes: int
    cache: str
    gb: float
    tail_gb: float
    seconds: float
    gb_per_s: float
    tail_gb_per_s: float
    acknowledged: int
    found: int


# --- in processes of their own --------------------------------------------------------------------------------------


async def append_until_killed(directory: Path, size: int, segment_bytes: int) -> None:
    """Says now and then how many entries are acknowledged."""
    store = Store.open(directory, StoreOptions(segment_bytes=segment_bytes))
    store.start(asyncio.get_running_loop())
    acknowledged = said = 0

    def stored(count: int) -> None:
        nonlocal acknowledged, said
        acknowledged += count
        if acknowledged >= said + REPORT_EVERY:
            said = acknowledged
            os.write(1, f"{acknowledged}\n".encode())

    await fill(store, None, size, stored)


def open_once(directory: Path, segment_bytes: int, stop: bool) -> Opened:
    """Opens the store and, with ``stop``, closes it in order. Without, the caller has to end the process at once."""
    process = psutil.Process()
    before = process.memory_info().rss
    began = time.perf_counter()
    store = Store.open(directory, StoreOptions(segment_bytes=segment_bytes))
    seconds = time.perf_counter() - began
    after = process.memory_info().rss
    opened = Opened(
        seconds,
        store.stats.recovery_scanned_bytes,
        store.stats.log_bytes,
        sum(known.next_offset for known in store.ranges.values()),
        after - before,
    )
    if stop:
        loop = asyncio.new_event_loop()
        store.start(loop)
        store.close()
        loop.close()
    return opened


# --- measuring ------------------------------------------------------------------------------------------------------


def recovery(directory: Path, gigabytes: float) -> list[RecoveryRun]:
    """With about ``gigabytes`` of entries: how it stands after a kill, and with all of it to be read again."""
    runs = []
    for size in (1024, 16384):
        for name, segment_bytes in (("killed", SEGMENT), ("killed, no checkpoint", LARGEST_SEGMENT)):
            place = directory / f"{size}-{segment_bytes}"
            acknowledged = _append_and_kill(place, size, segment_bytes, int(gigabytes * 1e9 / size))
            runs.append(_run(name, size, "warm", acknowledged, _open(place, segment_bytes)))
            _forget_cache(place)
            runs.append(_run(name, size, "cold", acknowledged, _open(place, segment_bytes)))
            if segment_bytes == SEGMENT:
                _open(place, segment_bytes, stop=True)
                runs.append(_run("stopped", size, "warm", acknowledged, _open(place, segment_bytes)))
                _forget_cache(place)
                runs.append(_run("stopped", size, "cold", acknowledged, _open(place, segment_bytes)))
            shutil.rmtree(place)
    return runs


def opened_memory(directory: Path) -> Opened:
    """A store that was stopped, opened by a process that knows nothing of it yet."""
    return _open(directory, SEGMENT)


def _append_and_kill(directory: Path, size: int, segment_bytes: int, entries: int) -> int:
    """Kills the appending process once it has so many entries; returns how many were acknowledged."""
    directory.mkdir(parents=True)
    command = [sys.executable, "-m", "benchmarks.sbp_recovery", "append", str(directory)]
    command += [str(size), str(segment_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        acknowledged = 0
        for line in process.stdout:
            if not line.endswith(b"\n"):
                break  # cut off by the kill
            acknowledged = int(line)
            if acknowledged >= entries and process.poll() is None:
                process.send_signal(signal.SIGKILL)
    if process.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the appending process ended by itself with {process.returncode}")
    return acknowledged


def _open(directory: Path, segment_bytes: int, *, stop: bool = False) -> Opened:
    command = [sys.executable, "-m", "benchmarks.sbp_recovery", "stop" if stop else "open", str(directory)]
    done = subprocess.run([*command, "0", str(segment_bytes)], stdout=subprocess.PIPE, check=True, text=True, cwd=ROOT)
    return Opened(**json.loads(done.stdout))


def _run(ended: str, size: int, cache: str, acknowledged: int, opened: Opened) -> RecoveryRun:
    if opened.entries < acknowledged:
        raise RuntimeError(f"{acknowledged} entries were acknowledged, {opened.entries} are there")
    held, tail = opened.entries * size / 1e9, opened.scanned_bytes / 1e9
    rates = held / opened.seconds, tail / opened.seconds
    return RecoveryRun(ended, size, cache, held, tail, opened.seconds, *rates, acknowledged, opened.entries)


def _forget_cache(directory: Path) -> None:
    """Takes the files of a store out of the page cache, as if the machine had been started anew."""
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def main() -> int:
    """Entry point of the processes this module starts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sbp_recovery", description=__doc__)
    parser.add_argument("work", choices=("append", "open", "stop"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("size", type=int)
    parser.add_argument("segment_bytes", type=int)
    args = parser.parse_args()
    if args.work == "append":
        asyncio.run(append_until_killed(args.directory, args.size, args.segment_bytes))
        return 1
    opened = open_once(args.directory, args.segment_bytes, args.work == "stop")
    fields = {name: getattr(opened, name) for name in Opened.__slots__}
    print(json.dumps(fields), flush=True)
    if args.work == "open":
        os._exit(0)  # writes no checkpoint: the next one finds the store as this one did
    return 0


if __name__ == "__main__":
    sys.exit(main())
