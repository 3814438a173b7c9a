"""Spark's own connector for Kafka, in an environment of its own: what our source and sink are compared with.

The connector is published for an older PySpark than ours, and not all of its parts are published for each version:
`benchmarks/spark_jars/pom.xml` has those that fit together. The environment and the jars are kept below
`.tools/spark-connector`.

    python -m benchmarks.spark_connector        # makes both, if they are not there, and prints where they are

Needs `java` (17 or newer) and, the first time, `mvn` and PyPI.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.java_server import ServerFailed, fetch_jars
from benchmarks.tools import ROOT, making
from benchmarks.tools import TOOLS as ALL_TOOLS

POM = Path(__file__).resolve().parent / "spark_jars" / "pom.xml"
LOCK = ROOT / "requirements" / "spark-connector.lock"
TOOLS = ALL_TOOLS / "spark-connector"


def install_jars(tools: Path = TOOLS) -> list[Path]:
    """The connector's jars, fetched once. Raises ServerFailed when they cannot be had."""
    return sorted(fetch_jars(POM, tools).glob("*.jar"))


def install_python(tools: Path = TOOLS) -> Path:
    """The Python that has the connector's PySpark, made once. Raises ServerFailed when it cannot be had."""
    key = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    home = tools / f"venv-{key}"
    python = home / "bin" / "python"
    if (home / "made").exists():
        return python
    with making():
        if not (home / "made").exists():
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir(parents=True)
            _step([sys.executable, "-m", "venv", str(home)])
            _step([str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(LOCK)])
            (home / "made").touch()
    return python


def _step(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise ServerFailed(f"{' '.join(command)} failed with {done.returncode}:\n{done.stdout[-4000:]}")


def main() -> int:
    """Make what is not there, and print where it is."""
    print(install_python())
    print(*install_jars(), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
