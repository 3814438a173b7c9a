"""Kafka Connect, distributed: a file into a topic, exactly once, and the topic into a file; the worker dies, too."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.java_server import SHORT_LIVED_JAVA, JavaServer, fetch_jars, free_port
from benchmarks.tools import TOOLS
from tests.ecosystem.application import Application
from tests.ecosystem.brokers import topics
from tests.ecosystem.passage import Came, Passage, WentWrong, carry_through, each_once
from tests.ecosystem.streams import policies
from tests.node_process import NodeProcess

POM = Path(__file__).resolve().parent / "java" / "connect" / "pom.xml"
INTERNAL = {"config": "connect-configs", "offset": "connect-offsets", "status": "connect-status"}
LINES = 4000
PATIENCE_S = 120.0


class Worker(Application):
    """A distributed worker, on a port of its own."""

    started = "Kafka Connect started"

    def __init__(self, directory: Path, server: str) -> None:
        super().__init__(directory, server)
        self.port = free_port()

    def command(self) -> Sequence[str]:
        """Written anew at each start, the same each time."""
        jars = fetch_jars(POM, TOOLS / "connect")
        config = self.directory / "worker.properties"
        values = {
            "bootstrap.servers": self.server,
            "group.id": "connect",
            "exactly.once.source.support": "enabled",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "listeners": f"http://127.0.0.1:{self.port}",
            "offset.flush.interval.ms": "500",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1500",
            "scheduled.rebalance.max.delay.ms": "1000",
            **{f"{name}.storage.topic": topic for name, topic in INTERNAL.items()},
            **{f"{name}.storage.replication.factor": "1" for name in INTERNAL},
            "offset.storage.partitions": "2",
            "status.storage.partitions": "2",
        }
        config.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        log = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
        log += [f"-Dorg.slf4j.simpleLogger.log.org.apache.kafka.connect.{name}=info" for name in ("runtime.Connect",)]
        java = ["java", "-Xmx512m", *SHORT_LIVED_JAVA, *log, "-cp", f"{jars}/*"]
        return [*java, "org.apache.kafka.connect.cli.ConnectDistributed", str(config)]

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """One request to the worker; asked again while it does not answer, or says that it is busy. Raises
        WentWrong."""
        until = time.monotonic() + PATIENCE_S
        data = None if body is None else json.dumps(body).encode()
        while True:
            request = urllib.request.Request(
                f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}, method=method
            )
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                told = error.read().decode(errors="replace")
                if error.code not in (404, 409, 500, 503) or time.monotonic() > until:
                    raise WentWrong(f"{method} {path}: {error.code} {told}") from None
            except OSError as error:
                if time.monotonic() > until:
                    raise WentWrong(f"{method} {path}: {error}") from None
            time.sleep(0.2)

    def running(self, connector: str) -> None:
        """Return when a connector and its tasks run. Raises WentWrong when one has failed, or it takes too long."""
        until = time.monotonic() + PATIENCE_S
        while True:
            status = self.call("GET", f"/connectors/{connector}/status")
            states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
            if len(states) > 1 and set(states) == {"RUNNING"}:
                return
            if "FAILED" in states or time.monotonic() > until:
                raise WentWrong(f"{connector}: {json.dumps(status)[:2000]}")
            time.sleep(0.2)


class FileWriter(threading.Thread):
    """Appends lines to a file, at a rate."""

    def __init__(self, path: Path, lines: Sequence[bytes], per_second: int) -> None:
        super().__init__(daemon=True)
        self._path, self._lines, self._per_second = path, lines, per_second
        path.touch()
        self.start()

    def run(self) -> None:
        began = time.monotonic()
        with self._path.open("ab", buffering=0) as file:
            for number, line in enumerate(self._lines):
                file.write(line + b"\n")
                time.sleep(max(0.0, began + number / self._per_second - time.monotonic()))

    def finish(self) -> None:
        """Return when all is written."""
        self.join()


def run(server: NodeProcess | JavaServer, directory: Path) -> str:
    """What was seen, in a line. Raises WentWrong, ServerFailed."""
    topics(server.bootstrap, "from-file", partitions=1)
    lines = [f"line {number:06}".encode() for number in range(LINES)]
    source, sink = directory / "source.txt", directory / "sink.txt"
    worker = Worker(directory / "connect", server.bootstrap)

    def write() -> FileWriter:
        source.touch()
        kind = "org.apache.kafka.connect.file.FileStream"
        for name, more in (
            ("source", {"connector.class": f"{kind}SourceConnector", "topic": "from-file", "file": str(source)}),
            ("sink", {"connector.class": f"{kind}SinkConnector", "topics": "from-file", "file": str(sink)}),
        ):
            more |= {"tasks.max": "1"}
            if name == "sink":
                more |= {"consumer.override.isolation.level": "read_committed"}
                more |= {"consumer.override.session.timeout.ms": "6000"}
            worker.call("PUT", f"/connectors/{name}/config", more)
            worker.running(name)
        return FileWriter(source, lines, 300)

    def all_in_sink(_: Sequence[Came]) -> bool:
        return set(lines) <= set(sink.read_bytes().splitlines())

    passage = Passage(lines, "", "from-file", LINES, partitions=1)
    came = carry_through(server, worker, passage, write, settled=all_in_sink)
    each_once(came, lines)
    if [one.value for one in came] != lines:
        raise WentWrong("the lines lie in another order than in the file")
    for topic, policy in policies(server.bootstrap, list(INTERNAL.values())).items():
        if policy != "compact":
            raise WentWrong(f"{topic} has cleanup.policy {policy}")
    written = sink.read_bytes().splitlines()
    return f"{len(came)} lines of a file once each in the topic, and all ({len(written)} lines) in the sink's file"
