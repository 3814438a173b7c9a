"""One real Apache Kafka broker (KRaft, single node) on loopback: the reference for client tests and benchmarks.

The jars come from Maven Central through `benchmarks/kafka/pom.xml` and are kept below `.tools/kafka`.

    python benchmarks/kafka_broker.py --port 19092        # runs until interrupted

Needs `java` (17 or newer) and, the first time, `mvn`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from sbp_back.wire.identity import new_identity

ROOT = Path(__file__).resolve().parent.parent
POM = Path(__file__).resolve().parent / "kafka" / "pom.xml"
TOOLS = ROOT / ".tools" / "kafka"
STARTED = "Kafka Server started"
QUIET_LOG = [
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
]


class BrokerFailed(Exception):
    """The broker (or a step before its start) ended; the message carries the end of its output."""


def install_jars(tools: Path = TOOLS) -> Path:
    """Return the directory with the broker's jars, fetching them once per version of the pom."""
    key = hashlib.sha256(POM.read_bytes()).hexdigest()[:12]
    jars = tools / f"jars-{key}"
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerFailed("mvn is needed once to fetch the Kafka broker's jars (apt-get install maven)")
    tools.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tools) as scratch:
        target = Path(scratch) / "jars"
        command = [maven, "-B", "-q", "-f", str(POM), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={target}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise BrokerFailed(f"mvn failed with {done.returncode}:\n{done.stdout[-4000:]}")
        with contextlib.suppress(FileExistsError, OSError):  # somebody else was first: theirs are the same jars
            target.rename(jars)
    return jars


def free_port() -> int:
    """A TCP port on loopback that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class KafkaBroker:
    """A broker process; `start` returns when it serves clients.

    ``settings`` are added to server.properties and override the ones chosen here. ``heap`` is Java's notation (1g).
    """

    def __init__(
        self,
        directory: Path,
        port: int = 0,
        *,
        heap: str = "1g",
        settings: Mapping[str, str] | None = None,
        start_seconds: float = 120.0,
        cluster: str = "",
    ) -> None:
        self.directory = directory
        self.port = port or free_port()
        self.heap = heap
        self.settings = dict(settings or {})
        self.start_seconds = start_seconds
        self.cluster = cluster or new_identity()
        self.process: subprocess.Popen[str] | None = None
        self.output: deque[str] = deque(maxlen=400)
        self._lines: queue.Queue[str | None] = queue.Queue()

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id, for measurements. Raises BrokerFailed when the broker does not run."""
        if self.process is None:
            raise BrokerFailed("the broker is not running")
        return self.process.pid

    def _properties(self) -> str:
        controller = free_port()
        values = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.directory / "logs"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.retention.check.interval.ms": "300000",
        }
        values.update(self.settings)
        return "".join(f"{name}={value}\n" for name, value in values.items())

    def start(self) -> str:
        """Format the storage if it is new, start the broker, wait until it serves; returns the bootstrap address."""
        jars = install_jars()
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "server.properties"
        config.write_text(self._properties())
        java = ["java", f"-Xmx{self.heap}", f"-Xms{self.heap}", *QUIET_LOG, "-cp", f"{jars}/*"]
        if not (self.directory / "logs" / "meta.properties").exists():
            format_command = [*java, "kafka.tools.StorageTool", "format", "-t", self.cluster, "-c", str(config)]
            done = subprocess.run(
                format_command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
            )
            if done.returncode != 0:
                raise BrokerFailed(f"formatting the storage failed:\n{done.stdout[-4000:]}")
        self.process = subprocess.Popen(
            [*java, "-server", "-XX:+UseG1GC", "kafka.Kafka", str(config)],
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
        """Drain the broker's output, so that it never blocks on a full pipe."""
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
                raise BrokerFailed(f"the broker did not start in {self.start_seconds} s:\n{self.tail()}") from None
            if line is None:
                raise BrokerFailed(f"the broker ended while starting:\n{self.tail()}")
            if STARTED in line:
                return

    def tail(self) -> str:
        """The end of what the broker has printed."""
        return "".join(self.output)

    def stop(self, seconds: float = 30.0) -> None:
        """Ask the broker to end; kill it when it does not within ``seconds``."""
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


@contextlib.contextmanager
def kafka_cluster(
    directory: Path, brokers: int, *, heap: str = "512m", settings: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Several brokers that replicate, the first of them the controller too; yields the bootstrap addresses."""
    cluster, controller = new_identity(), free_port()
    with contextlib.ExitStack() as stack:
        started: list[KafkaBroker] = []
        for number in range(1, brokers + 1):
            broker = KafkaBroker(directory / str(number), heap=heap, cluster=cluster)
            listeners = f"PLAINTEXT://127.0.0.1:{broker.port}"
            if number == 1:
                listeners += f",CONTROLLER://127.0.0.1:{controller}"
            broker.settings = {
                "node.id": str(number),
                "process.roles": "broker,controller" if number == 1 else "broker",
                "controller.quorum.voters": f"1@127.0.0.1:{controller}",
                "listeners": listeners,
                **(settings or {}),
            }
            started.append(stack.enter_context(broker))
        yield ",".join(broker.bootstrap for broker in started)


@contextlib.contextmanager
def _directory(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
    else:
        with tempfile.TemporaryDirectory(prefix="kafka-broker-") as scratch:
            yield Path(scratch)


def main() -> int:
    """Run one broker until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(description="Run one Apache Kafka broker on loopback until interrupted.")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--data", type=Path, default=None, help="kept directory (default: a temporary one)")
    parser.add_argument("--heap", default="1g")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="server.properties entry")
    parser.add_argument("--ready-file", type=Path, default=None, help="written with host:port when it serves")
    args = parser.parse_args()
    settings = dict(item.split("=", 1) for item in args.set)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with _directory(args.data) as data, KafkaBroker(data, args.port, heap=args.heap, settings=settings) as broker:
        print(f"Apache Kafka serves on {broker.bootstrap} (pid {broker.pid})", flush=True)
        if args.ready_file is not None:
            partial = args.ready_file.with_suffix(".partial")
            partial.write_text(broker.bootstrap)
            os.replace(partial, args.ready_file)
        stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
