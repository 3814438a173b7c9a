"""One real Apache Kafka broker (KRaft, single node) on loopback: the reference for client tests and benchmarks.

The jars come from Maven Central through `benchmarks/kafka/pom.xml` and are kept below `.tools/kafka`.

    python -m benchmarks.kafka_broker --port 19092        # runs until interrupted

Needs `java` (17 or newer) and, the first time, `mvn`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.java_server import MEASURED_JAVA, SHORT_LIVED_JAVA, JavaServer, ServerFailed, fetch_jars, free_port
from benchmarks.tools import TOOLS as ALL_TOOLS
from sbp_back.wire.identity import new_identity

POM = Path(__file__).resolve().parent / "kafka" / "pom.xml"
TOOLS = ALL_TOOLS / "kafka"
QUIET_LOG = [
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
]


def install_jars(tools: Path = TOOLS) -> Path:
    """Return the directory with the broker's jars, fetching them once per version of the pom."""
    return fetch_jars(POM, tools)


class KafkaBroker(JavaServer):
    """A broker process; `start` returns when it serves clients.

    ``settings`` are added to server.properties and override the ones chosen here. ``heap`` is Java's notation (1g),
    ``options`` choose compiler and collector: those of a broker that is measured, unless told otherwise.
    """

    started = "Kafka Server started"

    def __init__(
        self,
        directory: Path,
        port: int = 0,
        *,
        heap: str = "1g",
        settings: Mapping[str, str] | None = None,
        start_seconds: float = 120.0,
        cluster: str = "",
        options: Sequence[str] = MEASURED_JAVA,
    ) -> None:
        super().__init__(directory, start_seconds)
        self.port = port or free_port()
        self.heap = heap
        self.settings = dict(settings or {})
        self.cluster = cluster or new_identity()
        self.options = tuple(options)

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients."""
        return f"127.0.0.1:{self.port}"

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

    def command(self) -> Sequence[str]:
        """Format the storage if it is new; the broker's command line."""
        jars = install_jars()
        config = self.directory / "server.properties"
        config.write_text(self._properties())
        java = ["java", f"-Xmx{self.heap}", f"-Xms{self.heap}", *QUIET_LOG, "-cp", f"{jars}/*"]
        if not (self.directory / "logs" / "meta.properties").exists():
            format_command = [
                *java,
                *SHORT_LIVED_JAVA,
                "kafka.tools.StorageTool",
                "format",
                "-t",
                self.cluster,
                "-c",
                str(config),
            ]
            done = subprocess.run(
                format_command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
            )
            if done.returncode != 0:
                raise ServerFailed(f"formatting the storage failed:\n{done.stdout[-4000:]}")
        return [*java, *self.options, "kafka.Kafka", str(config)]


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
