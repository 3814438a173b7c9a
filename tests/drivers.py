"""Clients in other languages: driver programs that take commands as JSON lines and answer with JSON lines."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.java_server import SHORT_LIVED_JAVA
from benchmarks.tools import TOOLS, making

CACHE = TOOLS / "clients"
"""Where drivers are built, once for each state of their sources."""

WATCHDOG_SECONDS = 80.0
"""A driver that has not answered by then is killed; drivers themselves give up a command sooner."""


class DriverError(Exception):
    """The client library behind a driver failed with ``error`` (its own name or number of it)."""

    def __init__(self, error: Any, message: str) -> None:
        super().__init__(f"{error}: {message}")
        self.error = error
        self.message = message


class Driver:
    """A running driver program; one command at a time."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._errors: deque[str] = deque(maxlen=100)
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    def call(self, command: Mapping[str, Any]) -> Any:
        """Run one command. Raises DriverError when the client failed, AssertionError when the program ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(WATCHDOG_SECONDS, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise AssertionError(f"the driver ended during {command['op']}:\n{''.join(self._errors)}")
        answer = json.loads(line)
        if answer.get("error") is not None:
            raise DriverError(answer["error"], answer.get("message", ""))
        return answer.get("result")

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.communicate()


@dataclass(frozen=True, slots=True)
class Program:
    """How to build and run one driver.

    ``build`` gets an empty directory and returns the command to run from it; ``marker`` is the toolchain that it needs.
    """

    name: str
    marker: str
    sources: Sequence[Path]
    build: Callable[[Path], Sequence[str]]
    run: Callable[[Path], Sequence[str]]
    variant: str = ""

    def start(self) -> Driver:
        """Build the driver unless that was done from the same sources, and start it."""
        return Driver(self.command())

    def command(self) -> Sequence[str]:
        """Build the program unless that was done from the same sources; the command that runs it."""
        self.built()
        return self.run(self._place())

    def built(self) -> bool:
        """Build the driver unless that was done from the same sources; whether there was anything to do."""
        place = self._place()
        if place.is_dir():
            return False
        with making(self.marker):
            if place.is_dir():
                return False
            self._build(place)
        return True

    def _place(self) -> Path:
        digest = hashlib.sha256(self.variant.encode())
        for source in self.sources:
            digest.update(source.read_bytes())
        return CACHE / f"{self.name}-{digest.hexdigest()[:12]}"

    def _build(self, built: Path) -> None:
        CACHE.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=CACHE))
        try:
            done = subprocess.run(
                self.build(scratch),
                cwd=scratch,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise AssertionError(f"building {self.name} failed:\n{done.stdout[-4000:]}")
            scratch.rename(built)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def building(toolchain: str) -> AbstractContextManager[None]:
    """Hold the lock that says that `tests.build_drivers` builds this toolchain's programs."""
    return making(f"{toolchain}-build")


def await_builds(toolchain: str) -> None:
    """Return when nobody builds this toolchain's programs."""
    with building(toolchain):
        pass


def java(name: str, pom: Path, main: str, *, properties: Mapping[str, str] | None = None) -> Program:
    """A Maven project whose pom builds into ``build.to``; ``properties`` are given to Maven."""
    given = [f"-D{key}={value}" for key, value in (properties or {}).items()]

    def build(directory: Path) -> Sequence[str]:
        goals = ["compile", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        places = [f"-Dbuild.to={directory}", f"-DoutputDirectory={directory}/jars"]
        return ["mvn", "-B", "-q", "-f", str(pom), *goals, *places, *given]

    def run(directory: Path) -> Sequence[str]:
        options = [*SHORT_LIVED_JAVA, "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        return ["java", *options, "-cp", f"{directory}/classes:{directory}/jars/*", main]

    sources = [pom, *sorted((pom.parent / "src").rglob("*.java"))]
    return Program(name, "java", sources, build, run, variant=" ".join(given))


def go(name: str, source: Path) -> Program:
    """A Go module with one main package."""

    def build(directory: Path) -> Sequence[str]:
        return ["go", "build", "-C", str(source), "-o", f"{directory}/driver", "."]

    sources = [source / "go.mod", source / "go.sum", *sorted(source.glob("*.go"))]
    return Program(name, "go", sources, build, lambda directory: [str(directory / "driver")])


def node(name: str, source: Path, main: str, others: Sequence[str] = ()) -> Program:
    """A program for Node.js with its package.json and lock file."""
    names = ["package.json", "package-lock.json", main, *others]

    def build(directory: Path) -> Sequence[str]:
        for file in names:
            shutil.copy(source / file, directory)
        return ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]

    sources = [source / file for file in names]
    return Program(name, "node", sources, build, lambda directory: ["node", str(directory / main)])


def rust(name: str, source: Path, binary: str) -> Program:
    """A Cargo package with one binary. What is built of its dependencies is not kept."""

    def build(directory: Path) -> Sequence[str]:
        where = ["--path", str(source), "--root", str(directory), "--target-dir", f"{directory}/target"]
        # Nobody debugs it: without names of lines it builds in less time.
        command = ["env", "CARGO_PROFILE_DEV_DEBUG=0", "cargo", "install", "--quiet", "--locked", "--debug", *where]
        return ["sh", "-c", '"$@" && rm -rf target', "sh", *command]

    sources = [source / file for file in ("Cargo.toml", "Cargo.lock", "src/main.rs")]
    return Program(name, "rust", sources, build, lambda directory: [f"{directory}/bin/{binary}"])
