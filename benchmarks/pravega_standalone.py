"""A real Pravega, standalone, on loopback: the reference for tests of Pravega's clients and for benchmarks.

Controller, segment store and ZooKeeper are one process, which keeps everything in memory: what it acknowledged is gone
with it. The jars come from Maven Central through `benchmarks/pravega_jars/pom.xml` and are kept below `.tools/pravega`.

    python -m benchmarks.pravega_standalone --port 19090        # runs until interrupted

Needs `java` (17 or newer) and, the first time, `mvn`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from benchmarks.java_server import MEASURED_JAVA, JavaServer, fetch_jars, free_port
from benchmarks.tools import TOOLS as ALL_TOOLS

POM = Path(__file__).resolve().parent / "pravega_jars" / "pom.xml"
TOOLS = ALL_TOOLS / "pravega"
UNWANTED = (
    "jersey-*-1.19*.jar",
    "jersey-*-2.25*.jar",
    "javax.ws.rs-api-*.jar",
    "jackson-jaxrs-1.9*.jar",
    "slf4j-reload4j-*.jar",
)
"""Older doubles of what the server uses, which would be found first, and a second way to log."""
_LOGGING = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %-5level %logger{0} %msg%n</pattern></encoder>
  </appender>
  <logger name="io.pravega.local.LocalPravegaEmulator" level="INFO"/>
  <root level="ERROR"><appender-ref ref="out"/></root>
</configuration>
"""


class PravegaStandalone(JavaServer):
    """A process of Pravega's; `start` returns when its controller serves clients. ``heap`` is in Java's notation."""

    started = "Pravega Sandbox is running"

    def __init__(
        self,
        directory: Path,
        port: int = 0,
        *,
        heap: str = "1536m",
        start_seconds: float = 180.0,
        options: Sequence[str] = MEASURED_JAVA,
    ) -> None:
        super().__init__(directory, start_seconds)
        self.port = port or free_port()
        self.heap = heap
        self.options = tuple(options)

    @property
    def bootstrap(self) -> str:
        """`host:port` of the controller."""
        return f"127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        """The server's configuration, which has to be there though it may be empty, and its command line."""
        jars = fetch_jars(POM, TOOLS, UNWANTED)
        configuration = self.directory / "config" / "standalone-config.properties"
        configuration.parent.mkdir(exist_ok=True)
        configuration.touch()
        logging = self.directory / "logback.xml"
        logging.write_text(_LOGGING)
        properties = {
            "logback.configurationFile": logging,
            "singlenode.controller.rpc.port": self.port,
            "singlenode.segmentStore.port": free_port(),
            "singlenode.zk.port": free_port(),
            "singlenode.controller.rest.port": free_port(),
            "pravegaservice.rest.listener.port": free_port(),
        }
        given = [f"-D{name}={value}" for name, value in properties.items()]
        java = ["java", f"-Xmx{self.heap}", *self.options, *given, "-cp", f"{jars}/*"]
        return [*java, "io.pravega.local.LocalPravegaEmulator"]


def main() -> int:
    """Run one server until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(description="Run a standalone Pravega on loopback until interrupted.")
    parser.add_argument("--port", type=int, default=0, help="of the controller; 0: any free port")
    parser.add_argument("--heap", default="1536m")
    args = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with (
        tempfile.TemporaryDirectory(prefix="pravega-standalone-") as scratch,
        PravegaStandalone(Path(scratch), args.port, heap=args.heap) as server,
    ):
        print(f"Pravega serves on {server.bootstrap} (pid {server.pid})", flush=True)
        stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
