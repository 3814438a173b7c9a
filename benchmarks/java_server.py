"""A server written in Java, as a process of its own: its jars, its start, its end.

Jars come from Maven Central through a pom and are kept below `.tools`. Needs `java` (17 or newer) and, the first time,
`mvn`.
"""

from __future__ import annotations

import hashlib
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.tools import making

SHORT_LIVED_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a JVM that lives for seconds or is not measured: one compiler tier and the serial collector cost least."""
MEASURED_JAVA = ("-server", "-XX:+UseG1GC")
"""Options of a JVM that is measured."""


class ServerFailed(Exception):
    """The server (or a step before its start) ended; the message carries the end of its output."""


def fetch_jars(pom: Path, place: Path, unwanted: Sequence[str] = ()) -> Path:
    """Return the directory with what a pom asks for at run time, fetched below ``place`` once for each state of it.

    Jars whose names match a pattern of ``unwanted`` are left out.
    """
    key = hashlib.sha256(pom.read_bytes() + "".join(unwanted).encode()).hexdigest()[:12]
    jars = place / f"jars-{key}"
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise ServerFailed(f"mvn is needed once to fetch the jars of {pom} (apt-get install maven)")
    place.mkdir(parents=True, exist_ok=True)
    with making("java"), tempfile.TemporaryDirectory(dir=place) as scratch:
        if jars.is_dir():
            return jars
        target = Path(scratch) / "jars"
        command = [maven, "-B", "-q", "-f", str(pom), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={target}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise ServerFailed(f"mvn failed with {done.returncode}:\n{done.stdout[-4000:]}")
        for jar in target.iterdir():
            if any(fnmatch(jar.name, pattern) for pattern in unwanted):
                jar.unlink()
        target.rename(jars)
    return jars


def free_port() -> int:
    """A TCP port on loopback that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class JavaServer:
    """A server's process; `start` returns when it serves clients, which it says by printing ``started``.

    A kind of server tells the command to run, in a directory of its own, and the address of its clients.
    """

    started: str

    def __init__(self, directory: Path, start_seconds: float) -> None:
        self.directory = directory
        self.start_seconds = start_seconds
        self.process: subprocess.Popen[str] | None = None
        self.output: deque[str] = deque(maxlen=400)
        self._lines: queue.Queue[str | None] = queue.Queue()

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients."""
        raise NotImplementedError

    def command(self) -> Sequence[str]:
        """Prepare the directory, which exists, and return the command line of the server."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        """Process id, for measurements. Raises ServerFailed when the server does not run."""
        if self.process is None:
            raise ServerFailed("the server is not running")
        return self.process.pid

    def start(self) -> str:
        """Start the server, wait until it serves; returns the address for clients."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            self.command(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=self.directory,
        )
        self._lines = queue.Queue()  # its own for each start: an earlier process may still report its end
        threading.Thread(target=self._pump, args=(self.process, self._lines), daemon=True).start()
        self._await_started()
        return self.bootstrap

    def _pump(self, process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
        """Drain the server's output, so that it never blocks on a full pipe."""
        assert process.stdout is not None
        for line in process.stdout:
            self.output.append(line)
            lines.put(line)
        lines.put(None)

    def _await_started(self) -> None:
        deadline = time.monotonic() + self.start_seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.stop()
                raise ServerFailed(f"the server did not start in {self.start_seconds} s:\n{self.tail()}") from None
            if line is None:
                raise ServerFailed(f"the server ended while starting:\n{self.tail()}")
            if self.started in line:
                return

    def tail(self) -> str:
        """The end of what the server has printed."""
        return "".join(self.output)

    def stop(self, seconds: float = 30.0) -> None:
        """Ask the server to end; kill it when it does not within ``seconds``."""
        process, self.process = self.process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
