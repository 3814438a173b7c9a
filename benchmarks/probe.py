"""Measuring from outside: first answer of a broker, CPU and memory of a process, speed of the disk, the machine."""

from __future__ import annotations

import os
import platform
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

METADATA_REQUEST = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", -1)  # key 3, version 1, all topics


class NoAnswer(Exception):
    """The broker gave no good metadata answer in the time allowed."""


def _metadata_once(address: tuple[str, int], seconds: float) -> bool:
    with socket.create_connection(address, timeout=seconds) as link:
        link.settimeout(seconds)
        link.sendall(struct.pack(">i", len(METADATA_REQUEST)) + METADATA_REQUEST)
        received = b""
        while len(received) < 4 or len(received) < 4 + struct.unpack_from(">i", received)[0]:
            part = link.recv(65536)
            if not part:
                return False
            received += part
    correlation, brokers = struct.unpack_from(">ii", received, 4)
    return bool(correlation == 1 and brokers > 0)


def first_metadata(port: int, began: float, limit: float = 120.0) -> float:
    """Seconds from ``began`` (time.monotonic) to the first Metadata answer that names a broker.

    Raises NoAnswer after ``limit`` seconds.
    """
    while time.monotonic() - began < limit:
        try:
            if _metadata_once(("127.0.0.1", port), 1.0):
                return time.monotonic() - began
        except OSError:
            pass  # not listening yet, or not answering yet: that is what is being measured
        time.sleep(0.005)
    raise NoAnswer(f"no metadata from port {port} in {limit} s")


@dataclass(slots=True)
class Usage:
    """What a process used between two moments: CPU seconds, bytes of peak resident memory, bytes given to the disk."""

    cpu_seconds: float
    peak_rss: int
    disk_bytes: int


class Watch:
    """Context manager that measures one process, or several, with their children; ``usage`` is set on leaving.

    CPU time is of user and system together, of the whole processes with all their threads. Of memory that several of
    them share each counts its own.
    """

    def __init__(self, pid: int | Sequence[int], interval: float = 0.05) -> None:
        these = [psutil.Process(one) for one in ([pid] if isinstance(pid, int) else pid)]
        self._processes = [*these, *(child for one in these for child in one.children(recursive=True))]
        self._interval = interval
        self._done = threading.Event()
        self._peak = 0
        self.usage = Usage(0.0, 0, 0)

    def _cpu(self) -> float:
        return float(sum(times.user + times.system for times in (one.cpu_times() for one in self._processes)))

    def _rss(self) -> int:
        return sum(one.memory_info().rss for one in self._processes)

    def _disk_bytes(self) -> int:
        return sum(one.io_counters().write_bytes for one in self._processes)

    def _sample(self) -> None:
        while not self._done.wait(self._interval):
            self._peak = max(self._peak, self._rss())

    def __enter__(self) -> Watch:
        self._peak = self._rss()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._written = self._disk_bytes()
        self._began = self._cpu()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        cpu = self._cpu() - self._began
        self._done.set()
        self._thread.join()
        written = self._disk_bytes() - self._written
        self.usage = Usage(cpu, self._peak, written)


def waited_for_processor(pid: int, thread: int | None = None) -> float:
    """Return the seconds that a thread of a process, by default its first, was ready and had no processor so far; 0
    where the kernel does not count."""
    try:
        return int(Path(f"/proc/{pid}/task/{thread or pid}/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def disk_speed(directory: Path, sizes: tuple[int, ...] = (4096, 65536, 1 << 20, 8 << 20)) -> list[dict[str, float]]:
    """Durable sequential writes (pwritev with RWF_DSYNC into preallocated space), one at a time, for each size.

    Of each size: writes in at most one second or 256 MiB; median and 99th percentile in microseconds, MB per second.
    """
    results = []
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        descriptor = file.fileno()
        os.posix_fallocate(descriptor, 0, 256 << 20)
        os.fsync(descriptor)
        for size in sizes:
            block = os.urandom(size)
            took: list[float] = []
            began = time.perf_counter()
            while time.perf_counter() - began < 1.0 and (len(took) + 1) * size <= 256 << 20:
                start = time.perf_counter()
                os.pwritev(descriptor, [block], len(took) * size, os.RWF_DSYNC)
                took.append(time.perf_counter() - start)
            took.sort()
            results.append(
                {
                    "size": size,
                    "writes": len(took),
                    "p50_us": statistics.median(took) * 1e6,
                    "p99_us": took[int(len(took) * 0.99)] * 1e6,
                    "mb_per_s": size * len(took) / sum(took) / 1e6,
                }
            )
    return results


@dataclass(slots=True, frozen=True)
class Machine:
    """What numbers are measured on: ``facts`` before the measurement, :meth:`measured` after it."""

    facts: dict[str, object]
    _before: dict[str, float]

    @classmethod
    def at(cls, directory: Path) -> Machine:
        """This machine, with the file system of ``directory``."""
        model = ""
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
        mount = max(
            (part for part in psutil.disk_partitions(all=True) if str(directory.resolve()).startswith(part.mountpoint)),
            key=lambda part: len(part.mountpoint),
        )
        facts: dict[str, object] = {
            "cpu": model,
            "cores": os.cpu_count(),
            "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "filesystem": mount.fstype,
            "load_before": round(os.getloadavg()[0], 2),
        }
        return cls(facts, _cpu_times())

    def measured(self) -> dict[str, object]:
        """The facts and what the host took away since: the percentage of all processors' time that it gave to others.

        A machine that is idle of itself is not quiet when its host is busy: what is stolen makes every number worse,
        and not the same for each server in turn.
        """
        used = {name: now - self._before[name] for name, now in _cpu_times().items()}
        return self.facts | {"stolen_percent": round(100 * used["steal"] / (sum(used.values()) or 1), 1)}


def on_machine(facts: dict[str, object]) -> str:
    """The sentence of a table's reader."""
    return "Machine: " + ", ".join(f"{name} {value}" for name, value in facts.items()) + "."


def _cpu_times() -> dict[str, float]:
    """Seconds that all processors together have spent, by what they did; each second once."""
    times = psutil.cpu_times()
    return {
        name: getattr(times, name) for name in ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    }
