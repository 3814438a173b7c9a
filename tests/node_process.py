"""A node as users run it: the `anabranch serve` command in a process of its own, for tests and for measurements.

Its interface is that of `benchmarks.kafka_broker.KafkaBroker` where both are used alike. Nothing here sleeps to
synchronise: a start waits for the ready file or the end of the process, whichever is first.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.ports import UsualPortOpened, free_port, refuse_usual

ANY = "127.0.0.1:0"
"""Any free port of loopback; the node keeps it over restarts."""

FRONTS = ("kafka", "console", "sbp-pd", "sbp-range-server")
"""Listeners that a test node opens, each on any free port of loopback."""

SELDOM = ("ydb", "pravega", "pravega-segmentstore", "pipeline")
"""Listeners that a test node opens only when it is told to: they would be on their usual ports otherwise."""

TAIL_BYTES = 16_000


class NodeFailed(AssertionError):
    """The node did not start, or did not end as asked; the message carries the end of its log."""


class NodeProcess:
    """One node on a data directory, with ports that stay the same over restarts.

    ``settings`` become `--set key=value`; ``listen`` maps listener names to `host:port` (default: all on free ports).
    """

    def __init__(
        self,
        data: Path,
        *,
        settings: Mapping[str, str] | None = None,
        listen: Mapping[str, str] | None = None,
        start_seconds: float = 60.0,
    ) -> None:
        self.data = data
        self.python = [sys.executable]
        self.settings = dict(settings or {})
        self.listen = dict(listen) if listen is not None else dict.fromkeys(FRONTS, ANY)
        if self.settings.get("cluster.database"):
            for name in ("cluster", "sbp-range-server"):
                self.listen.setdefault(name, ANY)
        self.start_seconds = start_seconds
        self.log = data.with_name(data.name + ".log")
        self.ready_file = data.with_name(data.name + ".ready")
        self.addresses: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | None = None
        self._is_wanted = False
        """Whether it was last told to run."""

    @property
    def kafka(self) -> str:
        """`host:port` of the Kafka listener."""
        return self.addresses["kafka"]

    @property
    def ydb(self) -> str:
        """`host:port` of the YDB listener, of a node that was told to open it."""
        return self.addresses["ydb"]

    @property
    def bootstrap(self) -> str:
        """`host:port` for Kafka clients."""
        return self.kafka

    @property
    def port(self) -> int:
        """Port of the Kafka listener."""
        return int(self.kafka.rpartition(":")[2])

    @property
    def console(self) -> str:
        """`http://host:port` of the console, the API and the metrics."""
        return f"http://{self.addresses['console']}"

    @property
    def pid(self) -> int:
        """Process id of the running node."""
        if self.process is None:
            raise NodeFailed("the node is not running")
        return self.process.pid

    def command(self) -> list[str]:
        """The command line of the next start."""
        command = [*self.python, "-m", "bridges", "serve", "--data", str(self.data)]
        # What nobody asked for stays closed: usual ports are for one node of a machine. A node whose data is elsewhere
        # has no listeners of the backend.
        own = self.settings.get("sbp.mode", "embedded") == "embedded"
        silent = [*SELDOM, *(name for name in FRONTS if own or not name.startswith("sbp-"))]
        for name, address in {**dict.fromkeys(silent, "off"), **self.listen}.items():
            command += ["--listen", f"{name}={self._address(name, address)}"]
        command += ["--ready-file", str(self.ready_file)]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        return command

    def _address(self, name: str, wanted: str = ANY) -> str:
        """Where a listener is opened: where it was, or else where it is wanted."""
        if wanted == ANY:
            wanted = self.addresses.setdefault(name, f"127.0.0.1:{free_port()}")
        return self.addresses.get(name, wanted)

    def launch(self) -> None:
        """Start the process without waiting until it serves."""
        if self.process is not None:
            raise NodeFailed("the node is running already")
        self._is_wanted = True
        self.data.parent.mkdir(parents=True, exist_ok=True)
        self.ready_file.unlink(missing_ok=True)
        # A user's Python keeps its compiled modules; and what whoever runs this has set is not for the node.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("ANABRANCH_") and name != "PYTHONDONTWRITEBYTECODE"
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
            )

    def await_ready(self) -> None:
        """Return when the node serves; raises NodeFailed when it ended instead or took too long."""
        process = self.process
        if process is None:
            raise NodeFailed("the node was not launched")
        deadline = time.monotonic() + self.start_seconds
        while not self.ready_file.exists():
            try:
                code = process.wait(timeout=0.02)
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline:
                    continue
                self.dispose()
                raise NodeFailed(f"the node was not ready in {self.start_seconds} s\n{self.tail()}") from None
            self.process = None
            raise NodeFailed(f"the node ended with {code} while starting\n{self.tail()}")
        ready = json.loads(self.ready_file.read_text())
        self.addresses = {name: str(address) for name, address in ready.items()}
        for name, address in self.addresses.items():
            try:
                refuse_usual(int(address.rpartition(":")[2]), f"listener {name} of {self.data.name}")
            except UsualPortOpened:
                self.kill()
                raise

    def start(self) -> Self:
        """Launch and wait until the node serves."""
        self.launch()
        self.await_ready()
        return self

    def kill(self) -> None:
        """`kill -9`: nothing in the node gets a chance to finish."""
        self._end(signal.SIGKILL, 30.0)

    def terminate(self, seconds: float = 60.0) -> int:
        """Ask the node to drain and end; returns its exit code. Raises NodeFailed when it does not end in time."""
        return self._end(signal.SIGTERM, seconds)

    def _end(self, number: signal.Signals, seconds: float) -> int:
        process = self.process
        if process is None:
            raise NodeFailed("the node is not running")
        self._is_wanted = False
        process.send_signal(number)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self.process = None
            raise NodeFailed(f"the node did not end in {seconds} s after {number.name}\n{self.tail()}") from None
        self.process = None
        return code

    def restart(self, *, kill: bool = False) -> Self:
        """End the node (with ``kill``: by SIGKILL) and start it again on the same data and the same ports."""
        if kill:
            self.kill()
        else:
            self.terminate()
        return self.start()

    def revive(self) -> None:
        """Start a node again that has ended by itself, or did not start: one test's failure is not the next one's."""
        if self._is_wanted and (self.process is None or self.process.poll() is not None):
            self.process = None
            self.start()

    def dispose(self) -> None:
        """End the node whatever state it is in; for fixtures."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self, seconds: float = 30.0) -> None:
        """Ask the node to end, if it runs; kill it when it does not within ``seconds``."""
        self._is_wanted = False
        if self.process is not None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
            self.dispose()

    @contextlib.contextmanager
    def lent(self) -> Iterator[Self]:
        """Started, and disposed of in the end; for fixtures."""
        try:
            yield self.start()
        finally:
            self.dispose()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def tail(self) -> str:
        """The end of what the node has printed over all its lives."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - TAIL_BYTES))
            return log.read().decode(errors="replace")


class DocumentNode(NodeProcess):
    """A node whose data is kept by another process, ``backend``, that it speaks to in SBP's dialect v0.1 alone.

    Starting it starts the backend unless that runs, stopping it stops both; everything else is its own.
    """

    def __init__(
        self,
        data: Path,
        *,
        settings: Mapping[str, str] | None = None,
        backend_settings: Mapping[str, str] | None = None,
        listen: Mapping[str, str] | None = None,
    ) -> None:
        address = f"127.0.0.1:{free_port()}"
        closed = {"kafka": "off", "console": "off", "sbp-pd": ANY, "sbp-range-server": ANY}
        behind = data.with_name(f"{data.name}-backend")
        self.backend = NodeProcess(behind, settings=backend_settings, listen={**closed, "sbp-v0.1": address})
        to_it = {"sbp.mode": "external", "sbp.dialect": "v0.1", "sbp.pd": address}
        super().__init__(data, settings={**(settings or {}), **to_it}, listen=listen or {"kafka": ANY, "console": ANY})

    def start(self) -> Self:
        if self.backend.process is None:
            self.backend.start()
        return super().start() if self.process is None else self

    def stop(self, seconds: float = 30.0) -> None:
        super().stop(seconds)
        self.backend.stop(seconds)
