"""Kafka's command-line tools against a node, and beside it against Apache Kafka: what they print, line by line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.java_server import SHORT_LIVED_JAVA
from benchmarks.kafka_broker import install_jars
from tests.drivers import Driver
from tests.ecosystem.brokers import serving
from tests.ecosystem.passage import WentWrong
from tests.ecosystem.tools.steps import TOOLS, Step, held, steps

SOURCE = Path(__file__).resolve().parent / "Tools.java"
NOISE = (
    (re.compile(r"(?:PLAINTEXT|CONTROLLER):/+"), ""),
    (re.compile(r"/?127\.0\.0\.1(?::\d+)?|localhost:\d+"), "HOST"),
    (re.compile(r"\b[A-Za-z0-9_.-]+-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "MEMBER"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "MEMBER"),
    (re.compile(r"\bconsole-consumer-\d+"), "GROUP"),
    (re.compile(r'"/[^"]+"'), "DIRECTORY"),
    (re.compile(r"(?<![\w+/-])[\w+/-]{22}(?![\w+/-])"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,:0-9]*(?:Z|[+-]\d\d:?\d\d)?"), "TIME"),
    (re.compile(r"(?<![\w.])1[6-9]\d{11}\b"), "MS"),
)
"""What differs between any two servers, or any two runs."""
ERROR = re.compile(r"^(?:.*\bError\b[^:]*:|Could not|[\w.]+Exception:).*")
EXCEPTION = re.compile(r"\w+Exception\b")
INTERNAL = re.compile(r"__(?:consumer_offsets|transaction_state|share_group_state)\b")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
BETWEEN = re.compile(r"[\s,()\[\]'\"{}]+")
SERVERS = ("node", "kafka")


@dataclass(frozen=True, slots=True)
class Printed:
    """What became of a step: exit code (None: it did not end in time), and what it printed, line by line."""

    code: int | None
    lines: tuple[str, ...]

    def plain(self, step: Step) -> tuple[int | None, list[list[str]]]:
        """What two servers should have in common: words of an error are each server's own, its name is not; and of
        lines and words no tool promises the order."""
        lines = (_plain(line, step) for line in self.lines if _counts(line))
        found = sorted(sorted(BETWEEN.split(line)) for line in lines)
        return self.code, [] if step.polls else found


def _counts(line: str) -> bool:
    return bool(line.strip()) and not INTERNAL.search(line)


def _plain(line: str, step: Step) -> str:
    for pattern, name in NOISE:
        line = pattern.sub(name, line)
    if ERROR.match(line):
        line = f"Error {' '.join(EXCEPTION.findall(line))}"
    return line if step.numbers else NUMBER.sub("N", line)


class Shell:
    """One JVM that runs tools; to be closed."""

    def __init__(self) -> None:
        java = ["java", "-Xmx512m", *SHORT_LIVED_JAVA, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
        java += ["--add-opens", "java.base/java.lang=ALL-UNNAMED"]
        self._driver = Driver([*java, "-cp", f"{install_jars()}/*", str(SOURCE)])

    def run(self, step: Step, bootstrap: str) -> Printed:
        """Run one; raises AssertionError when the JVM itself has ended."""
        arguments = shlex.split(step.line.replace("{bootstrap}", bootstrap))
        if step.bootstrap:
            arguments[:0] = [step.bootstrap, bootstrap]
        with held(step, bootstrap):
            code, out, _ = self.call(TOOLS[step.tool], arguments, step.input, step.seconds)
        return Printed(code, tuple(out.splitlines()))

    def call(
        self, tool: str, arguments: Sequence[str], given: str = "", seconds: float = 60
    ) -> tuple[int | None, str, str]:
        """Run a tool by its class; return its exit code (None: it did not end in time), its output and its errors."""
        command = {"op": tool, "class": tool, "arguments": arguments, "input": given, "seconds": seconds}
        result = self._driver.call(command)
        return result["code"], result["out"], result["err"]

    def close(self) -> None:
        """End the JVM."""
        self._driver.close()


def run(directory: Path) -> str:
    """What was seen, in a line. Raises WentWrong when a step differs that has no reason to, or has one and does not."""
    given = directory / "given"
    given.mkdir()
    with ExitStack() as stack:
        running = {kind: stack.enter_context(serving(kind, directory)) for kind in SERVERS}
        shell = stack.enter_context(closing(Shell()))
        wrong = []
        compared = alike = 0
        used: set[str] = set()
        for step in steps(given):
            used.add(step.tool)
            if step.alone:
                told = {"node": shell.run(step, running["node"].bootstrap)}
                if told["node"].code != 0:
                    wrong.append(f"{step.name}: fails")
                    print(wrong[-1], *told["node"].lines, sep="\n  ", flush=True)
                continue
            told = {kind: shell.run(step, server.bootstrap) for kind, server in running.items()}
            node, kafka = (told[kind].plain(step) for kind in SERVERS)
            compared += 1
            alike += node == kafka
            if (node == kafka) == (step.reason is None):
                continue
            shown = (f"  {kind} ({one.code}): " + "\n    ".join(one.lines) for kind, one in told.items())
            wrong.append("\n".join([f"{step.name}: {'differs' if step.reason is None else 'is alike'}", *shown]))
            print(wrong[-1], flush=True)
    if wrong:
        raise WentWrong(f"{len(wrong)} of {compared} calls of tools, above")
    return f"{alike} of {compared} calls of {len(used)} tools print the same, the others differ as they should"
