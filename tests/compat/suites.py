"""Foreign test suites that come in source distributions on PyPI: fetched, run against a node, held against a list."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree

from benchmarks.tools import TOOLS


def run(main: Callable[[], int]) -> NoReturn:
    """Exit with the code of ``main``. SIGTERM raises SystemExit in it, so that what it has started ends with it."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(main())


class SetUpFailed(Exception):
    """The suite could not be had; the message carries the end of the failing step's output."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A source distribution with tests: its name on PyPI, version, hash, and the packages that its tests need."""

    name: str
    version: str
    sha256: str
    needs: Sequence[str]

    def install(self) -> tuple[Path, Path]:
        """(source tree, Python with what the suite needs), fetched and made once. Raises SetUpFailed."""
        key = hashlib.sha256(repr((self.sha256, self.needs)).encode()).hexdigest()[:12]
        home = TOOLS / self.name / f"{self.version}-{key}"
        stem = f"{self.name.replace('-', '_')}-{self.version}"
        source, python = home / stem, home / "venv" / "bin" / "python"
        if not (home / "made").exists():
            home.mkdir(parents=True, exist_ok=True)
            options = ["--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(home)]
            _step([sys.executable, "-m", "pip", "download", *options, f"{self.name}=={self.version}"], home)
            archive = home / f"{stem}.tar.gz"
            digest = hashlib.sha256(archive.read_bytes()).hexdigest()
            if digest != self.sha256:
                raise SetUpFailed(f"{stem} has the hash {digest}, expected {self.sha256}")
            with tarfile.open(archive) as packed:
                packed.extractall(home, filter="data")
            _step([sys.executable, "-m", "venv", str(home / "venv")], home)
            _step([str(python), "-m", "pip", "install", "--quiet", *self.needs], home)
            (home / "made").touch()
        return source, python


def _step(command: Sequence[str], directory: Path) -> None:
    done = subprocess.run(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise SetUpFailed(f"{' '.join(command)} failed with {done.returncode}:\n{done.stdout[-3000:]}")


def run_pytest(
    python: Path, arguments: Sequence[str], *, source: Path, environment: Mapping[str, str], stem: Path
) -> dict[str, str]:
    """Run pytest in the source tree; test name -> passed, failed or skipped. Empty when it wrote no report.

    Its output goes to ``stem``.log, its report to ``stem``.xml.
    """
    report, log = stem.with_suffix(".xml"), stem.with_suffix(".log")
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider"]
    command += [f"--junitxml={report.resolve()}", *arguments]
    with log.open("wb") as output:
        subprocess.run(
            command,
            cwd=source,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return _outcomes(report) if report.exists() else {}


def _outcomes(report: Path) -> dict[str, str]:
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        kinds = {child.tag for child in case}
        found[name] = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
    return found


def show(found: Mapping[str, str], log: Path) -> None:
    """Print each outcome and their numbers."""
    for name, state in sorted(found.items()):
        print(f"{state:8} {name}")
    print(", ".join(f"{number} {state}" for state, number in Counter(found.values()).most_common()), f"({log})")


def judge(found: Mapping[str, str], allowlist: Path, *, partial: bool) -> int:
    """Exit code 0 when every test of the list passed (``partial``: of those that were run)."""
    lines = allowlist.read_text().splitlines() if allowlist.exists() else []
    listed = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
    broken = sorted(name for name in listed if found.get(name, "passed" if partial else "missing") != "passed")
    for name in broken:
        print(f"FAILURE: {name} is on the allowlist and {found.get(name, 'missing')}")
    for name in sorted(name for name, state in found.items() if state == "passed" and name not in listed):
        print(f"passes and is not on the allowlist, add it: {name}")
    return 1 if broken else 0


def read_list(path: Path) -> dict[str, str]:
    """Return name -> reason ("" without one) of a file of lines `name` or `name: reason`; `#` starts a comment."""
    if not path.exists():
        return {}
    lines = [line.strip() for line in path.read_text().splitlines()]
    pairs = [line.partition(":") for line in lines if line and not line.startswith("#")]
    return {name.strip(): reason.strip() for name, _, reason in pairs}
