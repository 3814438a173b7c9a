"""Kafka's command-line tools against a node, and beside it against Apache Kafka: what they print, line by line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.java_server import SHORT_LIVED_JAVA
from benchmarks.kafka_broker import install_jars
from tests.drivers import Driver
from tests.ecosystem.tools.steps import TOOLS, Step, held

SOURCE = Path(__file__).resolve().parent / "Tools.java"
NOISE = (
    (re.compile(r"127\.0\.0\.1:\d+|/?127\.0\.0\.1\b|localhost:\d+"), "HOST"),
    (re.compile(r"\b[A-Za-z0-9_.-]+-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "MEMBER"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]{22}(?![A-Za-z0-9_-])"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,:0-9]*(?:Z|[+-]\d\d:?\d\d)?"), "TIME"),
    (re.compile(r"\b1[6-9]\d{11}\b"), "MS"),
    (re.compile(r"[ \t]+"), " "),
)
"""What differs between any two servers, or any two runs."""


@dataclass(frozen=True, slots=True)
class Printed:
    """What became of a step: exit code (None: it did not end in time), lines of both streams."""

    code: int | None
    out: tuple[str, ...]
    err: tuple[str, ...]


def plain(text: str) -> tuple[str, ...]:
    """The lines without what differs between any two servers."""
    for pattern, name in NOISE:
        text = pattern.sub(name, text)
    lines = (line.strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("at "))


class Shell:
    """One JVM that runs tools; to be closed."""

    def __init__(self) -> None:
        java = ["java", "-Xmx512m", *SHORT_LIVED_JAVA, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
        self._driver = Driver([*java, "-cp", f"{install_jars()}/*", str(SOURCE)])

    def run(self, step: Step, bootstrap: str) -> Printed:
        """Run one; raises AssertionError when the JVM itself has ended."""
        arguments = shlex.split(step.line.replace("{bootstrap}", bootstrap))
        if step.bootstrap:
            arguments[:0] = [step.bootstrap, bootstrap]
        command = {"op": step.name, "class": TOOLS[step.tool], "arguments": arguments, "input": step.input}
        with held(step, bootstrap):
            result = self._driver.call({**command, "seconds": step.seconds})
        return Printed(result["code"], plain(result["out"]), plain(result["err"]))

    def close(self) -> None:
        """End the JVM."""
        self._driver.close()


def run_all(steps: Iterable[Step], bootstrap: str) -> list[Printed]:
    """Run all, in order."""
    shell = Shell()
    try:
        return [shell.run(step, bootstrap) for step in steps]
    finally:
        shell.close()
