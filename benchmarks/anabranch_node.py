"""One node of this project as a child process, with the interface of `kafka_broker.KafkaBroker`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.kafka_broker import free_port

ROOT = Path(__file__).resolve().parent.parent
LISTENERS = ("sbp-pd", "sbp-range-server", "console")
MAIN = "import sys; from bridges.commands.cli import main; sys.exit(main())"


class NodeFailed(Exception):
    """The node ended or did not become ready; the message carries the end of its output."""


class AnabranchNode:
    """A node process on loopback; `start` returns when it serves clients.

    The ports stay the same over restarts, so clients find a restarted node again. ``settings`` become ``--set``
    options. ``start_seconds`` bounds the time until the node reports itself ready.
    """

    def __init__(
        self,
        directory: Path,
        port: int = 0,
        *,
        settings: Mapping[str, str] | None = None,
        start_seconds: float = 60.0,
        command: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.port = port or free_port()
        self.settings = dict(settings or {})
        self.start_seconds = start_seconds
        self.command = tuple(command) or (sys.executable, "-c", MAIN)
        self.log = directory / "node.log"
        self.listen = {"kafka": self.port, **{name: free_port() for name in LISTENERS}}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """`host:port` for Kafka clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id, for measurements. Raises NodeFailed when the node does not run."""
        if self.process is None:
            raise NodeFailed("the node is not running")
        return self.process.pid

    def arguments(self, ready: Path) -> list[str]:
        """The full command line; ``ready`` is the file the node writes when it serves."""
        line = [*self.command, "serve", "--data", str(self.data), "--ready-file", str(ready)]
        for name, port in self.listen.items():
            line += ["--listen", f"{name}=127.0.0.1:{port}"]
        for key, value in self.settings.items():
            line += ["--set", f"{key}={value}"]
        return line

    def launch(self) -> Path:
        """Start the process without waiting; returns the ready file that will appear."""
        self.directory.mkdir(parents=True, exist_ok=True)
        ready = self.directory / "ready"
        ready.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.arguments(ready),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                # A user's Python keeps its compiled modules; one that does not would be timed while compiling.
                env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            )
        return ready

    def start(self) -> str:
        """Start the node and wait until it is ready; returns the bootstrap address.

        Raises NodeFailed when it ends first or is not ready in ``start_seconds``.
        """
        ready = self.launch()
        assert self.process is not None
        deadline = time.monotonic() + self.start_seconds
        while not ready.exists():
            if self.process.poll() is not None:
                code = self.process.returncode
                self.process = None
                raise NodeFailed(f"the node ended with {code} while starting:\n{self.tail()}")
            if time.monotonic() > deadline:
                self.stop()
                raise NodeFailed(f"the node was not ready in {self.start_seconds} s:\n{self.tail()}")
            time.sleep(0.01)
        return self.bootstrap

    def tail(self, size: int = 8000) -> str:
        """The end of what the node has printed."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - size))
            return log.read().decode(errors="replace")

    def kill(self) -> None:
        """SIGKILL, then reap: nothing of the process runs afterwards."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self, seconds: float = 30.0) -> None:
        """Ask the node to end; kill it when it does not within ``seconds``."""
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


class DocumentNode(AnabranchNode):
    """The same with its data behind another process, spoken to in SBP's dialect v0.1; ``settings`` are the other's."""

    def __init__(self, directory: Path, *, settings: Mapping[str, str]) -> None:
        self.backend = AnabranchNode(directory / "backend", settings=settings)
        address = free_port()
        self.backend.listen["sbp-v0.1"] = address
        to_it = {"sbp.mode": "external", "sbp.dialect": "v0.1", "sbp.pd": f"127.0.0.1:{address}"}
        kafka = {key: value for key, value in settings.items() if key.startswith("kafka.")}
        super().__init__(directory / "front", settings={**kafka, **to_it})
        for name in ("sbp-pd", "sbp-range-server"):
            del self.listen[name]

    def start(self) -> str:
        """Start whichever of the two does not run."""
        if self.backend.process is None:
            self.backend.start()
        return super().start() if self.process is None else self.bootstrap

    def stop(self, seconds: float = 30.0) -> None:
        super().stop(seconds)
        self.backend.stop(seconds)
