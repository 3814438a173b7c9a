"""Flink and Pekko: a topic is copied into another one, exactly once, with transactions of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.java_server import SHORT_LIVED_JAVA, JavaServer
from tests.drivers import java
from tests.ecosystem.application import Application
from tests.ecosystem.brokers import topics
from tests.ecosystem.passage import Passage, carry, each_once
from tests.node_process import NodeProcess

POMS = Path(__file__).resolve().parent / "java"
RECORDS = 4000
OPENED = ("java.base/java.util", "java.base/java.lang", "java.base/java.time")
"""What Flink's serializers look into; its own scripts open these, too."""


class Copy(Application):
    """The application of one of the frameworks."""

    started = "copying"

    def __init__(self, framework: str, directory: Path, server: str) -> None:
        super().__init__(directory, server)
        self.framework = framework

    def command(self) -> Sequence[str]:
        """Built once; with more memory than a driver, for Flink's own cluster."""
        built = java(self.framework, POMS / self.framework / "pom.xml", "anabranch.ecosystem.Copy").command()
        classes = built[built.index("-cp") :]
        opened = [f"--add-opens={name}=ALL-UNNAMED" for name in OPENED]
        log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        place = str(self.directory / "checkpoints")
        return ["java", "-Xmx768m", *SHORT_LIVED_JAVA, *opened, log, *classes, self.server, place]


def run(framework: str, server: NodeProcess | JavaServer, directory: Path) -> str:
    """What was seen, in a line. Raises WentWrong, ServerFailed."""
    topics(server.bootstrap, "lines", "copies")
    values = [f"line {number:06}".encode() for number in range(RECORDS)]
    application = Copy(framework, directory / framework, server.bootstrap)
    came = carry(server, application, Passage(values, "lines", "copies", RECORDS))
    each_once(came, values)
    return f"{len(came)} records copied once each"
